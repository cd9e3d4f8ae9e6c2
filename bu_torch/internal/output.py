"""What leaves the process: lines of text for people, progress, and files that are written whole or not at all."""

import logging
import re
import secrets
import sys
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from tqdm.auto import tqdm

_log = logging.getLogger("bu_torch")
_UNSEEN = ("Cc", "Cf", "Cs", "Zl", "Zp")  # categories of Unicode
_JOINERS = "\u200c\u200d"  # belong to words of some scripts, and to emojis
_BAR_DELAY = 3  # seconds of work before a progress bar is shown


def cleaned(value: Any) -> str:
    """Text of `value` in one line, without control characters, text reversal or surrogates."""
    text = str(value).replace("\n", " ").replace("\t", " ")
    return "".join("\ufffd" if unicodedata.category(c) in _UNSEEN and c not in _JOINERS else c for c in text)


def say(text: str, stream: TextIO | None = None) -> None:
    """Print lines of text, cleaned, in the encoding of `stream`, which is standard output by default."""
    stream = sys.stdout if stream is None else stream
    encoding = stream.encoding or "utf-8"
    shown = "\n".join(cleaned(line) for line in text.split("\n"))
    print(shown.encode(encoding, "backslashreplace").decode(encoding), file=stream, flush=True)


def tell(line: str) -> None:
    """Log a line of a training by the logger "bu_torch" at INFO, which is shown unless a script decides otherwise."""
    if _log.level == logging.NOTSET:
        _log.setLevel(logging.INFO)
    if not _log.hasHandlers():
        handler = logging.StreamHandler()
        handler.addFilter(lambda record: not logging.getLogger().handlers)  # those set up since show the line, too
        _log.addHandler(handler)
    _log.info("%s", cleaned(line))


def untold(line: str) -> None:
    """Drop a line."""


_are_shown = ContextVar("are_shown", default=False)
_bar: ContextVar[Any] = ContextVar("bar", default=None)
_is_counted = ContextVar("is_counted", default=True)


@contextmanager
def _having(variable: ContextVar[Any], value: Any) -> Iterator[None]:
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


showing_progress = partial(_having, _are_shown)  # lets `progress` show its bars within, if the argument is True
shown_on = partial(_having, _bar)  # lets `advance` move a bar within, which has the `update` of tqdm's, or is None
uncounted = partial(_having, _is_counted, False)  # lets `advance` refresh the bar within, without moving it


@contextmanager
def progress(what: str, **options: Any) -> Iterator[None]:
    """Show a bar of tqdm's for the work within, after a few seconds, if bars are shown; `advance` moves it."""
    # A disabled bar would start tqdm's thread, too.
    bar = tqdm(desc=what, delay=_BAR_DELAY, leave=False, **options) if _are_shown.get() else nullcontext()
    with bar as shown, shown_on(shown):
        yield


def advance(n: float = 0) -> None:
    """Move the bar by `n` units of work, 0 for uncounted work; does nothing without a bar."""
    if (bar := _bar.get()) is not None:
        bar.update(n if _is_counted.get() else 0)


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
