"""Progress of a long computation on a bar, wherever it runs."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol


class Bar(Protocol):
    """Progress bar with tqdm's `update`."""

    def update(self, n: float = 1) -> object: ...


_bar: ContextVar[Bar | None] = ContextVar("bar", default=None)
_is_counted = ContextVar("is_counted", default=True)


@contextmanager
def shown_on(bar: Bar) -> Iterator[None]:
    """Let `advance` move `bar` within."""
    token = _bar.set(bar)
    try:
        yield
    finally:
        _bar.reset(token)


@contextmanager
def uncounted() -> Iterator[None]:
    """Let `advance` refresh the bar within, and not move it."""
    token = _is_counted.set(False)
    try:
        yield
    finally:
        _is_counted.reset(token)


def advance(n: float = 0) -> None:
    """Move the bar by `n` comparisons, 0 for work that is not counted; does nothing without a bar."""
    if (bar := _bar.get()) is not None:
        bar.update(n if _is_counted.get() else 0)
