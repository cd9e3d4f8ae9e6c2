"""Processes that train one network together: the first one reads it and decides, and the others wait for that."""

import traceback
from collections.abc import Callable
from typing import Any, TypeVar, cast

from torch import Tensor, distributed

T = TypeVar("T")


class Processes:
    """A single process, and the base of several: a trainer overrides all but `on_first` and `on_logits`."""

    count, rank = 1, 0
    are_sharded = False  # no process has the whole network
    hide_weights = False  # nor shows which part it has

    def broadcast(self, value: T) -> T:
        """Give the value of the first process to all."""
        return value

    def on_first(self, work: Callable[[], T]) -> T:
        """Run `work` in the first process and return its result in all of them; if it raises there, all raise."""
        if self.count == 1:
            return work()
        result, error = None, None
        if self.rank == 0:
            try:
                result = work()
            except Exception as failed:  # the user's code may raise anything
                error = failed
        message = "" if error is None else "".join(traceback.format_exception_only(error)).strip()
        result, message = self.broadcast((result, message))
        if message:
            raise error or RuntimeError(f"The first process failed: {message}")
        return cast("T", result)

    def on_logits(self, read: Callable[[], Tensor], work: Callable[[Tensor], T]) -> T:
        """Run `work` on what `read` gives in the first process; if each holds a part of the network, all read."""
        if not self.are_sharded:
            return self.on_first(lambda: work(read()))
        logits = read()
        return self.on_first(lambda: work(logits))

    def __reduce__(self) -> tuple[Any, ...]:
        return Processes, ()  # what holds a copy is with no others


class TorchProcesses(Processes):
    """Processes of a group of torch, None for all: in a plain loop, under `accelerate launch`, in Lightning Fabric."""

    def __init__(self, group: Any = None) -> None:
        self._group = group
        try:
            self.count = distributed.get_world_size(group)
        except (AttributeError, TypeError) as error:
            got = type(group).__name__
            raise TypeError(f"`process_group` must be a group of `torch.distributed` or None, got {got}.") from error
        self.rank = distributed.get_rank(group)

    def broadcast(self, value: T) -> T:
        values = [value]
        distributed.broadcast_object_list(values, group=self._group, group_src=0)
        return values[0]
