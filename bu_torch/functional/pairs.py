"""Pairs of classes: the two of the largest logits, their numbers, sums by pair."""

import torch
from torch import Tensor


def top_pairs(scores: Tensor) -> Tensor:
    """The two classes of largest score in each row (N, J), J >= 2, ascending (N, 2); ties go to the lowest class index.

    Example:
        >>> top_pairs(torch.tensor([[3.0, 1.0, 3.0], [0.0, 0.0, 0.0]]))
        tensor([[0, 2],
                [0, 1]])
    """
    first = scores.max(dim=1, keepdim=True).indices  # in half the time of `argmax` on a CPU
    lowest = -torch.inf if scores.is_floating_point() else torch.iinfo(scores.dtype).min
    second = scores.scatter(1, first, lowest).max(dim=1, keepdim=True).indices
    # All others may be as low as the fill value itself: then the second is the lowest index that is not the first.
    second = torch.where(second == first, (first == 0).long(), second)
    return torch.cat((torch.minimum(first, second), torch.maximum(first, second)), dim=1)


def index_pairs(bayes_pairs: Tensor) -> tuple[Tensor, Tensor]:
    """Distinct pairs of classes in ascending order (P, 2), and the row of each sample's pair among them (N,)."""
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
