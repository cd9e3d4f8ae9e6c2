"""Output that people read: lines of text, and the progress of a long computation."""

import logging
import sys
import time
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol, TextIO

_UNSEEN = ("Cc", "Cf", "Cs", "Zl", "Zp")  # categories of Unicode
_JOINERS = "\u200c\u200d"  # belong to words of some scripts, and to emojis
_FIRST_PART, _LONG = 1.0, 10.0  # seconds


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
    """Log a line of a training, by the logger "bu_torch" at INFO, which a script sees unless it sets up logging."""
    log = logging.getLogger("bu_torch")
    if not log.hasHandlers():
        log.addHandler(logging.StreamHandler())
        log.setLevel(logging.INFO if log.level == logging.NOTSET else log.level)
    log.info("%s", cleaned(line))


class Bar(Protocol):
    """Progress bar with tqdm's `update`."""

    def update(self, n: float = 1) -> object: ...


class Forecast:
    """Forecast of a long computation from the pace of its first part.

    Args:
        totals: Units of work that are to be done, by kind.
        tell: Takes a kind and the seconds that it will take, once, if these are many.
    """

    def __init__(self, totals: Mapping[str, float], tell: Callable[[str, float], None]) -> None:
        self._totals, self._tell = dict(totals), tell
        self._started = dict.fromkeys(totals, time.perf_counter())
        self._counts = dict.fromkeys(totals, 0.0)

    def start(self, kind: str) -> None:
        """Start the clock, so that earlier work does not count for the pace."""
        if not self._counts.get(kind):
            self._started[kind] = time.perf_counter()

    def count(self, kind: str, n: float) -> None:
        """Count `n` units that were done."""
        if not n or kind not in self._totals:
            return
        self._counts[kind] += n
        seconds = time.perf_counter() - self._started[kind]
        if seconds >= _FIRST_PART:
            seconds *= self._totals.pop(kind) / self._counts[kind]
            if seconds >= _LONG:
                self._tell(kind, seconds)


_shown: ContextVar[tuple[Bar | None, Forecast | None] | None] = ContextVar("shown", default=None)
_is_counted = ContextVar("is_counted", default=True)


@contextmanager
def shown_on(bar: Bar | None, forecast: Forecast | None = None) -> Iterator[None]:
    """Let `advance` move `bar` within, and count for a forecast."""
    token = _shown.set((bar, forecast))
    try:
        yield
    finally:
        _shown.reset(token)


@contextmanager
def uncounted() -> Iterator[None]:
    """Let `advance` refresh the bar within, without moving it."""
    token = _is_counted.set(False)
    try:
        yield
    finally:
        _is_counted.reset(token)
        start_clock("comparisons")


def start_clock(kind: str) -> None:
    """Begin to time work of a kind, `"comparisons"` or `"passes"` through a network, unless some has been counted."""
    _, forecast = _shown.get() or (None, None)
    if forecast is not None:
        forecast.start(kind)


def advance(n: float = 0, n_passes: int = 0) -> None:
    """Move the bar by `n` comparisons, 0 for uncounted work, and count `n_passes` samples through a network.

    Does nothing without a bar.
    """
    if (shown := _shown.get()) is None:
        return
    bar, forecast = shown
    n = n if _is_counted.get() else 0
    if bar is not None:
        bar.update(n)
    if forecast is not None:
        forecast.count("comparisons", n)
        forecast.count("passes", n_passes)
