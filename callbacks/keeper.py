"""A file of the best check, of this run's own.

`FileKeeper` is a subclass of Lightning's `ModelCheckpoint`, which by itself would read stale values between checks,
share a state key with the user's own, and forget the best score when a resumed run writes to a new folder.
"""

import weakref
from pathlib import Path
from typing import Any

import torch
from lightning_utilities.core.rank_zero import rank_zero_warn
from torch import Tensor

from bu_torch.callbacks.trainer import (
    FITTING,
    RAW_WEIGHTS,
    Callback,
    LightningModule,
    ModelCheckpoint,
    Trainer,
    lightning_average,
    misconfigured,
    skip_empty_hooks,
)
from bu_torch.internal.output import printable
from bu_torch.internal.replica import gathered, preserved_random_state, replaced_in_place
from bu_torch.run.engine import Engine
from bu_torch.run.weights import named_weights, optimizers_in_training, with_names_of
from bu_torch.signals.catalogue import SIGNALS
from bu_torch.signals.metrics import THRESHOLD


class FileKeeper(ModelCheckpoint):
    """Lightning's `ModelCheckpoint` by the score of each check, with one file under a name of its own.

    The engine keeps the weights. The file is for whoever loads it: nothing of bu-torch reads it.
    """

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
        places = dict.fromkeys(("epoch", "step"), torch.tensor(0))
        example = "'{epoch}-{expected_accuracy:.3f}'"
        before = f"`filename` must be a template as `ModelCheckpoint` takes, such as {example}, got {filename!r}: "
        with misconfigured(AttributeError, IndexError, KeyError, TypeError, ValueError, before=before):
            self.format_checkpoint_name(places | dict.fromkeys(SIGNALS, torch.tensor(0.5).double()))
        self.written = written  # best files of this process, in all fits of the callback
        self.is_due = False  # the last check is the best, and not written yet
        self.is_saving = False
        self._earlier = ""  # best file before, until the next is written
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
        self._write_best(trainer)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._write_best(trainer)

    def set_due(self) -> None:
        """Have the kept check written when the hook comes; until then the file of the best before is not the best."""
        self.is_due, self._earlier = True, self.best_model_path or self._earlier
        self.set_best("", None)

    def set_best(self, path: str, score: Tensor | None) -> None:
        """Name the best file; "" if there is none."""
        self.best_model_path = self.kth_best_model_path = path
        self.best_model_score = self.kth_value = self.current_score = score
        self.best_k_models = {} if score is None else {path: score}

    def _write_best(self, trainer: Trainer) -> None:
        """Write the kept check, if that is due, in place of the best file before."""
        kept = self.engine.history.kept
        if not self.is_due or kept is None:
            return
        self.is_due = False
        values = {name: _on_cpu(value) for name, value in kept.items() if name not in ("epoch", "step")}
        path: str = self._get_metric_interpolated_filepath_name(self._monitor_candidates(trainer) | values, trainer)
        self.set_best(path, values[self.monitor])
        try:
            with self.engine.record.timing("saving_seconds"):
                self._save(trainer, path)
        except BaseException as error:  # Ctrl-C, or whatever a writer raises
            self.set_best("", None)
            if not isinstance(error, OSError) or trainer.world_size > 1:  # other processes wait within Lightning
                raise
            stays = f" The file of the best check before stays: {printable(self._earlier)}" if self._earlier else ""
            rank_zero_warn(
                f"The checkpoint of epoch {trainer.current_epoch} cannot be written: {error}. Training continues, with"
                f" its weights in memory.{stays}"
            )

    def _save(self, trainer: Trainer, path: str) -> None:
        """Have Lightning write a file, for which averaged shards are in the module; delete the best file before."""
        module, engine = trainer.lightning_module, self.engine
        self.is_saving = True
        try:
            # The module's `on_save_checkpoint` may draw random numbers.
            shards = engine.averages if engine.processes.are_sharded else {}
            with preserved_random_state(), replaced_in_place(module, shards) as own:
                self._raw = {name: gathered(value) for name, value in own.items()}
                trainer.save_checkpoint(path, weights_only=False)
        finally:
            self.is_saving, self._raw = False, {}
        self.written.add(path)
        for logger in trainer.loggers if trainer.is_global_zero else ():
            logger.after_save_checkpoint(weakref.proxy(self))
        if self._earlier in self.written and self._should_remove_checkpoint(trainer, self._earlier, path):
            trainer.strategy.remove_checkpoint(self._earlier)
        self._earlier = ""  # that of an earlier run stays

    def put_measured(self, trainer: Trainer, checkpoint: dict[str, Any]) -> None:
        """Put the measured weights into the own file, and beside them those of training."""
        module, engine, raw = trainer.lightning_module, self.engine, self._raw
        saved, kept = checkpoint["state_dict"], engine.history.kept or {}
        # Lightning's own hooks put in an average of its, and shards.
        if not engine.processes.are_sharded and lightning_average(trainer) is None:
            measured = with_names_of(saved, engine.kept_weights)
            saved.update({name: value for name, value in measured.items() if name in saved})
            if engine.average is not None or optimizers_in_training(trainer.optimizers):
                frozen = {name for name, weight in module.named_parameters() if not weight.requires_grad}
                raw = {n: v.detach() for n, v in named_weights(module).items() if n in saved and n not in frozen}
        if self.save_weights_only:
            for name in ("callbacks", "optimizer_states", "lr_schedulers", type(trainer.precision_plugin).__qualname__):
                checkpoint.pop(name, None)
        elif raw:
            checkpoint[RAW_WEIGHTS] = raw
        if THRESHOLD in kept:
            checkpoint[THRESHOLD] = kept[THRESHOLD]

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Name the best file of a run that resumes, if it is there; nothing else in the state is needed or trusted."""
        history = self.engine.history
        path = str(state_dict.get("best_model_path", ""))
        if history.kept is not None and not self.engine.is_over and self._is_there(path):
            self.set_best(path, _on_cpu(history.kept[history.score_name]))

    def _is_there(self, path: str) -> bool:
        """Whether it is a local file or folder of shards, or a file in the remote store of this run."""
        store, _, _ = str(self.dirpath).rpartition("://")
        if store:
            return path.startswith(f"{store}://") and bool(self._fs.exists(path))
        try:
            return Path(path).is_absolute() and (Path(path).is_file() or Path(path).is_dir())
        except ValueError:  # a null byte
            return False


def _on_cpu(value: Any) -> Tensor:
    return torch.tensor(float(value), dtype=torch.float64, device="cpu")


class LastCallback(Callback):
    """Has its owner complete checkpoints and conclude the training after all other callbacks.

    So they save the training weights, and what they change in a checkpoint is known.
    """

    def __init__(self, owner: Any) -> None:
        skip_empty_hooks(self)
        self._owner = owner

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        self._owner._complete_checkpoint(trainer, checkpoint)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._owner._conclude(trainer)  # the module's own hook, which may export the network, comes next

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._owner._conclude(trainer)  # if there was no training

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._owner._conclude(trainer, exception)
