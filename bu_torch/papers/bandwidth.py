"""Widths of the Parzen windows with which samples near the boundary are counted."""

import math
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from bu_torch.functional.checks import check_choice, check_tensor

Bandwidth = Literal["silverman", "cvml"]

_SENSITIVITY = 0.5  # eta of Algorithm 7, which gives no value
_REWEIGHTINGS = 3  # k_M
_STEPS = 10  # l_M of Algorithm 8
_TOLERANCE = 1e-3  # epsilon
_FLOOR = 1e-3  # share of the row's range
_BLOCK_ELEMENTS = {"cpu": 2**18}  # entries of one (rows, M, M) block
_BLOCK_ELEMENTS_ELSEWHERE = 2**26


def silverman_bandwidth(values: Tensor) -> Tensor:
    """Width of the kernel for each row of near-boundary-ness values, by Silverman's rule of thumb.

    h = 0.9 min(sigma, IQR / 1.34) M^(-1/5) (Silverman 1986, Eq. 3.31), with M - 1 in the denominator of sigma and
    linearly interpolated quartiles. Ha et al. (2021), Eq. 32, print M^(-1/5) inside the minimum.

    Args:
        values: Near-boundary-ness of the M members of each of N clusters, shape (N, M) with M >= 2, floating point.

    Returns:
        The widths, shape (N,), >= 0, in the units of `values`; float64 for float64 values, else float32. A row with a
        non-finite value gives NaN; one whose quartiles coincide gives 0.

    Raises:
        TypeError, ValueError: If `values` is not a floating-point tensor of this shape.

    Example:
        >>> silverman_bandwidth(torch.tensor([[0.0, 1.0, 2.0, 3.0, 4.0]]))
        tensor([0.9736])
    """
    scaled, scale = _scaled(values)
    return (_silverman(scaled) * scale).squeeze(1)


def cvml_bandwidth(values: Tensor) -> Tensor:
    """Width of the kernel for each value of each row: sample-dependent Parzen windows of maximum likelihood.

    Ha (2019), section 4.7: the width of value m is h w_m. Algorithm 7 makes w_m large where values are rare, w_m =
    (p(z_m) / g)^(-eta) with g the geometric mean of the density p over the row. Algorithm 8 finds the common factor h
    that maximises the likelihood of each value under the windows of the others (CVML), by expectation maximisation. As
    in the thesis, k_M = 3, l_M = 10 and epsilon = 1e-3; eta = 1/2 is from Abramson (1982) and Silverman (1986, 5.3).

    Five formulas are misprinted there. With phi the standard normal density and M values z in a row they read

    - Eq. 4.6: p(z) = 1/M sum_n 1/h_n phi((z - z_n) / h_n), where 1/z_n is printed for 1/h_n;
    - Eq. 4.8: p_-n(z_n) = 1/(M - 1) sum_{m != n} 1/(h w_m) phi((z_n - z_m) / (h w_m)), where z is printed for z_n;
    - Eq. 4.12: W = sum_n sum_{m != n} q_nm ln(1/(h w_m) phi((z_n - z_m) / (h w_m)) / q_nm), where 1/(h w_m) is missing
      (W would grow with h for ever) and k printed for m;
    - Eq. 4.18: dW/dh = -M/h + 1/h^3 sum q_nm ((z_n - z_m) / w_m)^2 = 0 gives
      h^2 = 1/M sum_n sum_{m != n} q_nm ((z_n - z_m) / w_m)^2, where 1/w_m^2 is missing;
    - Eq. 4.20: with q_nm = 1 for the nearest other value k(n), h^2 = 1/M sum_n ((z_n - z_k(n)) / w_k(n))^2, where a
      second sum is printed.

    Departures: steps end when the mean log-likelihood of a value changes by less than epsilon (its ratio, as in the
    thesis, depends on the unit); h is at least 1e-3 of the range of the row, because ties drive it to 0.

    Arguments and errors are those of `silverman_bandwidth`. Returns the widths h w_m, shape (N, M), >= 0, in the
    units and of the dtype there. A row with a non-finite value gives NaN; one of equal values gives 0.

    Example:
        >>> cvml_bandwidth(torch.tensor([[0.0, 1.0, 2.0, 3.0, 9.0]]))
        tensor([[3.7015, 3.5585, 3.5349, 3.6257, 6.9383]])
    """
    scaled, scale = _scaled(values)
    return _cvml(scaled) * scale


def boundary_kernel(gap: Tensor, bandwidth: Bandwidth) -> Tensor:
    """Weights exp(-(F/h)^2 / 2) for rows of near-boundary-ness F (N, M), 0 if h = 0."""
    check_choice("bandwidth", bandwidth, BANDWIDTHS)
    scaled, _ = _scaled(gap)
    h = BANDWIDTHS[bandwidth](scaled)
    return torch.exp((scaled / torch.where(h == 0, 1.0, h)).square() / -2) * (h != 0)


def _scaled(values: Tensor) -> tuple[Tensor, Tensor]:
    """Rows in [-1, 1], and their largest magnitudes (N, 1): keeps squares in range at any scale of the logits."""
    check_tensor("values", values, ("N", "M"))
    if values.shape[1] < 2:
        raise ValueError(f"`values` must have shape (N, M) with M >= 2, got {tuple(values.shape)}.")
    values = values if values.dtype == torch.float64 else values.float()
    largest = values.abs().amax(dim=1, keepdim=True)
    scale = torch.where(largest == 0, 1.0, largest)
    return values / scale, scale


def _silverman(values: Tensor) -> Tensor:
    """`silverman_bandwidth` for rows in [-1, 1]; shape (N, 1)."""
    n_members = values.shape[1]
    ordered = values.sort(dim=1).values
    centred = values - values.mean(dim=1, keepdim=True)
    sigma = (centred.square_().sum(dim=1) / (n_members - 1)).sqrt_()
    places = (0.25 * (n_members - 1), 0.75 * (n_members - 1))
    low, high = (ordered[:, int(at)].lerp(ordered[:, math.ceil(at)], at - int(at)) for at in places)
    return 0.9 * n_members**-0.2 * torch.minimum(sigma, (high - low) / 1.34).unsqueeze(1)


def _cvml(values: Tensor) -> Tensor:
    """`cvml_bandwidth` for rows in [-1, 1], computed in float64 and in blocks of rows."""
    elements = _BLOCK_ELEMENTS.get(values.device.type, _BLOCK_ELEMENTS_ELSEWHERE)
    rows = max(1, elements // values.shape[1] ** 2)
    return torch.cat([_cvml_block(block.double()) for block in values.split(rows)]).to(values.dtype)


def _cvml_block(z: Tensor) -> Tensor:
    """Algorithm 7; comments give shapes, r being the number of rows."""
    n_values = z.shape[1]
    spread = z.amax(dim=1) - z.amin(dim=1)
    floor = _FLOOR * torch.where(spread == 0, 1.0, spread)  # (r,)
    squares = (z.unsqueeze(2) - z.unsqueeze(1)).square()  # (r, n, m)
    own = torch.eye(n_values, dtype=torch.bool, device=z.device)
    nearest = squares.masked_fill(own, torch.inf).min(dim=2)  # (r, n)
    weights = torch.ones_like(z)
    h = torch.maximum(nearest.values.mean(dim=1).sqrt(), floor)
    for _ in range(_REWEIGHTINGS):
        widths = (h.unsqueeze(1) * weights).unsqueeze(1)
        log_density = (-0.5 * squares / widths.square() - widths.log()).logsumexp(dim=2)  # Eq. 4.6 up to a factor
        weights = (-_SENSITIVITY * (log_density - log_density.mean(dim=1, keepdim=True))).exp()
        first = (nearest.values / weights.gather(1, nearest.indices).square()).mean(dim=1).sqrt()
        h = _likeliest_width(squares, weights, torch.maximum(first, floor), floor, own)
    return torch.where((spread == 0).unsqueeze(1), 0.0, h.unsqueeze(1) * weights)


def _likeliest_width(squares: Tensor, weights: Tensor, h: Tensor, floor: Tensor, own: Tensor) -> Tensor:
    """Algorithm 8: h (r,) of maximum likelihood; converged rows leave the loop."""
    squares = squares / weights.square().unsqueeze(1)
    offset = (-weights.log()).unsqueeze(1).masked_fill(own, -torch.inf)  # (r, n, m)
    found = h.clone()
    rows = torch.arange(len(h), device=h.device)
    before, following = _expectation(squares, offset, h, floor)
    for _ in range(_STEPS + 1):
        found[rows] = following
        likelihood, following = _expectation(squares, offset, following, floor)
        is_left = ~((likelihood - before).abs() < _TOLERANCE)
        rows, squares, offset, floor = rows[is_left], squares[is_left], offset[is_left], floor[is_left]
        before, following = likelihood[is_left], following[is_left]
        if not len(rows):
            break
    return found


def _expectation(squares: Tensor, offset: Tensor, h: Tensor, floor: Tensor) -> tuple[Tensor, Tensor]:
    """Mean log-likelihood of a value up to a constant (Eq. 4.10), and the next h (Eq. 4.11, 4.18); both (r,)."""
    log_kernel = torch.addcmul(offset, squares, (-0.5 / h.square())[:, None, None])
    peak = log_kernel.amax(dim=2, keepdim=True)
    kernel = log_kernel.sub_(peak).exp_()
    total = kernel.sum(dim=2)
    following = (kernel.mul_(squares).sum(dim=2) / total).mean(dim=1).sqrt()
    return (total.log() + peak.squeeze(2)).mean(dim=1) - h.log(), torch.maximum(following, floor)


# Widths for rows in [-1, 1]: one for each row (N, 1), or one for each value (N, M).
BANDWIDTHS: dict[str, Callable[[Tensor], Tensor]] = {"silverman": _silverman, "cvml": _cvml}
