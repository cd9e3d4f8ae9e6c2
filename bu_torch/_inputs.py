"""What an estimator accepts as features and labels, and what it says about the rest."""

from numbers import Integral
from typing import Any

import numpy as np
import torch
from torch import Tensor


def as_features(features: Any, name: str = "features", *, keep_integers: bool = False) -> Tensor:
    """Return `features` as a finite floating-point tensor (N, ...), float32 or float64, on the device it came on.

    With `keep_integers`, integers (token ids) stay what they are.
    """
    features = as_tensor(features, name)
    if features.is_complex():
        raise TypeError(f"`{name}` must be real, got {features.dtype}.")
    if features.ndim < 2 or features.shape[0] == 0 or features[0].numel() == 0:
        raise ValueError(
            f"`{name}` must have shape (N, d), or (N, ...) with at least one value a sample,"
            f" got {tuple(features.shape)}."
        )
    is_kept = keep_integers and not features.is_floating_point()
    if features.dtype not in (torch.float32, torch.float64) and not is_kept:
        features = features.float()
    n_bad = int((~features.isfinite().flatten(1).all(dim=1)).sum())
    if n_bad:
        raise ValueError(f"`{name}` must be finite, got NaN or infinity in {n_bad} of {features.shape[0]} samples.")
    return features.detach().contiguous()


def as_flat_features(features: Any, name: str = "features", n_features: int | None = None) -> Tensor:
    """`as_features`, flattened to (N, d); d must be `n_features` where that is given."""
    flat = as_features(features, name).flatten(1)
    if n_features is not None and flat.shape[1] != n_features:
        raise ValueError(f"`{name}` must have {n_features} features a sample, as in `fit`, got {flat.shape[1]}.")
    return flat


def as_labels(labels: Any, n_samples: int, name: str = "labels") -> Tensor:
    """Return `labels` as int64 classes (N,); whole-numbered floats and a column (N, 1) are taken as classes."""
    labels = as_tensor(labels, name).detach()
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels.squeeze(1)
    if labels.ndim != 1:
        hint = " One-hot labels: pass `labels.argmax(dim=1)`." if labels.ndim == 2 else ""
        raise ValueError(f"`{name}` must hold one class a sample, shape (N,), got {tuple(labels.shape)}.{hint}")
    if labels.shape[0] != n_samples:
        raise ValueError(f"`{name}` must have one entry a sample, {n_samples}, got {labels.shape[0]}.")
    if labels.is_complex():
        raise TypeError(f"`{name}` must hold integer classes, got {labels.dtype}.")
    if labels.is_floating_point() and not bool((labels == labels.round()).all()):
        raise ValueError(f"`{name}` must hold integer classes, got fractional {labels.dtype} values (a regression?).")
    labels = labels.long()
    if int(labels.min()) < 0:
        raise ValueError(f"`{name}` must hold classes 0, 1, ..., got {int(labels.min())}.")
    return labels


def check_integer(name: str, value: Any, low: int) -> int:
    """Return `value` as an int if it is an integer, of Python or NumPy, of at least `low`."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"`{name}` must be an integer >= {low}, got {value!r}.")
    if value < low:
        raise ValueError(f"`{name}` must be an integer >= {low}, got {value}.")
    return int(value)


def scikit_learn_seed(seed: Any) -> int:
    """A seed >= 0 as scikit-learn takes it, which knows none of more than 32 bits."""
    return check_integer("seed", seed, 0) % 2**32


def check_two_classes(labels: Tensor) -> None:
    """Raise unless `labels` holds at least two different classes."""
    if bool((labels == labels[0]).all()):
        raise ValueError(f"`labels` must hold at least two classes, got class {int(labels[0])} alone.")


def as_tensor(value: Any, name: str) -> Tensor:
    """`value` as a tensor, whatever the order in memory of an array."""
    if isinstance(value, Tensor):
        return value
    try:
        return torch.as_tensor(np.asarray(value, order="C") if hasattr(value, "__array__") else value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"`{name}` must be a tensor or an array of numbers, got {type(value).__name__}.") from error
