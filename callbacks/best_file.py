"""The file of the kept check: may it be read, is it whole, has this process written it?"""

import os
import re
import stat
import zipfile
from pathlib import Path
from typing import Any

_FILE_NAME = re.compile(r"boundary-epoch=\d+-step=\d+(-v\d+)?\.ckpt")


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


def is_named_in_folder(path: str, folder: str) -> bool:
    """True for a regular file right in `folder` that is named as a keeper names its files."""
    file = Path(path)
    if not _FILE_NAME.fullmatch(file.name):
        return False
    try:
        is_regular = stat.S_ISREG(file.lstat().st_mode)
    except FileNotFoundError:
        return False
    return is_regular and file.parent.resolve() == Path(folder).resolve()


_Identity = tuple[int, int, int, int, int]


class OwnFiles:
    """Remembers the files that were written, and tells them from files that were put in their place since."""

    def __init__(self) -> None:
        self._identities: dict[str, _Identity | None] = {}

    def add(self, path: str) -> None:
        """Remember `path`, just written; a remote path, a folder or a file still to be written is known by its name."""
        self._identities[path] = _identity(path)

    def __contains__(self, path: str) -> bool:
        if path not in self._identities:
            return False
        identity = self._identities[path]
        return identity is None or identity == _identity(path)


def _identity(path: str) -> _Identity | None:
    try:  # another process may delete it at any time
        found = Path(path).stat()
    except (OSError, ValueError):
        return None
    if not stat.S_ISREG(found.st_mode):
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
