"""Error rates of a classifier by resampling: it is trained repeatedly on parts of the data, with scikit-learn."""

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from bu_torch.internal.global_state import preserved_random_state
from bu_torch.internal.inputs import as_features, as_labels, check_integer, check_two_classes, scikit_learn_seed


class ErrorEstimate(NamedTuple):
    """Error rates over resampled trainings.

    Args:
        error: Mean error rate on held-out samples, L_val of Ha et al. (2021).
        training_error: Mean error rate on training samples, L_tr.
        errors: Error rate of each training on its held-out samples, (R,) float64.
    """

    error: float
    training_error: float
    errors: Tensor


def cross_validation_error(
    estimator: Any, features: Any, labels: Any, *, n_folds: int = 10, n_repeats: int = 1, seed: int = 0
) -> ErrorEstimate:
    """Error rate by stratified cross-validation: trained on all folds but one, tested on that one.

    The reference of Ha (2019), section 2.4.4, and Ha et al. (2021), section 6: the mean error rate over ten folds. The
    folds are those of scikit-learn's `RepeatedStratifiedKFold`.

    Args:
        estimator: Any object with `fit(features, labels)` and `predict(features)`, which get NumPy arrays. Each
            training starts from a fresh copy (`sklearn.base.clone`, or a deep copy if it cannot be cloned).
        features: Inputs, shape (N, d) or (N, ...), tensor or array of numbers, finite.
        labels: Classes, shape (N,), integers >= 0; at least two different ones.
        n_folds: Folds, 2 <= n_folds <= N.
        n_repeats: Independent divisions into folds, >= 1.
        seed: Seed of the divisions, 0 <= seed < 2**64. The global random state is restored after the trainings.

    Returns:
        The estimate, with n_repeats * n_folds single errors.

    Raises:
        TypeError: If an argument has the wrong type.
        ValueError: If an argument is out of range, or no class has as many samples as there are folds.

    Example:
        >>> from sklearn.neighbors import KNeighborsClassifier
        >>> labels = torch.arange(20) // 10
        >>> cross_validation_error(KNeighborsClassifier(1), labels.unsqueeze(1), labels, n_folds=5).error
        0.0
    """
    from sklearn.model_selection import RepeatedStratifiedKFold

    check_integer("n_folds", n_folds, 2)
    check_integer("n_repeats", n_repeats, 1)
    splitter = RepeatedStratifiedKFold(n_splits=n_folds, n_repeats=n_repeats, random_state=scikit_learn_seed(seed))
    return _resample(estimator, features, labels, splitter)


def holdout_error(
    estimator: Any, features: Any, labels: Any, *, test_size: float = 0.3, n_repeats: int = 1, seed: int = 0
) -> ErrorEstimate:
    """Error rate on a stratified part of the data that is held out, by scikit-learn's `StratifiedShuffleSplit`.

    Args:
        estimator: As in `cross_validation_error`, as are `features` and `labels`.
        features: Inputs, shape (N, d) or (N, ...).
        labels: Classes, shape (N,).
        test_size: Share of the samples that is held out, 0 < test_size < 1.
        n_repeats: Independent splits, >= 1.
        seed: Seed of the splits, 0 <= seed < 2**64.

    Returns:
        The estimate, with n_repeats single errors.

    Raises:
        TypeError: If an argument has the wrong type.
        ValueError: If an argument is out of range, or a class has too few samples to split.
    """
    from sklearn.model_selection import StratifiedShuffleSplit

    check_integer("n_repeats", n_repeats, 1)
    if isinstance(test_size, bool) or not isinstance(test_size, float) or not 0 < test_size < 1:
        raise ValueError(f"`test_size` must be a share with 0 < test_size < 1, got {test_size!r}.")
    splitter = StratifiedShuffleSplit(n_splits=n_repeats, test_size=test_size, random_state=scikit_learn_seed(seed))
    return _resample(estimator, features, labels, splitter)


def _resample(estimator: Any, features: Any, labels: Any, splitter: Any) -> ErrorEstimate:
    from sklearn.base import clone

    inputs = as_features(features)
    classes = as_labels(labels, len(inputs))
    check_two_classes(classes)
    if isinstance(estimator, type) or not (hasattr(estimator, "fit") and hasattr(estimator, "predict")):
        raise TypeError(f"`estimator` must be an object with `fit` and `predict`, got {estimator!r}.")
    x, y = inputs.cpu().numpy(), classes.cpu().numpy()
    errors = []
    with preserved_random_state():
        for trained, held_out in splitter.split(x, y):
            model = clone(estimator, safe=False)
            model.fit(x[trained], y[trained])
            errors.append([_error_rate(model, x[rows], y[rows]) for rows in (held_out, trained)])
    held_out_errors, training_errors = torch.tensor(errors, dtype=torch.float64).T
    return ErrorEstimate(float(held_out_errors.mean()), float(training_errors.mean()), held_out_errors)


def _error_rate(model: Any, inputs: np.ndarray, classes: np.ndarray) -> float:
    predicted = as_labels(model.predict(inputs), len(classes), "estimator.predict(features)")
    return float(np.mean(predicted.cpu().numpy() != classes))
