"""Companions of a stopping callback, put into a trainer's list as subclasses of its own classes."""

from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from bu_torch.callbacks.companion import Companion, VerdictBearerMixin
from bu_torch.callbacks.concluder import ConcluderMixin
from bu_torch.callbacks.keeper import KeeperMixin, MemoryKeeperMixin
from bu_torch.callbacks.lightning_trees import Trainer, library_of, put_aside

if TYPE_CHECKING:
    from bu_torch.callbacks.stopping import BoundaryUncertaintyStopping


@cache
def _classes(library: Any) -> tuple[Any, ...]:
    """Verdict bearer, keeper, memory keeper and concluder as subclasses of a trainer's own."""
    theirs = library.callbacks
    bases = {
        VerdictBearerMixin: theirs.EarlyStopping,
        KeeperMixin: theirs.ModelCheckpoint,
        MemoryKeeperMixin: theirs.Checkpoint,
        ConcluderMixin: theirs.Callback,
    }
    return tuple(
        type(own.__name__.removesuffix("Mixin"), (own, base), {"__doc__": own.__doc__, "library": library})
        for own, base in bases.items()
    )


def blank(tree: str, name: str) -> Any:
    """A companion with nothing in it yet, to be unpickled."""
    cls = next(cls for cls in _classes(import_module(tree)) if cls.__name__ == name)
    return cls.__new__(cls)


def install(
    trainer: Trainer, owner: "BoundaryUncertaintyStopping"
) -> tuple[VerdictBearerMixin, KeeperMixin | MemoryKeeperMixin]:
    """Put fresh companions into `trainer.callbacks`, and take out those of an earlier fit.

    The list is replaced, not changed: Lightning walks over it while this runs. The keeper stands before any other
    checkpoint callback, so that `ckpt_path="best"` is its file. Both stand behind each `EarlyStopping` of the user's,
    so that `trainer.early_stopping_callback` is the user's, and the keeper's file holds its state of the same epoch.
    """
    present = [
        callback
        for callback in trainer.callbacks
        if not isinstance(callback, Companion) or (callback.owner is not owner and callback.owner in trainer.callbacks)
    ]
    library = library_of(trainer)
    VerdictBearer, Keeper, MemoryKeeper, Concluder = _classes(library)
    checkpoint = library.callbacks.Checkpoint
    writes_checkpoints = any(
        isinstance(callback, checkpoint) and not isinstance(callback, MemoryKeeperMixin) for callback in present
    )
    bearer = VerdictBearer(owner)
    keeper = Keeper(owner) if writes_checkpoints else MemoryKeeper(owner)
    concluder = Concluder(owner, _default_checkpoint(trainer.callbacks, library))
    for companion in (bearer, keeper, concluder):
        put_aside(companion, library.callbacks.Callback)
    if owner.every_n_train_steps is None:
        put_aside(keeper, type(keeper))
        if not trainer.min_steps:  # which may be reached, and end training, in the middle of an epoch
            put_aside(bearer, type(bearer))
    bearer_at, keeper_at = _places(present, owner, library)
    present.insert(bearer_at, bearer)
    present.insert(keeper_at + (keeper_at == bearer_at), keeper)
    trainer.callbacks = [*present, concluder]
    return bearer, keeper


def _default_checkpoint(callbacks: list[Any], library: Any) -> Any:
    """The `ModelCheckpoint` that Lightning adds where a user has made none; None if there is none such.

    Nothing tells it from a user's `ModelCheckpoint()` without arguments.
    """
    default = library.callbacks.ModelCheckpoint
    theirs = [one for one in callbacks if _is_checkpoint_of_others(one, library)]
    if len(theirs) != 1:
        return None
    (found,) = theirs
    if any(isinstance(one, ConcluderMixin) and found is one.default_checkpoint for one in callbacks):
        return found  # its folder has been set since
    return found if type(found) is default and _plain(found) == _plain(default()) else None


def _plain(callback: Any) -> dict[str, Any]:
    return {
        name: value for name, value in vars(callback).items() if value is None or isinstance(value, bool | int | str)
    }


def _places(present: list[Any], owner: "BoundaryUncertaintyStopping", library: Any) -> tuple[int, int]:
    """Places of bearer and keeper in the list."""
    own = present.index(owner)

    def is_before_bearer(one: Any) -> bool:
        if isinstance(one, Companion):  # the first owner's keeper is "best"
            return one.owner in present[:own] and not isinstance(one, ConcluderMixin)
        return isinstance(one, library.callbacks.EarlyStopping)

    bearer_at = 1 + max([own, *(place for place, one in enumerate(present) if is_before_bearer(one))])
    checkpoints = (place for place, one in enumerate(present) if _is_checkpoint_of_others(one, library))
    return bearer_at, min([bearer_at, *checkpoints])


def _is_checkpoint_of_others(one: Any, library: Any) -> bool:
    return isinstance(one, library.callbacks.Checkpoint) and not isinstance(one, Companion)
