"""What leaves the process: lines of text for people, and files that are written whole or not at all."""

import logging
import secrets
import sys
import unicodedata
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

_log = logging.getLogger("bu_torch")
_UNSEEN = ("Cc", "Cf", "Cs", "Zl", "Zp")  # categories of Unicode
_JOINERS = "\u200c\u200d"  # belong to words of some scripts, and to emojis


def printable(value: Any) -> str:
    """Text of `value` in one line, without control characters, text reversal or surrogates."""
    text = str(value).replace("\n", " ").replace("\t", " ")
    return "".join("\ufffd" if unicodedata.category(c) in _UNSEEN and c not in _JOINERS else c for c in text)


def outline(value: Any) -> str:
    """Type of a value, and the names or the number of its entries, for a message."""
    kind = type(value).__name__
    if isinstance(value, Mapping):
        return f"{kind} with {', '.join(map(repr, list(value)[:20]))}"
    return f"{kind} of {len(value)}" if isinstance(value, tuple | list) else kind


def say(text: str, stream: TextIO | None = None) -> None:
    """Print lines of text, printable, in the encoding of `stream`, which is standard output by default."""
    stream = sys.stdout if stream is None else stream
    encoding = stream.encoding or "utf-8"
    shown = "\n".join(printable(line) for line in text.split("\n"))
    print(shown.encode(encoding, "backslashreplace").decode(encoding), file=stream, flush=True)


def log_line(line: str) -> None:
    """Log a line of a training by the logger "bu_torch" at INFO, which is shown unless a script decides otherwise."""
    if _log.level == logging.NOTSET:
        _log.setLevel(logging.INFO)
    if not _log.hasHandlers():
        handler = logging.StreamHandler()
        handler.addFilter(lambda record: not logging.getLogger().handlers)  # those set up since show the line, too
        _log.addHandler(handler)
    _log.info("%s", printable(line))


def log_nothing(*_: object, **__: object) -> None:
    """Drop what is to be logged; a function with a name, because a callback that holds it may be pickled."""


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
