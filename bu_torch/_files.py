"""Files that are there whole or not at all."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A new empty file to write to in place of `path`, which it becomes on leaving without an exception.

    It lies beside `path` under a name that nobody can foresee, and is created exclusively: threads, processes and
    machines that share the folder never write to one file, and a link planted there is not followed. Folders are made.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name[:50]}.{secrets.token_hex(8)}.part")
    os.close(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))  # the umask decides, as for any new file
    try:
        yield part
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
