"""The weights of the best check: in a file that is this run's own, or in memory for a trainer that writes none."""

import copy
import math
import os
import re
import stat
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from lightning_utilities.core.rank_zero import rank_zero_info, rank_zero_warn
from torch import Tensor

from bu_torch.callbacks.companion import KeepingCompanion
from bu_torch.callbacks.lightning_tree import Checkpoint, LightningModule, ModelCheckpoint, Trainer, average_model
from bu_torch.callbacks.weights import RAW_WEIGHTS, has_modes, training_weights
from bu_torch.internal.printing import cleaned
from bu_torch.internal.shards import gathered, replaced_in_place
from bu_torch.run.averaging import BestWeights

if TYPE_CHECKING:
    from bu_torch.callbacks.stopping import BoundaryUncertaintyStopping


_BEST = ("best_", "kth_", "current_")  # beginnings of the attributes that tell what is the best
_FILE_NAME = re.compile(r"boundary-epoch=\d+-step=\d+(-v\d+)?\.ckpt")
_OWN_FILES: dict[str, tuple[int, ...] | None] = {}  # written by this process, in all fits; None is known by its name


class Keeper(KeepingCompanion, ModelCheckpoint):
    """Lightning's `ModelCheckpoint` on the score of each check; one file, with a name of its own."""

    def __init__(self, owner: "BoundaryUncertaintyStopping") -> None:
        super().__init__(
            monitor=owner.tracker.checks.score_name,
            mode="max",
            dirpath=owner.dirpath,
            filename=owner.filename or "boundary-{epoch}-{step}",
            save_weights_only=owner.save_weights_only,
            verbose=owner.verbose,
            save_on_train_epoch_end=True,
        )
        self.owner = owner
        self.best_epoch = self.best_step = None
        self._before: dict[str, Any] | None = None  # what was the best before the newest file was written
        self._obsolete: str | None = None  # its file, once the newest is written
        self._resumed_path = ""  # the best file that the resumed state names
        self._replaced: list[str] = []  # best files to delete as soon as the newest other checkpoint names none of them
        self._named_elsewhere = ""  # the best file by the newest checkpoint that another callback has saved
        self.is_saving = False
        self._raw: dict[str, Tensor] = {}  # weights of training, while a file is written

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if self in trainer.callbacks:  # not one that an earlier fit left behind
            super().setup(trainer, pl_module, stage)
            folder = str(self.dirpath).removeprefix("file://")
            if self.dirpath is not None and "://" not in folder:  # a logger or the user may give a relative one
                self.dirpath: Any = str(Path(folder).absolute())

    def keep_if_best(self, trainer: Trainer) -> None:
        score = self.new_score(trainer)
        # Without Lightning's comparison of step counts, which stand still if a module steps its optimiser itself.
        if score is not None and math.isfinite(score):
            with self.owner.tracker.account.saving():
                candidates = self._monitor_candidates(trainer)
                if trainer.strategy.reduce_boolean_decision(self.owner.tracker.checks.is_kept_new, all=False):
                    self._update_best_and_save(candidates[self.monitor], trainer, candidates)

    def _monitor_candidates(self, trainer: Trainer) -> dict[str, Tensor]:
        candidates = super()._monitor_candidates(trainer)
        if self.new_score(trainer) is not None:
            own = {name: value for name, value in self.owner.history[-1].items() if name not in ("epoch", "step")}
            candidates |= {name: torch.tensor(value, dtype=torch.float64) for name, value in own.items()}
        return candidates

    def _get_metric_interpolated_filepath_name(
        self, monitor_candidates: dict[str, Tensor], trainer: Trainer, del_filepath: str | None = None
    ) -> str:
        # Never over the best so far, whose name a template without the epoch gives again: checkpoints name that file.
        return super()._get_metric_interpolated_filepath_name(monitor_candidates, trainer)

    def _update_best_and_save(self, current: Tensor, trainer: Trainer, monitor_candidates: dict[str, Tensor]) -> None:
        self._before = {name: copy.copy(value) for name, value in vars(self).items() if name.startswith(_BEST)}
        self._obsolete = None
        self.best_epoch, self.best_step = trainer.current_epoch, trainer.global_step  # the file holds them, too
        try:
            super()._update_best_and_save(current, trainer, monitor_candidates)
        except OSError as error:
            if trainer.world_size > 1:  # the others wait for this one within Lightning
                raise
            self._take_back()
            rank_zero_warn(
                f"The checkpoint of epoch {trainer.current_epoch} cannot be written: {error}. Training continues, and"
                f" the best earlier one stays{f': {cleaned(self.best_model_path)}' if self.best_model_path else ''}."
            )

    def _save_checkpoint(self, trainer: Trainer, filepath: str) -> None:
        fit, module = self.owner._fit, trainer.lightning_module
        saver = copy.copy(trainer)  # which hands over the weights that were measured
        saver._checkpoint_connector = connector = copy.copy(trainer._checkpoint_connector)
        self.is_saving = True
        try:
            if fit.kept is None or average_model(trainer) is not None:
                with replaced_in_place(module, fit.tracker.averages(module)) as own:
                    self._raw = {name: gathered(one) for name, one in own.items()}
                    super()._save_checkpoint(saver, filepath)
            else:
                connector._get_lightning_module_state_dict = fit.kept.state_dict
                if fit.tracker.average is not None or has_modes(trainer):
                    self._raw = training_weights(module)
                super()._save_checkpoint(saver, filepath)
        finally:
            self.is_saving, self._raw = False, {}
        _OWN_FILES[filepath] = identity(filepath)

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        if not self.is_saving:
            self._named_elsewhere = self.best_model_path
        elif self._raw:
            checkpoint[RAW_WEIGHTS] = self._raw

    def _should_remove_checkpoint(self, trainer: Trainer, previous: str, current: str) -> bool:
        return previous != current  # `settle` looks closer

    def _remove_checkpoint(self, trainer: Trainer, filepath: str) -> None:
        # Not yet: checkpoints that others save after this check must not name a file that is gone.
        self._obsolete = filepath

    def settle(self, trainer: Trainer, is_in_all: bool = True) -> None:
        """Delete the best file before the newest, or take the newest back if it is not whole."""
        if self._before is not None:
            self._settle_newest(trainer, is_in_all)
        # A run that resumes from the newest checkpoint that another callback has saved, perhaps in the middle of an
        # epoch, needs the file that was best then.
        for path in [path for path in self._replaced if path != self._named_elsewhere]:
            self._replaced.remove(path)
            if self._may_remove(trainer, path):  # still: another file may have taken its place
                super()._remove_checkpoint(trainer, path)

    def _settle_newest(self, trainer: Trainer, is_in_all: bool) -> None:
        is_sound = is_whole(self.best_model_path)
        if is_in_all:  # after an exception the other processes may not be here
            is_sound = trainer.strategy.broadcast(is_sound)
        if not is_sound:
            path = cleaned(self.best_model_path)
            rank_zero_warn(f"The checkpoint {path} is damaged: the best earlier one is kept instead.")
            self._take_back()
        elif self._obsolete is not None and self._may_remove(trainer, self._obsolete):
            self._replaced.append(self._obsolete)
        elif self._obsolete is not None:
            left = cleaned(self._obsolete)
            rank_zero_info(
                f"Boundary uncertainty does not delete the earlier best checkpoint, which may not be this run's: {left}"
            )
        self._before = self._obsolete = None

    def _may_remove(self, trainer: Trainer, path: str) -> bool:
        """True if `path` is this callback's to delete. A resumed state may come from anywhere and name any path."""
        is_ours = is_own(path) or (
            # Others may be named by a template of the user's, too.
            self.owner.filename is None and path == self._resumed_path and is_named_in_folder(path, str(self.dirpath))
        )
        return is_ours and super()._should_remove_checkpoint(trainer, path, self.best_model_path)

    @property
    def is_best_there(self) -> bool:
        return may_be_read(self.best_model_path, str(self.dirpath))

    @property
    def is_best_own(self) -> bool:
        return is_own(self.best_model_path)

    def _take_back(self) -> None:
        for name, value in (self._before or {}).items():
            setattr(self, name, value)
        self._before = self._obsolete = None
        self.owner.tracker.checks.fall_back(self.best_epoch, self.best_step)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        path, score = state_dict.get("best_model_path"), state_dict.get("best_model_score")
        epoch, step = state_dict.get("best_epoch"), state_dict.get("best_step")
        if not (self.takes_states and path and score is not None and isinstance(epoch, int)):
            return
        if not (may_be_read(path, str(self.dirpath)) and self._fs.exists(path) and is_whole(path)):
            rank_zero_warn(
                f"The checkpoint of the best epoch so far is missing or damaged: {cleaned(path)}."
                " The best of the coming epochs is kept instead."
            )
            return
        self._resumed_path = self._named_elsewhere = path
        # A resumed run usually writes to a new folder; the best so far stays the one to beat. Nothing else in the state
        # is needed, and nothing else is believed.
        self.best_model_path = self.kth_best_model_path = path
        self.best_model_score = self.kth_value = torch.tensor(float(score), dtype=torch.float64)
        self.best_k_models = {path: self.best_model_score}
        self.best_epoch, self.best_step = epoch, step if isinstance(step, int) else None

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "best_epoch": self.best_epoch, "best_step": self.best_step}


class MemoryKeeper(KeepingCompanion, Checkpoint):
    """Keeps the best weights in memory, for a trainer that writes no checkpoints."""

    best_model_path = ""
    is_best_there = True

    def __init__(self, owner: "BoundaryUncertaintyStopping") -> None:
        self.owner = owner
        self.best = BestWeights()
        self.best_epoch = self.best_step = None
        self._resumed_weights: dict[str, Any] | None = None

    def keep_if_best(self, trainer: Trainer) -> None:
        if self.new_score(trainer) is None or not self.owner.tracker.checks.is_kept_new:
            return
        fit, module = self.owner._fit, trainer.lightning_module
        with fit.tracker.account.saving():
            state = fit.tracker.state_to_keep(module) if fit.kept is None else fit.kept.state_dict()
            self.best.keep(state, trainer.current_epoch, trainer.global_step)
        self.best_epoch, self.best_step = self.best.epoch, self.best.step

    def state_dict(self) -> dict[str, Any]:
        return self.best.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if self.takes_states:
            self.best.load_state_dict(state_dict)
            self.best_epoch, self.best_step = self.best.epoch, self.best.step
            self._resumed_weights = self.best.weights

    @property
    def is_best_own(self) -> bool:
        return self.best.weights is not self._resumed_weights


def identity(path: str) -> tuple[int, ...] | None:
    """Tell a file from one that is put in its place; None for a remote path, a folder or a file still to be written."""
    try:  # another process may delete it at any time
        found = Path(path).stat()
    except (OSError, ValueError):
        return None
    fields = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
    return fields if stat.S_ISREG(found.st_mode) else None


def is_own(path: str) -> bool:
    """True if this process has written the file that is there now."""
    return path in _OWN_FILES and _OWN_FILES[path] in (None, identity(path))


def may_be_read(path: Any, folder: str) -> bool:
    """True if a resumed state may name this as the best checkpoint of a run that writes to `folder`.

    A local run has written a regular file, or a folder of shards, by an absolute path. Lightning would take other
    spellings for addresses to download from, or wait for a pipe. A remote run stays with its kind of store.
    """
    if not isinstance(path, str) or "::" in path or "\0" in path:
        return False
    if "://" in folder:
        kind = folder.partition("://")[0]
        return path.startswith(f"{kind}://") and not kind.startswith("http")
    is_local = "://" not in path and Path(path).is_absolute()
    return is_local and (os.path.isfile(path) or os.path.isdir(path))  # noqa: PTH112, PTH113  (`Path` raises for some)


def is_whole(path: str) -> bool:
    """False for a local file that torch began and did not end; others may be whole."""
    if not Path(path).is_file():
        return True
    with Path(path).open("rb") as file:
        begins = file.read(2)
    return begins not in (b"PK", b"") or zipfile.is_zipfile(path)


def is_named_in_folder(path: str, folder: str) -> bool:
    """True for a regular file right in `folder` that is named as a keeper names its files."""
    file = Path(path)
    is_ours = _FILE_NAME.fullmatch(file.name) is not None and file.is_file() and not file.is_symlink()
    return is_ours and file.parent.resolve() == Path(folder).resolve()
