"""Stopping a training, and keeping the right checkpoint, without validation data."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
from lightning_utilities.core.rank_zero import rank_zero_warn

from bu_torch.callbacks.companion import Companion, VerdictBearer
from bu_torch.callbacks.concluder import Concluder
from bu_torch.callbacks.keeper import Keeper, MemoryKeeper
from bu_torch.callbacks.lightning_tree import (
    FITTING,
    Callback,
    Checkpoint,
    EarlyStopping,
    LightningModule,
    MisconfigurationException,
    ModelCheckpoint,
    StochasticWeightAveraging,
    Trainer,
    WeightAveraging,
    misconfigured,
    put_aside,
)
from bu_torch.callbacks.monitor import INSTEAD, BoundaryUncertaintyMonitor, without
from bu_torch.internal.inputs import check_flag
from bu_torch.run.settings import Settings
from bu_torch.run.tracker import KeptResults
from bu_torch.signals.catalogue import SIGNALS


@without(INSTEAD)
@dataclass(kw_only=True, eq=False, repr=False)
class BoundaryUncertaintyStopping(KeptResults, Settings, BoundaryUncertaintyMonitor):
    """Stop a training when its decision boundary gets no better, and keep the best epoch, without validation data.

    `Trainer(callbacks=[BoundaryUncertaintyStopping()])` is all there is to it. The callback measures what
    `BoundaryUncertaintyMonitor` measures, of a moving average of the weights at the checks (`averaging`). By default
    the score is the expected accuracy at the perturbed samples (`rule`). Training stops after `patience` checks without
    a larger score, and of the epochs (with `every_n_train_steps`, of the steps) within half a standard error of the
    largest the most trusted is kept. Whether patience, `max_epochs`, `max_time` or Ctrl-C ends training, the module
    then holds the kept average and a checkpoint of it lies on disk, with the weights of training under
    `raw_state_dict`; after any other exception the weights stay as they are and a line says where the checkpoint is.
    Training itself is the same to the bit with and without this callback.

    Stopping and saving are Lightning's: private subclasses of `EarlyStopping` and `ModelCheckpoint` are put behind
    this callback in `trainer.callbacks` when a fit begins. The checkpoint is the trainer's first, so
    `ckpt_path="best"` loads it. `Trainer(enable_checkpointing=False)` keeps the best weights in memory.

    Args:
        restore_best_weights: Load the kept epoch's weights into the module when training ends.
        dirpath: Folder of the checkpoint and the record; None for that of `ModelCheckpoint`, within the logger's folder
            or `default_root_dir`.
        filename: Name of the checkpoint, a template as of `ModelCheckpoint`, with the names of `history` and of what
            the module logs: `"{epoch}-{expected_accuracy:.3f}"`. None for `"boundary-{epoch}-{step}"`. If the file
            exists, a version is added (`-v1`). A run that resumes does not delete the earlier best file of such a name.
        save_weights_only: Leave out of the checkpoint the states of optimisers, schedulers and callbacks:
            `fit(ckpt_path=...)` refuses such a file. Refused beside `WeightAveraging`, whose average it would lack.
        verbose: Log improvements and checkpoints in the words of `EarlyStopping` and `ModelCheckpoint`.
        **settings: `bu_torch.run.settings.Settings` explains `patience`, `min_delta`, `stopping_threshold`,
            `check_finite`, `start_from_epoch` and `rule`; `BoundaryUncertaintyMonitor` all others, of which `averaging`
            is 0.7 by default.

    Attributes:
        best_epoch: The kept epoch (`trainer.current_epoch`, 0-based, equal to `checkpoint["epoch"]`); None before the
            first finite check that counts.
        best_step: `trainer.global_step` of the kept check, equal to `checkpoint["global_step"]`; None before.
        best_score: The rule's score in the kept epoch; None before.
        best_model_path: Checkpoint of the kept epoch; "" if none was written.
        stopped_epoch: Epoch in which this callback stopped the training; None if it did not.
        stopping_reason: Reason for the end of training, in words; "" while it runs.
        history: As in `BoundaryUncertaintyMonitor`, and the score of a rule that is not a signal, under its name.
        record_path, setup_seconds, check_seconds: As in `BoundaryUncertaintyMonitor`.

    Raises:
        MisconfigurationException: As in `BoundaryUncertaintyMonitor`.

    Example:
        >>> import lightning as L
        >>> import torch
        >>> from torch.utils.data import DataLoader, TensorDataset
        >>> class Linear(L.LightningModule):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.layer = torch.nn.Linear(2, 2)
        ...     def forward(self, inputs):
        ...         return self.layer(inputs)
        ...     def training_step(self, batch, batch_idx):
        ...         return torch.nn.functional.cross_entropy(self(batch[0]), batch[1])
        ...     def configure_optimizers(self):
        ...         return torch.optim.SGD(self.parameters(), lr=1.0)
        >>> labels = torch.arange(100) % 2
        >>> inputs = torch.randn(100, 2, generator=torch.Generator().manual_seed(0)) + labels.unsqueeze(1)
        >>> stopping = BoundaryUncertaintyStopping(patience=5)
        >>> quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
        >>> trainer = L.Trainer(max_epochs=100, callbacks=[stopping], enable_checkpointing=False, **quiet)
        >>> trainer.fit(Linear(), DataLoader(TensorDataset(inputs, labels), batch_size=20))
        >>> stopping.stopped_epoch - stopping.best_epoch
        5
    """

    restore_best_weights: bool = True
    dirpath: str | Path | None = None
    filename: str | None = None
    save_weights_only: bool = False
    verbose: bool = False

    @classmethod
    def as_published(cls, **overrides: Any) -> Self:
        """Callback that selects as Ha et al. (2021) do: the largest boundary uncertainty of the weights as they are.

        One draw of all training samples, Algorithm 1, in the space of the inputs: a check passes all of them. It keeps
        worse epochs than the default (`docs/limits.md`). `overrides` take the place of these arguments.
        """
        published: dict[str, Any] = {"rule": "boundary_uncertainty", "averaging": None, "n_draws": 1, "budget": None}
        published |= {"max_bytes": None, "feature_extractor": "inputs", "perturbation": "random"}
        return cls(**published | overrides)

    def _clear(self) -> None:
        super()._clear()
        self.stopping_reason = ""
        self._bearer: VerdictBearer | None = None
        self._keeper: Keeper | MemoryKeeper | None = None

    keeps_weights = True

    @property
    def state_key(self) -> str:
        return self._generate_state_key(rule=self.rule if isinstance(self.rule, str) else self.rule.name)

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        super().setup(trainer, pl_module, stage)
        if stage == FITTING:
            if self.restore_best_weights and any(isinstance(one, StochasticWeightAveraging) for one in trainer.callbacks):
                rank_zero_warn(
                    "StochasticWeightAveraging puts its average into the model when training ends, and the weights of"
                    " the kept epoch then replace it. To change it: `restore_best_weights=False` leaves the average."
                )
            restoring = [one for one in trainer.callbacks if isinstance(one, type(self)) and one.restore_best_weights]
            if len(restoring) > 1 and self is restoring[0]:
                rank_zero_warn(
                    f"{len(restoring)} callbacks restore the weights of their kept epoch when training ends, and the"
                    " first one's checkpoint is `ckpt_path='best'`. To change it: `restore_best_weights=False` for all"
                    " but one."
                )
            for callback in trainer.callbacks:
                if isinstance(callback, Concluder):
                    callback.bring_default_checkpoint_back(trainer, pl_module)
            self._install(trainer, pl_module)
            self._check_saving(trainer)

    def _install(self, trainer: Trainer, pl_module: LightningModule) -> tuple[Companion, Companion]:
        companions = self._bearer, self._keeper = install(trainer, self)
        for companion in companions:
            companion.setup(trainer, pl_module, FITTING)
        return companions

    def _check_saving(self, trainer: Trainer) -> None:
        """Refuse or warn of what cannot be saved as asked for."""
        if isinstance(self._keeper, MemoryKeeper):
            given = [f"`{name}`" for name in ("dirpath", "filename", "save_weights_only") if getattr(self, name)]
            if given:
                rank_zero_warn(f"The trainer writes no checkpoints: {', '.join(given)} has no effect.")
            return
        if self.save_weights_only and any(isinstance(one, WeightAveraging) for one in trainer.callbacks):
            raise MisconfigurationException(
                "`save_weights_only=True` cannot be used beside WeightAveraging: such a checkpoint lacks the average,"
                " which is measured."
            )
        if self._keeper is not None and self.filename is not None:
            places = dict.fromkeys(("epoch", "step"), torch.tensor(0))
            example = "'{epoch}-{expected_accuracy:.3f}'"
            before = (
                f"`filename` must be a template as `ModelCheckpoint` takes, such as {example}, got {self.filename!r}"
            )
            with misconfigured(AttributeError, IndexError, KeyError, TypeError, ValueError, before=f"{before}: "):
                self._keeper.format_checkpoint_name(places | dict.fromkeys(SIGNALS, torch.tensor(0.5).double()))

    def state_dict(self) -> dict[str, Any]:
        state = super().state_dict()
        if isinstance(self._keeper, Keeper) and self._keeper.is_saving and "average" in state:
            state["average"]["weights"] = {}  # the file's own weights are the average
        return state

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        super().on_load_checkpoint(trainer, pl_module, checkpoint)
        # Lightning skips a state whose key it does not know, and the key holds the rule's name. The state of another
        # rule is passed on under today's key: the tracker warns of what has changed.
        states = checkpoint.get("callbacks", {})
        if trainer.state.fn == FITTING and self.state_key not in states:
            claimed = {one.state_key for one in trainer.callbacks}
            own = f"{type(self).__qualname__}{{"
            left = [key for key in states if str(key).startswith(own) and key not in claimed]
            if left:
                states[self.state_key] = states.pop(left[0])

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._fit.begin(trainer, pl_module):
            return
        rank_zero_warn("Patience and the best epoch start anew.")
        for companion in self._install(trainer, pl_module):
            companion.on_train_start(trainer, pl_module)

    @property
    def _kept(self) -> dict[str, Any] | None:
        return None if self._keeper is None or self._keeper.best_epoch is None else self.tracker.kept

    @property
    def best_model_path(self) -> str:
        return "" if self._keeper is None else self._keeper.best_model_path

    @property
    def stopped_epoch(self) -> int | None:
        return self._bearer.stopped_epoch if self._bearer is not None and self._bearer.has_stopped else None

    def _check_settings(self) -> None:
        super()._check_settings()
        for name in ("restore_best_weights", "save_weights_only", "verbose"):
            setattr(self, name, check_flag(name, getattr(self, name)))
        if not (self.dirpath is None or isinstance(self.dirpath, str | Path)):
            raise TypeError(f"`dirpath` must be a path or None, got {type(self.dirpath).__name__}.")
        if not (self.filename is None or isinstance(self.filename, str)):
            raise TypeError(f"`filename` must be a str or None, got {type(self.filename).__name__}.")
        if self.filename == "":
            raise ValueError("`filename` must not be empty; None gives the default name.")


def install(
    trainer: Trainer, owner: BoundaryUncertaintyStopping
) -> tuple[VerdictBearer, Keeper | MemoryKeeper]:
    """Put fresh companions into `trainer.callbacks`, in place of those of an earlier fit.

    Lightning walks over the list meanwhile, so it is replaced. The keeper stands before any other checkpoint callback:
    `ckpt_path="best"` is its file. Both stand behind each `EarlyStopping` of the user's, which
    `trainer.early_stopping_callback` is to be, and whose state of the same epoch the keeper's file is to hold.
    """
    before = trainer.callbacks
    present = [
        one for one in before if not isinstance(one, Companion) or (one.owner is not owner and one.owner in before)
    ]
    writes_checkpoints = any(isinstance(one, Checkpoint) and not isinstance(one, MemoryKeeper) for one in present)
    bearer = VerdictBearer(owner)
    keeper = Keeper(owner) if writes_checkpoints else MemoryKeeper(owner)
    concluder = Concluder(owner, _default_checkpoint(before))
    for companion in (bearer, keeper, concluder):
        put_aside(companion, Callback)
    if owner.every_n_train_steps is None:
        put_aside(keeper, type(keeper))
        if not trainer.min_steps:  # which may be reached, and end training, in the middle of an epoch
            put_aside(bearer, type(bearer))
    bearer_at, keeper_at = _places(present, owner)
    present.insert(bearer_at, bearer)
    present.insert(keeper_at + (keeper_at == bearer_at), keeper)
    trainer.callbacks = [*present, concluder]
    return bearer, keeper


def _default_checkpoint(callbacks: list[Any]) -> Any:
    """The `ModelCheckpoint` that Lightning adds, or that a user has made without arguments; None if there is none."""
    theirs = [one for one in callbacks if _is_checkpoint_of_others(one)]
    if len(theirs) != 1:
        return None
    (found,) = theirs
    if any(isinstance(one, Concluder) and found is one.default_checkpoint for one in callbacks):
        return found  # its folder has been set since
    return found if type(found) is ModelCheckpoint and _plain(found) == _plain(ModelCheckpoint()) else None


def _plain(callback: Any) -> dict[str, Any]:
    return {
        name: value for name, value in vars(callback).items() if value is None or isinstance(value, bool | int | str)
    }


def _places(present: list[Any], owner: BoundaryUncertaintyStopping) -> tuple[int, int]:
    """Places of bearer and keeper in the list."""
    own = present.index(owner)

    def is_before_bearer(one: Any) -> bool:
        if isinstance(one, Companion):  # the first owner's keeper is "best"
            return one.owner in present[:own] and not isinstance(one, Concluder)
        return isinstance(one, EarlyStopping)

    bearer_at = 1 + max([own, *(place for place, one in enumerate(present) if is_before_bearer(one))])
    checkpoints = (place for place, one in enumerate(present) if _is_checkpoint_of_others(one))
    return bearer_at, min([bearer_at, *checkpoints])


def _is_checkpoint_of_others(one: Any) -> bool:
    return isinstance(one, Checkpoint) and not isinstance(one, Companion)
