"""Fit signals, with a progress bar if that takes long, or read what an earlier run has kept."""

import os
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor
from tqdm.auto import tqdm

from bu_torch.internal.inputs import as_labels
from bu_torch.internal.progress import Forecast, shown_on
from bu_torch.run import user_cache
from bu_torch.run.settings import AUTO
from bu_torch.signals.measuring import Signals
from bu_torch.signals.preparation import n_comparisons

_BAR_DELAY = 3  # seconds of preparation before a progress bar is shown


class Cached(NamedTuple):
    """Fate of a preparation on disk: found, kept, refused, or none of the three."""

    found_in: Path | None = None
    kept_in: Path | None = None
    refusal: str = ""  # why a file is not read or not kept, in words


def fit_or_load(
    signals: Signals,
    inputs: Tensor,
    labels: Tensor,
    cache: str | Path | None,
    sample_weight: Tensor | None = None,
    has_progress_bar: bool = False,
    tell: Callable[[str], None] | None = None,
) -> Cached:
    """Read what an earlier run has kept of the same samples and settings, or fit and keep it.

    A file of the user's own is refused if it is of others; if it cannot be written, a warning says so. `"auto"` stands
    for a file in the user's cache folder, where what does not fit is computed anew. Nothing is kept there of what
    depends on code of the user's or on features of a network, nor of what took no time; a space is chosen anew each
    time, for the network has a say in it. `tell` takes a line that says how long the fit will take, if that is long.
    """
    inputs = signals.boundary.as_inputs(inputs)
    samples = inputs, as_labels(labels, len(inputs)).to(inputs.device), sample_weight
    with _bar(signals, inputs, has_progress_bar, tell):
        if cache == AUTO:
            return _by_user_cache(signals, samples)
        if cache is not None:
            return _by_file(signals, samples, Path(cache))
        signals.fit(*samples)
        return Cached()


def _by_file(signals: Signals, samples: tuple[Any, ...], cache: Path) -> Cached:
    refusal = ""
    try:
        signals.load(cache, *samples)
    except (FileNotFoundError, NotADirectoryError):
        pass
    except OSError as error:
        refusal = f"The cache {cache} cannot be read: {error.strerror}. Its contents are computed anew."
    else:
        return Cached(found_in=cache)
    signals.fit(*samples)
    if refusal:
        return Cached(refusal=refusal)
    try:
        signals.save(cache)
    except OSError as error:
        warnings.warn(f"The cache {cache} cannot be written: {error}. It is not kept.", stacklevel=3)
        return Cached()
    return Cached(kept_in=cache)


def _by_user_cache(signals: Signals, samples: tuple[Any, ...]) -> Cached:
    boundary, file, refusal = signals.boundary, None, ""
    is_of_user = callable(boundary.feature_extractor) or callable(boundary.perturbation)
    is_wanted = not is_of_user and not user_cache.is_off()
    if is_wanted and user_cache.folder() is not None:
        space = boundary.settle_space(*samples)
        if space != "module":
            file = user_cache.file_of(signals.fingerprint_of(*samples), space, samples[0].device.type)
    if file is not None:
        try:
            signals.load(file, *samples, is_own=True)
        except PermissionError as error:
            refusal = f"The cache file {file} is not read ({error.strerror}); its contents are computed anew."
        except (OSError, ValueError):  # not there, not to be read, or damaged: it is made anew
            pass
        else:
            with suppress(OSError):  # of a folder that cannot be written to
                os.utime(file)  # it is used now
            return Cached(found_in=file)
    started = time.perf_counter()
    signals.fit(*samples)
    is_dear = time.perf_counter() - started > user_cache.LEAST_SECONDS
    if not is_wanted or not is_dear or boundary.is_of_module:
        return Cached(refusal=refusal)
    return _keep(signals, file, refusal)


def _keep(signals: Signals, file: Path | None, refusal: str) -> Cached:
    if file is None:
        return Cached(refusal="The preparation is not kept for the next run: no home folder is known.")
    if signals.preparation.n_bytes > user_cache.MOST_BYTES_EACH:
        return Cached(refusal=refusal)
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        signals.save(file)
    except OSError as error:
        return Cached(refusal=f"{refusal} The preparation cannot be kept in {file.parent}: {error}.".strip())
    user_cache.make_room(file.parent)
    return Cached(kept_in=file if file.exists() else None, refusal=refusal)  # one written at once may push it out


@contextmanager
def _bar(signals: Signals, inputs: Tensor, is_shown: bool, tell: Callable[[str], None] | None) -> Iterator[None]:
    """A progress bar of what `signals` does within, after a few seconds, and a forecast of its time."""

    def tell_of(kind: str, seconds: float) -> None:
        if tell is None:
            return
        if kind == "comparisons":
            tell(f"Boundary uncertainty compares samples for about {seconds:.0f} s first. To change it: `max_samples`.")
        else:
            tell(
                f"Boundary uncertainty passes samples through the network for up to {seconds:.0f} s first, to find near"
                " ones by its features. To change it: `feature_extractor`, or `max_samples`."
            )

    n_draws = signals.boundary.n_draws
    totals = {"comparisons": n_comparisons(len(inputs), n_draws)}
    if signals.boundary.may_use_module(inputs):
        totals["passes"] = (1 + n_draws) * len(inputs)
    with (
        tqdm(
            desc="Boundary uncertainty prepares",
            total=totals["comparisons"],
            delay=_BAR_DELAY,
            disable=not is_shown,
            leave=False,
            bar_format="{desc}: {percentage:3.0f}%|{bar}| {elapsed}<{remaining}",
        ) as bar,
        shown_on(bar, Forecast(totals, tell_of)),
    ):
        yield
