"""Fit signals with a progress bar, or load what an earlier run has kept in the cache."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm.auto import tqdm

from bu_torch.internal.printing import Forecast, shown_on
from bu_torch.signals.measuring import Signals
from bu_torch.signals.preparation import n_comparisons

_BAR_DELAY = 3  # seconds of preparation before a progress bar is shown


def fit_or_load(
    signals: Signals,
    inputs: Tensor,
    labels: Tensor,
    cache: str | Path | None,
    sample_weight: Tensor | None = None,
    has_progress_bar: bool = False,
    tell: Callable[[str], None] | None = None,
) -> tuple[Path | None, Path | None]:
    """Load what an earlier run has kept for the same samples and settings, or fit and keep the result.

    Samples are those of `Signals.fit`, whose errors are raised. `cache` is a file (npz), which is refused if it is
    damaged or for other samples or settings (ValueError); or a folder, in which samples and settings give the file its
    name. If it cannot be written, a warning says so. `tell` takes a line with the expected time of a long fit. Returns
    the file that was read, and the file that was written, or None.
    """
    inputs = signals.boundary.as_inputs(inputs)
    with _bar(signals, inputs, has_progress_bar, tell):
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


@contextmanager
def _bar(signals: Signals, inputs: Tensor, is_shown: bool, tell: Callable[[str], None] | None) -> Iterator[None]:
    """Show a progress bar for the work of `signals` within, after a few seconds, and tell its expected time."""

    def tell_forecast(kind: str, seconds: float) -> None:
        line = {
            "comparisons": f"compares samples for about {seconds:.0f} s first. To change it: `max_samples`.",
            "passes": f"passes samples through the network for up to {seconds:.0f} s first, to find near ones by its"
            " features. To change it: `feature_extractor`, or `max_samples`.",
        }[kind]
        if tell is not None:
            tell(f"bu-torch {line}")

    totals = {"comparisons": n_comparisons(len(inputs), signals.boundary.n_draws)}
    if signals.boundary.may_use_module(inputs):
        totals["passes"] = (1 + signals.boundary.n_draws) * len(inputs)
    shape = "{desc}: {percentage:3.0f}%|{bar}| {elapsed}<{remaining}"
    options: dict[str, Any] = {"total": totals["comparisons"], "delay": _BAR_DELAY, "leave": False, "bar_format": shape}
    # A disabled bar would start tqdm's thread, too.
    shown = tqdm(desc="bu-torch prepares", **options) if is_shown else nullcontext()
    with shown as bar, shown_on(bar, Forecast(totals, tell_forecast)):
        yield
