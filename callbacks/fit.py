"""One `trainer.fit`: made in `setup`, released in `teardown`; its results stay."""

import dataclasses
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from lightning_utilities.core.rank_zero import rank_zero_info, rank_zero_warn
from torch import Tensor, nn

from bu_torch.callbacks.board import Board
from bu_torch.callbacks.lightning_tree import (
    LightningModule,
    Trainer,
    is_average_untouched,
    measured_module,
    misconfigured,
)
from bu_torch.callbacks.network import NetworkReader, copied, in_first
from bu_torch.callbacks.samples import CheckSamples
from bu_torch.callbacks.watch import Watch
from bu_torch.callbacks.weights import evaluation_weights, why_not_averaged
from bu_torch.internal.replica import copy_of, has_lazy_layers
from bu_torch.run.budget import describe_slow_check
from bu_torch.run.settings import MeasurementSettings
from bu_torch.run.tracker import Tracker
from bu_torch.samples.batches import Keys
from bu_torch.samples.reading import seeded

if TYPE_CHECKING:
    from bu_torch.callbacks.monitor import BoundaryUncertaintyMonitor

LOSSES = ("train_loss", "training_loss", "train/loss", "loss/train", "loss")  # the first that is logged counts


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


class Fit:
    """One training: prepared, checked when that is due, and ended."""

    def __init__(self, callback: "BoundaryUncertaintyMonitor", settings: MeasurementSettings) -> None:
        self._callback = callback
        self.tracker = Tracker(settings, rank_zero_warn)
        self._schedule = Schedule(callback.every_n_epochs, callback.every_n_train_steps)
        self._network = NetworkReader(callback.perturbation, callback.output_key)
        self._samples = CheckSamples(callback, self.tracker, self._network, self._schedule)
        self.watch = Watch(self._network, Keys(callback.input_key, callback.label_key))
        self.board = Board()
        self.kept: nn.Module | None = None  # a copy of what the last check has read, if it is to be kept
        self.has_checked = False  # in the hook that runs
        self.waits_for_average = False  # `WeightAveraging` had not updated its average at the last check

    def set_up(self, trainer: Trainer) -> None:
        """Find out whether weights can be averaged here."""
        if self.tracker.average is not None and (why := why_not_averaged(trainer)):
            self.tracker.average = None
            rank_zero_info(f"Boundary uncertainty averages no weights: {why}.")
        device = self._callback.averaging_device
        if self.tracker.average is not None and device is not None:
            before = f"`averaging_device` must be a device of this machine, got {device!r}: "
            with misconfigured(RuntimeError, AssertionError, before=before):
                torch.zeros(1, device=device).cpu()

    def begin(self, trainer: Trainer, pl_module: LightningModule) -> bool:
        """Prepare, and open the record; False if the checks of before a resume count no more."""
        started = time.perf_counter()
        with seeded(self._callback.seed):  # a `perturbation` draws the same random numbers each time
            is_comparable = self._samples.prepare(trainer, pl_module)
        monitors = [one for one in trainer.callbacks if hasattr(one, "_fit") and isinstance(one._fit, Fit)]
        self.board.set_up(trainer, self._callback, monitors)
        self._schedule.warn(trainer, self.tracker.history)
        # Arguments as they turned out.
        given = {field.name: getattr(self._callback, field.name) for field in dataclasses.fields(self._callback)}
        if self.tracker.average is None:
            given["averaging"] = None
        if self._samples.loss_weights.found is not None:
            given["class_weight"] = self._samples.loss_weights.found
        self.tracker.begin(started, record_folder(trainer), given)
        return is_comparable

    def start_epoch(self) -> bool:
        """Forget the check of the epoch before; True if no batch needs to be looked at from now on."""
        self.has_checked, self.kept = False, None
        return self._network.is_tried and not self._schedule.is_by_steps

    def start_batch(self, trainer: Trainer, pl_module: LightningModule, batch: Any) -> None:
        """Read a batch as a check will, before the first one trains."""
        self.has_checked, self.kept = False, None
        self._schedule.start_batch(trainer)
        if self._schedule.is_by_steps:
            self.board.withdraw(trainer)
        # Not in `on_train_start`: the module's own comes after it, and may make the module ready. The first batch of
        # training makes lazy layers.
        if self._network.is_tried or has_lazy_layers(pl_module):
            return
        started, groundwork = time.perf_counter(), self.tracker.groundwork
        self._network.try_out(trainer, pl_module, groundwork.n_classes if groundwork.is_prepared else None)
        if self._callback.reference is None:
            self.watch.begin(trainer, pl_module, batch)
        self.tracker.account.leave_out(time.perf_counter() - started)

    def see_loss(self, loss: Tensor) -> None:
        """Compare the class weights of the first loss with those that were found."""
        groundwork, weights = self.tracker.groundwork, self._samples.loss_weights
        is_due = self._callback.class_weight is None and groundwork.is_prepared and not weights.has_compared
        if is_due and (line := weights.compare(loss, groundwork.n_classes)):
            rank_zero_info(line)

    def end_batch(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Check if that is due by steps."""
        self.watch.end_batch(trainer, pl_module)
        self.has_checked = False
        if self._schedule.is_due_after_batch(trainer):
            with self.watch.paused():
                self._check(trainer, pl_module)

    def end_epoch(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Check if that is due by epochs."""
        self.has_checked = False
        self.watch.end()
        self._schedule.warn_of_uncounted_steps(trainer)
        if self._schedule.is_due_after_epoch(trainer):
            self._check(trainer, pl_module)
        elif not self._schedule.is_by_steps:
            self.board.withdraw(trainer)
        elif self.tracker.history and self.tracker.history[-1]["epoch"] == trainer.current_epoch:
            self.board.put_back(trainer)

    def release(self) -> None:
        """Free what was prepared; results stay."""
        self.kept = None
        self.tracker.release()
        self._network.release()
        self.watch.end()

    def _check(self, trainer: Trainer, pl_module: LightningModule) -> None:
        started, tracker = time.perf_counter(), self.tracker
        has_waited, self.waits_for_average = self.waits_for_average, is_average_untouched(trainer)
        if self.waits_for_average and not has_waited:
            rank_zero_info(
                "Boundary uncertainty measures the average of WeightAveraging, as checkpoints hold it. Checks before"
                " its first update do not count and are not kept."
            )
        module, epoch, step = measured_module(trainer, pl_module), trainer.current_epoch, trainer.global_step
        with evaluation_weights(trainer):
            tracker.update_average(pl_module, epoch, step)
            averages = tracker.averages(pl_module)
            with copied(trainer, module, averages) as network:
                values = self._measure(trainer, network)
            tracker.add(epoch, values, step, is_counted=not self.waits_for_average)
            if self._callback.keeps_weights and tracker.checks.is_kept_new and network is not module:
                self.kept = copy_of(module, averages)
        self.has_checked = True
        self._show(trainer, started)

    def _measure(self, trainer: Trainer, network: nn.Module) -> dict[str, float]:
        logits = self._network.logits(trainer, network)

        def work() -> dict[str, float]:
            with misconfigured(ValueError, before="The module's `forward` does not fit the labels: "):
                return self.tracker.measure(logits)

        return in_first(trainer, work)

    def _show(self, trainer: Trainer, started: float) -> None:
        """Log the check that was made, and write it to the record."""
        tracker, is_by_steps = self.tracker, self._schedule.is_by_steps
        # Where Lightning logs the scalars of the last batch, too; it counts that batch after `on_train_batch_end`.
        step = trainer.fit_loop.epoch_loop._batches_that_stepped - (0 if is_by_steps else 1)
        dashboards = self.board.dashboards(trainer)
        account = tracker.account
        details = tracker.predictions.details() if dashboards or account.path else None
        if details is not None:
            for dashboard in dashboards:
                dashboard.show(details, step)
        train_loss = training_loss(trainer, is_within_epoch=is_by_steps)
        if not trainer.barebones:  # which logs nothing, and warns where one tries
            self.board.show(trainer, tracker.history[-1], step)
        is_first = account.check_seconds == 0
        tracker.end_check(started, details, train_loss)
        if is_first and (line := describe_slow_check(account.check_seconds, account.training_seconds)):
            option = "every_n_train_steps" if is_by_steps else "every_n_epochs"
            rank_zero_info(f"{line} To change it: `n_draws=`, `max_samples=`, `{option}=`.")


def record_folder(trainer: Trainer) -> Path | None:
    """Folder of this run's checkpoints, or of its logs; None if it keeps nothing on this machine's disk."""
    if trainer.fast_dev_run or trainer.barebones:
        return None
    folder = getattr(trainer.checkpoint_callback, "dirpath", None)
    if folder is None and trainer.loggers:
        folder = trainer.log_dir  # which all processes must ask for
    return None if folder is None or "://" in str(folder) or not trainer.is_global_zero else Path(folder)


def training_loss(trainer: Trainer, *, is_within_epoch: bool) -> float | None:
    """The training loss that the module has logged; None if there is none.

    It is the mean of the epoch if the module logs it (`on_epoch=True`), else, and within an epoch, the last batch's.
    All processes read it, as it may be their mean. `trainer.callback_metrics` also has validation's and older values.
    """
    results = trainer._results
    if results is None:
        return None
    logged = dict(results.metrics(on_step=True)["callback"])
    if not is_within_epoch:
        logged |= results.metrics(on_step=False)["callback"]
    return next((float(logged[name]) for name in LOSSES if name in logged), None)
