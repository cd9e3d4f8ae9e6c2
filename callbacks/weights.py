"""Weights that differ from those of training: averages, and the point at which an optimiser with modes is evaluated."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from lightning_utilities.core.rank_zero import rank_zero_warn
from torch import Tensor, nn

from bu_torch.callbacks.lightning_tree import (
    LightningModule,
    StochasticWeightAveraging,
    Trainer,
    WeightAveraging,
    misconfigured,
)
from bu_torch.internal.replica import gathered
from bu_torch.run.state import read_weights
from bu_torch.run.weights import put_back, weights_of

WRAPPING = ("FSDPStrategy", "DeepSpeedStrategy")
OUT_OF_REACH = (*WRAPPING, "XLAFSDPStrategy")  # these hide the weights' places in their shards
SHARDED = (*OUT_OF_REACH, "ModelParallelStrategy")  # where no process has the whole network
RAW_WEIGHTS = "raw_state_dict"  # weights of training beside the measured ones in a checkpoint
_MODE = "train_mode"  # key in a Schedule-Free optimiser's group of parameters


def stand_behind_averaging(trainer: Trainer, kind: type) -> None:
    """Move callbacks of a kind behind `WeightAveraging`, so that they measure the average that a checkpoint holds."""
    callbacks = trainer.callbacks
    end = max((n + 1 for n, one in enumerate(callbacks) if isinstance(one, WeightAveraging)), default=0)
    if any(isinstance(one, kind) for one in callbacks[:end]):
        trainer.callbacks = [*sorted(callbacks[:end], key=lambda one: isinstance(one, kind)), *callbacks[end:]]


def why_not_averaged(trainer: Trainer) -> str:
    """Say why the weights cannot be averaged here; "" if they can."""
    theirs = (WeightAveraging, StochasticWeightAveraging)
    if (found := next((one for one in trainer.callbacks if isinstance(one, theirs)), None)) is not None:
        return f"{type(found).__name__} does so"
    name = type(trainer.strategy).__name__
    return f"{name} shards them" if name in OUT_OF_REACH else ""


def go_on_from_raw_weights(pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
    """Resume from a checkpoint of an average: training goes on from its own weights, and the average from the rest."""
    with misconfigured(ValueError):
        raw = read_weights(checkpoint.pop(RAW_WEIGHTS))
    # Strategies that shard weights have loaded them, and taken them out.
    loaded = checkpoint["state_dict"] if "state_dict" in checkpoint else pl_module.state_dict()
    average = {name: gathered(value) for name, value in loaded.items() if name in raw}
    if not put_back(pl_module, raw, may_lack=not pl_module.strict_loading):
        average = {}
        rank_zero_warn(
            "The checkpoint holds training weights beside their average, and they do not fit the module: training"
            " continues from the average, and a new average begins."
        )
    for state in (checkpoint.get("callbacks") or {}).values():
        own = state.get("average") if isinstance(state, dict) else None
        if isinstance(own, dict) and own.get("weights") == {}:  # the callback that saved the file has left it out
            own["weights"] = average


def training_weights(module: nn.Module) -> dict[str, Tensor]:
    """Weights of training by name, as a checkpoint holds them beside an average; all processes of shards take part."""
    frozen = {name for name, one in module.named_parameters() if not one.requires_grad}
    return {name: gathered(one.detach()) for name, one in weights_of(module).items() if name not in frozen}


def has_modes(trainer: Trainer) -> bool:
    """Return True if some optimiser trains at other weights than it is evaluated at."""
    return any(map(_is_in_training, trainer.optimizers))


@contextmanager
def evaluation_weights(trainer: Trainer) -> Iterator[None]:
    """Have the weights in the network at which its optimisers are evaluated; on leaving, those of training.

    A Schedule-Free optimiser (Defazio et al. 2024, arXiv 2405.15682) steps at y, and `eval` puts the average x into the
    parameters. `train` goes back to y, but not to the bit: the bits are copied before.
    """
    optimizers: list[Any] = [one for one in trainer.optimizers if _is_in_training(one)]
    groups = [group for one in optimizers for group in one.param_groups]
    values = [(one, one.detach().clone()) for group in groups for one in group["params"]]
    try:
        leave_training(trainer)
        yield
    finally:
        for optimizer in optimizers:
            optimizer.train()
        for parameter, before in values:
            parameter.data.copy_(before)


def leave_training(trainer: Trainer) -> None:
    """Switch optimisers to evaluation, so that a later `eval` does not move weights that were put back."""
    for optimizer in trainer.optimizers:
        if _is_in_training(optimizer):
            optimizer.eval()


def _is_in_training(optimizer: Any) -> bool:
    """Tell if an optimiser has modes and is in that of training; unless it tells, it is."""
    if not all(callable(getattr(optimizer, name, None)) for name in ("eval", "train")):
        return False
    modes = [group[_MODE] for group in optimizer.param_groups if _MODE in group]
    return any(modes) if modes else bool(getattr(optimizer, _MODE, True))
