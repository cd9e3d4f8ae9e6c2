"""Lightning's own early stopping and checkpointing, made to act on a stopping callback's checks.

Thin subclasses, for the plain classes fall short where they follow a callback that checks now and then: they read
`callback_metrics`, which keeps a stale value between checks; they share one state key with the user's own; and
`ModelCheckpoint` forgets its best score when a resumed run writes to a new folder.
"""

import copy
import math
import os
import re
import stat
import zipfile
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from lightning_utilities.core.rank_zero import rank_zero_info, rank_zero_warn
from torch import Tensor

from bu_torch.callbacks._lightning import FITTING, Library, library_of, measured_module
from bu_torch.callbacks._optimizers import TrainingWeights, evaluation_weights
from bu_torch.callbacks._own_files import OwnFiles
from bu_torch.internal.printing import cleaned
from bu_torch.run import messages
from bu_torch.run.best_weights import BestWeights
from bu_torch.signals.catalogue import SIGNALS

if TYPE_CHECKING:
    from lightning.pytorch import Callback, LightningModule, Trainer
    from lightning.pytorch.callbacks import Checkpoint, EarlyStopping, ModelCheckpoint

    from bu_torch.callbacks.stopping import BoundaryUncertaintyStopping
else:  # the bases are the trainer's own: `_classes` adds them
    Callback = Checkpoint = EarlyStopping = ModelCheckpoint = object


_BEST = (
    "best_k_models",
    "kth_best_model_path",
    "kth_value",
    "best_model_path",
    "best_model_score",
    "current_score",
    "best_epoch",
    "best_step",
)
_FILE_NAME = re.compile(r"boundary-epoch=\d+-step=\d+(-v\d+)?\.ckpt")
_OWN_FILES = OwnFiles()  # of all fits of this process


class Companion(Callback):
    """What companions have in common: an owner, and nothing to do once it has left the trainer."""

    owner: "BoundaryUncertaintyStopping"
    library: Library

    def __reduce__(self) -> tuple[Any, ...]:
        # `pickle` looks for a class by its name in a module, and these have none there.
        return _blank, (self.library, type(self).__name__), vars(self)

    _key_of_owner = ("", "")

    @property
    def state_key(self) -> str:
        of_owner = self.owner.state_key
        if self._key_of_owner[0] is not of_owner:
            self._key_of_owner = of_owner, self._generate_state_key(owner=of_owner)
        return self._key_of_owner[1]

    def new_score(self, trainer: "Trainer") -> float | None:
        """Score of the check of this hook; None if there is nothing to decide."""
        if trainer.fast_dev_run or self.owner not in trainer.callbacks:
            return None
        return self.owner.new_score

    def agree_on_kept(self, trainer: "Trainer", epoch: int | None, step: int | None) -> None:
        """Have the history keep the check that is saved, or none: a run that resumes may have lost a later one."""
        if self.owner in trainer.callbacks:
            self.owner.tracker.checks.fall_back(epoch, step)


class VerdictBearerMixin(Companion, EarlyStopping):
    """Carries the verdict of a check across processes and, as `EarlyStopping` does, into checkpoints."""

    def __init__(self, owner: "BoundaryUncertaintyStopping") -> None:
        super().__init__(
            monitor=owner.score_name,
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

    def on_train_start(self, trainer: "Trainer", pl_module: "LightningModule") -> None:
        if self.owner in trainer.callbacks:  # the run may resume with that verdict
            self._is_due = self.owner.tracker.verdict.should_stop and not _may_stop(trainer)
            self._best_before = self.owner.tracker.verdict.best

    def on_train_batch_end(self, trainer: "Trainer", pl_module: "LightningModule", *_: Any, **__: Any) -> None:
        if self.new_score(trainer) is not None:
            self._decide(trainer)
        # `min_steps` may be reached in the middle of an epoch, where Lightning stops too. After the last batch the
        # epoch's own check decides.
        elif self._is_due and not trainer.is_last_batch and _may_stop(trainer):
            self._stop(trainer)

    def on_train_epoch_end(self, trainer: "Trainer", pl_module: "LightningModule") -> None:
        if self.new_score(trainer) is None or self._should_skip_check(trainer):
            if self._is_due and _may_stop(trainer):
                self._stop(trainer)
            return
        self._decide(trainer)

    def _decide(self, trainer: "Trainer") -> None:
        """Act on the check that has just been made."""
        verdict = self.owner.tracker.verdict
        if self.verbose and verdict.best > self._best_before:
            self.best_score = torch.tensor(self._best_before, dtype=torch.float64)
            improvement = self._improvement_message(torch.tensor(verdict.best, dtype=torch.float64))
            self._log_info(trainer, improvement, log_rank_zero_only=False)
        self._best_before = verdict.best
        self._take_over_verdict()
        should_stop = trainer.strategy.reduce_boolean_decision(verdict.should_stop, all=False)
        # `trainer.should_stop` is never taken back, so it is not set before `min_epochs` and `min_steps` allow a stop:
        # the metric may recover by then.
        self._is_due = should_stop and not _may_stop(trainer)
        if should_stop and not self._is_due:
            self._stop(trainer)

    def _stop(self, trainer: "Trainer") -> None:
        trainer.should_stop = True
        self.has_stopped, self._is_due = True, False
        self.stopped_epoch = trainer.current_epoch
        step = None if self.owner.every_n_train_steps is None else trainer.global_step
        self.why_stopped = messages.why_stopped(self.owner.tracker.checks, self.stopped_epoch, step)
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


class KeeperMixin(Companion, ModelCheckpoint):
    """Lightning's `ModelCheckpoint` on the score of each check; one file, with a name of its own."""

    def __init__(self, owner: "BoundaryUncertaintyStopping") -> None:
        super().__init__(
            monitor=owner.score_name,
            mode="max",
            dirpath=owner.dirpath,
            filename=owner.filename or "boundary-{epoch}-{step}",
            save_weights_only=owner.save_weights_only,
            verbose=owner.verbose,
            save_on_train_epoch_end=True,
        )
        self.owner = owner
        self.best_epoch: int | None = None  # of the best file
        self.best_step: int | None = None  # likewise
        self._before: dict[str, Any] | None = None  # what was the best before the newest file was written
        self._obsolete: str | None = None  # its file, once the newest is written
        self._resumed_path = ""  # the best file that the resumed state names
        self._replaced: list[str] = []  # best files to delete as soon as the newest other checkpoint names none of them
        self._named_elsewhere = ""  # the best file by the newest checkpoint that another callback has saved
        self._of_training: TrainingWeights | None = None  # while a file is written

    def setup(self, trainer: "Trainer", pl_module: "LightningModule", stage: str) -> None:
        if self in trainer.callbacks:  # not one that an earlier fit left behind
            super().setup(trainer, pl_module, stage)
            self.dirpath: Any = _absolute(self.dirpath)  # Lightning leaves it relative where a logger or the user does

    def on_train_start(self, trainer: "Trainer", pl_module: "LightningModule") -> None:
        super().on_train_start(trainer, pl_module)
        self.agree_on_kept(trainer, self.best_epoch, self.best_step)

    def on_train_batch_start(self, trainer: "Trainer", pl_module: "LightningModule", *_: Any, **__: Any) -> None:
        self._settle(trainer)

    def on_train_batch_end(self, trainer: "Trainer", pl_module: "LightningModule", *_: Any, **__: Any) -> None:
        self._save_if_best(trainer)

    def on_train_epoch_end(self, trainer: "Trainer", pl_module: "LightningModule") -> None:
        self._save_if_best(trainer)

    def _save_if_best(self, trainer: "Trainer") -> None:
        score = self.new_score(trainer)
        if score is not None and math.isfinite(score) and not self._should_skip_saving_checkpoint(trainer):
            with self.owner.tracker.account.saving():
                self._save_topk_checkpoint(trainer, self._monitor_candidates(trainer))

    def check_monitor_top_k(self, trainer: "Trainer", current: Tensor | None = None) -> bool:
        """Tell if the last check is the one to keep, in any process."""
        is_new = self.owner.tracker.checks.is_kept_new
        return bool(trainer.strategy.reduce_boolean_decision(is_new, all=False))

    def _monitor_candidates(self, trainer: "Trainer") -> dict[str, Tensor]:
        candidates = super()._monitor_candidates(trainer)
        if self.new_score(trainer) is not None:
            own = {name: value for name, value in self.owner.history[-1].items() if name not in ("epoch", "step")}
            candidates |= {name: torch.tensor(value, dtype=torch.float64) for name, value in own.items()}
        return candidates

    def _get_metric_interpolated_filepath_name(
        self, monitor_candidates: dict[str, Tensor], trainer: "Trainer", del_filepath: str | None = None
    ) -> str:
        # Never over the best so far, whose name a template without the epoch gives again: checkpoints name that file.
        return super()._get_metric_interpolated_filepath_name(monitor_candidates, trainer)

    def _should_skip_saving_checkpoint(self, trainer: "Trainer") -> bool:
        # Without Lightning's comparison of step counts, which stand still where a module steps its optimiser itself.
        return bool(trainer.fast_dev_run) or trainer.state.fn != FITTING or trainer.sanity_checking

    def _update_best_and_save(self, current: Tensor, trainer: "Trainer", monitor_candidates: dict[str, Tensor]) -> None:
        self._before = {name: copy.copy(getattr(self, name)) for name in _BEST}
        self._obsolete = None
        self.best_epoch, self.best_step = trainer.current_epoch, trainer.global_step  # the file holds them, too
        try:
            super()._update_best_and_save(current, trainer, monitor_candidates)
        except OSError as error:
            if trainer.world_size > 1:  # the others wait for this one within Lightning
                raise
            self._take_back()
            rank_zero_warn(
                f"The checkpoint of epoch {trainer.current_epoch} cannot be written: {error}. Training goes on, and the"
                f" best one before stays{f': {cleaned(self.best_model_path)}' if self.best_model_path else ''}."
            )

    def _save_checkpoint(self, trainer: "Trainer", filepath: str) -> None:
        try:
            module = trainer.lightning_module
            with evaluation_weights(trainer) as self._of_training:
                self.owner.after_check.compare(module)
                with self.owner.tracker.averaged(module):
                    super()._save_checkpoint(trainer, filepath)
        finally:
            self._of_training = None
        _OWN_FILES.add(filepath)

    def on_save_checkpoint(self, trainer: "Trainer", pl_module: "LightningModule", checkpoint: dict[str, Any]) -> None:
        if self._of_training is None:
            self._named_elsewhere = self.best_model_path
        else:
            self._of_training.save(pl_module, checkpoint)

    def _should_remove_checkpoint(self, trainer: "Trainer", previous: str, current: str) -> bool:
        return previous != current  # `_settle` looks closer

    def _remove_checkpoint(self, trainer: "Trainer", filepath: str) -> None:
        # Not yet: checkpoints that others save after this check must not name a file that is gone.
        self._obsolete = filepath

    def on_train_epoch_start(self, trainer: "Trainer", pl_module: "LightningModule") -> None:
        super().on_train_epoch_start(trainer, pl_module)
        self._settle(trainer)

    def on_train_end(self, trainer: "Trainer", pl_module: "LightningModule") -> None:
        super().on_train_end(trainer, pl_module)
        self._settle(trainer)

    def on_exception(self, trainer: "Trainer", pl_module: "LightningModule", exception: BaseException) -> None:
        super().on_exception(trainer, pl_module, exception)
        self._settle(trainer, is_in_all=False)

    def _settle(self, trainer: "Trainer", is_in_all: bool = True) -> None:
        """Delete the best file before the newest, or take the newest back if it is not whole."""
        if self._before is not None:
            self._settle_newest(trainer, is_in_all)
        # A run that resumes from the newest checkpoint that another callback has saved, perhaps in the middle of an
        # epoch, needs the file that was best then.
        for path in [path for path in self._replaced if path != self._named_elsewhere]:
            self._replaced.remove(path)
            if self._may_remove(trainer, path):  # still: another file may have taken its place
                super()._remove_checkpoint(trainer, path)

    def _settle_newest(self, trainer: "Trainer", is_in_all: bool) -> None:
        is_whole = _is_whole(self.best_model_path)
        if is_in_all:  # after an exception the other processes may not be here
            is_whole = trainer.strategy.broadcast(is_whole)
        if not is_whole:
            damaged = cleaned(self.best_model_path)
            rank_zero_warn(f"The checkpoint {damaged} is damaged: the best one before is kept instead.")
            self._take_back()
        elif self._obsolete is not None and self._may_remove(trainer, self._obsolete):
            self._replaced.append(self._obsolete)
        elif self._obsolete is not None:
            left = cleaned(self._obsolete)
            rank_zero_info(f"Boundary uncertainty leaves the best checkpoint of before where it is: {left}")
        self._before = self._obsolete = None

    def _may_remove(self, trainer: "Trainer", path: str) -> bool:
        """Whether `path` is this callback's to delete. A resumed state may come from anywhere and name any path."""
        is_ours = path in _OWN_FILES or self._is_of_the_resumed_run(path)
        return is_ours and super()._should_remove_checkpoint(trainer, path, self.best_model_path)

    def _is_of_the_resumed_run(self, path: str) -> bool:
        """Whether the resumed state names this regular file, right in this run's folder and named as ours are."""
        file = Path(path)
        if self.owner.filename is not None:  # others may be named by that template, too
            return False
        if path != self._resumed_path or not _FILE_NAME.fullmatch(file.name):
            return False
        try:
            is_regular = stat.S_ISREG(file.lstat().st_mode)
        except FileNotFoundError:
            return False
        return is_regular and file.parent.resolve() == Path(str(self.dirpath)).resolve()

    @property
    def is_best_there(self) -> bool:
        """Whether the best checkpoint can be read, without waiting for a pipe that took its place."""
        return _may_be_read(self.best_model_path, str(self.dirpath))

    @property
    def is_best_own(self) -> bool:
        """Whether this process has written the best checkpoint."""
        return self.best_model_path in _OWN_FILES

    def _take_back(self) -> None:
        for name, value in (self._before or {}).items():
            setattr(self, name, value)
        self._before = self._obsolete = None
        self.owner.tracker.checks.fall_back(self.best_epoch, self.best_step)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if not (self.owner.is_fitting and self.owner.is_comparable):
            return
        path, score = state_dict.get("best_model_path"), state_dict.get("best_model_score")
        epoch, step = state_dict.get("best_epoch"), state_dict.get("best_step")
        if not path or score is None or not isinstance(epoch, int):
            return
        if not (_may_be_read(path, str(self.dirpath)) and self._fs.exists(path) and _is_whole(path)):
            rank_zero_warn(
                f"The checkpoint of the best epoch so far is gone or damaged: {cleaned(path)}."
                " The best of the epochs to come is kept instead."
            )
            return
        self._resumed_path = self._named_elsewhere = path
        # A resumed run usually writes to a new folder; the best so far stays the one to beat. Nothing else in the state
        # is needed, and nothing else is believed.
        score = torch.tensor(float(score), dtype=torch.float64)
        super().load_state_dict(
            {
                "dirpath": self.dirpath,
                "best_model_path": path,
                "best_model_score": score,
                "best_k_models": {path: score},
                "kth_best_model_path": path,
                "kth_value": score,
            }
        )
        self.best_epoch, self.best_step = epoch, step if isinstance(step, int) else None

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "best_epoch": self.best_epoch, "best_step": self.best_step}


def _absolute(folder: Any) -> Any:
    """A folder on this machine by its absolute path; others as they are."""
    if not isinstance(folder, str | Path):
        return folder
    local = str(folder).removeprefix("file://")
    return folder if "://" in local else str(Path(local).absolute())


def _may_be_read(path: Any, folder: str) -> bool:
    """Whether a resumed state may name this as the best checkpoint of a run that writes to `folder`.

    A local run has written local files, by absolute paths: a regular file, or a folder of shards. Lightning would take
    other spellings for addresses to download from, or wait for a pipe. A remote run stays with its kind of store.
    """
    if not isinstance(path, str) or "::" in path or "\0" in path:
        return False
    if "://" in folder:
        kind = folder.partition("://")[0]
        return path.startswith(f"{kind}://") and not kind.startswith("http")
    if "://" in path or not Path(path).is_absolute():
        return False
    try:
        mode = os.stat(path).st_mode  # noqa: PTH116  (a name may be one that `Path` cannot hold)
    except (OSError, ValueError):
        return False
    return stat.S_ISREG(mode) or stat.S_ISDIR(mode)


def _is_whole(path: str) -> bool:
    """False for a local file that torch began and did not end; others may be whole."""
    if not Path(path).is_file():
        return True
    with Path(path).open("rb") as file:
        begins = file.read(2)
    return begins not in (b"PK", b"") or zipfile.is_zipfile(path)


class MemoryKeeperMixin(Companion, Checkpoint):
    """Keeps the best weights in memory, for a trainer that writes no checkpoints."""

    best_model_path = ""
    is_best_there = True

    def __init__(self, owner: "BoundaryUncertaintyStopping") -> None:
        self.owner = owner
        self.best = BestWeights()
        self._resumed_weights: dict[str, Any] | None = None

    @property
    def best_epoch(self) -> int | None:
        return self.best.epoch

    def on_train_start(self, trainer: "Trainer", pl_module: "LightningModule") -> None:
        self.agree_on_kept(trainer, self.best.epoch, self.best.step)

    def on_train_batch_end(self, trainer: "Trainer", pl_module: "LightningModule", *_: Any, **__: Any) -> None:
        self._keep_if_best(trainer, pl_module)

    def on_train_epoch_end(self, trainer: "Trainer", pl_module: "LightningModule") -> None:
        self._keep_if_best(trainer, pl_module)

    def _keep_if_best(self, trainer: "Trainer", pl_module: "LightningModule") -> None:
        if self.new_score(trainer) is None or not self.owner.tracker.checks.is_kept_new:
            return
        with self.owner.tracker.account.saving(), evaluation_weights(trainer):
            self.owner.after_check.compare(pl_module)
            with self.owner.tracker.averaged(pl_module):
                self.best.keep(measured_module(trainer, pl_module), trainer.current_epoch, trainer.global_step)

    def state_dict(self) -> dict[str, Any]:
        return self.best.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if self.owner.is_fitting and self.owner.is_comparable:
            self.best.load_state_dict(state_dict)
            self._resumed_weights = self.best.weights

    @property
    def is_best_own(self) -> bool:
        """Whether the best weights are of this fit, not of a resumed state."""
        return self.best.weights is not self._resumed_weights


class ConcluderMixin(Companion):
    """Puts the kept weights back when training ends, after all other callbacks have saved those of training.

    It is kept last in the trainer's list. From the end of a fit to the next it stands for the `ModelCheckpoint` that
    Lightning has added: `ckpt_path="best"` would warn of two checkpoint callbacks, or of one whose state is missing.
    """

    def __init__(self, owner: "BoundaryUncertaintyStopping", default_checkpoint: Any = None) -> None:
        self.owner = owner
        self.default_checkpoint = default_checkpoint
        self._is_standing_in = False

    @property
    def state_key(self) -> str:
        return str(self.default_checkpoint.state_key) if self._is_standing_in else super().state_key

    def state_dict(self) -> dict[str, Any]:
        return dict(self.default_checkpoint.state_dict()) if self._is_standing_in else {}

    def setup(self, trainer: "Trainer", pl_module: "LightningModule", stage: str) -> None:
        if stage == FITTING:  # the owner, which does so before, may have left the trainer
            self.bring_default_checkpoint_back(trainer, pl_module)

    def bring_default_checkpoint_back(self, trainer: "Trainer", pl_module: "LightningModule") -> None:
        """Undo `_stand_in`; Lightning, which walks over the list of before, would not set the checkpoint up."""
        if self._is_standing_in:
            self._is_standing_in = False
            trainer.callbacks = [*trainer.callbacks, self.default_checkpoint]
            self.default_checkpoint.setup(trainer, pl_module, FITTING)

    def _stand_in(self, trainer: "Trainer") -> None:
        others = [one for one in trainer.callbacks if one is not self.default_checkpoint]
        self._is_standing_in = len(others) < len(trainer.callbacks)
        trainer.callbacks = others

    def on_train_end(self, trainer: "Trainer", pl_module: "LightningModule") -> None:
        # The module's own hook, which exports it perhaps, comes next. What writes files beside training has written
        # them all in `on_fit_end`.
        is_written = not isinstance(trainer.strategy.checkpoint_io, self.library.async_checkpoint_io)
        if self.owner in trainer.callbacks and is_written:
            self.owner.conclude(trainer)

    def on_fit_end(self, trainer: "Trainer", pl_module: "LightningModule") -> None:
        if self.owner in trainer.callbacks:
            self.owner.conclude(trainer)
            self._stand_in(trainer)
            self._leave_first_place(trainer)

    def on_exception(self, trainer: "Trainer", pl_module: "LightningModule", exception: BaseException) -> None:
        if self.owner in trainer.callbacks:
            self.owner.conclude(trainer, exception)
            self._stand_in(trainer)

    def _leave_first_place(self, trainer: "Trainer") -> None:
        """Put the keepers behind the user's own checkpoint callbacks, if this process was spawned.

        Its parent, whose list lacks all companions, takes the best path of the first checkpoint callback here for that
        of the first one there.
        """
        if self.default_checkpoint is None and hasattr(trainer.strategy.launcher, "get_extra_results"):
            trainer.callbacks = sorted(trainer.callbacks, key=lambda one: isinstance(one, KeeperMixin))


def trial_values() -> dict[str, Tensor]:
    """Of the kinds that a file name is made of."""
    values = dict.fromkeys(SIGNALS, torch.tensor(0.5, dtype=torch.float64))
    return {"epoch": torch.tensor(0), "step": torch.tensor(0), **values}


@cache
def _classes(library: Library) -> tuple[Any, Any, Any, Any]:
    """Verdict bearer, keeper, memory keeper and concluder as subclasses of a trainer's own."""
    bases = (
        (VerdictBearerMixin, library.early_stopping),
        (KeeperMixin, library.model_checkpoint),
        (MemoryKeeperMixin, library.checkpoint),
        (ConcluderMixin, library.callback),
    )
    made = [
        type(own.__name__.removesuffix("Mixin"), (own, theirs), {"__doc__": own.__doc__, "library": library})
        for own, theirs in bases
    ]
    return made[0], made[1], made[2], made[3]


def _blank(library: Library, name: str) -> Any:
    """A companion with nothing in it yet, to be unpickled."""
    cls = next(cls for cls in _classes(library) if cls.__name__ == name)
    return cls.__new__(cls)


def install(
    trainer: "Trainer", owner: "BoundaryUncertaintyStopping"
) -> tuple[VerdictBearerMixin, KeeperMixin | MemoryKeeperMixin]:
    """Put fresh companions into `trainer.callbacks`, and take out those of an earlier fit.

    The list is replaced, not changed: Lightning walks over it while this runs. The keeper stands before any other
    checkpoint callback, so that `ckpt_path="best"` is its file. Both stand behind each `EarlyStopping` of the user's,
    so that `trainer.early_stopping_callback` is the user's, and the keeper's file holds its state of the same epoch.
    """
    present = [
        callback
        for callback in trainer.callbacks
        if not isinstance(callback, Companion) or (callback.owner is not owner and callback.owner in trainer.callbacks)
    ]
    library = library_of(trainer)
    VerdictBearer, Keeper, MemoryKeeper, Concluder = _classes(library)
    default_checkpoint = _default_checkpoint(trainer.callbacks, library)
    writes_checkpoints = any(
        isinstance(callback, library.checkpoint) and not isinstance(callback, MemoryKeeperMixin) for callback in present
    )
    bearer = VerdictBearer(owner)
    keeper = Keeper(owner) if writes_checkpoints else MemoryKeeper(owner)
    bearer_at, keeper_at = _places(present, owner, library)
    trainer.callbacks = [
        *present[:keeper_at],
        *([keeper] if keeper_at < bearer_at else []),
        *present[keeper_at:bearer_at],
        bearer,
        *([keeper] if keeper_at == bearer_at else []),
        *present[bearer_at:],
        Concluder(owner, default_checkpoint),
    ]
    return bearer, keeper


def bring_default_checkpoints_back(trainer: "Trainer", pl_module: "LightningModule") -> None:
    """Put the `ModelCheckpoint` that Lightning has added back into `trainer.callbacks`, for another fit."""
    for callback in trainer.callbacks:
        if isinstance(callback, ConcluderMixin):
            callback.bring_default_checkpoint_back(trainer, pl_module)


def _default_checkpoint(callbacks: list[Any], library: Library) -> Any:
    """The `ModelCheckpoint` that Lightning adds where a user has made none; None if there is none such.

    Nothing tells it from a user's `ModelCheckpoint()` without arguments.
    """
    known = [one.default_checkpoint for one in callbacks if isinstance(one, ConcluderMixin)]
    theirs = [one for one in callbacks if isinstance(one, library.checkpoint) and not isinstance(one, Companion)]
    if len(theirs) != 1:
        return None
    (found,) = theirs
    if any(found is one for one in known):  # its folder has been set since
        return found
    is_default = type(found) is library.model_checkpoint and _plain(found) == _plain(library.model_checkpoint())
    return found if is_default else None


def _plain(callback: Any) -> dict[str, Any]:
    return {
        name: value for name, value in vars(callback).items() if value is None or isinstance(value, bool | int | str)
    }


def _places(present: list[Any], owner: "BoundaryUncertaintyStopping", library: Library) -> tuple[int, int]:
    """Where in the list bearer and keeper belong."""
    own = present.index(owner)
    bearer_at, first_checkpoint = own + 1, len(present)
    for place, callback in enumerate(present):
        if not isinstance(callback, Companion):
            is_before_bearer = isinstance(callback, library.early_stopping)
            if isinstance(callback, library.checkpoint):
                first_checkpoint = min(first_checkpoint, place)
        else:  # the first owner's keeper is "best"
            is_before_bearer = callback.owner in present[:own] and not isinstance(callback, ConcluderMixin)
        if is_before_bearer:
            bearer_at = max(bearer_at, place + 1)
    return bearer_at, min(bearer_at, first_checkpoint)


def _may_stop(trainer: "Trainer") -> bool:
    """Whether Lightning would act on `trainer.should_stop` now."""
    n_epochs = trainer.fit_loop.epoch_progress.current.processed  # counts the epoch that is ending
    return n_epochs >= (trainer.min_epochs or 0) and trainer.global_step >= (trainer.min_steps or 0)
