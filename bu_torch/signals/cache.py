"""Preparations of earlier runs in files, and the progress of a new one."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor
from tqdm.auto import tqdm

from bu_torch.internal.inputs import as_labels
from bu_torch.internal.printing import Forecast, shown_on
from bu_torch.signals.measuring import Signals
from bu_torch.signals.preparation import n_comparisons

_BAR_DELAY = 3  # seconds of preparation before a progress bar is shown


class Cached(NamedTuple):
    """Fate of a preparation on disk: found, kept, refused, or none of the three."""

    found_in: Path | None = None
    kept_in: Path | None = None
    refusal: str = ""  # reason why a file is not read


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

    Args:
        signals: Signals to fit or to load, in place.
        inputs: Samples (N, ...), as `Signals.fit` takes them.
        labels: Their classes (N,).
        cache: A file (npz), which is refused if it is of other samples or settings; or a folder, in which samples and
            settings name the file. If neither can be written, a warning says so. None keeps nothing.
        sample_weight: Weights of the samples (N,), or None.
        has_progress_bar: Show a bar if the fit takes some seconds.
        tell: Takes a line with the expected time of a long fit.

    Raises:
        ValueError: If the file is damaged or of other samples or settings; others as in `Signals.fit`.
    """
    inputs = signals.boundary.as_inputs(inputs)
    samples = inputs, as_labels(labels, len(inputs)).to(inputs.device), sample_weight
    with _bar(signals, inputs, has_progress_bar, tell):
        if cache is None:
            signals.fit(*samples)
            return Cached()
        return _by_file(signals, samples, Path(cache))


def _by_file(signals: Signals, samples: tuple[Any, ...], cache: Path) -> Cached:
    # A name without an ending is a folder that is yet to be made.
    if cache.is_dir() or not (cache.suffix or cache.exists()):
        cache = cache / f"{signals.fingerprint_of(*samples)}.npz"
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


@contextmanager
def _bar(signals: Signals, inputs: Tensor, is_shown: bool, tell: Callable[[str], None] | None) -> Iterator[None]:
    """Show a progress bar of what `signals` does within, after a few seconds, and tell how long it will take."""

    def tell_forecast(kind: str, seconds: float) -> None:
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
        shown_on(bar, Forecast(totals, tell_forecast)),
    ):
        yield
