"""Files that are there whole or not at all."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A name to write to in place of `path`, which it becomes on leaving without an exception; folders are made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name[:50]}.{os.getpid()}.part")
    try:
        yield part
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
