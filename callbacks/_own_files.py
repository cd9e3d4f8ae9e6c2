"""Which checkpoints this process has written: only those may be unpickled, or deleted wherever they are."""

import stat
from pathlib import Path

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
