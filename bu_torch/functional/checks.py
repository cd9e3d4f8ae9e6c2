"""Argument checks of the functional core; each error names the argument, what was expected and what came."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

_INDEX_DTYPES = (torch.int16, torch.int32, torch.int64, torch.uint8, torch.int8)


def as_logits(logits: Tensor) -> Tensor:
    """Return logits of shape (N, J), J >= 2, in float32 or float64; one column z becomes the two classes [0, z]."""
    check_tensor("logits", logits)
    if logits.layout != torch.strided:
        raise TypeError(f"`logits` must be dense, got a tensor of layout {logits.layout}.")
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
    name: str,
    value: Tensor,
    shape: tuple[int | str, ...] | None = None,
    device: torch.device | None = None,
    *,
    below: float | None = None,
) -> None:
    """Raise unless `value` is a floating-point tensor, or with `below` one of integers in [0, below).

    It has this shape, where a str stands for any length, and device; None allows all. On an accelerator, which would
    have to be waited for, the range is not checked.
    """
    kind = "a floating-point" if below is None else "an integer"
    is_tensor = isinstance(value, Tensor)
    if not is_tensor or not (value.is_floating_point() if below is None else value.dtype in _INDEX_DTYPES):
        raise TypeError(f"`{name}` must be {kind} tensor, got {getattr(value, 'dtype', type(value).__name__)}.")
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
