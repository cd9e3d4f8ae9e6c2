"""Fit once, with a progress bar if that takes long, or read from a cache."""

import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from torch import Tensor
from tqdm.auto import tqdm

from bu_torch.internal.progress import shown_on
from bu_torch.run import user_cache
from bu_torch.signals.measuring import Signals

_BAR_DELAY = 3  # seconds of preparation before a progress bar is shown


class Cached(NamedTuple):
    """Fate of a preparation on disk: found, kept, refused, or none of the three."""

    found_in: Path | None = None
    kept_in: Path | None = None
    refusal: str = ""  # why a file of the user's cache folder is not read or not kept, in words


def fit_or_find(
    signals: Signals,
    inputs: Tensor,
    labels: Tensor,
    *,
    sample_weight: Tensor | None = None,
    has_progress_bar: bool = False,
    is_saved: bool = True,
) -> Cached:
    """Read what an earlier run has left in the user's cache folder, or fit and leave it there.

    Nothing is kept of what depends on code of the user's or on features of a network, nor of what took no time. A space
    is chosen anew each time, for the network has a say in it.

    Args:
        signals: Still to be fitted.
        inputs: As for `Signals.fit`.
        labels: As for `Signals.fit`.
        sample_weight: As for `Signals.fit`.
        has_progress_bar: Show a progress bar after a few seconds.
        is_saved: Leave it there if it is not.

    Returns:
        The file that it was read from, the file that it is kept in for the next run, or why there is none.

    Raises:
        ValueError: As for `Signals.fit`.
        TypeError: As for `Signals.fit`.
    """
    with _bar(signals, inputs, has_progress_bar):
        return _fit_or_find(signals, inputs, labels, sample_weight, is_saved)


def _fit_or_find(
    signals: Signals, inputs: Tensor, labels: Tensor, sample_weight: Tensor | None, is_saved: bool
) -> Cached:
    samples, file, refusal = (inputs, labels, sample_weight), None, ""
    boundary = signals.boundary
    is_of_user = callable(boundary.feature_extractor) or callable(boundary.perturbation)
    is_wanted = not is_of_user and not user_cache.is_off()
    if is_wanted and user_cache.folder() is not None:
        space = signals.settle_space(*samples)
        if space != "module":
            file = user_cache.file_of(signals.fingerprint_of(*samples), space, inputs.device.type)
    if file is not None:
        try:
            signals.load(file, *samples, is_own=True)
        except PermissionError as error:
            refusal = f"The cache file {file} is not read ({error.strerror}); its contents are computed anew."
        except (OSError, ValueError):  # not there, not to be read, or damaged: it is made anew
            pass
        else:
            user_cache.count_as_used(file)
            return Cached(found_in=file)
    started = time.perf_counter()
    signals.fit(*samples)
    is_dear = time.perf_counter() - started > user_cache.LEAST_SECONDS
    if not (is_wanted and is_saved and is_dear and not boundary.is_of_module):
        return Cached(refusal=refusal)
    return _keep(signals, file, refusal)


def _keep(signals: Signals, file: Path | None, refusal: str) -> Cached:
    """Leave a preparation in the user's cache folder for the next run."""
    if file is None:
        return Cached(refusal="The preparation is not kept for the next run: no home folder is known.")
    if signals.n_bytes > user_cache.MOST_BYTES_EACH:
        return Cached(refusal=refusal)
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        signals.save(file)
    except OSError as error:
        return Cached(refusal=f"{refusal} The preparation cannot be kept in {file.parent}: {error}.".strip())
    user_cache.make_room(file.parent)
    return Cached(kept_in=file if file.exists() else None, refusal=refusal)  # one written at once may push it out


def fit_or_load(
    signals: Signals,
    inputs: Tensor,
    labels: Tensor,
    cache: Path | None,
    *,
    sample_weight: Tensor | None = None,
    has_progress_bar: bool = False,
    is_saved: bool = True,
) -> Cached:
    """Read what an earlier run saved in `cache`, or fit and save it there.

    Args:
        signals: Still to be fitted.
        inputs: As for `Signals.fit`.
        labels: As for `Signals.fit`.
        sample_weight: As for `Signals.fit`.
        cache: The file; None for none. One that cannot be written is warned of.
        has_progress_bar: Show a progress bar after a few seconds.
        is_saved: Write the cache if it is not there.

    Returns:
        The file that it was read from, or that it is kept in.

    Raises:
        ValueError: As for `Signals.fit` and `Signals.load`.
        TypeError: As for `Signals.fit`.
    """
    refusal = ""
    if cache is not None:
        try:
            signals.load(cache, inputs, labels, sample_weight)
        except (FileNotFoundError, NotADirectoryError):
            pass
        except OSError as error:
            refusal = f"The cache {cache} cannot be read: {error.strerror}. Its contents are computed anew."
        else:
            return Cached(found_in=cache)
    with _bar(signals, inputs, has_progress_bar):
        signals.fit(inputs, labels, sample_weight)
    if cache is not None and is_saved and not refusal:
        try:
            signals.save(cache)
        except OSError as error:
            warnings.warn(f"The cache {cache} cannot be written: {error}. It is not kept.", stacklevel=2)
        else:
            return Cached(kept_in=cache)
    return Cached(refusal=refusal)


@contextmanager
def _bar(signals: Signals, inputs: Tensor, is_shown: bool) -> Iterator[None]:
    """A progress bar of what `signals` does within, after a few seconds."""
    with (
        tqdm(
            desc="Boundary uncertainty prepares",
            total=signals.n_comparisons(len(inputs)),
            delay=_BAR_DELAY,
            disable=not is_shown,
            leave=False,
            bar_format="{desc}: {percentage:3.0f}%|{bar}| {elapsed}<{remaining}",
        ) as bar,
        shown_on(bar),
    ):
        yield
