"""The verdict of a check, as Lightning's early stopping carries it."""

import math
from typing import TYPE_CHECKING, Any

import torch

from bu_torch.callbacks.companion import Companion, place_of_check, within_margin
from bu_torch.callbacks.lightning_trees import LightningModule, Trainer

if TYPE_CHECKING:
    from lightning.pytorch.callbacks import EarlyStopping

    from bu_torch.callbacks.stopping import BoundaryUncertaintyStopping
else:  # the base is the trainer's own: `installation` adds it
    EarlyStopping = object


class VerdictBearerMixin(Companion, EarlyStopping):
    """Carries the verdict of a check across processes and, as `EarlyStopping` does, into checkpoints."""

    def __init__(self, owner: "BoundaryUncertaintyStopping") -> None:
        super().__init__(
            monitor=owner.tracker.checks.score_name,
            mode="max",
            patience=owner.patience,
            min_delta=owner.min_delta,
            stopping_threshold=owner.stopping_threshold,
            check_finite=owner.check_finite,
            check_on_train_epoch_end=True,
            verbose=owner.verbose,
        )
        self.owner = owner
        self._best_before = -math.inf  # the score to beat at the last check
        self.has_stopped = False
        self.why_stopped = ""
        self._is_due = False  # the verdict is to stop, and `min_epochs` or `min_steps` does not allow it yet

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.owner in trainer.callbacks:  # the run may resume with that verdict
            self._is_due = self.owner.tracker.verdict.should_stop and not _may_stop(trainer)
            self._best_before = self.owner.tracker.verdict.best

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any, **__: Any) -> None:
        if self.new_score(trainer) is not None:
            self._decide(trainer)
        # `min_steps` may be reached in the middle of an epoch, where Lightning stops too. After the last batch the
        # epoch's own check decides.
        elif self._is_due and not trainer.is_last_batch and _may_stop(trainer):
            self._stop(trainer)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.new_score(trainer) is None or self._should_skip_check(trainer):
            if self._is_due and _may_stop(trainer):
                self._stop(trainer)
            return
        self._decide(trainer)

    def _decide(self, trainer: Trainer) -> None:
        """Act on the check that has just been made."""
        verdict = self.owner.tracker.verdict
        if self.verbose and verdict.best > self._best_before:
            self.best_score = torch.tensor(self._best_before, dtype=torch.float64)
            improvement = self._improvement_message(torch.tensor(verdict.best, dtype=torch.float64))
            self._log_info(trainer, improvement, log_rank_zero_only=False)
        checks = self.owner.tracker.checks
        is_news = self.verbose and checks.entries[-1] in (checks.kept, checks.highest)
        if is_news and checks.kept and (why := within_margin(self.owner)):
            kept = place_of_check(self.owner, checks.kept)
            self._log_info(trainer, f"Boundary uncertainty keeps {kept}{why}.", log_rank_zero_only=False)
        self._best_before = verdict.best
        self._take_over_verdict()
        should_stop = trainer.strategy.reduce_boolean_decision(verdict.should_stop, all=False)
        # `trainer.should_stop` is never taken back, so it is not set before `min_epochs` and `min_steps` allow a stop:
        # the metric may recover by then.
        self._is_due = should_stop and not _may_stop(trainer)
        if should_stop and not self._is_due:
            self._stop(trainer)

    def _stop(self, trainer: Trainer) -> None:
        trainer.should_stop = True
        self.has_stopped, self._is_due = True, False
        self.stopped_epoch = trainer.current_epoch
        step = None if self.owner.every_n_train_steps is None else trainer.global_step
        self.why_stopped = self.owner.tracker.checks.why_stopped(self.stopped_epoch, step)
        self.stopping_reason_message = self.why_stopped

    def _take_over_verdict(self) -> None:
        verdict = self.owner.tracker.verdict
        self.wait_count = verdict.wait
        self.best_score = torch.tensor(verdict.best, dtype=torch.float64)
        self.stopping_reason: Any = type(self.stopping_reason)[verdict.reason.name]

    def state_dict(self) -> dict[str, Any]:
        self._take_over_verdict()  # a checkpoint may be saved between the check and this callback's turn
        return super().state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Nothing: the verdict follows from the history, which the owner has loaded."""


def _may_stop(trainer: Trainer) -> bool:
    """True if Lightning would act on `trainer.should_stop` now."""
    n_epochs = trainer.fit_loop.epoch_progress.current.processed  # counts the epoch that is ending
    return n_epochs >= (trainer.min_epochs or 0) and trainer.global_step >= (trainer.min_steps or 0)
