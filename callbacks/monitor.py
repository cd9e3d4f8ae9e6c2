"""Watching a training: boundary uncertainty and trust score at each check, nothing decided."""

import contextlib
import dataclasses
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from lightning_utilities.core.rank_zero import rank_zero_info, rank_zero_warn
from torch import Tensor
from torch.nn.parameter import is_lazy

from bu_torch.callbacks._dashboards import dashboards
from bu_torch.callbacks._habits import INSTEAD, without
from bu_torch.callbacks._lightning import (
    FITTING,
    Callback,
    MisconfigurationException,
    adopt_imported_trees,
    is_average_untouched,
    library_of,
    measured_module,
)
from bu_torch.callbacks._loss_weights import LossWeights
from bu_torch.callbacks._names import suffix_of
from bu_torch.callbacks._optimizers import evaluation_weights
from bu_torch.callbacks._processes import Collectives, buffers_of_the_first, gather, in_each, in_first, share
from bu_torch.callbacks._reference import Reference, check_reference, is_pair
from bu_torch.callbacks._silence import silence
from bu_torch.callbacks._training_data import batch_hooks, describe, read_pair, read_training_data
from bu_torch.callbacks._training_loss import training_loss
from bu_torch.callbacks._witness import AFTER_BYTES, Witness
from bu_torch.internal.inputs import as_labels, check_integer
from bu_torch.internal.network import dtype_of, evaluation_mode, joined, logits_of
from bu_torch.perturbation.moves import keeps_integers
from bu_torch.rule.rules import STANDARD_ERROR
from bu_torch.run.averaging import put_back
from bu_torch.run.budget import Plan, count_operations, describe_slow_check
from bu_torch.run.settings import MeasurementSettings, as_file
from bu_torch.run.state import read_weights
from bu_torch.run.tracker import Tracker
from bu_torch.samples.batches import split_batch
from bu_torch.samples.reading import seeded
from bu_torch.samples.samples import IGNORED, Samples, UnreadableError, fewer_of
from bu_torch.signals.catalogue import SIGNALS

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer

_BATCH_ELEMENTS = 2**16  # input values of one forward batch, so that small inputs go through in few batches
_TRIAL_SAMPLES = 512  # read in a `fast_dev_run`
_DECIDES_NOTHING = "it decides nothing: an `EarlyStopping(monitor='expected_accuracy', mode='max')` may"
_MOST_WATCHED = 5  # batches, until the network has been called
_MOVE = (
    "Move what prepares the inputs from `training_step` into `forward`, or into `on_after_batch_transfer`; or pass"
    " samples as the network gets them: `reference=(inputs, labels)`."
)
_OF_BYTES = (
    "A check calls `forward` with floating-point numbers: let it scale them as it does bytes, or scale them in"
    " `on_after_batch_transfer`."
)
_SEVERAL_TENSORS = (
    "A `forward` of several tensors (`input_ids`, `attention_mask`) must take them as one, say"
    " `torch.stack((input_ids, attention_mask), dim=1)`, and take it apart itself."
)
RAW_WEIGHTS = "raw_state_dict"  # of training, in a checkpoint whose `state_dict` is their average
_WRAPPING = ("FSDPStrategy", "DeepSpeedStrategy")
SHARDED = (*_WRAPPING, "ModelParallelStrategy", "XLAFSDPStrategy")  # where no process has the whole network


@without(INSTEAD | dict.fromkeys(("monitor", "mode"), _DECIDES_NOTHING))
@dataclass(kw_only=True, eq=False, repr=False)
class BoundaryUncertaintyMonitor(MeasurementSettings, Callback):
    """Measure boundary uncertainty and trust score while a classifier trains, without validation data.

    At the start of training the callback reads the training samples, finds their nearest neighbours and perturbs each
    of them a little. At each check, at the end of an epoch or every so many steps, it passes the perturbed samples
    through the module's `forward` once (eval mode, no gradient, the trainer's precision) and logs three numbers under
    fixed names:

    - `boundary_uncertainty`, in [0, 1], larger is better: do both classes mix along the decision boundary as they would
      along the Bayes boundary? (Ha et al. 2021; `bu_torch.functional.boundary_uncertainty`)
    - `trust_score`, in [1e-3, 1e3], larger is better: does the classifier agree with the neighbours? (Jiang et al.
      2018; `bu_torch.functional.mean_trust_score`)
    - `expected_accuracy`, in [0, 1], larger is better: what accuracy do the training labels predict for these outputs?
      (`bu_torch.Signals.probabilities`; this project's own)

    and, to the logger alone, five more, all read from the same predictions at the perturbed samples:

    - `label_agreement`, in [0, 1]: share of perturbed samples that are predicted as labelled (1 minus the error rate on
      perturbed samples of Ha et al., section 4.5);
    - `vote_agreement`, in [0, 1]: the same with the votes of the labels nearby in place of the one label
      (`bu_torch.LabelVotes`);
    - `neighbor_agreement`, in [0, 1]: trust on a bounded scale, the sample that was perturbed left out
      (`bu_torch.functional.neighbor_agreement`);
    - `prediction_changes`, in [0, 1]: share of predictions that differ from the last check's, 1 at the first check;
    - `omission`, in [0, 1], smaller is better: how much of the Bayes boundary does the boundary leave out, which a high
      `boundary_uncertainty` does not tell? (`bu_torch.functional.omission`)

    Weights after training are the same to the bit with and without the callback. It decides nothing: an
    `EarlyStopping(monitor="boundary_uncertainty", mode="max")` in the same trainer may.

    Where several of these callbacks in one trainer measure with different settings, the names of the second in the
    list end in `_2`, and so on.

    `forward` must give logits (n, J), or one logit (n, 1) or (n,) for two classes; an output with a `logits` entry or
    attribute is understood too. Samples pass the hooks that transform batches (`on_before_batch_transfer`,
    `transfer_batch_to_device`, `on_after_batch_transfer`) once, when they are read; a dataset that augments at random
    is read once. What a sampler draws more often counts more in every number (`WeightedRandomSampler`). Inputs that
    `training_step` changes to other units before the network gets them are refused after the first batch.

    Args:
        every_n_epochs: Check at the end of every n-th epoch, >= 1. In the others the names above are not in
            `trainer.callback_metrics`.
        every_n_train_steps: Check after every n-th optimiser step (`trainer.global_step`) instead, >= 1, for trainings
            of few epochs. The budget of a check is then a share of the samples that n steps visit. The names above are
            in `trainer.callback_metrics` until the next batch begins, and again when the epoch ends.
        reference: The samples to use instead of those found in the trainer's loader, without random augmentation say:
            a pair of inputs (N, ...) as `forward` takes them and labels (N,), all of them unless `max_samples` says
            otherwise; or a Dataset or DataLoader, of which as many are read as of the trainer's.
        input_key: Key of the inputs where a batch is a dict; their place, an integer, where it is a tuple of more than
            two.
        label_key: Likewise of the labels.
        **settings: `bu_torch.run.settings.MeasurementSettings` says what each is: `n_neighbors`, `n_draws`,
            `max_samples`, `budget`, `seed`, `cache`, `feature_extractor`, `n_components`, `perturbation`,
            `class_weight`, `averaging` (None: the network is measured as each check finds it), `averaging_device`,
            `output_key`.

    Attributes:
        history: One dict a check, in order: `epoch` (`trainer.current_epoch`, 0-based), `step` (`trainer.global_step`),
            `boundary_uncertainty`, `trust_score`, `expected_accuracy`, `label_agreement`, `vote_agreement`,
            `neighbor_agreement`, `prediction_changes`, `omission`, and `standard_error` of the difference between this
            expected accuracy and the highest before; floats, NaN where a logit was not finite.
        setup_seconds: Time spent before the first epoch, in seconds.
        check_seconds: Time spent in checks so far, in seconds.
        record_path: CSV file beside the checkpoints (or the logs, where there are none) with a row for each check,
            written as soon as it is measured: `epoch`, `step`, `seconds` since training began (without the checks of
            other such callbacks), `check_seconds`, `train_loss` if `training_step` logs it (or `training_loss`,
            `train/loss`, `loss/train`, `loss`), and what `history` has. "" where nothing is written: neither
            checkpoints nor logs on this machine's disk, `fast_dev_run`, `barebones`, or another process than the first.

    Raises:
        MisconfigurationException: On arguments out of range; at the start of training where samples cannot be found or
            are not fit for the method.
    """

    every_n_epochs: int = 1
    every_n_train_steps: int | None = None
    reference: Reference | None = None
    input_key: str | int | None = None
    label_key: str | int | None = None

    def __post_init__(self) -> None:
        adopt_imported_trees()
        Callback.__init__(self)
        try:
            self._check_settings()
        except (TypeError, ValueError) as error:
            raise MisconfigurationException(str(error)) from error
        self.is_fitting = True
        self._clear()

    def _clear(self) -> None:
        self._tracker = Tracker(self._tracked_settings(), rank_zero_warn)
        self._inputs: Tensor | None = None  # where this process reads the network
        self._n_rows = 0  # of the perturbed inputs of all processes together
        self._takes_integers = False  # where the samples are of integers, before they are perturbed
        self._is_tried = False
        self._passes_alone = True  # whether this process may call `forward` without the others
        self._witness: Witness | None = None
        self._n_watched = 0  # batches
        self._loss_weights = LossWeights()  # in the first process, which alone prepares
        self._waits_for_average = False  # at the last check
        self._has_checked = False  # in the hook that runs
        self._steps_before = 0  # the batch that runs
        self._suffix = ""  # of the names that are logged
        self._logged_names: list[str] = []
        self._withdrawn: dict[str, Tensor] = {}  # values that `callback_metrics` lacks until training ends

    @property
    def state_key(self) -> str:
        return self._generate_state_key()

    @property
    def tracker(self) -> Tracker:
        """What was measured, and its verdict."""
        return self._tracker

    @property
    def history(self) -> list[dict[str, Any]]:
        return self._tracker.history

    @property
    def setup_seconds(self) -> float:
        return self._tracker.setup_seconds

    @property
    def check_seconds(self) -> float:
        return self._tracker.check_seconds

    @property
    def record_path(self) -> str:
        return self._tracker.record_path

    def setup(self, trainer: "Trainer", pl_module: "LightningModule", stage: str) -> None:
        library_of(trainer)
        self.is_fitting = stage == FITTING
        if self.is_fitting:
            self._clear()
            _stand_behind_averaging(trainer)
            if self._tracker.average is not None and (why := _why_not_averaged(trainer)):
                self._tracker.average = None
                rank_zero_info(f"Boundary uncertainty averages no weights: {why}.")
            if self._tracker.average is not None and self.averaging_device is not None:
                _try_device(self.averaging_device)

    def on_train_start(self, trainer: "Trainer", pl_module: "LightningModule") -> None:
        with self._clocks_of_others_stopped(trainer):
            self._begin(trainer, pl_module)

    def _begin(self, trainer: "Trainer", pl_module: "LightningModule") -> None:
        started = time.perf_counter()
        # What is drawn at random, by a `perturbation` say, is the same each time. And `forward` may log.
        with seeded(self.seed), silence(trainer, pl_module):
            self._prepare(trainer, pl_module)
        self._suffix = suffix_of(
            self, [one for one in trainer.callbacks if isinstance(one, BoundaryUncertaintyMonitor)]
        )
        if self._suffix:
            rank_zero_info(
                f"The names that {type(self).__name__} logs end in {self._suffix}: another callback before it measures"
                " with other settings."
            )
        self._warn_of_checks_too_late(trainer)
        self._warn_of_a_missed_check(trainer)
        given = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        if self._tracker.average is None:
            given["averaging"] = None
        if self._loss_weights.found is not None:
            given["class_weight"] = self._loss_weights.found
        self._tracker.begin(started, record_folder(trainer), given)
        for dashboard in [] if self._suffix else dashboards(trainer):
            dashboard.lay_out()

    def on_train_batch_start(
        self, trainer: "Trainer", pl_module: "LightningModule", batch: Any, batch_idx: int
    ) -> None:
        self._has_checked, self._steps_before = False, trainer.global_step
        if self.every_n_train_steps is not None and self._logged_names:
            self._withdraw(trainer)
        # Not in `on_train_start`: the module's own comes after it, and may make the module ready.
        if not self._is_tried:
            with self._clocks_of_others_stopped(trainer):
                started = time.perf_counter()
                self._try(trainer, pl_module)
                self._watch(trainer, pl_module, batch)
                seconds = time.perf_counter() - started
            self._tracker.leave_out(seconds)

    def on_before_backward(self, trainer: "Trainer", pl_module: "LightningModule", loss: Tensor) -> None:
        is_asked = self.class_weight is None and self._tracker.is_prepared
        if is_asked and (line := self._loss_weights.compare(loss, lambda: self._tracker.n_classes)):
            rank_zero_info(line)

    def on_train_batch_end(
        self, trainer: "Trainer", pl_module: "LightningModule", outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self._witness is not None:
            self._compare(trainer, pl_module, self._witness)
        self._has_checked = False
        before, self._steps_before = self._steps_before, trainer.global_step
        # A batch may make no step, or several: with accumulated gradients, with several optimisers.
        every = self.every_n_train_steps
        if every is not None and trainer.global_step // every > before // every:
            with self._clocks_of_others_stopped(trainer), self._unwatched():
                self._check(trainer, pl_module)

    def on_train_epoch_end(self, trainer: "Trainer", pl_module: "LightningModule") -> None:
        self._has_checked = False
        self._dismiss()
        if self.every_n_train_steps is not None:
            self._warn_of_standing_steps(trainer)
            if self.history and self.history[-1]["epoch"] == trainer.current_epoch:
                self._put_back(trainer)
        elif (trainer.current_epoch + 1) % self.every_n_epochs:
            self._withdraw(trainer)
        else:
            with self._clocks_of_others_stopped(trainer):
                self._check(trainer, pl_module)

    def _check(self, trainer: "Trainer", pl_module: "LightningModule") -> None:
        started = time.perf_counter()
        has_waited, self._waits_for_average = self._waits_for_average, is_average_untouched(trainer)
        if self._waits_for_average and not has_waited:
            rank_zero_info(
                "Boundary uncertainty measures the average of WeightAveraging, which a checkpoint would hold. Checks"
                " before its first update neither count nor are kept."
            )
        with evaluation_weights(trainer):
            self._tracker.update_average(pl_module, trainer.current_epoch, trainer.global_step)
            with self._tracker.averaged(pl_module):
                values = self._measure(trainer, pl_module)
        is_counted = not self._waits_for_average
        self._tracker.add(trainer.current_epoch, values, trainer.global_step, is_counted=is_counted)
        self._has_checked = True
        # Where Lightning logs the scalars of the last batch, too; it counts that batch after `on_train_batch_end`.
        is_within_epoch = self.every_n_train_steps is not None
        step = trainer.fit_loop.epoch_loop._batches_that_stepped - (0 if is_within_epoch else 1)
        shown_by = [] if self._suffix else dashboards(trainer)
        details = self._tracker.details() if shown_by or self._tracker.is_recorded else None
        if details is not None:
            for dashboard in shown_by:
                dashboard.show(details, step)
        train_loss = training_loss(trainer, is_within_epoch=is_within_epoch)
        if not trainer.barebones:  # which logs nothing, and warns where one tries
            self._log(trainer, pl_module, step if is_within_epoch else None)
        is_first = self.check_seconds == 0
        self._tracker.end_check(started, details, train_loss)
        if is_first and (line := describe_slow_check(self.check_seconds, self._tracker.training_seconds)):
            every = "every_n_epochs" if self.every_n_train_steps is None else "every_n_train_steps"
            rank_zero_info(f"{line} To change it: `n_draws=`, `max_samples=`, `{every}=`.")

    def _log(self, trainer: "Trainer", pl_module: "LightningModule", step: int | None) -> None:
        """Log the last check: with the epoch's other values, or at a step of its own."""
        left_out = ("epoch", "step", STANDARD_ERROR)
        measured = {name: value for name, value in self.history[-1].items() if name not in left_out}
        in_bar = {f"{name}{self._suffix}": measured.pop(name) for name in list(measured) if _is_in_progress_bar(name)}
        others = {f"{name}{self._suffix}": value for name, value in measured.items()}
        self._logged_names = [*in_bar, *others]
        if step is None:
            is_shared = trainer.world_size > 1  # all have the same, but Lightning warns unless it is told so
            pl_module.log_dict(in_bar, prog_bar=True, sync_dist=is_shared)
            pl_module.log_dict(others, sync_dist=is_shared)
            return
        # Not by `log_dict`: loggers would get what falls on a step of `log_every_n_steps` alone, and `callback_metrics`
        # would keep the values for the rest of the epoch.
        for logger in trainer.loggers:
            logger.log_metrics({**in_bar, **others, "epoch": trainer.current_epoch}, step)
        trainer.callback_metrics.update({name: torch.tensor(value) for name, value in {**in_bar, **others}.items()})
        trainer.progress_bar_metrics.update(in_bar)

    def _withdraw(self, trainer: "Trainer") -> None:
        """Take the last check's values from `callback_metrics`: they are not those of the weights to come."""
        metrics = trainer.callback_metrics
        self._withdrawn |= {name: metrics.pop(name) for name in self._logged_names if name in metrics}
        self._logged_names = []

    def _put_back(self, trainer: "Trainer") -> None:
        """For those who look when an epoch or the training ends."""
        for name, value in self._withdrawn.items():
            trainer.callback_metrics.setdefault(name, value)
        self._logged_names = [*self._logged_names, *self._withdrawn]
        self._withdrawn = {}

    def on_train_end(self, trainer: "Trainer", pl_module: "LightningModule") -> None:
        self._put_back(trainer)

    @contextmanager
    def _clocks_of_others_stopped(self, trainer: "Trainer") -> Iterator[None]:
        """What this callback does is no training time for another of these callbacks."""
        started = time.perf_counter()
        try:
            yield
        finally:
            seconds = time.perf_counter() - started
            for other in trainer.callbacks:
                if isinstance(other, BoundaryUncertaintyMonitor) and other is not self:
                    other.tracker.leave_out(seconds)

    def on_fit_end(self, trainer: "Trainer", pl_module: "LightningModule") -> None:
        self._tracker.end("Training ended.")

    def on_exception(self, trainer: "Trainer", pl_module: "LightningModule", exception: BaseException) -> None:
        self._dismiss()
        self._tracker.end(describe_exception(exception))

    def teardown(self, trainer: "Trainer", pl_module: "LightningModule", stage: str) -> None:
        self._tracker.release()
        self._inputs = None
        self._dismiss()

    def on_load_checkpoint(self, trainer: "Trainer", pl_module: "LightningModule", checkpoint: dict[str, Any]) -> None:
        if trainer.state.fn == FITTING and RAW_WEIGHTS in checkpoint:
            _go_on_from_raw_weights(pl_module, checkpoint)

    def state_dict(self) -> dict[str, Any]:
        return self._tracker.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if not self.is_fitting:  # a test of a checkpoint does not take back what this run has measured since
            return
        try:
            self._tracker.load_state_dict(state_dict)
        except ValueError as error:
            raise MisconfigurationException(str(error)) from error

    def _check_settings(self) -> None:
        super()._check_settings()
        self.every_n_epochs = check_integer("every_n_epochs", self.every_n_epochs, 1)
        if self.every_n_train_steps is not None:
            self.every_n_train_steps = check_integer("every_n_train_steps", self.every_n_train_steps, 1)
            if self.every_n_epochs != 1:
                raise ValueError(
                    "`every_n_epochs` and `every_n_train_steps` exclude each other: leave `every_n_epochs` at 1 for"
                    f" checks by steps, got {self.every_n_epochs}."
                )
        check_reference("reference", self.reference)

    def _tracked_settings(self) -> MeasurementSettings:
        return MeasurementSettings.of(self)

    # Preparation: the samples are read and prepared in the first process, for all.

    def _prepare(self, trainer: "Trainer", pl_module: "LightningModule") -> None:
        if trainer.reload_dataloaders_every_n_epochs and self.reference is None:
            rank_zero_warn("Boundary uncertainty uses the training data as loaded first; reloads do not reach it.")
        read: list[Samples] = []  # in the first process alone
        one = in_first(trainer, lambda: self._read_here(trainer, pl_module, read))
        n_operations = self._count_operations(trainer, pl_module, one)
        inputs, self._tracker.plan, compared = in_first(
            trainer, lambda: self._prepare_here(trainer, pl_module, read, n_operations)
        )
        self._n_rows = len(inputs)
        if self._tracker.is_prepared:
            self._tracker.to(pl_module.device)
        if trainer.world_size > 1:
            inputs = share(inputs, trainer.global_rank, trainer.world_size).to(pl_module.device)
        elif self._tracker.is_prepared:
            inputs = self._tracker.perturbed_inputs
        self._inputs = inputs
        if not self._tracker.go_on(*compared):
            rank_zero_warn(
                "The run resumes with other training samples than it began with, or with another version of bu_torch:"
                " what is measured now cannot be compared with the checks before."
            )
            self._begin_anew(trainer, pl_module)

    def _read_here(self, trainer: "Trainer", pl_module: "LightningModule", read: list[Samples]) -> Tensor | None:
        """Add the samples to `read`; the input of one of them, for `_count_operations`."""
        labels: list[Tensor] = []
        with self._explained(labels):
            samples = self._read(trainer, pl_module)
            read.append(samples)
            labels.append(samples.labels)
            self._refuse_too_few(len(samples.inputs), "it")
            self._takes_integers = not samples.inputs.is_floating_point()
        # A resumed run has a plan; where several processes train, it has yet to be seen whether one may pass alone.
        is_needless = trainer.world_size == 1 and self._tracker.plan is not None
        return None if is_needless or not len(samples.inputs) else samples.inputs[:1].cpu().clone()

    def _count_operations(self, trainer: "Trainer", pl_module: "LightningModule", one: Tensor | None) -> int:
        """Of a forward pass of one sample, which all processes make at once: `forward` may speak to the others."""
        self._passes_alone = trainer.world_size == 1
        if one is None or not self._can_be_passed(trainer, pl_module):
            return count_operations(pl_module)
        forward = partial(self._read_logits, trainer, pl_module, pl_module, one.to(pl_module.device))
        if self._passes_alone:
            return count_operations(pl_module, forward)
        has_passed: list[Tensor] = []
        with Collectives() as collectives:
            n_operations = count_operations(pl_module, lambda: has_passed.append(forward()))
        self._passes_alone = bool(has_passed) and not collectives.are_seen
        return n_operations

    @contextmanager
    def _explained(self, labels: list[Tensor]) -> Iterator[None]:
        """Errors within name what cannot be used; `labels` holds those of the samples, once they are read."""
        try:
            yield
        except (TypeError, ValueError) as error:
            source, way_out = "`reference`", ""
            if self.reference is None:
                source, way_out = "the training data", _way_out_of_labels(labels[0]) if labels else ""
            raise MisconfigurationException(f"Boundary uncertainty cannot use {source}: {error}{way_out}") from error

    def _prepare_here(
        self, trainer: "Trainer", pl_module: "LightningModule", read: list[Samples], n_operations: int
    ) -> tuple[Tensor, Plan | None, tuple[str, bool, int]]:
        """Perturbed inputs, plan, and what `Tracker.go_on` takes."""
        samples = read.pop()  # which alone holds them, so that those that are left out are free
        with self._explained([samples.labels]):
            samples, n_draws = self._plan(trainer, samples, n_operations)
            draws = "1 draw" if n_draws == 1 else f"{n_draws} draws"
            rank_zero_info(
                f"Boundary uncertainty looks at {describe(samples)}, {draws} each, {self._describe_schedule()}."
            )
            if self.class_weight is None:
                labels = as_labels(samples.labels, len(samples.inputs))
                if line := self._loss_weights.find(pl_module, int(labels.max()) + 1):
                    rank_zero_info(line)
            cache = None if trainer.fast_dev_run else as_file(self.cache)
            fingerprint = self._tracker.prepare(
                samples,
                module=self._network(trainer, pl_module),
                cache=cache,
                has_progress_bar=trainer.progress_bar_callback is not None,
                class_weight=self._loss_weights.found,
            )
            for line in (self._tracker.cache(), self._tracker.space(), self._tracker.balance()):
                if line:
                    rank_zero_info(line)
        inputs = self._tracker.perturbed_inputs
        inputs = inputs if trainer.world_size == 1 else inputs.cpu()
        return inputs, self._tracker.plan, (fingerprint, self._tracker.is_restored, self._tracker.n_samples)

    def _describe_schedule(self) -> str:
        n, unit = self.every_n_epochs, "epoch"
        if self.every_n_train_steps is not None:
            n, unit = self.every_n_train_steps, "step"
        return f"after every {unit}" if n == 1 else f"every {n} {unit}s"

    def _begin_anew(self, trainer: "Trainer", pl_module: "LightningModule") -> None:
        """Nothing to do here: the stopping callback starts its patience anew."""

    def _read(self, trainer: "Trainer", pl_module: "LightningModule") -> Samples:
        trial = max(_TRIAL_SAMPLES, self.n_neighbors) if trainer.fast_dev_run else None

        def how_many(n_training: int) -> int:
            n_samples = self._planned(trainer, n_training, count_operations(pl_module)).n_samples
            return n_samples if trial is None else min(n_samples, trial)

        if is_pair(self.reference):
            return read_pair(self.reference, how_many, self.seed, keep_integers=keeps_integers(self.perturbation))
        return read_training_data(
            trainer,
            how_many=how_many,
            most=self.max_samples if trial is None else min(self.max_samples or trial, trial),
            keys=(self.input_key, self.label_key),
            seed=self.seed,
            reference=self.reference,
            transform=batch_hooks(trainer, pl_module),
        )

    def _network(self, trainer: "Trainer", pl_module: "LightningModule") -> torch.nn.Module | None:
        """The network, if its features may be a space."""
        # Features of a network that has learnt these labels already would tell them by heart.
        is_new = trainer.global_step == 0 or bool(self.history) or self.feature_extractor == "module"
        if self._passes_alone and self._can_be_passed(trainer, pl_module):
            return pl_module if is_new else None
        if self.feature_extractor == "module":
            raise MisconfigurationException(
                "`feature_extractor='module'` needs features of the network before training, which one process reads"
                " alone. It cannot where weights are sharded, where a layer is lazy, or where `forward` speaks to the"
                " other processes or fails for a single sample. Pass `feature_extractor='inputs'` or 'patches', or a"
                " callable."
            )
        return None

    def _can_be_passed(self, trainer: "Trainer", pl_module: "LightningModule") -> bool:
        """Whether the module may pass samples before training."""
        is_whole = type(trainer.strategy).__name__ not in SHARDED
        return is_whole and not any(is_lazy(parameter) for parameter in pl_module.parameters())

    def _plan(self, trainer: "Trainer", samples: Samples, n_operations: int) -> tuple[Samples, int]:
        """As many of the samples as the budget allows, and how many draws; a resumed run has decided that."""
        made = self._tracker.plan = self._tracker.plan or self._planned(trainer, samples.n_training, n_operations)
        return fewer_of(samples, made.n_samples, self.seed), made.n_draws

    def _planned(self, trainer: "Trainer", n_training: int, n_operations: int) -> Plan:
        takes_all = self.max_samples is None and is_pair(self.reference)
        return self._tracker.planned(
            n_training,
            self._n_visited(trainer, n_training),
            n_operations,
            max_samples=n_training if takes_all else None,
        )

    def _n_visited(self, trainer: "Trainer", n_training: int) -> int:
        """Different samples that all processes train on between two checks."""
        batch_size = getattr(trainer.train_dataloader, "batch_size", None) or math.inf
        return int(min(n_training, self._n_batches(trainer) * batch_size * trainer.world_size))

    def _n_batches(self, trainer: "Trainer") -> float:
        """Of one process, from one check by steps to the next, or in an epoch."""
        n_batches = trainer.num_training_batches
        if self.every_n_train_steps is not None:  # each of several optimisers makes a step a batch
            steps_of_batch = len(trainer.optimizers) / trainer.accumulate_grad_batches
            n_batches = min(n_batches, math.ceil(self.every_n_train_steps / max(steps_of_batch, 1e-9)))
        return n_batches

    # Reading the network.

    def _try(self, trainer: "Trainer", pl_module: "LightningModule") -> None:
        """Read one batch as a check will, so that a module that cannot be read is refused before it has trained."""
        batch = self._batches(trainer, self._perturbed())[0]
        module = measured_module(trainer, pl_module)
        logits = in_each(trainer, lambda: self._read_logits(trainer, pl_module, module, batch))

        def check() -> None:
            n_classes = self._tracker.n_classes
            if n_classes > 2 == logits.shape[1] and not bool(logits[:, 0].any()):
                raise MisconfigurationException(
                    f"The module's `forward` gives one column, and the labels have classes 0, ..., {n_classes - 1}."
                    " For a regression there is no decision boundary to measure: this callback is for"
                    " classifiers. Where"
                    " `training_step` makes two classes of the labels, do so in the dataset or"
                    " `on_after_batch_transfer`."
                )
            if logits.shape[1] < n_classes:
                raise MisconfigurationException(
                    f"The module's `forward` gives {logits.shape[1]} columns of logits, fewer than the labels have"
                    f" classes 0, ..., {n_classes - 1}. Labels count from 0: subtract 1 where they begin with 1. What"
                    " `training_step` does to labels belongs into the dataset or `on_after_batch_transfer`; samples to"
                    f" ignore have the label {IGNORED}."
                )

        in_first(trainer, check)
        self._is_tried = True
        if self._takes_integers and self.perturbation is None and _embeds(pl_module):  # and its `forward` rounds
            rank_zero_warn(
                "The samples are integers, and the network has an `nn.Embedding`. If they are token ids, pass"
                " `perturbation='tokens'`: as numbers they are moved to ids that mean something else."
            )

    def _watch(self, trainer: "Trainer", pl_module: "LightningModule", batch: Any) -> None:
        """Prepare to compare what the network gets in this step with what a check would give it."""
        is_wrapped = type(trainer.strategy).__name__ in SHARDED
        if self.reference is not None or is_wrapped or not Witness.can_watch(pl_module):
            return
        self._witness = witness = Witness(pl_module)  # in each process: all decide together
        # A batch that cannot be taken apart could not be read as a sample either.
        with contextlib.suppress(UnreadableError, TypeError, MisconfigurationException):
            inputs, labels = split_batch(batch, (self.input_key, self.label_key))
            witness.rehearse(lambda: self._read_logits(trainer, pl_module, pl_module, inputs, is_whole=True), labels)
            witness.watch()

    def _dismiss(self) -> Witness | None:
        """The witness, if there is one, which looks no longer."""
        witness, self._witness = self._witness, None
        if witness is not None:
            witness.leave()
        return witness

    @contextmanager
    def _unwatched(self) -> Iterator[None]:
        """What a check calls is nothing that training has called."""
        if self._witness is not None:
            self._witness.leave()
        yield
        if self._witness is not None:
            self._witness.watch()

    def _compare(self, trainer: "Trainer", pl_module: "LightningModule", witness: Witness) -> None:
        """Compare the calls of the batch that has ended; all processes together, whatever each has seen."""
        self._n_watched += 1
        objection = witness.objection()
        if not trainer.strategy.reduce_boolean_decision(bool(objection), all=False):
            has_seen = trainer.strategy.reduce_boolean_decision(witness.has_seen, all=False)
            is_enough = has_seen or self._n_watched == _MOST_WATCHED or trainer.is_last_batch
            if is_enough and not has_seen and witness.has_rehearsed:
                rank_zero_warn(
                    f"Training has not called `{type(pl_module).__name__}`, nor its first layers, as a check does: by"
                    " `forward`. If `training_step` goes another way through the network, what is measured is not what"
                    " is trained."
                )
            if is_enough:
                self._dismiss()
            return
        self._dismiss()
        raise MisconfigurationException(
            "In training the network gets other inputs than batches hold"
            f"{f': {objection}' if objection else ', in another process'}. Boundary uncertainty reads what batches"
            f" hold, and would measure where the network never is."
            f" {_SEVERAL_TENSORS if 'tensors' in objection else _OF_BYTES if AFTER_BYTES in objection else _MOVE}"
        )

    def _measure(self, trainer: "Trainer", pl_module: "LightningModule") -> dict[str, float]:
        """One check: a forward pass over the perturbed inputs, shared out among the processes, and what it says."""
        inputs = self._perturbed()
        module = measured_module(trainer, pl_module)
        with buffers_of_the_first(trainer, module):
            logits = gather(trainer, lambda: self._read_logits(trainer, pl_module, module, inputs), self._n_rows)

        def work() -> dict[str, float]:
            try:
                return self._tracker.measure(logits)
            except ValueError as error:
                raise MisconfigurationException(f"The module's `forward` does not fit the labels: {error}") from error

        return in_first(trainer, work)

    def _perturbed(self) -> Tensor:
        if self._inputs is None:
            raise RuntimeError("The training samples are read in `on_train_start`, which has not run.")
        return self._inputs

    def _batches(self, trainer: "Trainer", inputs: Tensor) -> tuple[Tensor, ...]:
        of_training = getattr(trainer.train_dataloader, "batch_size", None) or 1
        return inputs.split(max(1, _BATCH_ELEMENTS // inputs[0].numel(), of_training))

    def _read_logits(
        self,
        trainer: "Trainer",
        pl_module: "LightningModule",
        module: torch.nn.Module,
        inputs: Tensor,
        *,
        is_whole: bool = False,
    ) -> Tensor:
        """Logits (n, J) of the module that is scored, at `inputs` (n, ...), in batches, or in one of the whole."""
        dtype = dtype_of(module, inputs)
        if not (inputs.is_floating_point() or keeps_integers(self.perturbation)):
            dtype = dtype_of(module, inputs.float())  # as samples of integers are perturbed
        batches = (inputs,) if is_whole else self._batches(trainer, inputs)
        precision = trainer.precision_plugin
        # Weights that are sharded are put together by what these strategies have wrapped around the module.
        is_wrapped = type(trainer.strategy).__name__ in _WRAPPING and module is pl_module
        forward: Any = trainer.model if is_wrapped else module
        try:
            with silence(trainer, pl_module), evaluation_mode(module), precision.forward_context():
                outputs = [forward(precision.convert_input(batch.to(dtype))) for batch in batches]
            parts = [
                logits_of(output, len(batch), "`forward`", self.output_key)
                for output, batch in zip(outputs, batches, strict=True)
            ]
            return joined(parts, "`forward`")
        except (IndexError, RuntimeError, TypeError, ValueError) as error:
            raise MisconfigurationException(
                f"Boundary uncertainty passes inputs of shape {tuple(batches[0].shape)} and dtype {dtype} to"
                f" `{type(pl_module).__name__}.forward` and needs logits: {type(error).__name__}:"
                f" {str(error).removesuffix('.')}"
                f"{self._way_out_of_forward(error)}"
            ) from error

    def _way_out_of_forward(self, error: Exception) -> str:
        """What helps, where it is known what is wrong."""
        if "missing" in str(error) and "positional argument" in str(error):
            return f". {_SEVERAL_TENSORS}"
        if self._takes_integers and not keeps_integers(self.perturbation):
            return (
                ". The samples are integers: token ids cannot be moved along a line, so pass"
                " `perturbation='tokens'`, or one of your own that exchanges some of them."
            )
        if self.output_key is None and "or an output with `logits`" in str(error):
            return ". `output_key=` names the logits in a tuple or a dict."
        return f". A check calls `forward` with one tensor, as batches hold it, and gets logits (n, J). {_MOVE}"

    # Warnings.

    def _warn_of_checks_too_late(self, trainer: "Trainer") -> None:
        """Checks are made at the end of epochs, which some trainings have none or too few of; or at their steps."""
        if self.every_n_train_steps is not None:
            self._warn_of_too_few_steps(trainer, self.every_n_train_steps)
            return
        if trainer.num_training_batches == math.inf and trainer.max_steps != -1:
            rank_zero_warn(
                "The length of the training data is not known, and boundary uncertainty is measured at the end of an"
                f" epoch: where they do not end before `max_steps={trainer.max_steps}`, that is once, after training."
                " `every_n_train_steps=` checks within epochs."
            )
        epochs = trainer.max_epochs
        if epochs is not None and 0 < epochs < self.every_n_epochs and not trainer.fast_dev_run:
            rank_zero_warn(f"No check is made in {epochs} epochs with `every_n_epochs={self.every_n_epochs}`.")

    def _warn_of_too_few_steps(self, trainer: "Trainer", every: int) -> None:
        n_steps = math.inf if trainer.max_steps == -1 else float(trainer.max_steps)
        if trainer.max_epochs not in (None, -1) and trainer.num_training_batches != math.inf:
            of_epoch = math.ceil(trainer.num_training_batches / trainer.accumulate_grad_batches)
            n_steps = min(n_steps, trainer.max_epochs * of_epoch)
        if 0 < n_steps < every and not trainer.fast_dev_run and trainer.lightning_module.automatic_optimization:
            rank_zero_warn(f"No check is made in {n_steps:.0f} steps with `every_n_train_steps={every}`.")

    def _warn_of_standing_steps(self, trainer: "Trainer") -> None:
        if trainer.global_step == 0 and trainer.current_epoch == 0 and not trainer.fast_dev_run:
            rank_zero_warn(
                "An epoch has ended, and `trainer.global_step` is 0: no check is made by steps. Lightning counts those"
                " of `self.optimizers()` alone; `every_n_epochs=` needs no count."
            )

    def _warn_of_a_missed_check(self, trainer: "Trainer") -> None:
        """A checkpoint saved on the last batch of an epoch resumes behind that epoch's end and its check."""
        if self.every_n_train_steps is not None:
            due = trainer.global_step // self.every_n_train_steps * self.every_n_train_steps
            if self.history and self.history[-1].get("step", due) < due:
                rank_zero_warn(f"The run resumes after step {due} without a check of it: that step cannot be kept.")
            return
        due = trainer.current_epoch // self.every_n_epochs * self.every_n_epochs - 1
        if self.history and self.history[-1]["epoch"] < due:
            rank_zero_warn(
                f"The run resumes after epoch {due} without the check of that epoch: the checkpoint was saved before"
                " it, and Lightning does not end the epoch again. That epoch cannot be kept."
            )


def _stand_behind_averaging(trainer: "Trainer") -> None:
    """Move the monitors behind `WeightAveraging`, which may update its average when an epoch ends.

    They would measure the average of the epoch before otherwise, and a checkpoint would hold that of this epoch.
    """
    callbacks = trainer.callbacks
    averaging = [n for n, one in enumerate(callbacks) if isinstance(one, library_of(trainer).weight_averaging)]
    end = averaging[-1] + 1 if averaging else 0
    moved = [one for one in callbacks[:end] if isinstance(one, BoundaryUncertaintyMonitor)]
    if moved:
        others = [one for one in callbacks[:end] if not isinstance(one, BoundaryUncertaintyMonitor)]
        trainer.callbacks = [*others, *moved, *callbacks[end:]]


def _why_not_averaged(trainer: "Trainer") -> str:
    """Why the weights cannot be averaged here, in words; "" where they can."""
    library = library_of(trainer)
    for theirs in (library.weight_averaging, library.stochastic_weight_averaging):
        if any(isinstance(one, theirs) for one in trainer.callbacks):
            return f"{theirs.__name__} does so"
    name = type(trainer.strategy).__name__
    return f"{name} shards them" if name in SHARDED else ""


def _try_device(device: str) -> None:
    try:
        torch.zeros(1, device=device).cpu()
    except (RuntimeError, AssertionError) as error:
        raise MisconfigurationException(
            f"`averaging_device` must be a device of this machine, got {device!r}: {error}"
        ) from error


def _go_on_from_raw_weights(pl_module: "LightningModule", checkpoint: dict[str, Any]) -> None:
    """Resume from a checkpoint of an average: training goes on from its own weights, and the average from the rest."""
    try:
        raw = read_weights(checkpoint.pop(RAW_WEIGHTS))
    except ValueError as error:
        raise MisconfigurationException(str(error)) from error
    average = {name: value for name, value in checkpoint["state_dict"].items() if name in raw}
    if not put_back(pl_module, raw, may_lack=not pl_module.strict_loading):
        average = {}
        rank_zero_warn(
            "The weights of training in the checkpoint, beside their average, do not fit the module: training goes on"
            " from the average, and another average begins."
        )
    for state in (checkpoint.get("callbacks") or {}).values():
        own = state.get("average") if isinstance(state, dict) else None
        if isinstance(own, dict) and own.get("weights") == {}:  # that of the callback that has saved it
            own["weights"] = average


def record_folder(trainer: "Trainer") -> Path | None:
    """Where this run's checkpoints are, or its logs; None where it keeps nothing on this machine's disk."""
    if trainer.fast_dev_run or trainer.barebones:
        return None
    folder = getattr(trainer.checkpoint_callback, "dirpath", None)
    if folder is None and trainer.loggers:
        folder = trainer.log_dir  # which all processes must ask for
    if folder is None or "://" in str(folder) or not trainer.is_global_zero:
        return None
    return Path(folder)


def describe_exception(exception: BaseException) -> str:
    """Why training ended early, in words."""
    if isinstance(exception, KeyboardInterrupt):
        return "Training was interrupted (KeyboardInterrupt)."
    return f"Training failed: {type(exception).__name__}{f': {exception}' if str(exception) else '.'}"


def _embeds(module: torch.nn.Module) -> bool:
    return any(isinstance(part, torch.nn.Embedding | torch.nn.EmbeddingBag) for part in module.modules())


def _way_out_of_labels(labels: Tensor) -> str:
    """What helps where labels are shares of classes, as mixing samples leaves them."""
    if labels.ndim != 2 or labels.shape[1] < 2:
        return ""
    return (
        " Where `collate_fn` or a hook mixes samples (mixup, CutMix), pass those that are not mixed as a pair,"
        " `reference=(inputs, labels)`."
    )


def _is_in_progress_bar(name: str) -> bool:
    return name in SIGNALS and SIGNALS[name].is_in_progress_bar
