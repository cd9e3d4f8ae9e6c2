"""The moments of a training at which checks are made."""

import math
from collections.abc import Sequence
from typing import Any

from lightning_utilities.core.rank_zero import rank_zero_warn

from bu_torch.callbacks.lightning_tree import Trainer


class Schedule:
    """Checks at the end of every n-th epoch, or after every n-th optimiser step unless that is None."""

    def __init__(self, every_n_epochs: int, every_n_train_steps: int | None) -> None:
        self._epochs, self._steps = every_n_epochs, every_n_train_steps
        self._step_before = 0  # the batch that runs

    @property
    def is_by_steps(self) -> bool:
        return self._steps is not None

    def __str__(self) -> str:
        n, unit = (self._epochs, "epoch") if self._steps is None else (self._steps, "step")
        return f"after every {unit}" if n == 1 else f"every {n} {unit}s"

    def settings(self) -> dict[str, int | None]:
        """The arguments that it is made of, by their names."""
        return {"every_n_epochs": self._epochs, "every_n_train_steps": self._steps}

    def start_batch(self, trainer: Trainer) -> None:
        self._step_before = trainer.global_step

    def is_due_after_batch(self, trainer: Trainer) -> bool:
        before, self._step_before = self._step_before, trainer.global_step
        # A batch may make no step, or several: with accumulated gradients, with several optimisers.
        return self._steps is not None and trainer.global_step // self._steps > before // self._steps

    def is_due_after_epoch(self, trainer: Trainer) -> bool:
        return self._steps is None and (trainer.current_epoch + 1) % self._epochs == 0

    def n_batches(self, trainer: Trainer) -> float:
        """Batches of one process from one check by steps to the next, or in an epoch."""
        n_batches: float = trainer.num_training_batches
        if self._steps is None:
            return n_batches
        steps_of_batch = len(trainer.optimizers) / trainer.accumulate_grad_batches  # each of several optimisers steps
        return min(n_batches, math.ceil(self._steps / max(steps_of_batch, 1e-9)))

    def warn(self, trainer: Trainer, history: Sequence[dict[str, Any]]) -> None:
        """Warn before training if no check will be made, or if a run resumes without one."""
        # A checkpoint saved on the last batch of an epoch resumes behind that epoch's end and its check.
        if self._steps is not None:
            self._warn_of_few_steps(trainer, self._steps)
            due = trainer.global_step // self._steps * self._steps
            if history and history[-1].get("step", due) < due:
                rank_zero_warn(f"The run resumes after step {due}, which was not checked: that step cannot be kept.")
            return
        self._warn_of_late_epochs(trainer)
        due = trainer.current_epoch // self._epochs * self._epochs - 1
        if history and history[-1]["epoch"] < due:
            rank_zero_warn(
                f"The run resumes after epoch {due}, which was not checked: the checkpoint was saved before the check,"
                " and Lightning does not end the epoch again. That epoch cannot be kept."
            )

    def warn_of_uncounted_steps(self, trainer: Trainer) -> None:
        """Warn when the first epoch ends if Lightning counts no steps."""
        is_uncounted = self.is_by_steps and trainer.global_step == 0 and trainer.current_epoch == 0
        if is_uncounted and not trainer.fast_dev_run:
            rank_zero_warn(
                "An epoch has ended and `trainer.global_step` is 0, so no check is made by steps. Lightning counts only"
                " steps of `self.optimizers()`. To change it: `every_n_epochs=` counts no steps."
            )

    def _warn_of_late_epochs(self, trainer: Trainer) -> None:
        if trainer.num_training_batches == math.inf and trainer.max_steps != -1:
            rank_zero_warn(
                "The length of the training data is not known, and boundary uncertainty is measured at the end of an"
                f" epoch. If no epoch ends before `max_steps={trainer.max_steps}`, the only check comes after training."
                " To change it: `every_n_train_steps=` checks within epochs."
            )
        epochs = trainer.max_epochs
        if epochs is not None and 0 < epochs < self._epochs and not trainer.fast_dev_run:
            rank_zero_warn(f"No check is made in {epochs} epochs with `every_n_epochs={self._epochs}`.")

    def _warn_of_few_steps(self, trainer: Trainer, every: int) -> None:
        n_steps = math.inf if trainer.max_steps == -1 else float(trainer.max_steps)
        if trainer.max_epochs not in (None, -1) and trainer.num_training_batches != math.inf:
            of_epoch = math.ceil(trainer.num_training_batches / trainer.accumulate_grad_batches)
            n_steps = min(n_steps, trainer.max_epochs * of_epoch)
        if 0 < n_steps < every and not trainer.fast_dev_run and trainer.lightning_module.automatic_optimization:
            rank_zero_warn(f"No check is made in {n_steps:.0f} steps with `every_n_train_steps={every}`.")
