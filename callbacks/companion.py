"""Common base of the companions of a stopping callback.

They are thin subclasses of Lightning's own classes, which fall short behind a callback that checks now and then: they
read `callback_metrics`, which keeps a stale value between checks; they share one state key with the user's own; and
`ModelCheckpoint` forgets its best score when a resumed run writes to a new folder.
"""

from typing import TYPE_CHECKING, Any

from bu_torch.callbacks.lightning_trees import Library, LightningModule, Trainer

if TYPE_CHECKING:
    from lightning.pytorch import Callback

    from bu_torch.callbacks.stopping import BoundaryUncertaintyStopping
else:  # the base is the trainer's own: `installation` adds it
    Callback = object


class Companion(Callback):
    """Base of the companions: an owner, and nothing to do once it has left the trainer."""

    owner: "BoundaryUncertaintyStopping"
    library: Library

    def __reduce__(self) -> tuple[Any, ...]:
        # `pickle` looks for a class by its name in a module, and these have none there.
        from bu_torch.callbacks.installation import blank  # which imports this file

        return blank, (self.library, type(self).__name__), vars(self)

    @property
    def state_key(self) -> str:
        return str(self._generate_state_key(owner=self.owner.state_key))

    def new_score(self, trainer: Trainer) -> float | None:
        """Score of the check of this hook; None if there is nothing to decide."""
        if trainer.fast_dev_run or self.owner not in trainer.callbacks:
            return None
        return self.owner.new_score


class KeepingCompanion(Companion):
    """Base of those that keep the best weights: the hooks in which they do so."""

    best_epoch: int | None  # of the kept weights; None before the first
    best_step: int | None  # likewise

    def keep_if_best(self, trainer: Trainer) -> None:
        """Keep the weights of the check of this hook, if there is one and it is the best."""
        raise NotImplementedError

    def settle(self, trainer: Trainer, is_in_all: bool = True) -> None:
        """Finish what keeping began, once all callbacks have had their turn; `is_in_all` processes, or in this one."""

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_train_start(trainer, pl_module)
        if self.owner in trainer.callbacks:  # a run that resumes may have lost a check that is later than the kept one
            self.owner.tracker.checks.fall_back(self.best_epoch, self.best_step)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.settle(trainer)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, *_: Any, **__: Any) -> None:
        self.settle(trainer)

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any, **__: Any) -> None:
        self.keep_if_best(trainer)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.keep_if_best(trainer)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_train_end(trainer, pl_module)
        self.settle(trainer)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        super().on_exception(trainer, pl_module, exception)
        self.settle(trainer, is_in_all=False)


def place_of_check(owner: "BoundaryUncertaintyStopping", check: dict[str, Any]) -> str:
    """A check in words: its epoch, or its step too."""
    if owner.every_n_train_steps is not None and "step" in check:
        return f"step {check['step']} of epoch {check['epoch']}"
    return f"epoch {check['epoch']}"


def within_margin(owner: "BoundaryUncertaintyStopping") -> str:
    """Name the check of the highest score, if another is kept; "" otherwise."""
    checks = owner.tracker.checks
    kept, highest, name = checks.kept, checks.highest, checks.score_name
    if kept is None or highest is None or highest[name] <= kept[name]:
        return ""
    return f", within the margin of the {highest[name]:.4f} of {place_of_check(owner, highest)}"
