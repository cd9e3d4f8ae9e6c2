"""The Lightning in use, and the weights that its trainer trains, averages and saves.

`lightning.pytorch` and `pytorch_lightning` have classes of their own. The namespace that was imported first is used, or
else `lightning.pytorch`.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from lightning_utilities.core.rank_zero import rank_zero_only, rank_zero_warn

from bu_torch.internal import printing
from bu_torch.internal.printing import cleaned
from bu_torch.internal.replica import gathered
from bu_torch.run.processes import Processes, T
from bu_torch.run.state import check_plain
from bu_torch.run.weights import load

_TREES = ("lightning.pytorch", "pytorch_lightning")
FITTING = "fit"  # `TrainerFn.FITTING`


def _choose() -> str:
    """Choose the namespace imported first, or else the first installed."""
    imported = [name for name in sys.modules if name in _TREES]  # in the order of their import
    installed = (tree for tree in _TREES if find_spec(tree.split(".")[0]) is not None)
    chosen = next(iter(imported), None) or next(installed, None)
    if chosen is None:
        raise ImportError("The callbacks need Lightning: `pip install lightning`.")
    return chosen


TREE = _choose()  # name of the namespace in use

if TYPE_CHECKING:
    import lightning.pytorch as pl
    from lightning.pytorch import Callback as Callback
    from lightning.pytorch import LightningModule as LightningModule
    from lightning.pytorch import Trainer as Trainer
    from lightning.pytorch.callbacks import Checkpoint as Checkpoint
    from lightning.pytorch.callbacks import EarlyStopping as EarlyStopping
    from lightning.pytorch.callbacks import ModelCheckpoint as ModelCheckpoint
    from lightning.pytorch.callbacks import StochasticWeightAveraging as StochasticWeightAveraging
    from lightning.pytorch.callbacks import WeightAveraging as WeightAveraging
    from lightning.pytorch.plugins.io import AsyncCheckpointIO as AsyncCheckpointIO
    from lightning.pytorch.utilities.exceptions import MisconfigurationException as MisconfigurationException
else:
    pl = import_module(TREE)
    Callback, LightningModule, Trainer = pl.Callback, pl.LightningModule, pl.Trainer
    Checkpoint, ModelCheckpoint = pl.callbacks.Checkpoint, pl.callbacks.ModelCheckpoint
    EarlyStopping = pl.callbacks.EarlyStopping
    StochasticWeightAveraging = pl.callbacks.StochasticWeightAveraging
    WeightAveraging = pl.callbacks.WeightAveraging
    AsyncCheckpointIO = pl.plugins.io.AsyncCheckpointIO
    MisconfigurationException = import_module(f"{TREE}.utilities.exceptions").MisconfigurationException

library: Any = pl  # for names that mypy does not find there
_BATCH_HOOKS = (
    *("on_train_batch_start", "on_train_batch_end", "on_before_zero_grad"),
    *("on_before_backward", "on_after_backward", "on_before_optimizer_step"),
)

WRAPPING = ("FSDPStrategy", "DeepSpeedStrategy")
OUT_OF_REACH = (*WRAPPING, "XLAFSDPStrategy")  # their shards do not show which weights they hold
SHARDED = (*OUT_OF_REACH, "ModelParallelStrategy")  # where no process has the whole network
RAW_WEIGHTS = "raw_state_dict"  # weights of training beside the measured ones in a checkpoint


@rank_zero_only
def tell(line: str) -> None:
    """Log a line in the first process."""
    printing.tell(line)


@contextmanager
def misconfigured(*kinds: type[Exception], before: str = "", after: str = "") -> Iterator[None]:
    """Raise errors of these kinds as Lightning's, with text before and after their message."""
    try:
        yield
    except kinds as error:
        raise MisconfigurationException(f"{before}{error}{after}") from error


def check_trainer(trainer: Any) -> None:
    """Raise unless this is a trainer of the chosen namespace."""
    if isinstance(trainer, Trainer):
        return
    kind = f"{type(trainer).__module__}.{type(trainer).__qualname__}"
    of = [cls.__module__ for cls in type(trainer).__mro__ if cls.__name__ == "Trainer"]
    other = next((tree for tree in _TREES if any(one.startswith(f"{tree}.") for one in of)), None)
    way_out = "" if other is None else f" Import `{other}` before `bu_torch.callbacks`, and not `{TREE}`."
    raise MisconfigurationException(f"This callback works with a `Trainer` of `{TREE}`, got {kind}.{way_out}")


class LightningProcesses(Processes):
    """Processes of a trainer."""

    def __init__(self, trainer: Trainer) -> None:
        self.count, self.rank, self._strategy = trainer.world_size, trainer.global_rank, trainer.strategy
        self.are_sharded = type(trainer.strategy).__name__ in SHARDED

    def broadcast(self, value: T) -> T:
        return self._strategy.broadcast(value)


def set_batch_hooks(callback: Any, *, are_called: bool) -> None:
    """Have Lightning call or skip the batch hooks that a callback has from this package; those of a subclass stay.

    Lightning skips a hook that is None. Calls of idle hooks take a few percent of an epoch of a small network.
    """
    base = next(kind for kind in type(callback).__mro__ if kind.__module__.startswith("bu_torch."))
    for name in _BATCH_HOOKS:
        vars(callback).pop(name, None)
        if not are_called and getattr(type(callback), name) is getattr(base, name):
            setattr(callback, name, None)


def lightning_average(trainer: Trainer) -> Any:
    """The `AveragedModel` of the first `WeightAveraging` that has one, as checkpoints hold it; None without one."""
    found = (one._average_model for one in trainer.callbacks if isinstance(one, WeightAveraging))
    return next((average for average in found if average is not None), None)


def stand_behind_averaging(trainer: Trainer, kind: type) -> None:
    """Move callbacks of a kind behind `WeightAveraging`, so that they measure the average that a checkpoint holds."""
    callbacks = trainer.callbacks
    end = max((n + 1 for n, one in enumerate(callbacks) if isinstance(one, WeightAveraging)), default=0)
    if any(isinstance(one, kind) for one in callbacks[:end]):
        trainer.callbacks = [*sorted(callbacks[:end], key=lambda one: isinstance(one, kind)), *callbacks[end:]]


def go_on_from_raw_weights(pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
    """Resume from a checkpoint of an average: training continues from its own weights, the average from the others."""
    raw = checkpoint.pop(RAW_WEIGHTS)
    # Strategies that shard weights have loaded them already, and removed them from the checkpoint.
    loaded = checkpoint["state_dict"] if "state_dict" in checkpoint else pl_module.state_dict()
    try:
        check_plain(raw)
        average = {name: gathered(value) for name, value in loaded.items() if name in raw}
        load(pl_module, raw, allow_missing=True)
    except Exception as error:  # damaged ones may raise anything
        average = {}
        rank_zero_warn(
            "The checkpoint holds training weights beside their average, and they do not fit the module"
            f" ({cleaned(error)}): training continues from the average, and a new average begins."
        )
    for state in (checkpoint.get("callbacks") or {}).values():
        own = state.get("average") if isinstance(state, dict) else None
        if isinstance(own, dict) and own.get("weights") == {}:  # the callback that saved the file has left it out
            own["weights"] = average
