"""The best weights, for a trainer that writes no checkpoints."""

from typing import TYPE_CHECKING, Any

from bu_torch.callbacks._companions import Companion
from bu_torch.callbacks._lightning import measured_module
from bu_torch.callbacks._optimizers import evaluation_weights
from bu_torch.run.best_weights import BestWeights

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer
    from lightning.pytorch.callbacks import Checkpoint

    from bu_torch.callbacks.stopping import BoundaryUncertaintyStopping
else:  # the base is the trainer's own: `_install` adds it
    Checkpoint = object


class MemoryKeeperMixin(Companion, Checkpoint):
    """Keeps the best weights in memory, for a trainer that writes no checkpoints."""

    best_model_path = ""
    is_best_there = True

    def __init__(self, owner: "BoundaryUncertaintyStopping") -> None:
        self.owner = owner
        self.best = BestWeights()
        self._resumed_weights: dict[str, Any] | None = None

    @property
    def best_epoch(self) -> int | None:
        return self.best.epoch

    def on_train_start(self, trainer: "Trainer", pl_module: "LightningModule") -> None:
        self.agree_on_kept(trainer, self.best.epoch, self.best.step)

    def on_train_batch_end(self, trainer: "Trainer", pl_module: "LightningModule", *_: Any, **__: Any) -> None:
        self._keep_if_best(trainer, pl_module)

    def on_train_epoch_end(self, trainer: "Trainer", pl_module: "LightningModule") -> None:
        self._keep_if_best(trainer, pl_module)

    def _keep_if_best(self, trainer: "Trainer", pl_module: "LightningModule") -> None:
        if self.new_score(trainer) is None or not self.owner.tracker.checks.is_kept_new:
            return
        with self.owner.tracker.account.saving(), evaluation_weights(trainer):
            self.owner.after_check.compare(pl_module)
            with self.owner.tracker.averaged(pl_module):
                self.best.keep(measured_module(trainer, pl_module), trainer.current_epoch, trainer.global_step)

    def state_dict(self) -> dict[str, Any]:
        return self.best.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if self.owner.is_fitting and self.owner.is_comparable:
            self.best.load_state_dict(state_dict)
            self._resumed_weights = self.best.weights

    @property
    def is_best_own(self) -> bool:
        """True if the best weights are of this fit, not of a resumed state."""
        return self.best.weights is not self._resumed_weights
