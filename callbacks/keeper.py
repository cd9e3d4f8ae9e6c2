"""The weights of the best check, in a file of this run's own or in memory, and how they are put back.

`FileKeeper` is a subclass of Lightning's `ModelCheckpoint`, which by itself would read stale values between checks,
share a state key with the user's own, and forget the best score when a resumed run writes to a new folder.
"""

import copy
import os
from collections.abc import Callable
from contextlib import nullcontext
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
    Checkpoint,
    LightningModule,
    MisconfigurationException,
    ModelCheckpoint,
    Trainer,
    WeightAveraging,
    has_callback,
    lightning_average,
    misconfigured,
    set_batch_hooks,
)
from bu_torch.internal.global_state import preserved_random_state
from bu_torch.internal.output import cleaned, foreign_class, why_unreadable
from bu_torch.internal.replica import gathered, replaced_in_place
from bu_torch.run.engine import Check, Engine
from bu_torch.run.history import place_of
from bu_torch.run.weights import (
    copied,
    few_names,
    load,
    named_weights,
    optimizers_in_eval_mode,
    optimizers_in_training,
    state_of_kept,
    weights_in,
)
from bu_torch.signals.catalogue import SIGNALS
from bu_torch.signals.metrics import THRESHOLD

_BEST = ("best_", "kth_", "current_")  # prefixes of the attributes of `ModelCheckpoint` that describe the best file


class InternalCallback(Callback):
    """Base of the callbacks that a stopping callback puts beside itself for one fit.

    Lightning skips hooks that are None, which is cheaper in each batch than calling an empty one.
    """

    on_before_zero_grad = on_before_backward = on_after_backward = on_before_optimizer_step = None


class Keeper(InternalCallback):
    """Base of both keepers: the hooks in which they keep weights, and the state of a run that resumes."""

    best_model_path: str

    def __init__(self, engine: Engine, *, is_by_steps: bool) -> None:
        self.engine = engine
        set_batch_hooks(self, are_called=is_by_steps)
        self.check: Check | None = None  # the best check, until its weights are kept

    @property
    def state_key(self) -> str:
        return type(self).__qualname__

    @property
    def has_weights(self) -> bool:
        raise NotImplementedError

    def keep(self, trainer: Trainer, check: Check) -> None:
        """Keep the weights of the check that was made in this hook."""
        raise NotImplementedError

    def load_best(self, state_dict: dict[str, Any]) -> None:
        """Take over the best of a run that resumes; raises, and changes nothing, if it is not there."""
        raise NotImplementedError

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if self.engine.history.kept is not None and not self.engine.is_over:
            try:
                self.load_best(state_dict)
            except Exception as error:  # a damaged state may raise anything
                rank_zero_warn(self.engine.history.forget_kept(error))

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        super().setup(trainer, pl_module, stage)
        if stage == FITTING and self.engine.is_over:  # its owner has left the trainer, or would have made a new keeper
            trainer.callbacks = [callback for callback in trainer.callbacks if callback is not self]

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_train_start(trainer, pl_module)
        history = self.engine.history
        if not (history.kept is None or self.has_weights or self.engine.is_over):
            rank_zero_warn(history.forget_kept())

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
                self.keep(trainer, self.check)
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


class FileKeeper(Keeper, ModelCheckpoint):
    """Lightning's `ModelCheckpoint` by the score of each check, with one file under a name of its own."""

    def __init__(
        self, engine: Engine, written: set[str], token: str, *, is_by_steps: bool, filename: str | None, **options: Any
    ) -> None:
        ModelCheckpoint.__init__(
            self,
            monitor=engine.history.score_name,
            mode="max",
            save_on_train_epoch_end=True,
            filename=f"{filename or 'boundary-{epoch}-{step}'}-{token}",
            **options,
        )
        Keeper.__init__(self, engine, is_by_steps=is_by_steps)
        places = dict.fromkeys(("epoch", "step"), torch.tensor(0))
        example = "'{epoch}-{expected_accuracy:.3f}'"
        before = f"`filename` must be a template as `ModelCheckpoint` takes, such as {example}, got {filename!r}: "
        with misconfigured(AttributeError, IndexError, KeyError, TypeError, ValueError, before=before):
            self.format_checkpoint_name(places | dict.fromkeys(SIGNALS, torch.tensor(0.5).double()))
        self.written = written  # files of this process, in all fits of the callback
        # While a file is written, also the weights of training that those of the check replace in it.
        self.is_saving = False
        self._raw: dict[str, Tensor] = {}

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        super().setup(trainer, pl_module, stage)
        folder = str(self.dirpath).removeprefix("file://")
        if self.dirpath is not None and "://" not in folder:  # a logger or the user may give a relative one
            self.dirpath: Any = str(Path(folder).absolute())
        if self.save_weights_only and has_callback(trainer, WeightAveraging):
            raise MisconfigurationException(
                "`save_weights_only=True` cannot be used with WeightAveraging: such a checkpoint lacks the average,"
                " which is measured."
            )

    @property
    def has_weights(self) -> bool:
        return bool(self.best_model_path)

    def keep(self, trainer: Trainer, check: Check) -> None:
        candidates = self._monitor_candidates(trainer)
        own = {name: value for name, value in check.entry.items() if name not in ("epoch", "step")}
        candidates |= {name: torch.tensor(value, dtype=torch.float64, device="cpu") for name, value in own.items()}
        before = {name: copy.copy(value) for name, value in vars(self).items() if name.startswith(_BEST)}
        try:
            # Past Lightning's comparison of step counts, which stand still if a module steps its own optimiser.
            self._update_best_and_save(candidates[self.monitor], trainer, candidates)
        except BaseException:
            for name, value in before.items():
                setattr(self, name, value)
            raise

    def _get_metric_interpolated_filepath_name(
        self, monitor_candidates: dict[str, Tensor], trainer: Trainer, del_filepath: str | None = None
    ) -> str:
        # Without the name of the earlier best file, which Lightning would write over if the template gives it again.
        return str(super()._get_metric_interpolated_filepath_name(monitor_candidates, trainer))

    @preserved_random_state()  # the module's `on_save_checkpoint` may draw random numbers
    def _save_checkpoint(self, trainer: Trainer, filepath: str) -> None:
        """Have Lightning write a file, into which `on_save_checkpoint` puts the measured weights.

        For a file of weights alone, or of shards, they are put into the module meanwhile.
        """
        module = trainer.lightning_module
        is_in_place = self.save_weights_only or not self._measured(trainer)  # Lightning calls no hook for weights alone
        values = self.engine.averages(module) if is_in_place else {}
        own_weights = optimizers_in_eval_mode(trainer.optimizers) if self.save_weights_only else nullcontext()
        self.is_saving = True
        try:
            with own_weights, replaced_in_place(module, values) as own:
                self._raw = {name: gathered(value) for name, value in own.items()}
                super()._save_checkpoint(trainer, filepath)
        finally:
            self.is_saving, self._raw = False, {}
        self.written.add(filepath)

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        if not self.is_saving:
            return
        raw, measured, saved = self._raw, self._measured(trainer), checkpoint["state_dict"]
        saved.update({name: measured[name] for name in saved if name in measured})  # a user's hook may leave out some
        if measured and (self.engine.average is not None or optimizers_in_training(trainer.optimizers)):
            # The weights of training lie beside the average.
            frozen = {name for name, weight in pl_module.named_parameters() if not weight.requires_grad}
            raw = {n: v.detach() for n, v in named_weights(pl_module).items() if n in saved and n not in frozen}
        if raw:
            checkpoint[RAW_WEIGHTS] = raw
        if self.check is not None and THRESHOLD in self.check.entry:
            checkpoint[THRESHOLD] = self.check.entry[THRESHOLD]

    def _measured(self, trainer: Trainer) -> dict[str, Any]:
        """Weights that replace those of training in the file; an average of Lightning's is saved by its own hook."""
        return {} if self.check is None or lightning_average(trainer) is not None else self.check.weights

    def _remove_checkpoint(self, trainer: Trainer, filepath: str) -> None:
        if filepath in self.written:
            super()._remove_checkpoint(trainer, filepath)
        else:
            left = cleaned(filepath)
            self.engine.detail(f"bu-torch leaves the best checkpoint of an earlier run where it is: {left}")

    def check_is_kept(self, checkpoint: dict[str, Any]) -> None:
        """Raise unless what was read from the best file is the kept check of this run."""
        epoch, step, best = checkpoint.get("epoch"), checkpoint.get("global_step"), self.engine.history.kept
        state = (checkpoint.get("callbacks") or {}).get(self.state_key, {})
        is_own = state.get("best_model_path", self.best_model_path) == self.best_model_path
        if best is None or (epoch, step) != place_of(best) or not is_own:
            raise ValueError(f"it is of epoch {epoch} and step {step} of another run, or not those that are kept")

    def load_best(self, state_dict: dict[str, Any]) -> None:
        path, score = str(state_dict["best_model_path"]), state_dict["best_model_score"]
        if not path or score is None:
            return
        if not self._is_there(path):
            raise FileNotFoundError(f"there is no file {path}")
        # A resumed run usually writes to a new folder; the best so far stays the one to beat. Nothing else in the state
        # is needed or trusted.
        self.best_model_score = self.kth_value = torch.tensor(float(score), dtype=torch.float64, device="cpu")
        self.best_model_path = self.kth_best_model_path = path
        self.best_k_models = {path: self.best_model_score}

    def _is_there(self, path: str) -> bool:
        """Whether it is a local file or folder of shards, or a file in the remote store of this run."""
        store, _, _ = str(self.dirpath).rpartition("://")
        if store:
            return path.startswith(f"{store}://") and bool(self._fs.exists(path))
        return Path(path).is_absolute() and (Path(path).is_file() or Path(path).is_dir())


class MemoryKeeper(Keeper, Checkpoint):
    """Keeps the best weights in memory, for a trainer that writes no checkpoints."""

    best_model_path = ""

    weights: dict[str, Any] | None = None

    @property
    def has_weights(self) -> bool:
        return self.weights is not None

    def keep(self, trainer: Trainer, check: Check) -> None:
        self.weights = copied(check.weights or self.engine.state_to_keep(trainer.lightning_module))

    def state_dict(self) -> dict[str, Any]:
        return state_of_kept(self.weights or {}, self.engine.history.kept)

    def load_best(self, state_dict: dict[str, Any]) -> None:
        self.weights = weights_in(state_dict)


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


def restore(trainer: Trainer, keeper: Keeper) -> str:
    """Put the weights of the kept check into the module; return where they are: "in the model", partly or not.

    A failure is only a warning: the training is over, and has succeeded.
    """
    module, name = trainer.lightning_module, type(trainer.strategy).__name__
    path = cleaned(keeper.best_model_path)
    is_read_by_all = name in SHARDED and isinstance(keeper, FileKeeper)  # collectively, so not after Ctrl-C
    if name in OUT_OF_REACH or (is_read_by_all and trainer.interrupted):
        rank_zero_warn(f"{name} shards the weights, so those of the kept epoch are not restored: they are in {path}.")
        return "not in the model"
    for optimizer in optimizers_in_training(trainer.optimizers):  # a later `eval` must not move what is put back
        optimizer.eval()
    before = {n: copy.deepcopy(value) for n, value in module.state_dict().items()} if is_read_by_all else {}
    try:
        if isinstance(keeper, MemoryKeeper):
            return _load(trainer, keeper.weights or {}, "", is_own=True)
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
        return "not in the model"


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
        return "in the model"
    return _load(trainer, checkpoint["state_dict"], path, is_own=is_own)


def _load(trainer: Trainer, saved: dict[str, Any], path: str, *, is_own: bool) -> str:
    """Load weights; those that were not saved stay as they are in the module."""
    module = trainer.lightning_module
    try:
        unfit = load(module, saved, allow_missing=is_own or not module.strict_loading)
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
