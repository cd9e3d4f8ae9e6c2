"""Argument checks of the functional core; each error names the argument, what was expected and what came."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

_INDEX_DTYPES = (torch.int16, torch.int32, torch.int64, torch.uint8, torch.int8)


def as_logits(logits: Tensor) -> Tensor:
    """Return logits of shape (N, J), J >= 2, in float32 or float64; one column z becomes the two classes [0, z]."""
    check_floating("logits", logits)
    if logits.layout != torch.strided:
        raise TypeError(f"`logits` must be dense, got a tensor of layout {logits.layout}.")
    if logits.ndim == 1:
        logits = logits.unsqueeze(1)
    if logits.ndim != 2 or logits.shape[0] == 0 or logits.shape[1] == 0:
        raise ValueError(f"`logits` must have shape (N, J) with N, J >= 1, got {tuple(logits.shape)}.")
    if logits.dtype not in (torch.float32, torch.float64):
        logits = logits.float()
    if logits.shape[1] == 1:
        logits = torch.cat((torch.zeros_like(logits), logits), dim=1)
    return logits


def check_floating(name: str, value: Tensor, shape: tuple[int | str, ...] | None = None) -> None:
    """Raise unless `value` is a floating-point tensor of `shape` (None: any; a str in it: any length)."""
    _check_tensor(name, value, "a floating-point", isinstance(value, Tensor) and value.is_floating_point(), shape)


def check_not_negative(name: str, value: Any) -> None:
    """Raise unless `value` is a number >= 0."""
    if isinstance(value, bool) or not hasattr(value, "__float__"):
        raise TypeError(f"`{name}` must be a number >= 0, got {value!r}.")
    if not value >= 0:
        raise ValueError(f"`{name}` must be >= 0, got {value}.")


def check_index(name: str, value: Tensor, shape: tuple[int | str, ...], device: torch.device) -> None:
    """Raise unless `value` is an integer tensor of `shape` (a str in it: any length) on `device`."""
    _check_tensor(name, value, "an integer", isinstance(value, Tensor) and value.dtype in _INDEX_DTYPES, shape)
    if value.device != device:
        raise ValueError(f"`{name}` must be on {device}, like the values it indexes, got {value.device}.")


def check_range(name: str, value: Tensor, stop: int, meaning: str) -> None:
    """Raise unless every entry lies in [0, stop); on an accelerator this waits for the device."""
    low, high = (int(v) for v in torch.aminmax(value))
    if low < 0 or high >= stop:
        raise ValueError(f"`{name}` must hold {meaning} in [0, {stop}), got values from {low} to {high}.")


def check_draws(predictions: Tensor, n_points: int, device: torch.device) -> None:
    """Raise unless `predictions` holds classes at one or more copies of `n_points` points."""
    check_index("predictions", predictions, ("D * N",), device)
    if predictions.numel() == 0 or predictions.shape[0] % n_points:
        raise ValueError(f"`predictions` must hold a multiple of the {n_points} points, got {predictions.shape[0]}.")
    if int(predictions.min()) < 0:
        raise ValueError(f"`predictions` must hold classes 0, 1, ..., got {int(predictions.min())}.")


def check_choice(name: str, value: Any, choices: Iterable[Any]) -> Any:
    """Return `value`, or raise unless it is one of `choices`."""
    choices = list(choices)
    if value not in choices:
        raise ValueError(f"`{name}` must be one of {', '.join(map(repr, choices))}, got {value!r}.")
    return value


def _check_tensor(name: str, value: Tensor, kind: str, is_of_kind: bool, shape: tuple[int | str, ...] | None) -> None:
    if not is_of_kind:
        raise TypeError(f"`{name}` must be {kind} tensor, got {getattr(value, 'dtype', type(value).__name__)}.")
    if shape is None:
        return
    if value.ndim != len(shape) or any(
        not isinstance(want, str) and have != want for have, want in zip(value.shape, shape, strict=True)
    ):
        raise ValueError(f"`{name}` must have shape {shape}, got {tuple(value.shape)}.".replace("'", ""))
