"""Checks of features, labels and options, with their errors, and the classes among labels."""

import math
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from torch import Tensor

_EXACT_INTEGER = 2**24  # float32 holds all integers up to this
_MOST_CLASSES = 100_000
_UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)  # torch computes little with these


def as_features(
    features: Any, name: str = "features", *, keep_integers: bool = False, keep_bytes: bool = False
) -> Tensor:
    """Return `features` as a finite floating-point tensor (N, ...), float32 or float64, on the device it came on.

    Integers beyond the precision of float32 become float64; other types except float64 become float32. With
    `keep_integers`, integers (token ids) stay as they are; with `keep_bytes`, images in bytes do.
    """
    features = as_tensor(features, name).detach()
    if features.is_complex():
        raise TypeError(f"`{name}` must be real, got {features.dtype}.")
    if features.ndim < 2 or features.numel() == 0:
        raise ValueError(
            f"`{name}` must have shape (N, d), or (N, ...) with at least one value a sample,"
            f" got {tuple(features.shape)}. A single feature is a column, (N, 1)."
        )
    is_kept = keep_integers or (keep_bytes and features.dtype == torch.uint8 and features.ndim > 2)
    if features.is_floating_point() or not is_kept:
        features = features.to(torch.float64 if exceeds_float32(features) else torch.float32)
    if not is_finite(features):
        n_bad = int((~features.isfinite().flatten(1).all(dim=1)).sum())
        raise ValueError(
            f"`{name}` must be finite, got NaN or infinity in {n_bad} of {len(features)} samples: impute them, or"
            " leave these samples out."
        )
    return features.contiguous()


def as_flat_features(features: Any, name: str = "features", n_features: int | None = None) -> Tensor:
    """Return `as_features`, flattened to (N, d); d must be `n_features` if that is given."""
    flat = as_features(features, name).flatten(1)
    if n_features is not None and flat.shape[1] != n_features:
        raise ValueError(f"`{name}` must have {n_features} features a sample, as in `fit`, got {flat.shape[1]}.")
    return flat


def as_labels(labels: Any, n_samples: int, name: str = "labels", *, are_several: bool = False) -> Tensor:
    """Return `labels` as int64 classes (N,), `are_several` if at least two must differ.

    Whole-numbered floats and a column (N, 1) are taken as classes.
    """
    labels = as_tensor(labels, name).detach()
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels.squeeze(1)
    if labels.shape != (n_samples,):
        raise ValueError(
            f"`{name}` must have one entry a sample, shape ({n_samples},), got {tuple(labels.shape)}. For one-hot"
            " labels, pass `labels.argmax(dim=1)`."
        )
    if labels.is_complex() or not bool(((values := labels.double()) == values.round()).all()):
        raise ValueError(f"`{name}` must hold integer classes, got fractions, NaN or {labels.dtype} (a regression?).")
    least, largest = values.aminmax()  # before a conversion to int64 wraps them around
    if not 0 <= least <= largest < _MOST_CLASSES:
        raise ValueError(
            f"`{name}` must hold integer classes 0, 1, ..., got {float(least):.15g} to {float(largest):.15g}: if they"
            " are classes, number them with `torch.unique(labels, return_inverse=True)[1]`. Samples to ignore must be"
            " left out, or in a training have the label -100."
        )
    if are_several and least == largest:
        raise ValueError(f"`{name}` must hold at least two classes, got only class {int(least)}.")
    return labels.long()


def as_floats(inputs: Tensor) -> Tensor:
    """Return inputs as floating-point numbers; integers become float32."""
    return inputs if inputs.is_floating_point() else inputs.float()


def is_finite(values: Tensor) -> bool:
    """Return True if all values are finite; checks their sum first, which is far faster."""
    return bool(values.sum().isfinite()) or bool(values.isfinite().all())  # a sum of large values overflows


def check_integer(name: str, value: Any, low: int) -> int:
    """Return `value` as an int if it is an integer, of Python or NumPy, of at least `low`."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"`{name}` must be an integer >= {low}, got {value!r}.")
    if value < low:
        raise ValueError(f"`{name}` must be an integer >= {low}, got {value}.")
    return int(value)


def check_number(name: str, value: Any, low: float = -math.inf, below: float = math.inf) -> float:
    """Return `value` as a float if it is a finite number with low <= value < below."""
    is_number = isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
    if not is_number or not low <= value < below:
        raise ValueError(f"`{name}` must be a finite number in [{low}, {below}), got {value!r}.")
    return float(value)


def check_flag(name: str, value: Any) -> bool:
    """Return `value` if it is True or False."""
    if not isinstance(value, bool | np.bool_):
        raise ValueError(f"`{name}` must be True or False, got {value!r}.")
    return bool(value)


def check_seed(seed: Any) -> int:
    """Return `seed` as an int if it is an integer, of Python or NumPy, that a `torch.Generator` takes."""
    if check_integer("seed", seed, 0) >= 2**64:
        raise ValueError(f"`seed` must be an integer from 0 to 2**64 - 1, got {seed}.")
    return int(seed)


def check_fitted(estimator: object, attribute: str) -> None:
    """Raise unless `fit` has given the estimator this attribute."""
    if not hasattr(estimator, attribute):
        raise RuntimeError(f"This {type(estimator).__name__} is not fitted yet: call `fit` first.")


def as_tensor(value: Any, name: str) -> Tensor:
    """Return `value` as a dense tensor; arrays may have any memory order, and frames any columns of numbers."""
    if isinstance(value, Tensor):
        if value.layout != torch.strided or value.is_nested or value.is_quantized or value.is_meta:
            raise TypeError(f"`{name}` must be a dense tensor of numbers, got {value.layout}, {value.dtype}.")
        plain = value if type(value) is Tensor else value.as_subclass(Tensor)  # some classes refuse to be sliced
        return plain.long() if plain.dtype in _UNSIGNED else plain
    is_list_of_arrays = isinstance(value, list | tuple) and len(value) > 0 and isinstance(value[0], np.ndarray)
    try:
        numbers = _as_array(value) if is_list_of_arrays or hasattr(value, "__array__") else value
        return as_tensor(torch.as_tensor(numbers, device="cpu"), name)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        kinds: Any = getattr(getattr(value, "dtypes", None), "items", tuple)()  # of pandas alone
        where = next((f" with the column {column!r}" for column, kind in kinds if kind.kind not in "biufc"), "")
        said = str(error).partition("\n")[0].rstrip(".")
        raise TypeError(
            f"`{name}` must be a tensor or an array of numbers, got {type(value).__name__}{where}: {said}. Make sparse"
            " ones dense, count days from a start for dates, and encode words (`OneHotEncoder`, `LabelEncoder`)."
        ) from error


def _as_array(value: Any) -> np.ndarray:
    """Return an array or frame as torch takes it: of numbers, in C order, in this machine's byte order, writable."""
    from sklearn.utils import check_array

    if np.ma.is_masked(value):
        raise TypeError("masked entries have no value.")
    any_shape = {"ensure_2d": False, "allow_nd": True, "ensure_min_samples": 0, "ensure_min_features": 0}
    array: np.ndarray = check_array(value, dtype="numeric", order="C", ensure_all_finite=False, **any_shape)
    return array.astype(array.dtype.newbyteorder("="), copy=not array.flags.writeable)


def exceeds_float32(features: Tensor) -> bool:
    """Return True if these are float64, or if some of these integers are beyond the precision of float32."""
    is_wide = features.dtype in (torch.int32, torch.int64)
    return features.dtype == torch.float64 or (is_wide and bool((features.double().abs() > _EXACT_INTEGER).any()))
