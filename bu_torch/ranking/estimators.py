"""Classifiers of scikit-learn as callables from inputs to logits."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

_LEAST_AGREEMENT = 0.5  # share of rows whose largest column is the prediction; an SVC predicts by votes


def is_estimator(model: object) -> bool:
    """True if `model` has the methods of a scikit-learn classifier."""
    if isinstance(model, nn.Module):
        return False
    return hasattr(model, "predict") and (hasattr(model, "decision_function") or hasattr(model, "predict_proba"))


def encode(labels: Any) -> tuple[np.ndarray, Tensor]:
    """Distinct labels of any kind (J,), ascending, and the index of each label among them (N,)."""
    values = np.asarray(labels)
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.ndim != 1:
        raise ValueError(f"`labels` must hold one class per sample, shape (N,), got {values.shape}.")
    if n_missing := sum(map(_is_missing, values.tolist())):
        raise ValueError(
            f"`labels` must hold a class for each sample, got None or NaN for {n_missing} of {len(values)}."
        )
    if values.dtype.kind == "f" and not bool((values == np.round(values)).all()):
        raise ValueError(f"`labels` must hold classes, got fractional {values.dtype} values (a regression?).")
    try:
        classes, places = np.unique(values, return_inverse=True)
    except TypeError:
        kinds = ", ".join(sorted({type(value).__name__ for value in values.tolist()}))
        raise ValueError(f"`labels` must hold classes of one kind, got {kinds}.") from None
    return classes, torch.from_numpy(places.astype(np.int64))


def _is_missing(value: Any) -> bool:
    try:
        return value is None or bool(value != value)
    except TypeError:  # pandas' NA is neither equal nor unequal
        return True


def estimator_logits(estimator: Any, classes: np.ndarray, frame: Any = None) -> Callable[[Tensor], Tensor]:
    """Return a callable (n, d) -> (n, J) with a column for each of `classes`, then one for each other known class.

    It reads `decision_function` if there is one, else the logarithm of `predict_proba`: the logits of a softmax up to
    a constant. A probability of exactly 0, as trees and neighbours give, counts as half the smallest positive one. If
    the estimator was fitted on a pandas frame, pass `frame`: inputs then get its columns.
    """
    if getattr(estimator, "classes_", None) is None:
        raise ValueError(f"`models` must be fitted, got a {type(estimator).__name__} without `classes_`.")
    known = np.asarray(estimator.classes_)
    order = [*classes, *known[~np.isin(known, classes)]]
    columns = [order.index(value) for value in known]

    def logits(inputs: Tensor) -> Tensor:
        rows: Any = inputs.cpu().numpy()
        if frame is not None:
            rows = type(frame)(rows, columns=frame.columns)
        values = _scores(estimator, rows, known)
        if columns == list(range(len(order))):
            return torch.from_numpy(values)
        wide = np.full((len(values), len(order)), values.min() - 1.0)  # an unknown class is never predicted
        wide[:, columns] = values
        return torch.from_numpy(wide)

    return logits


def _scores(estimator: Any, rows: Any, classes: np.ndarray) -> np.ndarray:
    if not hasattr(estimator, "decision_function"):
        shares = np.asarray(estimator.predict_proba(rows), dtype=np.float64)
        return np.log(np.maximum(shares, shares[shares > 0].min() / 2))
    values = np.asarray(estimator.decision_function(rows), dtype=np.float64)
    if values.ndim == 1 or values.shape[1] == 1:
        return np.column_stack((np.zeros(len(values)), values.reshape(-1)))
    got = f"{values.shape[1]}"
    if values.shape[1] == len(classes):
        predicted = np.asarray(estimator.predict(rows[:200]))
        agreement = np.mean(classes[values[:200].argmax(axis=1)] == predicted)
        # One-against-one scores of three classes also have three columns: their votes give the predictions.
        is_one_against_one = len(classes) == 3 and agreement < 1 and _votes_give(values[:200], classes, predicted)
        if not (is_one_against_one or agreement < _LEAST_AGREEMENT):
            return values
        got = f"columns whose largest is the predicted class for {agreement:.0%} of the inputs"
    raise ValueError(
        f"`decision_function` of {type(estimator).__name__} must have one column for each of its {len(classes)}"
        f" classes, got {got}: for an SVC, set `decision_function_shape='ovr'`."
    )


def _votes_give(values: np.ndarray, classes: np.ndarray, predicted: np.ndarray) -> bool:
    """True if three columns, read as 0 against 1, 0 against 2 and 1 against 2, vote for the predicted classes."""
    first, second, third = (values > 0).T.astype(int)
    votes = np.stack((first + second, 1 - first + third, 2 - second - third), axis=1)
    return bool((classes[votes.argmax(axis=1)] == predicted).all())
