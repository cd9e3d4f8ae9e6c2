"""Companions of a stopping callback, put into a trainer's list as subclasses of its own classes."""

from functools import cache
from typing import TYPE_CHECKING, Any

from bu_torch.callbacks.companion import Companion
from bu_torch.callbacks.concluder import ConcluderMixin
from bu_torch.callbacks.idle_hooks import put_aside
from bu_torch.callbacks.keeper import KeeperMixin, MemoryKeeperMixin
from bu_torch.callbacks.lightning_trees import Library, Trainer, library_of
from bu_torch.callbacks.verdict_bearer import VerdictBearerMixin

if TYPE_CHECKING:
    from bu_torch.callbacks.stopping import BoundaryUncertaintyStopping


@cache
def _classes(library: Library) -> tuple[Any, ...]:
    """Verdict bearer, keeper, memory keeper and concluder as subclasses of a trainer's own."""
    bases = (
        (VerdictBearerMixin, library.early_stopping),
        (KeeperMixin, library.model_checkpoint),
        (MemoryKeeperMixin, library.checkpoint),
        (ConcluderMixin, library.callback),
    )
    return tuple(
        type(own.__name__.removesuffix("Mixin"), (own, theirs), {"__doc__": own.__doc__, "library": library})
        for own, theirs in bases
    )


def blank(library: Library, name: str) -> Any:
    """A companion with nothing in it yet, to be unpickled."""
    cls = next(cls for cls in _classes(library) if cls.__name__ == name)
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
    default_checkpoint = _default_checkpoint(trainer.callbacks, library)
    writes_checkpoints = any(
        isinstance(callback, library.checkpoint) and not isinstance(callback, MemoryKeeperMixin) for callback in present
    )
    bearer = VerdictBearer(owner)
    keeper = Keeper(owner) if writes_checkpoints else MemoryKeeper(owner)
    bearer_at, keeper_at = _places(present, owner, library)
    concluder = Concluder(owner, default_checkpoint)
    for companion in (bearer, keeper, concluder):
        put_aside(companion, library.callback)
    if owner.every_n_train_steps is None:
        put_aside(keeper, type(keeper))
        if not trainer.min_steps:  # which may be reached, and end training, in the middle of an epoch
            put_aside(bearer, type(bearer))
    present.insert(bearer_at, bearer)
    present.insert(keeper_at + (keeper_at == bearer_at), keeper)
    trainer.callbacks = [*present, concluder]
    return bearer, keeper


def _default_checkpoint(callbacks: list[Any], library: Library) -> Any:
    """The `ModelCheckpoint` that Lightning adds where a user has made none; None if there is none such.

    Nothing tells it from a user's `ModelCheckpoint()` without arguments.
    """
    known = [one.default_checkpoint for one in callbacks if isinstance(one, ConcluderMixin)]
    theirs = [one for one in callbacks if isinstance(one, library.checkpoint) and not isinstance(one, Companion)]
    if len(theirs) != 1:
        return None
    (found,) = theirs
    if any(found is one for one in known):  # its folder has been set since
        return found
    is_default = type(found) is library.model_checkpoint and _plain(found) == _plain(library.model_checkpoint())
    return found if is_default else None


def _plain(callback: Any) -> dict[str, Any]:
    return {
        name: value for name, value in vars(callback).items() if value is None or isinstance(value, bool | int | str)
    }


def _places(present: list[Any], owner: "BoundaryUncertaintyStopping", library: Library) -> tuple[int, int]:
    """Places of bearer and keeper in the list."""
    own = present.index(owner)
    bearer_at, first_checkpoint = own + 1, len(present)
    for place, callback in enumerate(present):
        if not isinstance(callback, Companion):
            is_before_bearer = isinstance(callback, library.early_stopping)
            if isinstance(callback, library.checkpoint):
                first_checkpoint = min(first_checkpoint, place)
        else:  # the first owner's keeper is "best"
            is_before_bearer = callback.owner in present[:own] and not isinstance(callback, ConcluderMixin)
        if is_before_bearer:
            bearer_at = max(bearer_at, place + 1)
    return bearer_at, min(bearer_at, first_checkpoint)
