"""Several processes: what one does for all, and what they share out. Each reaches every collective, in one order."""

import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from bu_torch.callbacks.lightning_trees import Trainer
from bu_torch.internal.shards import is_sharded
from bu_torch.internal.traces import preserved_attributes
from bu_torch.perturbation.draws import PerturbedInputs

T = TypeVar("T")
Inputs = Tensor | PerturbedInputs


def in_first(trainer: Trainer, work: Callable[[], T]) -> T:
    """Run `work` in the first process and return its result in all of them; if it raises there, all raise."""
    if trainer.world_size == 1:
        return work()
    outcome: tuple[Any, str] = (None, "")
    error: Exception | None = None
    if trainer.is_global_zero:
        try:
            outcome = (work(), "")
        except Exception as raised:
            error, outcome = raised, (None, "".join(traceback.format_exception_only(raised)).strip())
    result, message = trainer.strategy.broadcast(outcome)
    if error is not None:
        raise error
    if message:
        raise RuntimeError(f"The first process failed: {message}")
    return result


def share(inputs: Inputs, rank: int, world_size: int) -> Inputs:
    """Rows of `inputs` that one process looks at: equally many in each, so that all make as many forward passes.

    The last row is repeated to fill them.
    """
    n_rows = -(-len(inputs) // world_size)
    places = torch.arange(rank * n_rows, (rank + 1) * n_rows, device=inputs.device)
    return inputs[places.clamp(max=len(inputs) - 1)]


def in_each(trainer: Trainer, read: Callable[[], Tensor]) -> Tensor:
    """The logits that this process has read; where one process fails, all raise."""
    if trainer.world_size == 1:
        return read()
    part, error = None, None
    try:
        part = read()
    except Exception as raised:
        error = raised
    if trainer.strategy.reduce_boolean_decision(error is not None, all=False):
        raise error or RuntimeError("Another process could not read its share of the logits.")
    assert part is not None  # noqa: S101  (there was no error)
    return part


def gather(trainer: Trainer, read: Callable[[], Tensor], n_rows: int) -> Tensor:
    """The rows (n_rows, J) that all processes have read, in the order of `share`; where one fails, all raise."""
    part = in_each(trainer, read)
    if trainer.world_size == 1:
        return part
    if part.dtype not in (torch.float32, torch.float64):
        part = part.float()  # exact, and known to every backend
    parts = trainer.strategy.all_gather(part.contiguous())
    n_alike = trainer.world_size // trainer.strategy.distributed_sampler_kwargs["num_replicas"]
    return parts[::n_alike].flatten(0, 1)[:n_rows]


class Collectives(TorchDispatchMode):
    """Within, notices what only several processes together can compute."""

    supports_higher_order_operators = True  # as the mode that counts operations does

    def __init__(self) -> None:
        super().__init__()
        self.are_seen = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.are_seen |= getattr(func, "namespace", "") in ("c10d", "_c10d_functional")
        return func(*args, **(kwargs or {}))


@contextmanager
def buffers_of_the_first(trainer: Trainer, module: nn.Module) -> Iterator[None]:
    """The running statistics of the first process, whose weights are those that are saved, in all of them."""
    own = {name: one for name, one in module.named_buffers() if trainer.world_size > 1 and not is_sharded(one)}
    if not own:
        yield
        return
    theirs = trainer.strategy.broadcast({name: buffer.cpu() for name, buffer in own.items()})
    with preserved_attributes(module), torch.no_grad():
        for name, buffer in own.items():
            buffer.copy_(theirs[name])
        yield
