"""What all formulas share: checks of their arguments, weights of samples, means and sums."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

_Shape = tuple[int | str, ...] | None  # a str stands for any length, None for any shape
_INDEX_DTYPES = (torch.int16, torch.int32, torch.int64, torch.uint8, torch.int8)


def as_logits(logits: Tensor) -> Tensor:
    """Return logits of shape (N, J), J >= 2, in float32 or float64; one column z becomes the two classes [0, z]."""
    check_tensor("logits", logits)
    if logits.ndim == 1:
        logits = logits.unsqueeze(1)
    if logits.ndim != 2 or logits.numel() == 0:
        raise ValueError(f"`logits` must have shape (N, J) with N, J >= 1, got {tuple(logits.shape)}.")
    if logits.dtype not in (torch.float32, torch.float64):
        logits = logits.float()
    if logits.shape[1] == 1:
        logits = torch.cat((torch.zeros_like(logits), logits), dim=1)
    return logits


def check_tensor(
    name: str, value: Tensor, shape: _Shape = None, device: torch.device | None = None, *, below: float | None = None
) -> None:
    """Raise unless `value` is a dense floating-point tensor, or with `below` one of integers in [0, below).

    It has this shape and device; None allows all. The range is checked on a CPU alone: others would be waited for.
    """
    is_tensor = isinstance(value, Tensor) and value.layout == torch.strided
    if not is_tensor or not (value.is_floating_point() if below is None else value.dtype in _INDEX_DTYPES):
        kind = "a dense floating-point" if below is None else "a dense integer"
        got = (value.dtype, value.layout) if isinstance(value, Tensor) else type(value).__name__
        raise TypeError(f"`{name}` must be {kind} tensor, got {got}.")
    if shape is not None:
        wanted = [have if isinstance(want, str) else want for have, want in zip(value.shape, shape, strict=False)]
        if len(shape) != value.ndim or list(value.shape) != wanted:
            raise ValueError(f"`{name}` must have shape {shape}, got {tuple(value.shape)}.".replace("'", ""))
    if device is not None and value.device != device:
        raise ValueError(f"`{name}` must be on {device}, like the other tensors, got {value.device}.")
    if below is not None and value.is_cpu and value.numel():
        low, high = (int(end) for end in torch.aminmax(value))
        if low < 0 or high >= below:
            raise ValueError(f"`{name}` must hold integers in [0, {below}), got values from {low} to {high}.")


def check_not_negative(name: str, value: Any) -> None:
    """Raise unless `value` is a number >= 0."""
    if isinstance(value, bool) or not hasattr(value, "__float__"):
        raise TypeError(f"`{name}` must be a number >= 0, got {value!r}.")
    if not value >= 0:
        raise ValueError(f"`{name}` must be >= 0, got {value}.")


def check_choice(name: str, value: Any, choices: Iterable[Any]) -> Any:
    """Return `value`, or raise unless it is one of `choices`."""
    choices = list(choices)
    if value not in choices:
        raise ValueError(f"`{name}` must be one of {', '.join(map(repr, choices))}, got {value!r}.")
    return value


def relative_weights(weights: Tensor | None, shape: tuple[int, ...], device: torch.device) -> Tensor | None:
    """Weights as float64 with mean 1; None if there are none, or if all are equal.

    Raises TypeError or ValueError unless they are floating point, of this shape and device, positive and finite; on an
    accelerator values are not looked at.
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


def sum_below(values: Tensor, mass: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Order of ascending values (N,); in it, the mass (N,) or (N, K) of lower values, and of lower and equal ones."""
    ordered, order = values.sort(stable=True)
    total = torch.cat((mass.new_zeros(1, *mass.shape[1:]), mass[order].cumsum(dim=0)))
    # Of each group of equal values: the first place, and the one after the last. A search takes half as long again.
    is_new = torch.nn.functional.pad(ordered[1:] != ordered[:-1], (1, 1), value=True)
    places = torch.arange(len(total), device=values.device)
    first = torch.where(is_new, places, 0).cummax(dim=0).values[:-1]
    after = torch.where(is_new, places, len(values)).flip(0).cummin(dim=0).values.flip(0)[1:]
    return order, total[first], total[after]
