"""Optimisers with modes: they train at one point, and the network is to be measured and kept at another."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor

from bu_torch.callbacks.lightning_trees import LightningModule, Trainer
from bu_torch.internal.shards import gathered

_MODE = "train_mode"  # of a group of parameters, in a Schedule-Free optimiser
RAW_WEIGHTS = "raw_state_dict"  # of training, in a checkpoint whose `state_dict` holds those that were measured


class TrainingWeights:
    """Weights at which optimisers with modes train, while those of evaluation are in the network."""

    def __init__(self, trainer: Trainer) -> None:
        self._indices = [n for n, one in enumerate(trainer.optimizers) if _is_in_training(one)]
        self.optimizers: list[Any] = [trainer.optimizers[n] for n in self._indices]
        self._values = {
            id(parameter): (parameter, parameter.detach().clone())
            for optimizer in self.optimizers
            for group in optimizer.param_groups
            for parameter in group["params"]
        }

    def put_back(self) -> None:
        """Let the optimisers train again, from the same bits."""
        for optimizer in self.optimizers:
            optimizer.train()
        for parameter, values in self._values.values():
            parameter.data.copy_(values)

    def save(self, module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Add them to a checkpoint that is made meanwhile, so that a run that resumes from it trains on from them."""
        raw: dict[str, Tensor] = {
            name: gathered(self._values[id(one)][1])
            for name, one in module.named_parameters()
            if id(one) in self._values
        }
        if raw:
            checkpoint[RAW_WEIGHTS] = checkpoint.get(RAW_WEIGHTS, {}) | raw
        states = checkpoint.get("optimizer_states", [])
        for group in (group for n in self._indices if n < len(states) for group in states[n]["param_groups"]):
            if _MODE in group:
                group[_MODE] = True


@contextmanager
def evaluation_weights(trainer: Trainer) -> Iterator[TrainingWeights]:
    """Have the weights in the network at which its optimisers are evaluated; on leaving, those of training.

    A Schedule-Free optimiser (Defazio et al. 2024, arXiv 2405.15682) steps at y, and its `eval` puts the average x into
    the parameters. Its `train` goes back to y, but not to the bit: the bits are copied before.
    """
    with ExitStack() as stack:
        weights = TrainingWeights(trainer)
        stack.callback(weights.put_back)
        for optimizer in weights.optimizers:
            optimizer.eval()
        yield weights


def leave_training(trainer: Trainer) -> None:
    """Switch optimisers to evaluation for good, so that a later `eval` does not move weights that are put back."""
    for optimizer in trainer.optimizers:
        if _is_in_training(optimizer):
            optimizer.eval()


def _is_in_training(optimizer: Any) -> bool:
    """Tell if an optimiser has modes and is in that of training; unless it tells, it is."""
    if not all(callable(getattr(optimizer, name, None)) for name in ("eval", "train")):
        return False
    modes = [group[_MODE] for group in optimizer.param_groups if _MODE in group]
    return any(modes) if modes else bool(getattr(optimizer, _MODE, True))
