"""Pairs of classes: the two of the largest logits, their numbers, sums by pair."""

import torch
from torch import Tensor

from bu_torch.functional.checks import (
    check_index,
)


def top_pairs(scores: Tensor) -> Tensor:
    """The two classes of largest score in each row, ascending; ties go to the lowest class index.

    Args:
        scores: Shape (N, J) with J >= 2, any real dtype, no NaN, any device.

    Returns:
        Class indices, shape (N, 2), int64, each row ascending, on the device of `scores`.

    Raises:
        TypeError: If `scores` is not a tensor of real numbers.
        ValueError: If `scores` is not of shape (N, J) with J >= 2.

    Example:
        >>> top_pairs(torch.tensor([[3.0, 1.0, 3.0], [0.0, 0.0, 0.0]]))
        tensor([[0, 2],
                [0, 1]])
    """
    if not isinstance(scores, Tensor) or scores.is_complex() or scores.dtype == torch.bool:
        got = scores.dtype if isinstance(scores, Tensor) else type(scores).__name__
        raise TypeError(f"`scores` must be a tensor of real numbers of shape (N, J), got {got}.")
    if scores.ndim != 2 or scores.shape[1] < 2:
        raise ValueError(f"`scores` must have shape (N, J) with J >= 2, got {tuple(scores.shape)}.")
    first = scores.max(dim=1, keepdim=True).indices  # in half the time of `argmax` on a CPU
    lowest = -torch.inf if scores.is_floating_point() else torch.iinfo(scores.dtype).min
    second = scores.scatter(1, first, lowest).max(dim=1, keepdim=True).indices
    # All others may be as low as the fill value itself: then the second is the lowest index that is not the first.
    second = torch.where(second == first, (first == 0).long(), second)
    return torch.cat((torch.minimum(first, second), torch.maximum(first, second)), dim=1)


def index_pairs(bayes_pairs: Tensor) -> tuple[Tensor, Tensor]:
    """Number the pairs of classes that occur.

    Args:
        bayes_pairs: Likely Bayes pair of each sample, shape (N, 2), integer, >= 0, N >= 1.

    Returns:
        The distinct pairs in ascending order, shape (P, 2), int64, and the row of each sample's pair among them, shape
        (N,), int64; on the device of `bayes_pairs`.

    Raises:
        TypeError: If `bayes_pairs` is not an integer tensor.
        ValueError: If `bayes_pairs` is not of shape (N, 2) with N >= 1, or holds a negative number.
    """
    check_index("bayes_pairs", bayes_pairs, ("N", 2), getattr(bayes_pairs, "device", torch.device("cpu")))
    if len(bayes_pairs) == 0 or int(bayes_pairs.min()) < 0:
        got = "none" if len(bayes_pairs) == 0 else int(bayes_pairs.min())
        raise ValueError(f"`bayes_pairs` must hold at least one pair of classes 0, 1, ..., got {got}.")
    n_classes = int(bayes_pairs.max()) + 1
    code = bayes_pairs[:, 0].long() * n_classes + bayes_pairs[:, 1]
    distinct, index = torch.unique(code, return_inverse=True)
    return torch.stack((distinct // n_classes, distinct % n_classes), dim=1), index


def sum_by_pair(values: Tensor, pair_index: Tensor, n_pairs: int) -> Tensor:
    """Sum of non-negative `values` (N,) within each pair, (n_pairs,) float64, the same for every order of the samples.

    Floating-point addition depends on the order, integer addition does not: values become 62-bit fixed point, with a
    power of two as the unit of each pair.
    """
    values = values.double().nan_to_num(nan=0.0)
    peak = torch.zeros(n_pairs, dtype=torch.float64, device=values.device)
    peak = peak.scatter_reduce(0, pair_index, values, "amax")
    exponent = torch.frexp(peak * values.shape[0]).exponent
    unit = torch.exp2((exponent - 62).double().clamp(min=-1000.0))
    fixed = (values / unit[pair_index]).round().long()
    return count_by_pair(fixed, pair_index, n_pairs).double() * unit


def count_by_pair(values: Tensor, pair_index: Tensor, n_pairs: int) -> Tensor:
    """Sum integers (N,) by pair."""
    return torch.zeros(n_pairs, dtype=torch.int64, device=values.device).index_add_(0, pair_index, values)
