"""One `trainer.fit`: made in `setup`, released in `teardown`; its results stay."""

import time
from pathlib import Path
from typing import Any, NamedTuple

import torch
from lightning_utilities.core.rank_zero import rank_zero_info, rank_zero_warn
from torch import nn

from bu_torch.callbacks.board import Board
from bu_torch.callbacks.lightning_tree import (
    LightningModule,
    Trainer,
    is_average_untouched,
    measured_module,
    misconfigured,
)
from bu_torch.callbacks.network import NetworkReader, copied, in_first
from bu_torch.callbacks.samples import CheckSamples, Source
from bu_torch.callbacks.schedule import Schedule
from bu_torch.callbacks.watch import Watch
from bu_torch.callbacks.weights import evaluation_weights, why_not_averaged
from bu_torch.internal.replica import copy_of, has_lazy_layers
from bu_torch.run.budget import describe_slow_check
from bu_torch.run.settings import MeasurementSettings
from bu_torch.run.tracker import Tracker
from bu_torch.samples.batches import Keys
from bu_torch.samples.reading import seeded

LOSSES = ("train_loss", "training_loss", "train/loss", "loss/train", "loss")  # the first that is logged counts


class Check(NamedTuple):
    """A check that has just been made, for those that keep weights, stop, and log."""

    entry: dict[str, Any]  # its numbers, the last of the history
    score: float | None  # by which it is compared; None if it is not
    is_to_be_kept: bool  # it is the best so far, and its weights are not saved yet
    weights: nn.Module | None  # a copy to be kept, with the average; None if it is not to be kept, or of shards


class Fit:
    """One training: prepared, checked when that is due, and ended."""

    def __init__(self, settings: MeasurementSettings, schedule: Schedule, source: Source) -> None:
        self.settings, self.schedule, self.source = settings, schedule, source
        self.tracker = Tracker(settings, rank_zero_warn)
        self._network = NetworkReader(settings.perturbation, settings.output_key)
        self._samples = CheckSamples(settings, source, schedule, self.tracker, self._network)
        self.watch = Watch(self._network, Keys(source.input_key, source.label_key))
        self.board = Board()
        self.check: Check | None = None  # in the hook that runs
        self.waits_for_average = False  # `WeightAveraging` had not updated its average at the last check
        self.is_over = False

    def set_up(self, trainer: Trainer) -> None:
        """Find out whether weights can be averaged here."""
        tracker, device = self.tracker, self.settings.averaging_device
        if tracker.average is not None and (why := why_not_averaged(trainer)):
            tracker.give_up_average()
            rank_zero_info(f"Boundary uncertainty averages no weights: {why}.")
        if tracker.average is not None and device is not None:
            before = f"`averaging_device` must be a device of this machine, got {device!r}: "
            with misconfigured(RuntimeError, AssertionError, before=before):
                torch.zeros(1, device=device).cpu()

    def start(self, trainer: Trainer, pl_module: LightningModule, fits: list["Fit"]) -> bool:
        """Prepare, and open the record; False if the checks of before a resume count no more."""
        started = time.perf_counter()
        with seeded(self.settings.seed):  # a `perturbation` draws the same random numbers each time
            is_comparable = self._samples.prepare(trainer, pl_module)
        self.board.set_up(trainer, self.suffix(fits))
        self.schedule.warn(trainer, self.tracker.history)
        # Arguments as they turned out.
        given = {**vars(self.settings), **self.schedule.settings(), **self.source._asdict()}
        if self.tracker.average is None:
            given["averaging"] = None
        if self._samples.loss_weights is not None:
            given["class_weight"] = self._samples.loss_weights
        self.tracker.begin(started, record_folder(trainer), given)
        return is_comparable

    def suffix(self, fits: list["Fit"]) -> str:
        """End of the names that are logged: "" for the first of these fits, "_2" for the next with other settings."""
        others: list[Fit] = []
        for fit in fits:
            n_before = next((n for n, one in enumerate(others) if fit.measures_as(one)), len(others))
            others += [fit] * (n_before == len(others))
            if fit is self:
                return f"_{n_before + 1}" if n_before else ""
        return ""

    def measures_as(self, other: "Fit") -> bool:
        """Return True if another fit in the same trainer gets the same numbers."""
        same_source = all(one is two or _is_equal(one, two) for one, two in zip(self.source, other.source, strict=True))
        is_alike = self.schedule.settings() == other.schedule.settings()
        return same_source and is_alike and self.settings.measures_as(other.settings)

    def start_epoch(self) -> bool:
        """Forget the check of the epoch before; True if no batch needs to be looked at from now on."""
        self.check = None
        return self._network.is_tried and not self.schedule.is_by_steps

    def start_batch(self, trainer: Trainer, pl_module: LightningModule, batch: Any) -> None:
        """Read a batch as a check will, before the first one trains."""
        self.check = None
        self.schedule.start_batch(trainer)
        if self.schedule.is_by_steps:
            self.board.withdraw(trainer)
        # Not in `on_train_start`: the module's own comes after it, and may make the module ready. The first batch of
        # training makes lazy layers.
        if self._network.is_tried or has_lazy_layers(pl_module):
            return
        started, groundwork = time.perf_counter(), self.tracker.groundwork
        self._network.try_out(trainer, pl_module, groundwork.n_classes if groundwork.is_prepared else None)
        if self.source.reference is None:
            self.watch.begin(trainer, pl_module, batch)
        self.tracker.account.leave_out(time.perf_counter() - started)

    def end_batch(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Check if that is due by steps."""
        self.watch.end_batch(trainer, pl_module)
        self.check = None
        if self.schedule.is_due_after_batch(trainer):
            with self.watch.paused():
                self._make_check(trainer, pl_module)

    def end_epoch(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Check if that is due by epochs."""
        self.check = None
        self.watch.end()
        self.schedule.warn_of_uncounted_steps(trainer)
        if self.schedule.is_due_after_epoch(trainer):
            self._make_check(trainer, pl_module)
        elif not self.schedule.is_by_steps:
            self.board.withdraw(trainer)
        elif self.tracker.history and self.tracker.history[-1]["epoch"] == trainer.current_epoch:
            self.board.show_again(trainer)

    def release(self) -> None:
        """Free what was prepared; results stay."""
        self.is_over, self.check = True, None
        self.tracker.release()
        self._network.release()
        self.watch.end()

    def _make_check(self, trainer: Trainer, pl_module: LightningModule) -> None:
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
            entry = tracker.add(epoch, values, step, is_counted=not self.waits_for_average)
            is_kept, is_sharded = tracker.checks.is_kept_new, network is module
            # Another copy: the look may have moved what the first one holds, and `eval` may have merged its weights.
            weights = copy_of(module, averages) if is_kept and not is_sharded else None
        self.check = Check(entry, tracker.checks.last_score, is_kept, weights)
        self._show(trainer, started)

    def _measure(self, trainer: Trainer, network: nn.Module) -> dict[str, float]:
        logits = self._network.logits(trainer, network)

        def work() -> dict[str, float]:
            with misconfigured(ValueError, before="The module's `forward` does not fit the labels: "):
                return self.tracker.measure(logits)

        return in_first(trainer, work)

    def _show(self, trainer: Trainer, started: float) -> None:
        """Log the check that was made, and write it to the record."""
        tracker, is_by_steps = self.tracker, self.schedule.is_by_steps
        # Where Lightning logs the scalars of the last batch, too; it counts that batch after `on_train_batch_end`.
        step = trainer.fit_loop.epoch_loop._batches_that_stepped - (0 if is_by_steps else 1)
        dashboards = self.board.dashboards(trainer)
        account = tracker.account
        details = tracker.predictions.details() if dashboards or account.path else None
        if details is not None:
            for dashboard in dashboards:
                dashboard.show(details, step)
        train_loss = training_loss(trainer, is_within_epoch=is_by_steps)
        if not trainer.barebones:  # it logs nothing, and warns of attempts
            self.board.show(trainer, tracker.history[-1], step)
        is_first = account.check_seconds == 0
        tracker.end_check(started, details, train_loss)
        if is_first and (line := describe_slow_check(account.check_seconds, account.training_seconds)):
            option = "every_n_train_steps" if is_by_steps else "every_n_epochs"
            rank_zero_info(f"{line} To change it: `n_draws=`, `max_samples=`, `{option}=`.")


def _is_equal(one: Any, other: Any) -> bool:
    is_plain = all(isinstance(value, bool | int | float | str | dict | list | None) for value in (one, other))
    return is_plain and bool(one == other)


def record_folder(trainer: Trainer) -> Path | None:
    """Folder of this run's checkpoints, or of its logs; None if it keeps nothing on this machine's disk."""
    if trainer.fast_dev_run or trainer.barebones:
        return None
    folder = getattr(trainer.checkpoint_callback, "dirpath", None)
    if folder is None and trainer.loggers:
        folder = trainer.log_dir  # all processes must ask for it
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
