"""Processes that train one network together: each reaches every collective, in the same order, even if one fails."""

import traceback
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, distributed, nn
from torch.nn.parameter import is_lazy

from bu_torch.internal.replica import evaluation_copy, is_sharded

T = TypeVar("T")


class Processes:
    """A single process, and the base of several: a trainer overrides `count` to `gather`."""

    count, rank = 1, 0
    n_shares, share = 1, 0  # fewer than `count` if some processes have the same samples, because they split layers
    are_sharded = False  # no process has the whole network, and its parameters do not show that

    def broadcast(self, value: T) -> T:
        """Give the value of the first process to all."""
        return value

    def any(self, flag: bool) -> bool:
        """Tell all processes if one of them has a True `flag`."""
        return flag

    def gather(self, part: Tensor) -> Tensor:
        """Tensors of all shares, of the same shape, in a new first dimension."""
        return part.unsqueeze(0)

    def on_first(self, work: Callable[[], T]) -> T:
        """Run `work` in the first process and return its result in all of them; if it raises there, all raise."""
        if self.count == 1:
            return work()
        result, error = _tried(work) if self.rank == 0 else (None, None)
        message = "" if error is None else "".join(traceback.format_exception_only(error)).strip()
        result, message = self.broadcast((result, message))
        if message:
            raise error or RuntimeError(f"The first process failed: {message}")
        return cast("T", result)

    def share_of(self, inputs: Any, device: torch.device | None = None) -> Any:
        """Rows of this process: equally many in each, so the last row is repeated to fill them."""
        if self.count == 1:
            return inputs
        n_rows = -(-len(inputs) // self.n_shares)
        places = torch.arange(n_rows, device=inputs.device) + self.share * n_rows
        return inputs[places.clamp(max=len(inputs) - 1)].to(device)

    def read(self, read: Callable[[], Tensor], n_rows: int) -> Tensor:
        """Logits (n_rows, J) of which each process reads its share; if one process fails, all raise."""
        if self.count == 1:
            return read()
        part, error = _tried(read)
        if self.any(error is not None) or part is None:
            raise error or RuntimeError("Another process could not read its share of the logits.")
        if part.dtype not in (torch.float32, torch.float64):
            part = part.float()  # exact, and known to every backend
        return self.gather(part.contiguous()).flatten(0, 1)[:n_rows]

    def same_buffers(self, model: Any, values: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
        """Values of weights by name, and with them the buffers of the first process, whose weights are saved."""
        values = dict(values or {})
        buffers = model.named_buffers(remove_duplicate=False) if isinstance(model, nn.Module) and self.count > 1 else ()
        own = {name: one for name, one in buffers if not (is_lazy(one) or is_sharded(one))}
        if own:
            theirs = self.broadcast({name: values.get(name, buffer).detach().cpu() for name, buffer in own.items()})
            values |= {name: theirs[name].to(buffer.device) for name, buffer in own.items()}
        return values

    def copied(self, model: Any) -> AbstractContextManager[Any]:
        """Give an `evaluation_copy` of a model with the buffers of the first process."""
        return evaluation_copy(model, self.same_buffers(model), is_sharded=self.are_sharded)

    def __reduce__(self) -> tuple[Any, ...]:
        return Processes, ()  # what holds a copy is with no others


def _tried(work: Callable[[], T]) -> tuple[T | None, Exception | None]:
    try:
        return work(), None
    except Exception as error:  # the user's code may raise anything
        return None, error


class TorchProcesses(Processes):
    """Processes of a group of torch, None for all: in a plain loop, under `accelerate launch`, in Lightning Fabric."""

    def __init__(self, group: Any = None) -> None:
        self._group = group
        try:
            self.count = self.n_shares = distributed.get_world_size(group)
        except (AttributeError, TypeError) as error:
            got = type(group).__name__
            raise TypeError(f"`process_group` must be a group of `torch.distributed` or None, got {got}.") from error
        self.rank = self.share = distributed.get_rank(group)

    def broadcast(self, value: T) -> T:
        values = [value]
        distributed.broadcast_object_list(values, group=self._group, group_src=0)
        return values[0]

    def any(self, flag: bool) -> bool:
        flags = [flag] * self.count
        distributed.all_gather_object(flags, flag, group=self._group)
        return any(flags)

    def gather(self, part: Tensor) -> Tensor:
        parts = [torch.empty_like(part) for _ in range(self.count)]
        distributed.all_gather(parts, part, group=self._group)
        return torch.stack(parts)
