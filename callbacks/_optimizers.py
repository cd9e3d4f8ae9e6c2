"""Optimisers with modes: they train at one point, and the network is to be measured and kept at another."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from torch import Tensor

if TYPE_CHECKING:
    from lightning.pytorch import Trainer


@contextmanager
def evaluation_weights(trainer: "Trainer") -> Iterator[None]:
    """Have the weights in the network at which its optimisers are evaluated; on leaving, those of training.

    A Schedule-Free optimiser (Defazio et al. 2024, arXiv 2405.15682) steps at y, and its `eval` puts the average x into
    the parameters. Its `train` goes back to y, but not to the bit: the bits are copied before.
    """
    with ExitStack() as stack:
        for optimizer in _in_training(trainer):
            before = [(one, one.detach().clone()) for group in optimizer.param_groups for one in group["params"]]
            stack.callback(_train_again, optimizer, before)
            optimizer.eval()
        yield


def leave_training(trainer: "Trainer") -> None:
    """Switch optimisers to evaluation for good, so that a later `eval` does not move weights that are put back."""
    for optimizer in _in_training(trainer):
        optimizer.eval()


def _in_training(trainer: "Trainer") -> list[Any]:
    """The optimisers that have modes and are in that of training; unless they tell, they are."""
    return [one for one in trainer.optimizers if _has_modes(one) and _is_in_training(one)]


def _has_modes(optimizer: Any) -> bool:
    return callable(getattr(optimizer, "eval", None)) and callable(getattr(optimizer, "train", None))


def _is_in_training(optimizer: Any) -> bool:
    modes = [group["train_mode"] for group in optimizer.param_groups if "train_mode" in group]
    return any(modes) if modes else bool(getattr(optimizer, "train_mode", True))


def _train_again(optimizer: Any, before: list[tuple[Tensor, Tensor]]) -> None:
    optimizer.train()
    for parameter, values in before:
        parameter.data.copy_(values)
