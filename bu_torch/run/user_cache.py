"""Preparations of earlier runs on disk, most of them in the user's cache folder, and the command `bu-torch cache`."""

import argparse
import hashlib
import os
import re
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from platformdirs import user_cache_path
from torch import Tensor
from tqdm.auto import tqdm

from bu_torch.internal.files import regular_file
from bu_torch.internal.inputs import as_labels
from bu_torch.internal.printing import cleaned, say
from bu_torch.internal.progress import Forecast, shown_on
from bu_torch.run.record import versions
from bu_torch.run.settings import AUTO
from bu_torch.signals.arrays import are_arrays
from bu_torch.signals.measuring import Signals
from bu_torch.signals.preparation import n_comparisons

VARIABLE = "BU_TORCH_CACHE"
LEAST_SECONDS = 0.5  # of a preparation that is worth a file
_OFF = ("", "0", "off", "none", "false", "no")
_MOST_BYTES = 2**30  # of all files together; those that were used last are kept
MOST_BYTES_EACH = 2**28  # of a preparation that is kept
_OLD = 86_400  # seconds after which a part of a file is one that its writer has left
_MOST_AGE = 30 * 86_400  # seconds since a file was last used
_NAME = "bu-torch-"
_BAR_DELAY = 3  # seconds of preparation before a progress bar is shown
# By name, files of this package, whole and (as `Signals.save` names them) in parts. Their first bytes must say so too.
_OWN = re.compile(rf"{_NAME}([0-9a-f]{{64}}\.npz|[0-9a-f]{{41}}\.[0-9a-f]{{16}}\.part)")


class Entry(NamedTuple):
    """A file of this package in a folder, which `bu-torch cache` shows."""

    used: float  # when, as `time.time` has it
    size: int
    file: Path

    @property
    def is_left(self) -> bool:
        """True for a part of a file that its writer has left."""
        return self.file.suffix == ".part" and time.time() - self.used > _OLD


def is_off() -> bool:
    """True if `BU_TORCH_CACHE` says that nothing is kept."""
    return os.environ.get(VARIABLE, "on").strip().lower() in _OFF


def folder() -> Path | None:
    """Folder of the files: the one that `BU_TORCH_CACHE` names, or the platform's; None if there is none."""
    named = os.environ.get(VARIABLE)
    if is_off():
        return None
    try:
        if named is not None:
            return Path(named).expanduser()
        found = user_cache_path("bu-torch", appauthor=False)
    except RuntimeError:  # no home folder is known, or no such user
        return None
    return found if found.is_absolute() else None


def file_of(fingerprint: str, space: str, device: str) -> Path | None:
    """The file of a preparation in a space, whether it is there or not; None where nothing is kept.

    Another version of what computes, or another kind of device, may round otherwise, and has files of its own.
    """
    place = folder()
    name = hashlib.sha256(repr((fingerprint, space, device, sorted(versions().items()))).encode()).hexdigest()
    return None if place is None else place / f"{_NAME}{name}.npz"


def entries(place: Path) -> list[Entry]:
    """Files of this package and this user in a folder, those first that were used last; others' are left alone."""
    found = []
    try:
        named = [file for file in place.iterdir() if _OWN.fullmatch(file.name)]
    except OSError:  # a folder that cannot be listed
        return []
    for file in named:
        try:
            with regular_file(file, is_own=True) as content:
                status = os.fstat(content.fileno())
                if are_arrays(content):
                    found.append(Entry(status.st_mtime, status.st_size, file))
        except OSError:  # deleted by another process, or none of ours
            continue
    return sorted(found, reverse=True)


def make_room(place: Path) -> None:
    """Delete the files of this package that have not been used for long, until all together are small enough."""
    total = 0
    for entry in entries(place):
        is_kept = not entry.is_left
        if entry.file.suffix != ".part":
            is_kept = total + entry.size <= _MOST_BYTES and time.time() - entry.used <= _MOST_AGE
            total += entry.size if is_kept else 0
        if not is_kept:
            delete(entry.file)


def delete(file: Path) -> bool:
    """Delete a file; False if that cannot be, as on some systems while another process reads it."""
    try:
        file.unlink(missing_ok=True)
    except OSError:
        return False
    return True


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

    A file of the user's own is refused if it is of other samples; if it cannot be written, a warning says so. `"auto"`
    stands for a file in the user's cache folder, which is made anew if it does not fit. Nothing is kept there that
    depends on the user's code or on features of a network, or that took no time; the space of images and texts is
    chosen anew each time, because it may depend on the network. `tell` takes a line that says how long the fit will
    take, if that is long.
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
    is_wanted = not is_of_user and not is_off()
    if is_wanted and folder() is not None:
        # The space of a table follows from what the fingerprint names already.
        is_table = samples[0].ndim == 2 and samples[0].is_floating_point()
        space = "" if is_table else boundary.settle_space(*samples)
        if space != "module":
            file = file_of(signals.fingerprint_of(*samples), space, samples[0].device.type)
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
    is_dear = time.perf_counter() - started > LEAST_SECONDS
    if not is_wanted or not is_dear or boundary.is_of_module:
        return Cached(refusal=refusal)
    return _keep(signals, file, refusal)


def _keep(signals: Signals, file: Path | None, refusal: str) -> Cached:
    if file is None:
        return Cached(refusal="The preparation is not kept for the next run: no home folder is known.")
    if signals.preparation.n_bytes > MOST_BYTES_EACH:
        return Cached(refusal=refusal)
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        signals.save(file)
    except OSError as error:
        return Cached(refusal=f"{refusal} The preparation cannot be kept in {file.parent}: {error}.".strip())
    make_room(file.parent)
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


def add_cache(parser: argparse.ArgumentParser) -> None:
    """Add the options of `bu-torch cache`."""
    parser.description = (
        "Show what trainings have kept in your cache folder for later ones: neighbours, distances, class probabilities"
        " and labels. Files that nothing reads for 30 days are deleted when the next one is written."
    )
    parser.add_argument("--clear", action="store_true", help="delete them; files of other programs stay")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> None:
    place = folder()
    if place is None:
        reason = f"{VARIABLE} turns it off" if is_off() else "no home folder is known"
        say(f"There is no cache folder: {reason}.")
        return
    found = entries(place)
    if options.clear:
        # Not a part that a training may be writing.
        free = [entry for entry in found if entry.file.suffix != ".part" or entry.is_left]
        deleted = [entry for entry in free if delete(entry.file)]
        say(f"{cleaned(place)}: deleted {_in_words(deleted)}")
        return
    say(f"{cleaned(place)}: {_in_words(found)}")
    for entry in found:
        say(f"  {entry.size / 1e6:.1f} MB, used {_age(time.time() - entry.used)} ago: {cleaned(entry.file.name)}")


def _in_words(found: list[Entry]) -> str:
    files = "1 file" if len(found) == 1 else f"{len(found)} files"
    return f"{files}, {sum(entry.size for entry in found) / 1e6:.1f} MB"


def _age(seconds: float) -> str:
    for unit, name in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= unit:
            return f"{seconds / unit:.0f} {name}"
    return f"{max(0.0, seconds):.0f} s"
