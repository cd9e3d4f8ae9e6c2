"""The file of the kept check, by its path and its bytes."""

import os
import stat
import zipfile
from pathlib import Path
from typing import Any


def absolute(folder: Any) -> Any:
    """A folder on this machine by its absolute path; others as they are."""
    if not isinstance(folder, str | Path):
        return folder
    local = str(folder).removeprefix("file://")
    return folder if "://" in local else str(Path(local).absolute())


def may_be_read(path: Any, folder: str) -> bool:
    """True if a resumed state may name this as the best checkpoint of a run that writes to `folder`.

    A local run has written local files, by absolute paths: a regular file, or a folder of shards. Lightning would take
    other spellings for addresses to download from, or wait for a pipe. A remote run stays with its kind of store.
    """
    if not isinstance(path, str) or "::" in path or "\0" in path:
        return False
    if "://" in folder:
        kind = folder.partition("://")[0]
        return path.startswith(f"{kind}://") and not kind.startswith("http")
    if "://" in path or not Path(path).is_absolute():
        return False
    try:
        mode = os.stat(path).st_mode  # noqa: PTH116  (a name may be one that `Path` cannot hold)
    except (OSError, ValueError):
        return False
    return stat.S_ISREG(mode) or stat.S_ISDIR(mode)


def is_whole(path: str) -> bool:
    """False for a local file that torch began and did not end; others may be whole."""
    if not Path(path).is_file():
        return True
    with Path(path).open("rb") as file:
        begins = file.read(2)
    return begins not in (b"PK", b"") or zipfile.is_zipfile(path)
