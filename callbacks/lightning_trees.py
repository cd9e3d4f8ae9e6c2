"""Lightning goes by two names, `lightning.pytorch` and `pytorch_lightning`, each with a class tree of its own.

Both are often installed, and importing the second has side effects on the log of the first. So our `Callback` is one of
each tree that is imported, and what must be the trainer's own, such as an `EarlyStopping`, is found by the trainer.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module, metadata
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from packaging.version import Version

# Those of batches. Lightning passes over a hook that is None, which is cheaper than to call one with nothing to do.
OF_BATCHES = (
    "on_train_batch_start",
    "on_before_zero_grad",
    "on_before_backward",
    "on_after_backward",
    "on_before_optimizer_step",
    "on_train_batch_end",
)
_TREES = ("lightning.pytorch", "pytorch_lightning")
FITTING = "fit"  # `TrainerFn.FITTING`, in either tree
# Of `lightning` the requirements of this package say so; `pytorch_lightning` comes without being asked for.
_OLDEST = "2.6.6"


def refuse_old(package: str) -> None:
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


def _imported() -> list[str]:
    return [tree for tree in _TREES if tree in sys.modules]


if not _imported():
    installed = [tree for tree in _TREES if find_spec(tree.split(".")[0]) is not None]
    if not installed:
        raise ImportError("The callbacks need Lightning: `pip install lightning`.")
    refuse_old(installed[0].split(".")[0])  # before any of it runs
    import_module(installed[0])

if TYPE_CHECKING:
    from lightning.pytorch import Callback as Callback
    from lightning.pytorch import LightningModule as LightningModule
    from lightning.pytorch import Trainer as Trainer
    from lightning.pytorch.utilities.exceptions import MisconfigurationException as MisconfigurationException
else:
    LightningModule = Trainer = Any  # of either tree

    class Callback(*(sys.modules[tree].Callback for tree in _imported())):
        """A callback of each tree that is imported."""

    class MisconfigurationException(
        *(import_module(f"{tree}.utilities.exceptions").MisconfigurationException for tree in _imported())
    ):
        """The exception of each tree that is imported."""


@contextmanager
def misconfigured(*kinds: type[Exception], before: str = "", after: str = "") -> Iterator[None]:
    """Raise errors of these kinds as Lightning's, with some words before and after theirs."""
    try:
        yield
    except kinds as error:
        raise MisconfigurationException(f"{before}{error}{after}") from error


def adopt_imported_trees() -> None:
    """Make `Callback` and `MisconfigurationException` those of a tree that was imported after this module, too."""
    for tree in _imported():
        exceptions = import_module(f"{tree}.utilities.exceptions")
        theirs = (sys.modules[tree].Callback, exceptions.MisconfigurationException)
        for own, base in zip((Callback, MisconfigurationException), theirs, strict=True):
            if not issubclass(own, base):
                own.__bases__ += (base,)


def library_of(trainer: Any) -> Any:
    """The package of a trainer, unless it is no trainer of Lightning's, or of a version with known holes."""
    for cls in type(trainer).__mro__:
        for tree in _TREES:
            if cls.__name__ == "Trainer" and cls.__module__.startswith(f"{tree}."):
                return _library(tree)
    raise MisconfigurationException(
        f"This callback works with a `Trainer` of {' or '.join(f'`{tree}`' for tree in _TREES)}, got"
        f" {type(trainer).__module__}.{type(trainer).__qualname__}."
    )


def measured_module(trainer: Any, pl_module: Any) -> Any:
    """The weights that a checkpoint of this moment would hold: the average, if `WeightAveraging` keeps one."""
    average = _average_model(trainer)
    return pl_module if average is None else average.module


def is_average_untouched(trainer: Any) -> bool:
    """Tell if `WeightAveraging` has not updated its average yet, which then is the network before training."""
    average = _average_model(trainer)
    return average is not None and int(average.n_averaged) == 0


def _average_model(trainer: Any) -> Any:
    """The `AveragedModel` of the first `WeightAveraging` that has one; None if there is none."""
    kind = library_of(trainer).callbacks.WeightAveraging
    found = (one._average_model for one in trainer.callbacks if isinstance(one, kind))
    return next((average for average in found if average is not None), None)


@cache
def _library(tree: str) -> Any:
    with misconfigured(ImportError):
        refuse_old(tree.split(".")[0])
    return sys.modules[tree]


def put_aside(callback: Any, idle: type) -> None:
    """Make hooks of batches that a callback has from `idle` None in the instance; `super()` finds them all the same."""
    for name in OF_BATCHES:
        if getattr(type(callback), name) is getattr(idle, name):
            setattr(callback, name, None)


def bring_back(callback: Any) -> None:
    """Undo `put_aside`."""
    for name in OF_BATCHES:
        if vars(callback).get(name, callback) is None:
            delattr(callback, name)
