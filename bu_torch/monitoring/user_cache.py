"""Preparations of earlier runs in the user's cache folder, by the fingerprint of samples and settings."""

import hashlib
import os
import re
import time
from pathlib import Path

from platformdirs import user_cache_path

from bu_torch.monitoring.record import versions

VARIABLE = "BU_TORCH_CACHE"
LEAST_SECONDS = 0.5  # of a preparation that is worth a file
_OFF = ("", "0", "off", "none", "false", "no")
_MOST_BYTES = 2**30  # of all files together; those that were used last are kept
MOST_BYTES_EACH = 2**28  # of a preparation that is kept
_OLD = 86_400  # seconds after which a part of a file is one that its writer has left
# Files of this package, whole and (as `whole_file` names them) in parts: others' in the folder are left alone.
_OWN = re.compile(r"[0-9a-f]{64}\.npz|[0-9a-f]{50}\.[0-9a-f]{16}\.part")


def folder() -> Path | None:
    """Where files are kept: the folder that `BU_TORCH_CACHE` names, or the platform's; None where there is none."""
    named = os.environ.get(VARIABLE)
    if named is None:
        return user_cache_path("bu-torch", appauthor=False)
    try:
        return None if named.strip().lower() in _OFF else Path(named).expanduser()
    except RuntimeError:  # of a user that there is not
        return None


def file_of(fingerprint: str, space: str, device: str) -> Path | None:
    """The file of a preparation in a space, whether it is there or not; None where nothing is kept.

    Another version of what computes, or another kind of device, may round otherwise, and has files of its own.
    """
    place = folder()
    name = hashlib.sha256(repr((fingerprint, space, device, sorted(versions().items()))).encode()).hexdigest()
    return None if place is None else place / f"{name}.npz"


def make_private(file: Path) -> None:
    """Let no other user read a file, which holds samples; where that cannot be, it is deleted.

    Raises:
        OSError: If it cannot be.
    """
    try:
        file.chmod(0o600)
    except FileNotFoundError:  # another process has made room
        return
    except OSError:
        _delete(file)
        raise


def make_room(place: Path) -> None:
    """Delete the files of this package in a folder that were used longest ago, until all together are small enough."""
    try:
        found = [(_used_and_size(file), file) for file in place.iterdir() if _OWN.fullmatch(file.name)]
    except OSError:  # a folder that cannot be listed
        return
    total = 0
    for (used, size), file in sorted(found, reverse=True):
        if file.suffix == ".part":
            is_kept = time.time() - used < _OLD
        else:
            is_kept = total + size <= _MOST_BYTES
            total += size if is_kept else 0
        if not is_kept:
            _delete(file)


def count_as_used(path: Path) -> None:
    """A file is used now; where the folder cannot be written to, it stays as it is."""
    try:
        os.utime(path)
    except OSError:
        return


def _delete(file: Path) -> None:
    try:
        file.unlink(missing_ok=True)
    except OSError:  # open in another process, on some systems
        return


def _used_and_size(file: Path) -> tuple[float, int]:
    try:
        status = file.stat()
    except OSError:  # another process has deleted it
        return 0.0, 0
    return status.st_mtime, status.st_size
