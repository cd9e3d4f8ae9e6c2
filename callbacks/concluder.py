"""The end of a fit, after all other callbacks."""

from typing import TYPE_CHECKING, Any

from bu_torch.callbacks.companion import Companion
from bu_torch.callbacks.keeper import KeeperMixin
from bu_torch.callbacks.lightning_trees import FITTING

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer

    from bu_torch.callbacks.stopping import BoundaryUncertaintyStopping


class ConcluderMixin(Companion):
    """Puts the kept weights back when training ends, after all other callbacks have saved those of training.

    It is kept last in the trainer's list. From the end of a fit to the next it stands for the `ModelCheckpoint` that
    Lightning has added: `ckpt_path="best"` would warn of two checkpoint callbacks, or of one whose state is missing.
    """

    def __init__(self, owner: "BoundaryUncertaintyStopping", default_checkpoint: Any = None) -> None:
        self.owner = owner
        self.default_checkpoint = default_checkpoint
        self._is_standing_in = False

    @property
    def state_key(self) -> str:
        return str(self.default_checkpoint.state_key) if self._is_standing_in else super().state_key

    def state_dict(self) -> dict[str, Any]:
        return dict(self.default_checkpoint.state_dict()) if self._is_standing_in else {}

    def setup(self, trainer: "Trainer", pl_module: "LightningModule", stage: str) -> None:
        if stage == FITTING:  # the owner, which does so before, may have left the trainer
            self.bring_default_checkpoint_back(trainer, pl_module)

    def bring_default_checkpoint_back(self, trainer: "Trainer", pl_module: "LightningModule") -> None:
        """Undo `_stand_in`; Lightning, which walks over the list of before, would not set the checkpoint up."""
        if self._is_standing_in:
            self._is_standing_in = False
            trainer.callbacks = [*trainer.callbacks, self.default_checkpoint]
            self.default_checkpoint.setup(trainer, pl_module, FITTING)

    def _stand_in(self, trainer: "Trainer") -> None:
        others = [one for one in trainer.callbacks if one is not self.default_checkpoint]
        self._is_standing_in = len(others) < len(trainer.callbacks)
        trainer.callbacks = others

    def on_train_end(self, trainer: "Trainer", pl_module: "LightningModule") -> None:
        # The module's own hook, which exports it perhaps, comes next. What writes files beside training has written
        # them all in `on_fit_end`.
        is_written = not isinstance(trainer.strategy.checkpoint_io, self.library.async_checkpoint_io)
        if self.owner in trainer.callbacks and is_written:
            self.owner.conclude(trainer)

    def on_fit_end(self, trainer: "Trainer", pl_module: "LightningModule") -> None:
        if self.owner in trainer.callbacks:
            self.owner.conclude(trainer)
            self._stand_in(trainer)
            self._leave_first_place(trainer)

    def on_exception(self, trainer: "Trainer", pl_module: "LightningModule", exception: BaseException) -> None:
        if self.owner in trainer.callbacks:
            self.owner.conclude(trainer, exception)
            self._stand_in(trainer)

    def _leave_first_place(self, trainer: "Trainer") -> None:
        """Put the keepers behind the user's own checkpoint callbacks, if this process was spawned.

        Its parent, whose list lacks all companions, takes the best path of the first checkpoint callback here for that
        of the first one there.
        """
        if self.default_checkpoint is None and hasattr(trainer.strategy.launcher, "get_extra_results"):
            trainer.callbacks = sorted(trainer.callbacks, key=lambda one: isinstance(one, KeeperMixin))


def bring_default_checkpoints_back(trainer: "Trainer", pl_module: "LightningModule") -> None:
    """Put the `ModelCheckpoint` that Lightning has added back into `trainer.callbacks`, for another fit."""
    for callback in trainer.callbacks:
        if isinstance(callback, ConcluderMixin):
            callback.bring_default_checkpoint_back(trainer, pl_module)
