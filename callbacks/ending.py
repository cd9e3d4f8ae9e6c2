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
from bu_torch.run.history import describe_exception


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
    if 0 in (trainer.limit_train_batches, trainer.num_training_batches):
        return "There was no training batch."
    if trainer.max_epochs not in (None, -1) and trainer.current_epoch >= trainer.max_epochs:
        return f"Training ran until `max_epochs={trainer.max_epochs}`."
    if trainer.max_steps != -1 and trainer.global_step >= trainer.max_steps:
        return f"Training ran until `max_steps={trainer.max_steps}`."
    return "Other code stopped training (`trainer.should_stop`)."
