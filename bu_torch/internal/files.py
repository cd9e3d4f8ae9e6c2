"""Files that are written whole or not at all, and read without following or waiting for anything else."""

import errno
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def open_whole(path: Path, mode: int = 0o666) -> Iterator[BinaryIO]:
    """Open a new file to write in place of `path`, which it becomes on leaving without an exception.

    It lies beside `path` under a name that nobody can foresee, and is created exclusively: threads, processes and
    machines that share the folder never write to one file, and nothing is written to what somebody plants under its
    name. Folders are made. The umask takes its share of `mode`, as of any new file's.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name[:50]}.{secrets.token_hex(8)}.part")
    try:
        with open(part, "x+b", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            yield file
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Yield the name of a file as `open_whole` opens it, for writers that take a name."""
    with open_whole(path) as file:
        yield Path(file.name)


@contextmanager
def regular_file(path: str | Path) -> Iterator[BinaryIO]:
    """Open a regular file to read; raise `OSError` for all else, such as a pipe that would have to be waited for."""
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)
    with os.fdopen(os.open(path, flags), "rb") as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "no regular file", str(path))
        yield file
