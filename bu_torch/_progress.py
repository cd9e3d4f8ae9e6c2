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


def advance(n: float) -> None:
    """Say that `n` more units of work are done; nothing where nobody looks."""
    bar = _bar.get()
    if bar is not None:
        bar.update(n)
