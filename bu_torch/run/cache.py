"""Fit signals with a progress bar, or load what an earlier run has kept in the cache."""

import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bu_torch.internal.printing import progress
from bu_torch.signals.measuring import Signals
from bu_torch.signals.preparation import n_comparisons

_BAR = "{desc}: {percentage:3.0f}%|{bar}| {elapsed}<{remaining}"


def fit_or_load(
    signals: Signals, inputs: Tensor, labels: Tensor, cache: str | Path | None, sample_weight: Tensor | None = None
) -> tuple[Path | None, Path | None]:
    """Load what an earlier run has kept for the same samples and settings, or fit and keep the result.

    Samples are those of `Signals.fit`, whose errors are raised. `cache` is a file (npz), which is refused if it is
    damaged or for other samples or settings (ValueError); or a folder, in which samples and settings give the file its
    name. If it cannot be written, a warning says so. Returns the file that was read, and the file that was written, or
    None.
    """
    inputs = signals.boundary.as_inputs(inputs)
    with progress("bu-torch prepares", total=n_comparisons(len(inputs), signals.boundary.n_draws), bar_format=_BAR):
        try:
            return _by_file(signals, (inputs, labels, sample_weight), cache)
        except torch.OutOfMemoryError:  # training may still fit on the device
            return _by_file(signals, (inputs.cpu(), labels, sample_weight), cache)


def _by_file(signals: Signals, samples: tuple[Any, ...], cache: str | Path | None) -> tuple[Path | None, Path | None]:
    if cache is None:
        signals.fit(*samples)
        return None, None
    # A name without a suffix is a folder to be made.
    cache = Path(cache)
    if cache.is_dir() or not (cache.suffix or cache.exists()):
        cache = cache / f"{signals.fingerprint_of(*samples)}.npz"
    try:
        signals.load(cache, *samples)
        return cache, None
    except (FileNotFoundError, NotADirectoryError):
        signals.fit(*samples)
    except OSError as error:
        line = f"The cache {cache} cannot be read: {error.strerror}. Its contents are computed anew."
        warnings.warn(f"{line} To turn the cache off: `cache=None`.", stacklevel=3)
        signals.fit(*samples)
        return None, None
    try:
        signals.save(cache)
        return None, cache
    except OSError as error:
        warnings.warn(f"The cache {cache} cannot be written: {error}. It is not kept.", stacklevel=3)
        return None, None
