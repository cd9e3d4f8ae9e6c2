"""Files that are written whole or not at all, and read without following or waiting for anything else.

Names of checkpoints that are reserved, and their files told apart, on this machine or in a remote store.
"""

import os
import re
import secrets
import stat
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from bu_torch.internal.printing import cleaned

Identity = tuple[Any, ...]


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Yield the name of a new file to write in place of `path`, which it becomes on leaving without an exception.

    It lies beside `path` under a name that nobody can foresee, and is created exclusively: threads, processes and
    machines that share the folder never write to one file, and nothing is written to what somebody plants under its
    name. Folders are made.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name[:50]}.{secrets.token_hex(8)}.part")
    try:
        with part.open("xb"):
            yield part
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def claim(path: str, files: Any) -> bool:
    """Create an empty file in a file system, so that no other run takes the name; False if it is taken already."""
    with suppress(Exception):  # a remote store may know no exclusive files; if none can be written, saving one raises
        files.makedirs(files._parent(path), exist_ok=True)
        try:
            files.open(path, "xb").close()
        except FileExistsError:
            return False
    return True


def identity(path: str, files: Any) -> Identity | None:
    """File identity, to detect replacement; None for a folder, a file still to be written, or if none is known."""
    if "://" in path:
        with suppress(Exception):  # a remote store may raise anything
            found = files.ukey(path)
            return (found,) if found == files.ukey(path) else None
        return None
    try:  # another process may delete it at any time
        found = Path(path).stat()
    except (OSError, ValueError):
        return None
    fields = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
    return fields if stat.S_ISREG(found.st_mode) else None


def is_regular(path: str) -> bool:
    """Return True for the absolute path of a local file or folder of shards, and for an address of a remote store."""
    if "://" in path:
        return not path.startswith("http")
    return Path(path).is_absolute() and (os.path.isfile(path) or os.path.isdir(path))  # noqa: PTH112, PTH113


def may_be_named(path: Any, folders: tuple[str, ...]) -> bool:
    """Return True if a resumed state may name this as the best checkpoint of a run that wrote below one of `folders`.

    A local run writes a regular file or a folder of shards. Given anything else, Lightning might download it, or wait
    for a pipe.
    """
    if not isinstance(path, str) or "::" in path or "\0" in path:
        return False
    if "://" in path:
        return is_regular(path) and any(path.startswith(f"{one}/") for one in folders)
    within = [Path(one).resolve() for one in folders if "://" not in one and "\0" not in one]
    return is_regular(path) and any(one in within for one in Path(path).resolve().parents)


def is_whole(path: str) -> bool:
    """Return False if a local torch file is truncated; other formats are assumed whole."""
    if not Path(path).is_file():
        return True
    with Path(path).open("rb") as file:
        begins = file.read(2)
    return begins not in (b"PK", b"") or zipfile.is_zipfile(path)


def why_unreadable(error: Exception) -> str:
    """Reason why `torch.load` or `load_state_dict` refused a file, in one line."""
    said = re.sub(r"\s+", " ", str(error))
    if foreign := foreign_class(error):
        return f"it holds an object of {foreign}"
    if "weights_only" in said or "Weights only" in said:
        return f"it is a pickle that cannot be read without running code in it ({type(error).__name__})"
    return f"{cleaned(said.split('. ')[0][:300])} ({type(error).__name__})"


def foreign_class(error: Exception) -> str:
    """Name of the class that torch refuses to unpickle; "" if there is none."""
    found = re.search(r"GLOBAL (\S+) (?:was not an allowed|whose module)", re.sub(r"\s+", " ", str(error)))
    return "" if found is None else cleaned(found[1])[:200]
