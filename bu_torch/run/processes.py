"""Processes that train one network together: each reaches every collective, in the same order, even if one fails."""

import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, distributed, nn

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

    @contextmanager
    def copied(self, model: Any, values: Mapping[str, Tensor] | None = None) -> Iterator[Any]:
        """Give an `evaluation_copy` of a model, with the buffers of the first process, whose weights are saved."""
        with evaluation_copy(model, values, is_sharded=self.are_sharded) as network:
            buffers = network.named_buffers() if self.count > 1 and isinstance(network, nn.Module) else ()
            if own := {name: one for name, one in buffers if not is_sharded(one)}:
                theirs = self.broadcast({name: buffer.cpu() for name, buffer in own.items()})
                for name, buffer in own.items():
                    buffer.copy_(theirs[name])
            yield network

    def __reduce__(self) -> tuple[Any, ...]:
        return Processes, ()  # what holds a copy is with no others


def _tried(work: Callable[[], T]) -> tuple[T | None, Exception | None]:
    try:
        return work(), None
    except Exception as error:  # the user's code may raise anything
        return None, error


class TorchProcesses(Processes):
    """Processes of torch's default group, as in a plain loop, under `accelerate launch`, and in Lightning Fabric."""

    def __init__(self) -> None:
        self.count = self.n_shares = distributed.get_world_size()
        self.rank = self.share = distributed.get_rank()

    def broadcast(self, value: T) -> T:
        values = [value]
        distributed.broadcast_object_list(values)
        return values[0]

    def any(self, flag: bool) -> bool:
        flags = [flag] * self.count
        distributed.all_gather_object(flags, flag)
        return any(flags)

    def gather(self, part: Tensor) -> Tensor:
        parts = [torch.empty_like(part) for _ in range(self.count)]
        distributed.all_gather(parts, part)
        return torch.stack(parts)
