"""Samples that the user gives in place of those that training reads."""

from typing import Any, TypeGuard

import numpy as np
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

Reference = tuple[Any, Any] | Dataset[Any] | DataLoader[Any]
_NO_DATASETS = (tuple, list, dict, str, bytes, Tensor, np.ndarray)


def is_pair(value: Any) -> TypeGuard[tuple[Any, Any]]:
    """Tell if samples are given as (inputs, labels)."""
    return isinstance(value, tuple | list) and len(value) == 2


def check_reference(name: str, value: Any) -> None:
    """Raise unless `value` is None, a pair, a loader, or a dataset: what has a length and samples by number."""
    is_alike = hasattr(value, "__getitem__") and hasattr(value, "__len__") and not isinstance(value, _NO_DATASETS)
    if not (value is None or is_pair(value) or is_alike or isinstance(value, Dataset | DataLoader)):
        raise TypeError(
            f"`{name}` must be a pair (inputs, labels), a Dataset or a DataLoader, got {type(value).__name__}."
        )
