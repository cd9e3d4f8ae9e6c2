"""The end of a fit, after all other callbacks."""

from typing import TYPE_CHECKING, Any

from lightning_utilities.core.rank_zero import rank_zero_info

from bu_torch.callbacks.companion import Companion, place_of_check, within_margin
from bu_torch.callbacks.keeper import KeeperMixin
from bu_torch.callbacks.lightning_trees import FITTING, LightningModule, Trainer, library_of
from bu_torch.callbacks.monitor import describe_exception
from bu_torch.callbacks.restoring import restore
from bu_torch.callbacks.verdict_bearer import VerdictBearerMixin
from bu_torch.internal.printing import cleaned
from bu_torch.rule.rules import as_rule

if TYPE_CHECKING:
    from bu_torch.callbacks.stopping import BoundaryUncertaintyStopping


class ConcluderMixin(Companion):
    """Puts the kept weights back when training ends, after all other callbacks have saved those of training.

    It is kept last in the trainer's list. From the end of a fit to the next it stands for the `ModelCheckpoint` that
    Lightning has added: `ckpt_path="best"` would warn of two checkpoint callbacks, or of one whose state is missing.
    """

    def __init__(self, owner: "BoundaryUncertaintyStopping", default_checkpoint: Any) -> None:
        self.owner = owner
        self.default_checkpoint = default_checkpoint
        self._is_standing_in = False
        self._is_concluded = False

    @property
    def state_key(self) -> str:
        return str(self.default_checkpoint.state_key) if self._is_standing_in else super().state_key

    def state_dict(self) -> dict[str, Any]:
        return dict(self.default_checkpoint.state_dict()) if self._is_standing_in else {}

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage == FITTING:  # the owner, which does so before, may have left the trainer
            self.bring_default_checkpoint_back(trainer, pl_module)

    def bring_default_checkpoint_back(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Undo `_stand_in`; Lightning, which walks over the list of before, would not set the checkpoint up."""
        if self._is_standing_in:
            self._is_standing_in = False
            trainer.callbacks = [*trainer.callbacks, self.default_checkpoint]
            self.default_checkpoint.setup(trainer, pl_module, FITTING)

    def _stand_in(self, trainer: Trainer) -> None:
        others = [one for one in trainer.callbacks if one is not self.default_checkpoint]
        self._is_standing_in = len(others) < len(trainer.callbacks)
        trainer.callbacks = others

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        # The module's own hook, which exports it perhaps, comes next. What writes files beside training has written
        # them all in `on_fit_end`.
        is_written = not isinstance(trainer.strategy.checkpoint_io, self.library.async_checkpoint_io)
        if self.owner in trainer.callbacks and is_written:
            self._conclude(trainer)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.owner in trainer.callbacks:
            self._conclude(trainer)
            self._stand_in(trainer)
            self._leave_first_place(trainer)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        if self.owner in trainer.callbacks:
            self._conclude(trainer, exception)
            self._stand_in(trainer)

    def _conclude(self, trainer: Trainer, exception: BaseException | None = None) -> None:
        """Restore the kept epoch, and say in a line what was kept and why training ended."""
        if trainer.state.fn != FITTING or trainer.fast_dev_run or self._is_concluded:
            return
        self._is_concluded = True
        owner = self.owner
        owner.stopping_reason = why_ended(trainer, exception, owner._bearer)
        cost = owner.tracker.account.cost()
        owner.tracker.end(
            owner.stopping_reason,
            kept_epoch=owner.best_epoch,
            kept_step=owner.best_step,
            stopped_epoch=owner.stopped_epoch,
            best_model_path=owner.best_model_path,
        )
        if owner._kept is not None:
            is_graceful = exception is None or isinstance(exception, KeyboardInterrupt)
            how = restore(trainer, owner._keeper) if is_graceful and owner.restore_best_weights else "not "
            rank_zero_info(f"{_describe_kept(owner, owner._kept, how, has_failed=exception is not None)} {cost}")
            if line := owner.tracker.unrecognised(owner._kept):
                rank_zero_info(line)
        elif trainer.current_epoch or exception is None or isinstance(exception, KeyboardInterrupt):
            why = owner.tracker.checks.why_none_kept()
            name = "every_n_epochs" if owner.every_n_train_steps is None else "every_n_train_steps"
            if not owner.history and getattr(owner, name) > 1:
                why += f" (`{name}={getattr(owner, name)}`)"
            if owner._fit.waits_for_average:
                why += ": the average of WeightAveraging was not updated before it"
            rank_zero_info(
                f"Boundary uncertainty kept no epoch: {why}. {owner.stopping_reason} The weights are those of training."
            )

    def _leave_first_place(self, trainer: Trainer) -> None:
        """Put the keepers behind the user's own checkpoint callbacks, if this process was spawned.

        Its parent, whose list lacks all companions, takes the best path of the first checkpoint callback here for that
        of the first one there.
        """
        if self.default_checkpoint is None and hasattr(trainer.strategy.launcher, "get_extra_results"):
            trainer.callbacks = sorted(trainer.callbacks, key=lambda one: isinstance(one, KeeperMixin))


def bring_default_checkpoints_back(trainer: Trainer, pl_module: LightningModule) -> None:
    """Put the `ModelCheckpoint` that Lightning has added back into `trainer.callbacks`, for another fit."""
    for callback in trainer.callbacks:
        if isinstance(callback, ConcluderMixin):
            callback.bring_default_checkpoint_back(trainer, pl_module)


def _describe_kept(owner: "BoundaryUncertaintyStopping", kept: dict[str, Any], how: str, *, has_failed: bool) -> str:
    """Say what was kept, and where it is."""
    tracker, name, path = owner.tracker, owner.tracker.checks.score_name, owner.best_model_path
    assert tracker.checks.selection is not None  # noqa: S101  (there is a rule)
    title, unit = tracker.checks.selection.title, as_rule(owner.rule).unit
    where = f", its checkpoint is {cleaned(path)}" if path else ""
    is_last = kept is owner.history[-1] is tracker.checks.highest and owner.stopped_epoch is None and not has_failed
    longer = " That was the last check: longer training may help." if is_last else ""
    score = f"{kept[name]:.4f}{unit and f' {unit}'}{within_margin(owner)}"
    return (
        f"Boundary uncertainty kept {place_of_check(owner, kept)} ({title}: {score}):"
        f" its {'averaged ' if tracker.average is not None else ''}weights are {how}in the model{where}."
        f" {owner.stopping_reason.rstrip('.')}.{longer}"
    )


def why_ended(trainer: Trainer, exception: BaseException | None, bearer: VerdictBearerMixin | None) -> str:
    """Name the reason for which training ended."""
    if exception is not None:
        return describe_exception(exception)
    if bearer is not None and bearer.has_stopped:
        return bearer.why_stopped
    timers = [one for one in trainer.callbacks if isinstance(one, library_of(trainer).timer)]
    if any(left is not None and left <= 0 for left in (one.time_remaining() for one in timers)):
        return "Training ran until `max_time`."
    if (who := _who_stopped(trainer)) is not None:
        name = type(getattr(who, "owner", who)).__name__
        said = f"`{name}` stopped training in epoch {who.stopped_epoch}"
        return f"{said}: {who.stopping_reason_message.removesuffix(' Signaling Trainer to stop.')}"
    if trainer.limit_train_batches == 0:
        return "There was no training batch."
    if trainer.max_epochs not in (None, -1) and trainer.current_epoch >= trainer.max_epochs:
        return f"Training ran until `max_epochs={trainer.max_epochs}`."
    if trainer.max_steps != -1 and trainer.global_step >= trainer.max_steps:
        return f"Training ran until `max_steps={trainer.max_steps}`."
    return "Other code stopped training (`trainer.should_stop`)."


def _who_stopped(trainer: Trainer) -> Any:
    """Early stopping that stopped this training, by Lightning or in another callback of this kind; None if none did."""
    stopped = (one for one in trainer.callbacks if isinstance(one, library_of(trainer).early_stopping))
    now = trainer.current_epoch - 1  # or later; what stopped an earlier fit keeps its words
    said = (one for one in stopped if one.stopping_reason_message and one.stopped_epoch >= now)
    return next(said, None) if trainer.should_stop else None
