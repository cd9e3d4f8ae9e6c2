"""Preparations of earlier runs in the user's cache folder, by the fingerprint of samples and settings."""

import os
from pathlib import Path

from platformdirs import user_cache_path

VARIABLE = "BU_TORCH_CACHE"
_OFF = ("", "0", "off", "none", "false", "no")
_MOST_BYTES = 2**30  # of all files together; those that were used last are kept
_MOST_BYTES_EACH = 2**28
LEAST_SECONDS = 0.5  # of a preparation that is worth a file


def folder() -> Path | None:
    """Where files are kept: the folder that `BU_TORCH_CACHE` names, or the platform's; None where that turns it off."""
    named = os.environ.get(VARIABLE)
    if named is None:
        return user_cache_path("bu-torch", appauthor=False)
    return None if named.strip().lower() in _OFF else Path(named).expanduser()


def file_of(fingerprint: str) -> Path | None:
    """The file of a preparation, whether it is there or not; None where nothing is kept."""
    place = folder()
    return None if place is None else place / f"{fingerprint}.npz"


def make_room(path: Path) -> None:
    """Delete the files that were used longest ago, until all together are small enough.

    Args:
        path: A new file, which goes if it is too large itself.

    Raises:
        OSError: If the folder cannot be read.
    """
    if path.stat().st_size > _MOST_BYTES_EACH:
        path.unlink(missing_ok=True)
    total = 0
    for _, size, file in sorted(((*_used_and_size(file), file) for file in path.parent.glob("*.npz")), reverse=True):
        total += size
        if total > _MOST_BYTES:
            file.unlink(missing_ok=True)


def touch(path: Path) -> None:
    """Count a file as used now; where the folder cannot be written to, it stays as it is."""
    try:
        path.touch()
    except OSError:
        return


def _used_and_size(file: Path) -> tuple[float, int]:
    try:
        status = file.stat()
    except OSError:  # another process has deleted it
        return 0.0, 0
    return status.st_mtime, status.st_size
