"""The weights of the best check: in a file of this run's own, or in memory for a trainer that writes none.

`FileKeeper` is a subclass of Lightning's `ModelCheckpoint`, which by itself would read stale values between checks,
share a state key with the user's own, and forget the best score when a resumed run writes to a new folder.
"""

import copy
import zipfile
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import torch
from lightning_utilities.core.rank_zero import rank_zero_info, rank_zero_warn
from torch import Tensor

from bu_torch.callbacks.fit import FitSession
from bu_torch.callbacks.trainer import (
    FITTING,
    RAW_WEIGHTS,
    SHARDED,
    AsyncCheckpointIO,
    Callback,
    Checkpoint,
    LightningModule,
    MisconfigurationException,
    ModelCheckpoint,
    TorchCheckpointIO,
    Trainer,
    WeightAveraging,
    lightning_average,
    misconfigured,
    set_batch_hooks,
)
from bu_torch.internal.files import Identity, claim, identity, is_regular, is_whole, may_be_named
from bu_torch.internal.global_state import preserved_random_state
from bu_torch.internal.printing import cleaned
from bu_torch.internal.replica import gathered, replaced_in_place
from bu_torch.run.history import describe_lost_best
from bu_torch.run.state import read_best
from bu_torch.run.tracker import Check
from bu_torch.run.weights import BestWeights, named_weights, optimizers_in_eval_mode, optimizers_in_training
from bu_torch.signals.catalogue import SIGNALS

_BEST = ("best_", "kth_", "current_")  # prefixes of the attributes of `ModelCheckpoint` that describe the best file


class InternalCallback(Callback):
    """Base of the callbacks that a stopping callback puts beside itself for one fit.

    Lightning skips hooks that are None, which is cheaper in each batch than calling an empty one.
    """

    fit: FitSession
    on_before_zero_grad = on_before_backward = on_after_backward = on_before_optimizer_step = None


class Keeper(InternalCallback):
    """Base of both keepers: the hooks in which they keep weights and delete earlier ones."""

    best_model_path: str
    best_epoch: int | None  # epoch of the kept weights; None before the first
    best_step: int | None

    def __init__(self, fit: FitSession) -> None:
        self.fit = fit
        set_batch_hooks(self, are_called=fit.is_by_steps)
        self.best_epoch = self.best_step = None
        self._has_warned = False  # True once a line has said that the best epoch in a state is lost

    @property
    def state_key(self) -> str:
        return type(self).__qualname__

    def keep_if_best(self, trainer: Trainer, check: Check) -> None:
        """Keep the weights of the check that was made in this hook, if it is the best."""
        raise NotImplementedError

    def read_state(self, state_dict: Any) -> dict[str, Any] | None:
        """Entries of a keeper's state; None, with a warning, if it is none or its best epoch cannot be compared."""
        if self.fit.is_over:
            return None
        try:
            state = read_best(state_dict)
            if state["best_epoch"] is not None and not self.fit.tracker.checks:
                raise ValueError("there is a best epoch without a check")
        except ValueError as error:
            self._has_warned = True
            rank_zero_warn(describe_lost_best(error))
            return None
        return state if self.fit.tracker.history.compared else None

    def delete_superseded(self, trainer: Trainer, is_in_all: bool = True) -> None:
        """Finish keeping, after all other callbacks; `is_in_all` is False if this process alone calls it."""

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        super().setup(trainer, pl_module, stage)
        if stage == FITTING and self.fit.is_over:  # its owner has left the trainer, or would have made a new keeper
            trainer.callbacks = [one for one in trainer.callbacks if one is not self]

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_train_start(trainer, pl_module)
        if not self.fit.is_over:  # a resumed run may have lost the weights of a later check
            line = self.fit.tracker.history.return_to(self.best_epoch, self.best_step)
            if line and not self._has_warned:
                rank_zero_warn(line)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, *_: Any, **__: Any) -> None:
        self.delete_superseded(trainer)

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any, **__: Any) -> None:
        self._keep_check(trainer)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.delete_superseded(trainer)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._keep_check(trainer)

    def _keep_check(self, trainer: Trainer) -> None:
        if (check := self.fit.check) is not None and not trainer.fast_dev_run:
            with self.fit.tracker.timer.saving():
                self.keep_if_best(trainer, check)
        self.fit.check = None  # its weights take as much memory as the network

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_train_end(trainer, pl_module)
        self.delete_superseded(trainer)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        super().on_exception(trainer, pl_module, exception)
        self.delete_superseded(trainer, is_in_all=False)


class FileKeeper(Keeper, ModelCheckpoint):
    """Lightning's `ModelCheckpoint` by the score of each check, with one file under a name of its own."""

    def __init__(self, fit: FitSession, written: dict[str, Identity | None], **options: Any) -> None:
        filename = options["filename"]
        ModelCheckpoint.__init__(
            self,
            monitor=fit.tracker.history.score_name,
            mode="max",
            save_on_train_epoch_end=True,
            **options | {"filename": filename or "boundary-{epoch}-{step}"},
        )
        Keeper.__init__(self, fit)
        places = dict.fromkeys(("epoch", "step"), torch.tensor(0))
        example = "'{epoch}-{expected_accuracy:.3f}'"
        before = f"`filename` must be a template as `ModelCheckpoint` takes, such as {example}, got {filename!r}: "
        with misconfigured(AttributeError, IndexError, KeyError, TypeError, ValueError, before=before):
            self.format_checkpoint_name(places | dict.fromkeys(SIGNALS, torch.tensor(0.5).double()))
        self._written = written  # files of this process, in all fits of the callback; None: compare by name only
        self._before: dict[str, Any] | None = None  # attributes of the best before the newest file was written
        self._obsolete: str | None = None  # the earlier best file, once the newest is written
        self._replaced: list[str] = []  # earlier best files to delete once `_named_elsewhere` is another
        self._folders: list[str] = []  # folders of the runs that this one resumes
        self._named_elsewhere = ""  # the best file that another callback's newest checkpoint names
        self._names: set[str] = set()  # names that are taken, also of files still to be written
        self._has_claims = True  # names can be reserved, because the trainer writes one file with torch
        self.is_saving = False
        # While a file is written: weights of training, and those that replace them in the file.
        self._raw: dict[str, Tensor] = {}
        self._measured: dict[str, Any] = {}

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        super().setup(trainer, pl_module, stage)
        folder = str(self.dirpath).removeprefix("file://")
        if self.dirpath is not None and "://" not in folder:  # a logger or the user may give a relative one
            self.dirpath: Any = str(Path(folder).absolute())
        if self.save_weights_only and any(isinstance(one, WeightAveraging) for one in trainer.callbacks):
            raise MisconfigurationException(
                "`save_weights_only=True` cannot be used with WeightAveraging: such a checkpoint lacks the average,"
                " which is measured."
            )
        writer: Any = trainer.strategy if type(trainer.strategy).__name__ in SHARDED else trainer.strategy.checkpoint_io
        while isinstance(writer, AsyncCheckpointIO):
            writer = writer.checkpoint_io
        self._has_claims = type(writer) is TorchCheckpointIO
        if stage == FITTING and not self._has_claims:
            rank_zero_info(
                f"Names of checkpoints are not reserved, because {type(writer).__name__} writes them. Give each run a"
                " `dirpath` of its own."
            )

    def file_exists(self, filepath: Any, trainer: Trainer) -> bool:
        return filepath in self._names or super().file_exists(filepath, trainer)

    def keep_if_best(self, trainer: Trainer, check: Check) -> None:
        if not self.fit.tracker.processes.any(check.is_kept):
            return
        candidates = self._monitor_candidates(trainer)
        own = {name: value for name, value in check.entry.items() if name not in ("epoch", "step")}
        candidates |= {name: torch.tensor(value, dtype=torch.float64, device="cpu") for name, value in own.items()}
        self._before = {name: copy.copy(value) for name, value in vars(self).items() if name.startswith(_BEST)}
        self._obsolete = None
        self.best_epoch, self.best_step = trainer.current_epoch, trainer.global_step  # the file holds them, too
        try:
            # Past Lightning's comparison of step counts, which stand still if a module steps its own optimiser.
            self._update_best_and_save(candidates[self.monitor], trainer, candidates)
        except OSError as error:
            if trainer.world_size > 1:  # the others wait for this one within Lightning
                raise
            self._return_to_earlier()
            earlier = f"the best earlier one stays: {cleaned(self.best_model_path)}"
            rank_zero_warn(
                f"The checkpoint of epoch {trainer.current_epoch} cannot be written: {error}. Training continues, and"
                f" {earlier if self.best_model_path else 'no epoch is kept yet'}."
            )
        except BaseException:  # Ctrl-C, or whatever a writer raises
            self._return_to_earlier()
            raise

    def _get_metric_interpolated_filepath_name(
        self, monitor_candidates: dict[str, Tensor], trainer: Trainer, del_filepath: str | None = None
    ) -> str:
        # A template without the epoch gives the name of the best file again, which must stay, because checkpoints name
        # it. Another run in the same folder may take a name at any time, so it is claimed before anything is written.
        while True:
            path: str = super()._get_metric_interpolated_filepath_name(monitor_candidates, trainer)
            self._names.add(path)
            is_here = trainer.is_global_zero and self._has_claims
            if trainer.strategy.broadcast(not is_here or claim(path, self._fs)):
                return path

    @preserved_random_state()  # the module's `on_save_checkpoint` may draw random numbers
    def _save_checkpoint(self, trainer: Trainer, filepath: str) -> None:
        """Have Lightning write a file, into which `on_save_checkpoint` puts the measured weights.

        For a file of weights alone, or of shards, they are put into the module meanwhile.
        """
        module, check = trainer.lightning_module, self.fit.check
        # Empty if weights are sharded, or of an average of Lightning's, which its own hook saves.
        self._measured = {} if check is None or lightning_average(trainer) is not None else check.weights
        is_in_place = self.save_weights_only or not self._measured  # Lightning calls no hook for weights alone
        values = self.fit.tracker.averages(module) if is_in_place else {}
        own_weights = optimizers_in_eval_mode(trainer.optimizers) if self.save_weights_only else nullcontext()
        self.is_saving = True
        try:
            with own_weights, replaced_in_place(module, values) as own:
                self._raw = {name: gathered(one) for name, one in own.items()}
                super()._save_checkpoint(trainer, filepath)
        finally:
            self.is_saving, self._raw, self._measured = False, {}, {}
        is_there = not isinstance(trainer.strategy.checkpoint_io, AsyncCheckpointIO)  # complete by now
        self._written[filepath] = identity(filepath, self._fs) if is_there else None

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        if not self.is_saving:
            self._named_elsewhere = self.best_model_path
            return
        raw, measured, saved = self._raw, self._measured, checkpoint["state_dict"]
        saved.update({name: measured[name] for name in saved if name in measured})  # others may have left out some
        if measured and (self.fit.tracker.average is not None or optimizers_in_training(trainer.optimizers)):
            # The weights of training lie beside the average.
            frozen = {name for name, one in pl_module.named_parameters() if not one.requires_grad}
            raw = {n: one.detach() for n, one in named_weights(pl_module).items() if n not in frozen}
        if raw:
            checkpoint[RAW_WEIGHTS] = raw

    def _remove_checkpoint(self, trainer: Trainer, filepath: str) -> None:
        # Not yet: checkpoints that others save after this check must not name a file that is gone.
        self._obsolete = filepath

    def delete_superseded(self, trainer: Trainer, is_in_all: bool = True) -> None:
        """Delete the earlier best file, or take the newest back if it is damaged."""
        for path in [path for path, known in self._written.items() if known is None and Path(path).is_file()]:
            if zipfile.is_zipfile(path):  # another thread has written the last of it
                self._written[path] = identity(path, self._fs)
        if self._before is not None:
            is_sound = self._written.get(self.best_model_path) is None or is_whole(self.best_model_path)
            if is_in_all:  # after an exception the other processes may not take part
                is_sound = trainer.strategy.broadcast(is_sound)
            if not is_sound:
                path = cleaned(self.best_model_path)
                rank_zero_warn(f"The checkpoint {path} is damaged: the best earlier one is kept instead.")
                self._return_to_earlier()
            elif self._obsolete is not None and self.is_own(self._obsolete):
                self._replaced.append(self._obsolete)
            elif self._obsolete is not None and self._obsolete not in self._written:
                left = cleaned(self._obsolete)
                rank_zero_info(f"bu-torch leaves the best checkpoint of an earlier run where it is: {left}")
            self._before = self._obsolete = None
        # A run that resumes from another callback's newest checkpoint, perhaps mid-epoch, needs the file that was best
        # then.
        for path in [path for path in self._replaced if path != self._named_elsewhere]:
            self._replaced.remove(path)
            if self.is_own(path):
                super()._remove_checkpoint(trainer, path)
                self._names.discard(path)

    def is_own(self, path: str) -> bool:
        """Return True if the file that is there now was written by this process."""
        return path in self._written and self._written[path] in (None, identity(path, self._fs))

    def why_not_read(self) -> str:
        """Say why the best file, of this process or of the run that it resumes, is not read; "" if it is."""
        path = self.best_model_path
        if not (self.is_own(path) or is_regular(path)):
            return "The checkpoint of the kept epoch is missing"
        if path in self._written and not self.is_own(path):
            return "Another run or program has written over the checkpoint of the kept epoch, which is not restored"
        return ""

    def _return_to_earlier(self) -> None:
        """Make the earlier best file the best again, because the newest is damaged or was not written."""
        newest = self.best_model_path
        for name, value in (self._before or {}).items():
            setattr(self, name, value)
        self._before = self._obsolete = None
        self.fit.tracker.history.return_to(self.best_epoch, self.best_step)
        if newest != self.best_model_path:
            with suppress(OSError):  # the name was claimed, and nothing written
                if Path(newest).stat().st_size == 0:
                    Path(newest).unlink()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if (state := self.read_state(state_dict)) is None:
            return
        path, score, epoch = state["best_model_path"], state["best_model_score"], state["best_epoch"]
        if not path or score is None or epoch is None:
            return
        self._folders = state["folders"]
        if not (may_be_named(path, (str(self.dirpath), *self._folders)) and self._fs.exists(path) and is_whole(path)):
            self._has_warned = True
            rank_zero_warn(
                f"The checkpoint of the best epoch so far is missing, damaged, or outside the run's folder:"
                f" {cleaned(path)}. The best of the coming epochs is kept instead."
            )
            return
        self._named_elsewhere = path
        # A resumed run usually writes to a new folder; the best so far stays the one to beat. Nothing else in the state
        # is needed or trusted.
        self.best_model_path = self.kth_best_model_path = path
        self.best_model_score = self.kth_value = torch.tensor(score, dtype=torch.float64, device="cpu")
        self.best_k_models = {path: self.best_model_score}
        self.best_epoch, self.best_step = epoch, state["best_step"]

    def state_dict(self) -> dict[str, Any]:
        folders = list(dict.fromkeys((*self._folders, str(self.dirpath))))
        own = {"best_epoch": self.best_epoch, "best_step": self.best_step, "folders": folders}
        return {**super().state_dict(), **own}


class MemoryKeeper(Keeper, Checkpoint):
    """Keeps the best weights in memory, for a trainer that writes no checkpoints."""

    best_model_path = ""

    def __init__(self, fit: FitSession) -> None:
        super().__init__(fit)
        self.best = BestWeights()

    def keep_if_best(self, trainer: Trainer, check: Check) -> None:
        if not check.is_kept:
            return
        weights = check.weights or self.fit.tracker.state_to_keep(trainer.lightning_module)
        self.best.keep(weights, trainer.current_epoch, trainer.global_step)
        self.best_epoch, self.best_step = self.best.epoch, self.best.step

    def state_dict(self) -> dict[str, Any]:
        return self.best.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if (state := self.read_state(state_dict)) is not None:
            self.best.load_state_dict(state)
            self.best_epoch, self.best_step = self.best.epoch, self.best.step
