"""The weights of the best check in a file of this run's own, and how they are put back.

`FileKeeper` is a subclass of Lightning's `ModelCheckpoint`, which by itself would read stale values between checks,
share a state key with the user's own, and forget the best score when a resumed run writes to a new folder.
"""

import copy
import os
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from lightning_utilities.core.rank_zero import rank_zero_warn
from torch import Tensor

from bu_torch.callbacks.trainer import (
    FITTING,
    OUT_OF_REACH,
    RAW_WEIGHTS,
    SHARDED,
    AsyncCheckpointIO,
    Callback,
    LightningModule,
    ModelCheckpoint,
    Trainer,
    lightning_average,
    misconfigured,
    skip_empty_hooks,
)
from bu_torch.internal.global_state import preserved_random_state
from bu_torch.internal.output import cleaned, foreign_class, why_unreadable
from bu_torch.internal.replica import gathered, replaced_in_place
from bu_torch.run.engine import Check, Engine
from bu_torch.run.history import place_of
from bu_torch.run.weights import (
    few_names,
    load,
    named_weights,
    optimizers_in_training,
)
from bu_torch.signals.catalogue import SIGNALS
from bu_torch.signals.metrics import THRESHOLD


class FileKeeper(ModelCheckpoint):
    """Lightning's `ModelCheckpoint` by the score of each check, with one file under a name of its own."""

    def __init__(
        self, engine: Engine, written: set[str], token: str, *, is_by_steps: bool, filename: str | None, **options: Any
    ) -> None:
        super().__init__(
            monitor=engine.history.score_name,
            mode="max",
            save_on_train_epoch_end=True,
            filename=f"{filename or 'boundary-{epoch}-{step}'}-{token}",
            **options,
        )
        skip_empty_hooks(self)
        if not is_by_steps:
            self.__dict__["on_train_batch_end"] = None  # Lightning does not call it
        self.engine = engine
        self.check: Check | None = None  # the best check, until its weights are kept
        places = dict.fromkeys(("epoch", "step"), torch.tensor(0))
        example = "'{epoch}-{expected_accuracy:.3f}'"
        before = f"`filename` must be a template as `ModelCheckpoint` takes, such as {example}, got {filename!r}: "
        with misconfigured(AttributeError, IndexError, KeyError, TypeError, ValueError, before=before):
            self.format_checkpoint_name(places | dict.fromkeys(SIGNALS, torch.tensor(0.5).double()))
        self.written = written  # files of this process, in all fits of the callback
        self.is_saving = False
        self._raw: dict[str, Tensor] = {}  # weights of training, while averaged shards are in their place

    @property
    def state_key(self) -> str:
        return type(self).__qualname__

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        super().setup(trainer, pl_module, stage)
        if stage == FITTING and self.engine.is_over:  # its owner has left the trainer, or would have made a new keeper
            trainer.callbacks = [callback for callback in trainer.callbacks if callback is not self]
        folder = str(self.dirpath).removeprefix("file://")
        if self.dirpath is not None and "://" not in folder:  # a logger or the user may give a relative one
            self.dirpath: Any = str(Path(folder).absolute())

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any, **__: Any) -> None:
        self._keep_check(trainer)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._keep_check(trainer)

    def _keep_check(self, trainer: Trainer) -> None:
        history = self.engine.history
        if self.check is None:
            return
        before = history.keep(self.check.entry)  # the state in the file says so, too
        try:
            with self.engine.record.counting("saving_seconds"):
                self._keep(trainer, self.check)
        except BaseException as error:  # Ctrl-C, or whatever a writer raises
            history.keep(before)
            if not isinstance(error, OSError) or trainer.world_size > 1:  # other processes wait within Lightning
                raise
            earlier = f"the best earlier one stays: {cleaned(self.best_model_path)}"
            rank_zero_warn(
                f"The checkpoint of epoch {trainer.current_epoch} cannot be written: {error}. Training continues, and"
                f" {earlier if self.best_model_path else 'no epoch is kept yet'}."
            )
        finally:
            self.check = None  # its weights take as much memory as the network

    def set_best(self, path: str, score: Tensor | None) -> None:
        """Name the best file; "" if there is none."""
        self.best_model_path = self.kth_best_model_path = path
        self.best_model_score = self.kth_value = self.current_score = score
        self.best_k_models = {} if score is None else {path: score}

    def _keep(self, trainer: Trainer, check: Check) -> None:
        values = {name: _on_cpu(value) for name, value in check.entry.items() if name not in ("epoch", "step")}
        path: str = self._get_metric_interpolated_filepath_name(self._monitor_candidates(trainer) | values, trainer)
        earlier, earlier_score = self.best_model_path, self.best_model_score
        self.set_best(path, values[self.monitor])
        try:
            self._save(trainer, path, {} if check.weights else self.engine.averages(trainer.lightning_module))
            for logger in trainer.loggers if trainer.is_global_zero else ():
                logger.after_save_checkpoint(weakref.proxy(self))
            if earlier in self.written and self._should_remove_checkpoint(trainer, earlier, path):
                trainer.strategy.remove_checkpoint(earlier)
            elif earlier:
                left = cleaned(earlier)
                self.engine.tell_if_verbose(
                    f"bu-torch leaves the best checkpoint of an earlier run where it is: {left}"
                )
        except BaseException:  # Ctrl-C, or whatever a writer raises
            self.set_best(earlier, earlier_score)
            raise

    def _save(self, trainer: Trainer, path: str, shards: dict[str, Tensor]) -> None:
        """Have Lightning write a file, for which averaged shards are in the module."""
        self.is_saving = True
        try:
            # The module's `on_save_checkpoint` may draw random numbers.
            with preserved_random_state(), replaced_in_place(trainer.lightning_module, shards) as own:
                self._raw = {name: gathered(value) for name, value in own.items()}
                trainer.save_checkpoint(path, weights_only=False)
        finally:
            self.is_saving, self._raw = False, {}
        self.written.add(path)

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Put the measured weights into the own file, and beside them those of training."""
        if not self.is_saving or self.check is None:
            return
        # An average of Lightning's is put in by its own hook.
        raw, measured = self._raw, {} if lightning_average(trainer) is not None else self.check.weights
        saved = checkpoint["state_dict"]
        saved.update({name: measured[name] for name in saved if name in measured})  # a user's hook may leave out some
        if measured and (self.engine.average is not None or optimizers_in_training(trainer.optimizers)):
            frozen = {name for name, weight in pl_module.named_parameters() if not weight.requires_grad}
            raw = {n: v.detach() for n, v in named_weights(pl_module).items() if n in saved and n not in frozen}
        if self.save_weights_only:
            for name in ("callbacks", "optimizer_states", "lr_schedulers", type(trainer.precision_plugin).__qualname__):
                checkpoint.pop(name, None)
        elif raw:
            checkpoint[RAW_WEIGHTS] = raw
        if THRESHOLD in self.check.entry:
            checkpoint[THRESHOLD] = self.check.entry[THRESHOLD]

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        self._resumed_from = Path(str(trainer.ckpt_path)).absolute()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over the best file of a run that resumes; nothing else in the state is needed or trusted."""
        history = self.engine.history
        if history.kept is None or self.engine.is_over:
            return
        try:
            path, score = str(state_dict["best_model_path"]), state_dict["best_model_score"]
            if path and not self._is_there(path):
                moved = self._resumed_from.with_name(Path(path).name)  # a folder may be moved as a whole
                if not (Path(path).is_absolute() and self._is_there(str(moved))):
                    raise FileNotFoundError(f"there is no file {path}")
                path = str(moved)
            self.set_best(path, _on_cpu(score))
        except Exception as error:  # a damaged state may raise anything
            rank_zero_warn(history.forget_kept(error))

    def _is_there(self, path: str) -> bool:
        """Whether it is a local file or folder of shards, or a file in the remote store of this run."""
        store, _, _ = str(self.dirpath).rpartition("://")
        if store:
            return path.startswith(f"{store}://") and bool(self._fs.exists(path))
        return Path(path).is_absolute() and (Path(path).is_file() or Path(path).is_dir())

    def restore(self, trainer: Trainer) -> str:
        """Put the kept weights into the module, as `load_kept` does; a file of others is read as plain data alone."""
        path, is_own, strategy = self.best_model_path, self.best_model_path in self.written, trainer.strategy
        module, are_shards = trainer.lightning_module, type(strategy).__name__ in SHARDED
        if Path(path).is_dir() and not (is_own or Path(trainer.ckpt_path or os.devnull).is_dir()):
            raise ValueError("the list of shards in a folder may run code, and training did not resume from a folder")
        optimizers, strategy.optimizers = strategy.optimizers, []  # sharding strategies would load their states, too
        try:
            checkpoint = strategy.load_checkpoint(path, weights_only=not is_own)
        finally:
            strategy.optimizers = optimizers
        place, kept = (checkpoint.get("epoch"), checkpoint.get("global_step")), self.engine.history.kept
        named = (checkpoint.get("callbacks") or {}).get(self.state_key, {}).get("best_model_path", path)
        if not are_shards and (kept is None or place != place_of(kept) or Path(named).name != Path(path).name):
            raise ValueError(f"it is of epoch {place[0]} and step {place[1]} of another run")
        module.on_load_checkpoint(checkpoint)
        if are_shards:
            strategy.load_model_state_dict(checkpoint, strict=False)
            return "in the model"
        return load_kept(module, checkpoint["state_dict"], path, allow_missing=is_own or not module.strict_loading)


def _on_cpu(value: Any) -> Tensor:
    return torch.tensor(float(value), dtype=torch.float64, device="cpu")


class Ending(Callback):
    """Calls `conclude(trainer, exception)` after all other callbacks, so that they save the training weights."""

    def __init__(self, conclude: Callable[[Trainer, BaseException | None], None]) -> None:
        skip_empty_hooks(self)
        self._conclude = conclude

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        # The module's own hook, which may export the network, comes next. Asynchronous writes end only in `on_fit_end`.
        if not isinstance(trainer.strategy.checkpoint_io, AsyncCheckpointIO):
            self._conclude(trainer, None)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._conclude(trainer, None)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._conclude(trainer, exception)


def restore(trainer: Trainer, keeper: FileKeeper | None, weights: dict[str, Any]) -> str:
    """Put the kept weights into the module, from a file or from memory; return where they are: "in the model" or not.

    A failure is only a warning: the training is over, and has succeeded.
    """
    module, name = trainer.lightning_module, type(trainer.strategy).__name__
    path = "" if keeper is None else cleaned(keeper.best_model_path)
    is_read_by_all = name in SHARDED and keeper is not None  # collectively, so not after Ctrl-C
    if name in OUT_OF_REACH or (is_read_by_all and trainer.interrupted):
        rank_zero_warn(f"{name} shards the weights, so those of the kept epoch are not restored: they are in {path}.")
        return "not in the model"
    for optimizer in optimizers_in_training(trainer.optimizers):  # a later `eval` must not move what is put back
        optimizer.eval()
    before = {n: copy.deepcopy(value) for n, value in module.state_dict().items()} if is_read_by_all else {}
    try:
        return keeper.restore(trainer) if keeper else load_kept(module, weights, "", allow_missing=True)
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
        return "not in the model"


def load_kept(module: LightningModule, saved: dict[str, Any], path: str, *, allow_missing: bool) -> str:
    """Load weights; those that were not saved stay as they are: then these are "partly in the model"."""
    try:
        unfit = load(module, saved, allow_missing=allow_missing)
    except ValueError as error:
        raise ValueError(f"they do not fit: {error}") from error
    where = f" Its checkpoint is {cleaned(path)}." if path else ""
    if unfit.missing:
        rank_zero_warn(
            f"The saved weights of the kept epoch leave out {len(unfit.missing)} that training changes:"
            f" {few_names(unfit.missing)}. Those stay as the last epoch left them; all others are restored.{where}"
        )
    if unfit.unknown and module.strict_loading:
        rank_zero_warn(
            f"The module has no place for saved weights of the kept epoch: {few_names(unfit.unknown)}.{where}"
        )
    return "partly in the model" if unfit.missing else "in the model"
