"""The end of a fit, after all other callbacks: why it ended, and restoring the kept weights."""

import copy
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lightning_utilities.core.rank_zero import rank_zero_warn

from bu_torch.callbacks.keeper import FileKeeper, InternalCallback, Keeper, MemoryKeeper
from bu_torch.callbacks.trainer import (
    OUT_OF_REACH,
    SHARDED,
    AsyncCheckpointIO,
    EarlyStopping,
    LightningModule,
    Trainer,
    library,
)
from bu_torch.internal.files import foreign_class, why_unreadable
from bu_torch.internal.printing import cleaned
from bu_torch.run.history import describe_exception
from bu_torch.run.weights import few_names, load, optimizers_in_training


class Ending(InternalCallback):
    """Calls `conclude(trainer, exception)` after all other callbacks, so that they save the training weights."""

    on_train_batch_start = on_train_batch_end = None

    def __init__(self, conclude: Callable[[Trainer, BaseException | None], None]) -> None:
        self._conclude = conclude

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        # The module's own hook, which may export the network, comes next. Asynchronous writes end only in `on_fit_end`.
        if not isinstance(trainer.strategy.checkpoint_io, AsyncCheckpointIO):
            self._conclude(trainer, None)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._conclude(trainer, None)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._conclude(trainer, exception)


def why_ended(trainer: Trainer, exception: BaseException | None) -> str:
    """Say why training ended, if no callback of this package stopped it."""
    if exception is not None:
        return describe_exception(exception)
    timers = [one for one in trainer.callbacks if isinstance(one, library.callbacks.Timer)]
    if any(left is not None and left <= 0 for left in (one.time_remaining() for one in timers)):
        return "Training ran until `max_time`."
    now = trainer.current_epoch - 1  # or later; a callback that stopped an earlier fit keeps its message
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


def restore(trainer: Trainer, keeper: Keeper) -> str:
    """Put the weights of the kept check back; return how they are in the module: "", "partly " or "not ".

    A failure is only a warning: the training is over, and has succeeded.
    """
    module, name = trainer.lightning_module, type(trainer.strategy).__name__
    path = cleaned(keeper.best_model_path)
    is_read_by_all = name in SHARDED and isinstance(keeper, FileKeeper)  # collectively, so not after Ctrl-C
    if name in OUT_OF_REACH or (is_read_by_all and trainer.interrupted):
        rank_zero_warn(f"{name} shards the weights, so those of the kept epoch are not restored: they are in {path}.")
        return "not "
    for optimizer in optimizers_in_training(trainer.optimizers):  # a later `eval` must not move what is put back
        optimizer.eval()
    before = {n: copy.deepcopy(value) for n, value in module.state_dict().items()} if is_read_by_all else {}
    try:
        if isinstance(keeper, MemoryKeeper):
            return _load(trainer, keeper.best.weights, "", is_own=True)
        assert isinstance(keeper, FileKeeper)  # noqa: S101  (there is no third kind)
        return _load_file(trainer, keeper, is_read_by_all=is_read_by_all)
    except Exception as error:  # a damaged or crafted file may raise anything, and must not end the fit
        if before:
            module.load_state_dict(before, strict=False)
        remedy = ""
        if foreign_class(error):
            remedy = (
                " If you trust the file, read it with `torch.load(path, weights_only=False)`, or allow its classes"
                " before the next `fit` with `torch.serialization.add_safe_globals`."
            )
        rank_zero_warn(
            f"The weights of the kept epoch{f', {path},' if path else ''} cannot be put back:"
            f" {cleaned(why_unreadable(error))}. The weights stay as training left them.{remedy}"
        )
        return "not "


def _load_file(trainer: Trainer, keeper: FileKeeper, *, is_read_by_all: bool) -> str:
    """Load the weights of a file; a file of an earlier process only as plain data."""
    path, is_own, strategy = keeper.best_model_path, keeper.best_model_path in keeper.written, trainer.strategy
    if Path(path).is_dir() and not (is_own or Path(trainer.ckpt_path or os.devnull).is_dir()):
        raise ValueError("the list of shards in a folder may run code, and training did not resume from a folder")
    optimizers, strategy.optimizers = strategy.optimizers, []  # sharding strategies would load their states, too
    try:
        checkpoint = strategy.load_checkpoint(path, weights_only=not is_own)
    finally:
        strategy.optimizers = optimizers
    if not is_read_by_all:
        keeper.check_is_kept(checkpoint)
    trainer.lightning_module.on_load_checkpoint(checkpoint)
    if is_read_by_all:
        strategy.load_model_state_dict(checkpoint, strict=False)
        return ""
    return _load(trainer, checkpoint["state_dict"], path, is_own=is_own)


def _load(trainer: Trainer, saved: dict[str, Any], path: str, *, is_own: bool) -> str:
    """Load weights; those that were not saved stay as they are in the module."""
    module = trainer.lightning_module
    try:
        found = load(module, saved, allow_missing=is_own or not module.strict_loading)
    except ValueError as error:
        raise ValueError(f"they do not fit: {error}") from error
    where = f" Its checkpoint is {cleaned(path)}." if path else ""
    if found.missing:
        rank_zero_warn(
            f"The saved weights of the kept epoch leave out {len(found.missing)} that training changes:"
            f" {few_names(found.missing)}. Those stay as the last epoch left them; all others are restored.{where}"
        )
    if found.unknown and module.strict_loading:
        rank_zero_warn(
            f"The module has no place for saved weights of the kept epoch: {few_names(found.unknown)}.{where}"
        )
    return "partly " if found.missing else ""
