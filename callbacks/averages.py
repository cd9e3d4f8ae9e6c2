"""Averages of weights beside Lightning's own, and the weights of training that are saved beside an average."""

from typing import Any

import torch
from lightning_utilities.core.rank_zero import rank_zero_warn

from bu_torch.callbacks.lightning_trees import LightningModule, MisconfigurationException, Trainer, library_of
from bu_torch.callbacks.optimizers import RAW_WEIGHTS
from bu_torch.internal.shards import gathered
from bu_torch.run.averaging import put_back
from bu_torch.run.state import read_weights

WRAPPING = ("FSDPStrategy", "DeepSpeedStrategy")
OUT_OF_REACH = (*WRAPPING, "XLAFSDPStrategy")  # which hide the weights' places in their shards
SHARDED = (*OUT_OF_REACH, "ModelParallelStrategy")  # where no process has the whole network


def stand_behind_averaging(trainer: Trainer, kind: type) -> None:
    """Move callbacks of a kind behind `WeightAveraging`, which may update its average when an epoch ends.

    They would measure the average of the epoch before otherwise, and a checkpoint would hold that of this epoch.
    """
    callbacks = trainer.callbacks
    averaging = [n for n, one in enumerate(callbacks) if isinstance(one, library_of(trainer).weight_averaging)]
    end = averaging[-1] + 1 if averaging else 0
    moved = [one for one in callbacks[:end] if isinstance(one, kind)]
    if moved:
        others = [one for one in callbacks[:end] if not isinstance(one, kind)]
        trainer.callbacks = [*others, *moved, *callbacks[end:]]


def why_not_averaged(trainer: Trainer) -> str:
    """Say why the weights cannot be averaged here; "" if they can."""
    library = library_of(trainer)
    theirs = (library.weight_averaging, library.stochastic_weight_averaging)
    if (found := next((one for one in trainer.callbacks if isinstance(one, theirs)), None)) is not None:
        return f"{type(found).__name__} does so"
    name = type(trainer.strategy).__name__
    return f"{name} shards them" if name in OUT_OF_REACH else ""


def check_device(device: str) -> None:
    """Raise unless an average can be kept on a device."""
    try:
        torch.zeros(1, device=device).cpu()
    except (RuntimeError, AssertionError) as error:
        raise MisconfigurationException(
            f"`averaging_device` must be a device of this machine, got {device!r}: {error}"
        ) from error


def go_on_from_raw_weights(pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
    """Resume from a checkpoint of an average: training goes on from its own weights, and the average from the rest."""
    try:
        raw = read_weights(checkpoint.pop(RAW_WEIGHTS))
    except ValueError as error:
        raise MisconfigurationException(str(error)) from error
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
        if isinstance(own, dict) and own.get("weights") == {}:  # that of the callback that has saved it
            own["weights"] = average
