"""The Lightning whose trainers these callbacks work with: `lightning.pytorch`, or `pytorch_lightning`.

Each has classes of its own. The one that was imported first counts, or else `lightning.pytorch`.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module, metadata
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from packaging.version import Version

_TREES = ("lightning.pytorch", "pytorch_lightning")
FITTING = "fit"  # `TrainerFn.FITTING`
# The requirements of this package name `lightning` alone; an installed `pytorch_lightning` may be older.
_OLDEST = "2.6.6"


def _refuse_old(package: str) -> None:
    """Raise an ImportError if the installed version of a package has known holes."""
    name = package.replace("_", "-")
    try:
        found = metadata.version(name)
    except metadata.PackageNotFoundError:
        return  # part of another package, whose requirements hold
    if Version(found) < Version(_OLDEST):
        raise ImportError(
            f"`{package}` must be {_OLDEST} or newer, got {found}: older versions can run code from a checkpoint"
            " (GHSA-qqmf-gpg7-g8gw), and 2.6.2 and 2.6.3 carried malware (GHSA-w37p-236h-pfx3). Install it with"
            f" `pip install --upgrade {name}`."
        )


def _choose() -> str:
    """Choose the tree that is imported, or else the first that is installed."""
    imported = [name for name in sys.modules if name in _TREES]  # in the order of their import
    installed = (tree for tree in _TREES if find_spec(tree.split(".")[0]) is not None)
    chosen = next(iter(imported), None) or next(installed, None)
    if chosen is None:
        raise ImportError("The callbacks need Lightning: `pip install lightning`.")
    _refuse_old(chosen.split(".")[0])  # before any of it runs
    return chosen


TREE = _choose()

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
    from lightning.pytorch.plugins.io import TorchCheckpointIO as TorchCheckpointIO
    from lightning.pytorch.utilities.exceptions import MisconfigurationException as MisconfigurationException
else:
    pl = import_module(TREE)
    Callback, LightningModule, Trainer = pl.Callback, pl.LightningModule, pl.Trainer
    Checkpoint, ModelCheckpoint = pl.callbacks.Checkpoint, pl.callbacks.ModelCheckpoint
    EarlyStopping = pl.callbacks.EarlyStopping
    StochasticWeightAveraging = pl.callbacks.StochasticWeightAveraging
    WeightAveraging = pl.callbacks.WeightAveraging
    AsyncCheckpointIO = pl.plugins.io.AsyncCheckpointIO
    TorchCheckpointIO = pl.plugins.io.TorchCheckpointIO
    MisconfigurationException = import_module(f"{TREE}.utilities.exceptions").MisconfigurationException

library: Any = pl


@contextmanager
def misconfigured(*kinds: type[Exception], before: str = "", after: str = "") -> Iterator[None]:
    """Raise errors of these kinds as Lightning's, with some words before and after theirs."""
    try:
        yield
    except kinds as error:
        raise MisconfigurationException(f"{before}{error}{after}") from error


def check_trainer(trainer: Any) -> None:
    """Raise unless this is a trainer of the tree that was chosen."""
    if isinstance(trainer, Trainer):
        return
    kind = f"{type(trainer).__module__}.{type(trainer).__qualname__}"
    of = [cls.__module__ for cls in type(trainer).__mro__ if cls.__name__ == "Trainer"]
    other = next((tree for tree in _TREES if any(one.startswith(f"{tree}.") for one in of)), None)
    way_out = "" if other is None else f" Import `{other}` before `bu_torch.callbacks`, and not `{TREE}`."
    raise MisconfigurationException(f"This callback works with a `Trainer` of `{TREE}`, got {kind}.{way_out}")


def measured_module(trainer: Trainer, pl_module: LightningModule) -> Any:
    """The weights that a checkpoint of this moment would hold: the average, if `WeightAveraging` keeps one."""
    average = average_model(trainer)
    return pl_module if average is None else average.module


def average_model(trainer: Trainer) -> Any:
    """The `AveragedModel` of the first `WeightAveraging` that has one; None if there is none."""
    found = (one._average_model for one in trainer.callbacks if isinstance(one, WeightAveraging))
    return next((average for average in found if average is not None), None)


def is_average_untouched(trainer: Trainer) -> bool:
    """Tell if `WeightAveraging` has not updated its average yet, which then is the network before training."""
    average = average_model(trainer)
    return average is not None and int(average.n_averaged) == 0


# Lightning passes over a hook that is None, which is cheaper than to call one with nothing to do.
_OF_BATCHES = (
    "on_train_batch_start",
    "on_before_zero_grad",
    "on_before_backward",
    "on_after_backward",
    "on_before_optimizer_step",
    "on_train_batch_end",
)


def put_aside(callback: Any, idle: type) -> None:
    """Make hooks of batches that a callback has from `idle` None in the instance; `super()` finds them all the same."""
    for name in _OF_BATCHES:
        if getattr(type(callback), name) is getattr(idle, name):
            setattr(callback, name, None)


def bring_back(callback: Any) -> None:
    """Undo `put_aside`."""
    for name in _OF_BATCHES:
        if vars(callback).get(name, callback) is None:
            delattr(callback, name)
