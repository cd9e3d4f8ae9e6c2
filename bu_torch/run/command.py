"""The command `bu-torch cache`."""

import argparse
import time

from bu_torch.internal.printing import cleaned, say
from bu_torch.run import user_cache


def add_cache(parser: argparse.ArgumentParser) -> None:
    """Add the options of `bu-torch cache`."""
    parser.description = (
        "Show what trainings have kept in your cache folder for later ones: neighbours, distances, class probabilities"
        " and labels. Files that nothing reads for 30 days are deleted when the next one is written."
    )
    parser.add_argument("--clear", action="store_true", help="delete them; files of other programs stay")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> None:
    place = user_cache.folder()
    if place is None:
        reason = f"{user_cache.VARIABLE} turns it off" if user_cache.is_off() else "no home folder is known"
        say(f"There is no cache folder: {reason}.")
        return
    found = user_cache.entries(place)
    if options.clear:
        # Not a part that a training may be writing.
        free = [entry for entry in found if entry.file.suffix != ".part" or entry.is_left]
        deleted = [entry for entry in free if user_cache.delete(entry.file)]
        say(f"{cleaned(place)}: deleted {_in_words(deleted)}")
        return
    say(f"{cleaned(place)}: {_in_words(found)}")
    for entry in found:
        say(f"  {_size(entry.size)}, used {_age(time.time() - entry.used)} ago: {cleaned(entry.file.name)}")


def _in_words(found: list[user_cache.Entry]) -> str:
    files = "1 file" if len(found) == 1 else f"{len(found)} files"
    return f"{files}, {_size(sum(entry.size for entry in found))}"


def _size(n_bytes: int) -> str:
    return f"{n_bytes / 1e6:.1f} MB"


def _age(seconds: float) -> str:
    for unit, name in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= unit:
            return f"{seconds / unit:.0f} {name}"
    return f"{max(0.0, seconds):.0f} s"
