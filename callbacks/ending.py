"""The end of a fit, after all other callbacks: why it ended, and what was kept."""

from collections.abc import Callable
from typing import Any

from bu_torch.callbacks.keeper import Keeper
from bu_torch.callbacks.lightning_tree import (
    FITTING,
    AsyncCheckpointIO,
    Callback,
    EarlyStopping,
    LightningModule,
    ModelCheckpoint,
    Trainer,
    library,
)
from bu_torch.internal.printing import cleaned
from bu_torch.run.tracker import Tracker


class Ending(Callback):
    """Calls `conclude(trainer, exception)` once when a fit has ended, last of all: others save training's weights."""

    def __init__(self, conclude: Callable[[Trainer, BaseException | None], None]) -> None:
        self._conclude, self._is_concluded = conclude, False
        self._has_others = False  # checkpoint callbacks that the user has made

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        lightnings, others = _arguments(ModelCheckpoint()), trainer.checkpoint_callbacks
        self._has_others = any(_arguments(one) != lightnings for one in others if not isinstance(one, Keeper))

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        # The module's own hook comes next, which may export it. Files that are written asynchronously are there only in
        # `on_fit_end`.
        if not isinstance(trainer.strategy.checkpoint_io, AsyncCheckpointIO):
            self._end(trainer)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._end(trainer)
        # The parent of a spawned process, whose list lacks keepers, takes the best path of the first checkpoint
        # callback here for that of the first one there.
        if self._has_others and hasattr(trainer.strategy.launcher, "get_extra_results"):
            trainer.callbacks = sorted(trainer.callbacks, key=lambda one: isinstance(one, Keeper))

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._end(trainer, exception)

    def _end(self, trainer: Trainer, exception: BaseException | None = None) -> None:
        if trainer.state.fn == FITTING and not (trainer.fast_dev_run or self._is_concluded):
            self._is_concluded = True
            self._conclude(trainer, exception)


def _arguments(callback: Any) -> dict[str, Any]:
    return {n: one for n, one in vars(callback).items() if one is None or isinstance(one, bool | int | str)}


def describe_exception(exception: BaseException) -> str:
    """Say why training ended early."""
    if isinstance(exception, KeyboardInterrupt):
        return "Training was interrupted (KeyboardInterrupt)."
    return f"Training failed: {type(exception).__name__}{f': {exception}' if str(exception) else '.'}"


def why_ended(trainer: Trainer, exception: BaseException | None) -> str:
    """Name the reason for which training ended, if no callback of this package has stopped it."""
    if exception is not None:
        return describe_exception(exception)
    timers = [one for one in trainer.callbacks if isinstance(one, library.callbacks.Timer)]
    if any(left is not None and left <= 0 for left in (one.time_remaining() for one in timers)):
        return "Training ran until `max_time`."
    now = trainer.current_epoch - 1  # or later; what stopped an earlier fit keeps its words
    stopped = (one for one in trainer.callbacks if isinstance(one, EarlyStopping) and one.stopping_reason_message)
    who = next((one for one in stopped if trainer.should_stop and one.stopped_epoch >= now), None)
    if who is not None:
        said = f"`{type(who).__name__}` stopped training in epoch {who.stopped_epoch}"
        return f"{said}: {str(who.stopping_reason_message).removesuffix(' Signaling Trainer to stop.')}"
    if trainer.limit_train_batches == 0:
        return "There was no training batch."
    if trainer.max_epochs not in (None, -1) and trainer.current_epoch >= trainer.max_epochs:
        return f"Training ran until `max_epochs={trainer.max_epochs}`."
    if trainer.max_steps != -1 and trainer.global_step >= trainer.max_steps:
        return f"Training ran until `max_steps={trainer.max_steps}`."
    return "Other code stopped training (`trainer.should_stop`)."


def place_of_check(check: dict[str, Any], *, is_by_steps: bool) -> str:
    """A check in words: its epoch, or its step too."""
    if is_by_steps and "step" in check:
        return f"step {check['step']} of epoch {check['epoch']}"
    return f"epoch {check['epoch']}"


def within_margin(tracker: Tracker, *, is_by_steps: bool) -> str:
    """Name the check of the highest score, if another is kept; "" otherwise."""
    kept, highest, name = tracker.checks.kept, tracker.checks.highest, tracker.checks.score_name
    if kept is None or highest is None or highest[name] <= kept[name]:
        return ""
    where = place_of_check(highest, is_by_steps=is_by_steps)
    return f", within the margin of the {highest[name]:.4f} of {where}"


def describe_kept(
    tracker: Tracker, kept: dict[str, Any], path: str, how: str, reason: str, *, is_by_steps: bool, is_open: bool
) -> str:
    """Say what was kept, where it is, and why training ended; if the end was `open`, whether longer training may help.

    `how` the weights are in the model is "", "partly " or "not ".
    """
    selection, name = tracker.checks.selection, tracker.checks.score_name
    assert selection is not None  # noqa: S101  (there is a rule)
    unit = selection.rule.unit
    where = f", its checkpoint is {cleaned(path)}" if path else ""
    is_last = is_open and kept is tracker.history[-1] is tracker.checks.highest
    longer = " That was the last check: longer training may help." if is_last else ""
    margin = within_margin(tracker, is_by_steps=is_by_steps)
    return (
        f"Boundary uncertainty kept {place_of_check(kept, is_by_steps=is_by_steps)}"
        f" ({selection.title}: {kept[name]:.4f}{unit and f' {unit}'}{margin}):"
        f" its {'averaged ' if tracker.average is not None else ''}weights are {how}in the model{where}."
        f" {reason.rstrip('.')}.{longer}"
    )
