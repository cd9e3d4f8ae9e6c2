"""Hooks of batches that have nothing to do: Lightning passes over a hook that is None, which is cheaper than a call."""

from typing import Any

OF_BATCHES = (
    "on_train_batch_start",
    "on_before_zero_grad",
    "on_before_backward",
    "on_after_backward",
    "on_before_optimizer_step",
    "on_train_batch_end",
)


def put_aside(callback: Any, idle: type) -> None:
    """Make the hooks of batches that a callback has from `idle` None, and leave those that a subclass defines.

    In the instance: a subclass finds them by `super()` all the same.
    """
    for name in OF_BATCHES:
        if getattr(type(callback), name) is getattr(idle, name):
            setattr(callback, name, None)


def bring_back(callback: Any) -> None:
    """Undo it."""
    for name in OF_BATCHES:
        if vars(callback).get(name, callback) is None:
            delattr(callback, name)
