"""Widths of the Parzen windows that count samples near the boundary."""

import torch
from torch import Tensor


def silverman_bandwidth(values: Tensor) -> Tensor:
    """Width of the kernel for each row of near-boundary-ness values, by Silverman's rule of thumb.

    h = 0.9 min(sigma, IQR / 1.34) M^(-1/5), with sigma the standard deviation (M - 1 in the denominator) and IQR the
    distance between the quartiles, linearly interpolated. Ha et al. (2021), Eq. 32, print M^(-1/5) inside the minimum;
    this is the rule as its source (Silverman 1986, Eq. 3.31) states it.

    Args:
        values: Near-boundary-ness of the M members of each of N clusters, shape (N, M) with M >= 2, any floating-point
            dtype, any device.

    Returns:
        The widths, shape (N,), >= 0, in the units of `values`, on their device; float64 for float64 values and float32
        for all others. A row with a non-finite value gives NaN; a row whose quartiles coincide gives 0.

    Raises:
        TypeError: If `values` is not a floating-point tensor.
        ValueError: If `values` is not of shape (N, M) with M >= 2.

    Example:
        >>> silverman_bandwidth(torch.tensor([[0.0, 1.0, 2.0, 3.0, 4.0]]))
        tensor([0.9736])
    """
    if not isinstance(values, Tensor) or not values.is_floating_point():
        got = values.dtype if isinstance(values, Tensor) else type(values).__name__
        raise TypeError(f"`values` must be a floating-point tensor of shape (N, M), got {got}.")
    if values.ndim != 2 or values.shape[1] < 2:
        raise ValueError(f"`values` must have shape (N, M) with M >= 2, got {tuple(values.shape)}.")
    if values.dtype not in (torch.float32, torch.float64):
        values = values.float()
    scale = row_scale(values)
    return bandwidth_of_scaled(values / scale) * scale.squeeze(1)


def row_scale(values: Tensor) -> Tensor:
    """Largest magnitude of each row, (N, 1), 1 where a row is all zero: keeps squares in range at any logit scale."""
    largest = values.abs().amax(dim=1, keepdim=True)
    return torch.where(largest == 0, torch.ones_like(largest), largest)


def bandwidth_of_scaled(values: Tensor) -> Tensor:
    """`silverman_bandwidth` of rows that are known to lie in [-1, 1]."""
    n_members = values.shape[1]
    ordered = sort_rows(values)
    centred = values - values.mean(dim=1, keepdim=True)
    sigma = (centred.square_().sum(dim=1) / (n_members - 1)).sqrt_()
    spread = (_quantile(ordered, 0.75) - _quantile(ordered, 0.25)) / 1.34
    return 0.9 * n_members**-0.2 * torch.minimum(sigma, spread)


def sort_rows(values: Tensor) -> Tensor:
    """Rows in ascending order, NaN last; on the CPU by NumPy's vectorised sort, several times faster than torch's."""
    if values.device.type == "cpu":
        ordered = values.detach().clone(memory_format=torch.contiguous_format)
        ordered.numpy().sort(axis=1)
        return ordered
    return values.sort(dim=1).values


def _quantile(ordered: Tensor, q: float) -> Tensor:
    position = q * (ordered.shape[1] - 1)
    low = int(position)
    high = min(low + 1, ordered.shape[1] - 1)
    return torch.lerp(ordered[:, low], ordered[:, high], position - low)
