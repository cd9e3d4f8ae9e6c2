"""Constructor arguments, refused with Lightning's `MisconfigurationException`."""

import math
import numbers
from typing import Any, TypeVar

import numpy as np
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from bu_torch._inputs import check_integer
from bu_torch.callbacks._lightning import MisconfigurationException
from bu_torch.functional._checks import check_choice

T = TypeVar("T")
Reference = tuple[Any, Any] | Dataset[Any] | DataLoader[Any]
_NO_DATASETS = (tuple, list, dict, str, bytes, Tensor, np.ndarray)


def integer(name: str, value: Any, low: int) -> int:
    """Return `value` if it is an int of at least `low`."""
    try:
        return check_integer(name, value, low)
    except (TypeError, ValueError) as error:
        raise MisconfigurationException(str(error)) from error


def number(name: str, value: Any, low: float = -math.inf, below: float = math.inf) -> float:
    """Return `value` if it is a finite number with low <= value < below."""
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not is_number or not low <= value < below:
        bounds = [f">= {low}"] * (low > -math.inf) + [f"< {below}"] * (below < math.inf)
        raise MisconfigurationException(
            f"`{name}` must be a finite number {' and '.join(bounds)}".rstrip() + f", got {value!r}."
        )
    return float(value)


def flag(name: str, value: Any) -> bool:
    """Return `value` if it is True or False."""
    if not isinstance(value, bool | np.bool_):
        raise MisconfigurationException(f"`{name}` must be True or False, got {value!r}.")
    return bool(value)


def choice(name: str, value: T, allowed: tuple[T, ...]) -> T:
    """Return `value` if it is one of `allowed`."""
    try:
        check_choice(name, value, allowed)
    except ValueError as error:
        raise MisconfigurationException(str(error)) from error
    return value


def is_pair(value: Any) -> bool:
    """Whether samples are given as (inputs, labels)."""
    return isinstance(value, tuple | list) and len(value) == 2


def samples(name: str, value: Any) -> Any:
    """Return `value` if it is None, a pair, a loader, or a dataset: what has a length and samples by number."""
    is_alike = hasattr(value, "__getitem__") and hasattr(value, "__len__") and not isinstance(value, _NO_DATASETS)
    if value is None or is_pair(value) or is_alike or isinstance(value, Dataset | DataLoader):
        return value
    raise MisconfigurationException(
        f"`{name}` must be a pair (inputs, labels), a Dataset or a DataLoader, got {type(value).__name__}."
    )
