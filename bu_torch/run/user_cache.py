"""Preparations of earlier runs in the user's cache folder, by fingerprint, and the command `bu-torch cache`."""

import argparse
import hashlib
import os
import re
import time
from pathlib import Path
from typing import NamedTuple

from platformdirs import user_cache_path

from bu_torch.internal.files import regular_file
from bu_torch.internal.printing import cleaned, say
from bu_torch.run.record import versions
from bu_torch.signals.arrays import are_arrays

VARIABLE = "BU_TORCH_CACHE"
LEAST_SECONDS = 0.5  # of a preparation that is worth a file
_OFF = ("", "0", "off", "none", "false", "no")
_MOST_BYTES = 2**30  # of all files together; those that were used last are kept
MOST_BYTES_EACH = 2**28  # of a preparation that is kept
_OLD = 86_400  # seconds after which a part of a file is one that its writer has left
_MOST_AGE = 30 * 86_400  # seconds since a file was last used
_NAME = "bu-torch-"
# By name, files of this package, whole and (as `whole_file` names them) in parts. Their first bytes must say so too.
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
        if entry.file.suffix == ".part":
            is_kept = not entry.is_left
        else:
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
