"""Sample weights: how often training draws each sample; sums that do not depend on the order of the samples."""

import torch
from torch import Tensor

from bu_torch.functional.checks import check_tensor


def relative_weights(weights: Tensor | None, shape: tuple[int, ...], device: torch.device) -> Tensor | None:
    """Weights as float64 with mean 1; None if there are none, or if all are equal.

    Raises `TypeError` or `ValueError` unless they are floating point, of this shape and device, positive and finite;
    values are not looked at on an accelerator, which would have to be waited for.
    """
    if weights is None:
        return None
    check_tensor("weights", weights, shape, device)
    if weights.is_cpu:
        low, high = (float(end) for end in torch.aminmax(weights))
        if not 0 < low <= high < torch.inf:
            raise ValueError(f"`weights` must be positive and finite, got values from {low} to {high}.")
        if low == high:
            return None
    weights = weights.double() / weights.double().max()
    return weights / weights.mean()


def mean_of(values: Tensor, weights: Tensor | None) -> Tensor:
    """Mean of values (float64), weighted by weights of mean 1."""
    return values.mean() if weights is None else (values * weights).mean()


def mean_and_error(values: Tensor, weights: Tensor | None) -> tuple[Tensor, Tensor]:
    """Mean of values (N,) as by `mean_of`, and its standard error."""
    mean = mean_of(values, weights)
    deviations = values - mean if weights is None else (values - mean) * weights
    return mean, deviations.square().sum().sqrt() / len(values)


def sum_by_group(values: Tensor, group: Tensor, n_groups: int) -> Tensor:
    """Sum of non-negative `values` (N,) in each group, (n_groups,) float64, the same for every order of the samples.

    They are added as 62-bit fixed-point numbers, whose unit is a power of two for each group: integer addition does not
    depend on the order.
    """
    values = values.double().nan_to_num(nan=0.0)
    peak = torch.zeros(n_groups, dtype=torch.float64, device=values.device)
    peak = peak.scatter_reduce(0, group, values, "amax")
    exponent = torch.frexp(peak * values.shape[0]).exponent
    unit = torch.exp2((exponent - 62).double().clamp(min=-1000.0))
    fixed = (values / unit[group]).round().long()
    return torch.zeros_like(peak, dtype=torch.int64).index_add_(0, group, fixed).double() * unit
