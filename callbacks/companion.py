"""Companions of a stopping callback: their base, those that keep weights, and the one that carries the verdict.

They are thin subclasses of Lightning's own classes. Those would not do as they are: they read `callback_metrics`, which
is stale between checks, share a state key with the user's own, and `ModelCheckpoint` forgets the best score when a
resumed run writes to a new folder.
"""

import math
from typing import TYPE_CHECKING, Any

import torch

from bu_torch.callbacks.lightning_tree import Callback, EarlyStopping, LightningModule, Trainer

if TYPE_CHECKING:
    from bu_torch.callbacks.stopping import BoundaryUncertaintyStopping


class Companion(Callback):
    """Base of the companions: an owner, and nothing to do once it has left the trainer."""

    owner: "BoundaryUncertaintyStopping"

    @property
    def state_key(self) -> str:
        return str(self._generate_state_key(owner=self.owner.state_key))

    def new_score(self, trainer: Trainer) -> float | None:
        """Score of the check of this hook; None if there is nothing to decide."""
        owner = self.owner
        is_made = owner._fit.has_checked and owner in trainer.callbacks and not trainer.fast_dev_run
        return owner.tracker.checks.last_score if is_made else None


class KeepingCompanion(Companion):
    """Base of those that keep the best weights: the hooks in which they do so."""

    best_epoch: int | None  # of the kept weights; None before the first
    best_step: int | None  # likewise

    @property
    def takes_states(self) -> bool:
        """True if a state is to be loaded: in a fit, if its score can be compared with those to come."""
        return self.owner.is_fitting and self.owner.tracker.checks.is_comparable

    def keep_if_best(self, trainer: Trainer) -> None:
        """Keep the weights of the check of this hook, if there is one and it is the best."""
        raise NotImplementedError

    def settle(self, trainer: Trainer, is_in_all: bool = True) -> None:
        """Finish what keeping began, once all callbacks have had their turn; `is_in_all` processes, or in this one."""

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_train_start(trainer, pl_module)
        if self.owner in trainer.callbacks:  # a run that resumes may have lost a check that is later than the kept one
            self.owner.tracker.checks.fall_back(self.best_epoch, self.best_step)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, *_: Any, **__: Any) -> None:
        self.settle(trainer)

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any, **__: Any) -> None:
        self.keep_if_best(trainer)

    on_train_epoch_start, on_train_epoch_end = on_train_batch_start, on_train_batch_end

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_train_end(trainer, pl_module)
        self.settle(trainer)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        super().on_exception(trainer, pl_module, exception)
        self.settle(trainer, is_in_all=False)


class VerdictBearer(Companion, EarlyStopping):
    """Carries the verdict of a check across processes and, as `EarlyStopping` does, into checkpoints."""

    def __init__(self, owner: "BoundaryUncertaintyStopping") -> None:
        settings = ("patience", "min_delta", "stopping_threshold", "check_finite", "verbose")
        super().__init__(
            owner.tracker.checks.score_name,
            mode="max",
            check_on_train_epoch_end=True,
            **{name: getattr(owner, name) for name in settings},
        )
        self.owner = owner
        self._best_before = -math.inf  # the score to beat at the last check
        self.has_stopped = False
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
        if self.new_score(trainer) is not None and not self._should_skip_check(trainer):
            self._decide(trainer)
        elif self._is_due and _may_stop(trainer):
            self._stop(trainer)

    def _decide(self, trainer: Trainer) -> None:
        """Act on the check that has just been made."""
        verdict, checks = self.owner.tracker.verdict, self.owner.tracker.checks
        if self.verbose and verdict.best > self._best_before:
            self.best_score = torch.tensor(self._best_before, dtype=torch.float64)
            improvement = self._improvement_message(torch.tensor(verdict.best, dtype=torch.float64))
            self._log_info(trainer, improvement, log_rank_zero_only=False)
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
        trainer.should_stop = self.has_stopped = True
        self._is_due = False
        self.stopped_epoch = trainer.current_epoch
        step = None if self.owner.every_n_train_steps is None else trainer.global_step
        self.stopping_reason_message = self.owner.tracker.checks.why_stopped(self.stopped_epoch, step)

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


def place_of_check(owner: "BoundaryUncertaintyStopping", check: dict[str, Any]) -> str:
    """A check in words: its epoch, or its step too."""
    if owner.every_n_train_steps is not None and "step" in check:
        return f"step {check['step']} of epoch {check['epoch']}"
    return f"epoch {check['epoch']}"


def within_margin(owner: "BoundaryUncertaintyStopping") -> str:
    """Name the check of the highest score, if another is kept; "" otherwise."""
    checks = owner.tracker.checks
    kept, highest, name = checks.kept, checks.highest, checks.score_name
    if kept is None or highest is None or highest[name] <= kept[name]:
        return ""
    return f", within the margin of the {highest[name]:.4f} of {place_of_check(owner, highest)}"
