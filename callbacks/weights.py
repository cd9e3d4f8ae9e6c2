"""Weights that differ from those of training: averages, and the point at which an optimiser with modes is evaluated."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from lightning_utilities.core.rank_zero import rank_zero_warn
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from bu_torch.callbacks.lightning_trees import LightningModule, Trainer, library_of, misconfigured
from bu_torch.internal.shards import gathered, local
from bu_torch.run.averaging import put_back
from bu_torch.run.state import read_weights

WRAPPING = ("FSDPStrategy", "DeepSpeedStrategy")
OUT_OF_REACH = (*WRAPPING, "XLAFSDPStrategy")  # which hide the weights' places in their shards
SHARDED = (*OUT_OF_REACH, "ModelParallelStrategy")  # where no process has the whole network
RAW_WEIGHTS = "raw_state_dict"  # of training, in a checkpoint whose `state_dict` holds those that were measured
_MODE = "train_mode"  # of a group of parameters, in a Schedule-Free optimiser
_MOST_WATCHED = 3  # kept checks: what changes weights then does so again


def stand_behind_averaging(trainer: Trainer, kind: type) -> None:
    """Move callbacks of a kind behind `WeightAveraging`, so that they measure the average that a checkpoint holds."""
    callbacks, averaging = trainer.callbacks, library_of(trainer).callbacks.WeightAveraging
    end = max((n + 1 for n, one in enumerate(callbacks) if isinstance(one, averaging)), default=0)
    if any(isinstance(one, kind) for one in callbacks[:end]):
        trainer.callbacks = [*sorted(callbacks[:end], key=lambda one: isinstance(one, kind)), *callbacks[end:]]


def why_not_averaged(trainer: Trainer) -> str:
    """Say why the weights cannot be averaged here; "" if they can."""
    library = library_of(trainer).callbacks
    theirs = (library.WeightAveraging, library.StochasticWeightAveraging)
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
        if isinstance(own, dict) and own.get("weights") == {}:  # that of the callback that has saved it
            own["weights"] = average


class TrainingWeights:
    """Weights at which optimisers with modes train, while those of evaluation are in the network."""

    def __init__(self, trainer: Trainer) -> None:
        self.optimizers: dict[int, Any] = {n: one for n, one in enumerate(trainer.optimizers) if _is_in_training(one)}
        self._values = {
            id(parameter): (parameter, parameter.detach().clone())
            for optimizer in self.optimizers.values()
            for group in optimizer.param_groups
            for parameter in group["params"]
        }

    def put_back(self) -> None:
        """Let the optimisers train again, from the same bits."""
        for optimizer in self.optimizers.values():
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
        for group in (group for n in self.optimizers if n < len(states) for group in states[n]["param_groups"]):
            if _MODE in group:
                group[_MODE] = True


@contextmanager
def evaluation_weights(trainer: Trainer) -> Iterator[TrainingWeights]:
    """Have the weights in the network at which its optimisers are evaluated; on leaving, those of training.

    A Schedule-Free optimiser (Defazio et al. 2024, arXiv 2405.15682) steps at y, and `eval` puts the average x into the
    parameters. `train` goes back to y, but not to the bit: the bits are copied before.
    """
    weights = TrainingWeights(trainer)
    try:
        leave_training(trainer)
        yield weights
    finally:
        weights.put_back()


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


class WeightsAfterCheck:
    """Compares the weights that are kept with those that a check measured, and warns once if they differ."""

    def __init__(self) -> None:
        self._n_watched = 0
        self._measured: dict[str, float] = {}

    def remember(self, module: nn.Module) -> None:
        self._measured = _sums_of(module) if self._n_watched < _MOST_WATCHED else {}

    def compare(self, module: nn.Module) -> None:
        """Take the weights that are about to be saved for that check."""
        measured, self._measured = self._measured, {}
        if not measured:
            return
        self._n_watched += 1
        now = _sums_of(module)
        names = [name for name, total in measured.items() if now.get(name, total) != total]
        if names:
            self._n_watched = _MOST_WATCHED
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            rank_zero_warn(
                f"`{names[0]}`{more} changed between a check and the end of its epoch or batch, in a hook of the module"
                " or of a callback listed after this one. The kept weights are not the measured ones."
                " Change weights in `on_train_epoch_start`, or list that callback first."
            )


def _sums_of(module: nn.Module) -> dict[str, float]:
    """One number for each parameter and buffer, by name, 0 for NaN; waits for the device once."""
    found = {
        name: local(one)
        for name, one in (*module.named_parameters(), *module.named_buffers())
        if not (is_lazy(one) or one.is_meta) and one.layout == torch.strided and type(local(one)) is torch.Tensor
    }
    sums = [(torch.view_as_real(one) if one.is_complex() else one).sum() for one in found.values()]
    if not sums:
        return {}
    totals = torch.stack([one.to(sums[0].device, torch.float64) for one in sums]).nan_to_num()
    return dict(zip(found, totals.tolist(), strict=True))
