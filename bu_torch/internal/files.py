"""Files that are written whole or not at all, and read without following or waiting for anything else."""

import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bu_torch.internal.printing import cleaned


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Yield the name of a new file to write in place of `path`, which it becomes on leaving without an exception.

    It lies beside `path` under a name that nobody can foresee, so that processes that share the folder never write to
    one file. Folders are made.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name[:50]}.{secrets.token_hex(8)}.part")
    try:
        yield part
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


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
