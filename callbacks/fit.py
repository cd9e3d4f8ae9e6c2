"""One `trainer.fit`, from `setup` to `teardown`: when checks are due, what they measure, and where they are logged."""

import math
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
from lightning_utilities.core.rank_zero import rank_zero_warn
from torch import Tensor

from bu_torch.callbacks.losses import loss_weights
from bu_torch.callbacks.network import NetworkReader
from bu_torch.callbacks.samples import CheckSamples, Source, network_as_space
from bu_torch.callbacks.trainer import (
    LightningModule,
    LightningProcesses,
    MisconfigurationException,
    Trainer,
    lightning_average,
    misconfigured,
    tell,
)
from bu_torch.callbacks.watch import InputWatch
from bu_torch.internal.global_state import seeded
from bu_torch.internal.printing import showing_progress
from bu_torch.internal.replica import has_lazy_layers
from bu_torch.rule.rules import STANDARD_ERROR
from bu_torch.run.settings import Settings
from bu_torch.run.tracker import Check, Tracker, UnfitLogitsError
from bu_torch.run.weights import optimizers_in_eval_mode
from bu_torch.signals.catalogue import SIGNALS
from bu_torch.signals.metrics import as_metric

LOSSES = ("train_loss", "training_loss", "train/loss", "loss/train", "loss")  # the first that is logged counts
_LEFT_OUT = ("epoch", "step", STANDARD_ERROR)


class FitSession:
    """One training: its preparation, and its checks when they are due; results outlive `release`."""

    metric_logger: "MetricLogger"  # from `start` on

    def __init__(
        self, settings: Settings, source: Source, every_n_epochs: int, every_n_train_steps: int | None
    ) -> None:
        self.settings, self.source = settings, source
        self._every_n_epochs, self._every_n_steps = every_n_epochs, every_n_train_steps
        self.is_by_steps = every_n_train_steps is not None
        self._step_before = 0  # `trainer.global_step` before the running batch
        self.tracker = Tracker(settings, rank_zero_warn, tell)
        self._reader = NetworkReader(settings.perturbation, settings.output_key)
        self._check_samples = CheckSamples(settings, source, self.tracker.detail)
        self._input_watch = InputWatch()
        self.check: Check | None = None  # made in the running hook
        self.waits_for_average = False  # `WeightAveraging` had not updated its average at the last check
        self.is_over = False  # True from `release` on

    def start(self, trainer: Trainer, pl_module: LightningModule) -> bool:
        """Prepare, and open the record; False if a run resumes with other samples, so that no earlier check counts."""
        started = time.perf_counter()
        tracker, samples, reader = self.tracker, self._check_samples, self._reader
        processes = tracker.processes = LightningProcesses(trainer)
        if getattr(trainer.strategy, "zero_stage_3", False):
            raise MisconfigurationException("bu-torch cannot read weights that DeepSpeed stage 3 splits: use FSDP.")
        class_weight = self.settings.class_weight
        if trainer.reload_dataloaders_every_n_epochs and self.source.reference is None:
            rank_zero_warn("bu-torch uses the training data as first loaded and ignores reloads.")
        if not self.is_by_steps and trainer.num_training_batches == math.inf and trainer.max_steps != -1:
            rank_zero_warn(
                "The length of the training data is not known, so no epoch may end before"
                f" `max_steps={trainer.max_steps}`, and the only check comes after training. To change it:"
                " `every_n_train_steps=` checks within epochs."
            )
        n_batches = self._between_checks(trainer)
        # A `perturbation` draws the same in each preparation.
        with seeded(self.settings.seed), showing_progress(trainer.progress_bar_callback is not None):
            example = processes.on_first(partial(samples.read, trainer, pl_module, n_batches))
            reader.adapt_to(example.packing, example.perturbation, takes_integers=example.are_integers)
            if class_weight is None and as_metric(self.settings.metric) is None:
                class_weight, line = loss_weights(pl_module, example.n_classes)
                if line:
                    tell(line)
            n_operations = processes.on_first(partial(reader.count_operations, trainer, pl_module, example.inputs))
            is_asked_for = self.settings.feature_extractor == "module"
            # Features of a network that has already learnt these labels would leak them.
            is_new = trainer.global_step == 0 or bool(tracker.checks)
            module = network_as_space(trainer, pl_module, is_asked_for=is_asked_for, is_new=is_new)
            with samples.explained():
                is_the_same = tracker.start(
                    samples.hand_over,
                    partial(samples.plan, trainer, n_batches, n_operations),
                    device=pl_module.device,
                    module=module,
                    class_weight=class_weight,
                )
        setup = tracker.check_setup
        reader.adapt_to(setup.packing, "reading" if setup.takes_readings else self.settings.perturbation)
        if not is_the_same:
            rank_zero_warn(
                "The run resumes with different training samples, or with another version of bu_torch: scores cannot be"
                " compared with earlier checks."
            )
        self.metric_logger = MetricLogger()
        tracker.timer.begin(started)
        if (folder := record_folder(trainer)) is not None:
            every = {"every_n_epochs": self._every_n_epochs, "every_n_train_steps": self._every_n_steps}
            given = {**vars(self.settings), **self.source._asdict(), **every, "class_weight": class_weight}
            tracker.open_record(folder, given)
        return is_the_same

    def _between_checks(self, trainer: Trainer) -> float:
        """Number of batches that one process has between two checks."""
        n_batches = float(trainer.num_training_batches)
        if self._every_n_steps is None:
            return n_batches
        steps_of_batch = len(trainer.optimizers) / trainer.accumulate_grad_batches  # one step of each optimiser
        return min(n_batches, math.ceil(self._every_n_steps / max(steps_of_batch, 1e-9)))

    def start_batch(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Read a batch as a check will, before the first one trains."""
        self.check = None
        if self.is_by_steps:
            self._step_before = trainer.global_step
            self.metric_logger.withdraw(trainer)
        # Not in `on_train_start`: the module's own comes later and may set it up. Lazy layers need a first batch.
        if not (self._reader.is_tried or has_lazy_layers(pl_module)):
            with self.tracker.timer.counting("setup_seconds"):
                self._reader.validate_forward(trainer, pl_module, self.tracker)
                self._input_watch.begin(pl_module, self._check_samples.some)
                self._check_samples.some = []

    @property
    def reads_batches(self) -> bool:
        """True while batch hooks have something to do: in the first epoch, and if checks go by steps."""
        return self.is_by_steps or not self._reader.is_tried

    def end_batch(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Check if that is due by steps."""
        every = self._every_n_steps
        # A batch makes no step while gradients accumulate, and several steps with several optimisers.
        is_due = every is not None and trainer.global_step // every > self._step_before // every
        self._input_watch.end_batch()
        self.check = None
        if is_due:
            self._make_check(trainer, pl_module)

    def end_epoch(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Check if that is due by epochs."""
        self.check = None
        self._input_watch.end()
        epoch, checks = trainer.current_epoch, self.tracker.checks
        if not self.is_by_steps:
            if (epoch + 1) % self._every_n_epochs == 0:
                self._make_check(trainer, pl_module)
            else:
                self.metric_logger.withdraw(trainer)
        elif checks and checks[-1]["epoch"] == epoch:
            self.metric_logger.show_again(trainer)
        elif trainer.global_step == 0 and epoch == 0 and not trainer.fast_dev_run:
            rank_zero_warn(
                "An epoch has ended and `trainer.global_step` is 0, so no check is made by steps. Lightning counts only"
                " steps of `self.optimizers()`. To change it: `every_n_epochs=` counts no steps."
            )

    def release(self) -> None:
        """Free what was prepared; results stay."""
        self.is_over, self.check = True, None
        self.tracker.release()
        self.end_watching()

    def end_watching(self) -> None:
        """Watch the training no longer, because it has ended or failed."""
        self._input_watch.end()
        self._check_samples.hand_over()

    def _make_check(self, trainer: Trainer, pl_module: LightningModule) -> None:
        started, tracker, theirs = time.perf_counter(), self.tracker, lightning_average(trainer)
        has_waited = self.waits_for_average
        # Until its first update, the average is the network before training.
        self.waits_for_average = theirs is not None and int(theirs.n_averaged) == 0
        if self.waits_for_average and not has_waited:
            tracker.detail(
                "bu-torch measures the average of WeightAveraging, as checkpoints hold it. Checks before"
                " its first update do not count and are not kept."
            )
        module, epoch, step = theirs.module if theirs else pl_module, trainer.current_epoch, trainer.global_step
        unfit = "The module's `forward` does not fit the labels: "
        with optimizers_in_eval_mode(trainer.optimizers), misconfigured(UnfitLogitsError, before=unfit):
            read = partial(self._reader.read, trainer, inputs=tracker.inputs)
            self.check = tracker.check(module, read, epoch, step, is_counted=not self.waits_for_average)
        self._log(trainer, started)

    def _log(self, trainer: Trainer, started: float) -> None:
        """Log the check, write it to the record, and count its time."""
        tracker, is_by_steps = self.tracker, self.is_by_steps
        # The step at which Lightning logs the last batch; it counts that batch after `on_train_batch_end`.
        step = trainer.fit_loop.epoch_loop._batches_that_stepped - (0 if is_by_steps else 1)
        train_loss = training_loss(trainer, is_within_epoch=is_by_steps)
        if not trainer.barebones:  # it logs nothing, and warns of attempts
            self.metric_logger.show(trainer, tracker.checks[-1], step)
        tracker.end_check(started, train_loss)


class MetricLogger:
    """Shows the values of checks to loggers, the progress bar, and callbacks that read `callback_metrics`."""

    def __init__(self) -> None:
        self._values: dict[str, Tensor] = {}  # last check

    def show(self, trainer: Trainer, check: dict[str, Any], step: int) -> None:
        """Log a check at a step.

        `log_dict` would be slow, skip steps within an epoch, and keep values in `callback_metrics` until its end.
        """
        shown = {name: value for name, value in check.items() if name not in _LEFT_OUT}
        for logger in trainer.loggers:
            logger.log_metrics({**shown, "epoch": trainer.current_epoch}, step)
            logger.save()
        self._values = {name: torch.tensor(value, device="cpu") for name, value in shown.items()}
        trainer.callback_metrics.update(self._values)
        trainer.logged_metrics.update(self._values)
        in_bar = {signal.name for signal in SIGNALS.values() if signal.is_in_progress_bar}
        trainer.progress_bar_metrics.update({name: value for name, value in shown.items() if name in in_bar})

    def withdraw(self, trainer: Trainer) -> None:
        """Remove the last check's values from `callback_metrics`, because they do not describe the weights to come."""
        for name in self._values:
            trainer.callback_metrics.pop(name, None)

    def show_again(self, trainer: Trainer) -> None:
        """Undo `withdraw` for callbacks that read values when an epoch or the training ends."""
        for name, value in self._values.items():
            trainer.callback_metrics.setdefault(name, value)


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

    It is the epoch's mean if the module logs that (`on_epoch=True`); otherwise, and within an epoch, the last batch's.
    All processes must read it: it may be their mean. (`trainer.callback_metrics` also has older and validation values.)
    """
    results = trainer._results
    if results is None:
        return None
    logged = dict(results.metrics(on_step=True)["callback"])
    if not is_within_epoch:
        logged |= results.metrics(on_step=False)["callback"]
    return next((float(logged[name]) for name in LOSSES if name in logged), None)
