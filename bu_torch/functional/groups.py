"""Sums within groups that do not depend on the order of the samples."""

import torch
from torch import Tensor

_MOST_OF_BYTE = 256  # classes


def sum_by_group(values: Tensor, group: Tensor, n_groups: int) -> Tensor:
    """Sum of non-negative `values` (N,) in each group, (n_groups,) float64, the same for every order of the samples.

    Floating-point addition depends on the order, integer addition does not. So values are added as 62-bit fixed-point
    numbers, whose unit is a power of two for each group.
    """
    values = values.double().nan_to_num(nan=0.0)
    peak = torch.zeros(n_groups, dtype=torch.float64, device=values.device)
    peak = peak.scatter_reduce(0, group, values, "amax")
    exponent = torch.frexp(peak * values.shape[0]).exponent
    unit = torch.exp2((exponent - 62).double().clamp(min=-1000.0))
    fixed = (values / unit[group]).round().long()
    return count_by_group(fixed, group, n_groups).double() * unit


def count_by_group(values: Tensor, group: Tensor, n_groups: int) -> Tensor:
    """Sum integers (N,) by group."""
    return torch.zeros(n_groups, dtype=torch.int64, device=values.device).index_add_(0, group, values)


def dtype_of_labels(n_classes: int) -> torch.dtype:
    """Narrowest type in which labels can be compared: bytes take half the time."""
    return torch.uint8 if n_classes <= _MOST_OF_BYTE else torch.int32
