"""Telling a progress bar how far a long computation is, wherever it runs."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol


class Bar(Protocol):
    """What is asked of a progress bar: tqdm's `update`."""

    def update(self, n: float = 1) -> object: ...


_bar: ContextVar[Bar | None] = ContextVar("bar", default=None)


@contextmanager
def shown_on(bar: Bar) -> Iterator[None]:
    """Within, `advance` moves `bar`."""
    token = _bar.set(bar)
    try:
        yield
    finally:
        _bar.reset(token)


@contextmanager
def uncounted() -> Iterator[None]:
    """Within, `advance` shows that something is done and does not move the bar."""
    bar = _bar.get()
    token = _bar.set(None if bar is None else _Still(bar))
    try:
        yield
    finally:
        _bar.reset(token)


class _Still:
    def __init__(self, bar: Bar) -> None:
        self._bar = bar

    def update(self, n: float = 1) -> object:
        return self._bar.update(0)


def advance(n: float = 0) -> None:
    """Say that `n` more units of work are done, 0 for work that is not counted; nothing where nobody looks."""
    bar = _bar.get()
    if bar is not None:
        bar.update(n)
