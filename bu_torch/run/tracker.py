"""The heart: follows one training from check to check, and knows no trainer."""

import dataclasses
import math
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from bu_torch.internal.inputs import as_labels
from bu_torch.internal.network import warn_of_probabilities
from bu_torch.rule.decision import Reason, Verdict, decide
from bu_torch.rule.rules import STANDARD_ERROR, SelectionRule, Standing
from bu_torch.run import user_cache
from bu_torch.run.averaging import WeightAverage
from bu_torch.run.budget import MAX_DRAWS, Plan, plan
from bu_torch.run.preparation import fit_or_find, fit_or_load
from bu_torch.run.record import Record, check_line, end_line, header_line, row
from bu_torch.run.settings import MeasurementSettings, Settings
from bu_torch.run.state import read_state
from bu_torch.samples.balance import ClassWeight, class_shares, rare_class
from bu_torch.samples.samples import IGNORED, Samples
from bu_torch.samples.subset import stratified_rows
from bu_torch.signals.details import Details
from bu_torch.signals.measuring import MOST_ENTRIES, Measurement, Signals
from bu_torch.signals.recognition import Recognition

# What a score depends on: with another value of one of them, scores cannot be compared.
_COMPARED = (
    "rule",
    "averaging",
    "smoothing",
    "start_from_epoch",
    "n_neighbors",
    "n_draws",
    "max_samples",
    "budget",
    "seed",
    "n_components",
    "class_weight",
)
_SINCE = ("rule.n_standard_errors",)  # of these, states of before lack one, and their scores are the same
REMOVED_RULE = "consensus"
_SETTLED = 3  # checks
_FEWEST_CLUSTERS = 2  # so many times `n_neighbors`, in samples, are not worth a warning
_BELOW_CHANCE = 0.8
_MOST_CLASSES = 1 / 3  # of the samples


class Tracker:
    """Measures each check of one training, keeps the history and the record, and says what to keep and when to stop.

    Whoever trains drives it in this order; a record and a resume need `begin`, `end_check`, `end` and `go_on` besides.

        tracker = Tracker(Settings(patience=10))
        planned = tracker.plan_checks(n_training=len(inputs), n_visited=len(inputs), n_operations=100_000)
        tracker.prepare(bu_torch.samples.samples.choose_among(inputs, labels, lambda n: planned.n_samples, seed=0))
        for epoch in range(500):
            train_one_epoch(model)
            tracker.update_average(model, epoch)
            with tracker.averaged(model):
                entry = tracker.add(epoch, tracker.measure(model(tracker.perturbed_inputs)))
                if tracker.kept is entry:
                    save(model)
            if tracker.verdict.should_stop:
                break

    Where several processes train, one of them prepares and measures, and all of them `add` the same values.

    Args:
        settings: `Settings`; with `MeasurementSettings` alone, nothing is decided.
        warn: How to warn; by default `warnings.warn`.

    Attributes:
        history: One dict a check, in order: `epoch`, `step` where it is known, the signals, `standard_error` (of the
            difference between its expected accuracy and the highest before; 0 for the first), and what the rule adds;
            floats, NaN where a logit was not finite.
        verdict: The decision after the last check.
        average: The average of the weights at the checks; None for none, as with `settings.averaging=None`.
        plan: How many samples are looked at, and how often each is perturbed; None before `plan_checks`.
        n_not_compared: How many checks at the start of `history` come from other samples or settings, before a resume,
            or were added as not counted. They count neither for the patience nor as best.
        setup_seconds: What the preparation took, in seconds.
        check_seconds: What the checks took so far, in seconds.
        saving_seconds: What it took so far to save what is kept, in seconds.
        found_in: The file that `prepare` has read; None where it has computed.
        kept_in: The file that `prepare` has written; None where there is none.
        is_restored: Whether `prepare` could take what a resumed state holds for it; False for damage.
    """

    history: list[dict[str, Any]]
    verdict: Verdict
    average: WeightAverage | None
    plan: Plan | None
    n_not_compared: int
    setup_seconds: float
    check_seconds: float
    saving_seconds: float
    _standing: Standing  # of the last check
    _signals: Signals | None  # only where it was prepared
    _predictions: Tensor  # at the last check, (n_draws * N,)
    _best_predictions: Tensor  # at the check of highest expected accuracy that counts, likewise
    _fingerprint: str | None  # of the samples

    def __init__(self, settings: MeasurementSettings, warn: Callable[[str], None] | None = None) -> None:
        self.settings = settings
        self.selection: SelectionRule | None = None
        if isinstance(settings, Settings):
            self.selection = SelectionRule(
                settings.rule, smoothing=settings.smoothing, start_from_epoch=settings.start_from_epoch
            )
        self.warn = warn if warn is not None else _warn
        self.reset()

    def reset(self) -> None:
        """Forget everything: another training begins."""
        self.history = []
        self.verdict, self._standing = Verdict(), Standing()
        past = self.settings.averaging
        self.average = None if past is None else WeightAverage(past, self.settings.averaging_device)
        self.plan = None
        self.n_not_compared = 0
        self.setup_seconds = 0.0
        self.check_seconds = 0.0
        self.saving_seconds = 0.0
        self._signals = None
        self._measurement: Measurement | None = None
        self._recognition = Recognition()
        self._predictions = self._best_predictions = torch.empty(0, dtype=torch.int64)
        self._fingerprint = None
        self._prepared: Mapping[str, Any] | None = None
        self.is_restored = True
        self.found_in: Path | None = None
        self.kept_in: Path | None = None
        self._has_warned = False
        self._n_columns = 0  # of the logits that were measured here
        self._space: Literal["inputs", "patches", "tokens"] | None = None
        self._record: Record | None = None
        self._about: dict[str, Any] = {"data": {}, "classes": None}
        self._rows = torch.empty(0, dtype=torch.int64)
        self._began = time.perf_counter()
        self._has_resumed = False
        self._seconds_elsewhere = 0.0
        if self.selection is not None:
            self.selection.rule.reset()

    def planned(
        self,
        n_training: int,
        n_visited: int,
        n_operations: int,
        *,
        max_samples: int | None = None,
    ) -> Plan:
        """How many samples to look at, by the settings alone.

        Args:
            n_training: How many training samples there are.
            n_visited: How many of them an epoch of one process visits.
            n_operations: Of a forward pass of one sample (`bu_torch.run.budget.count_operations`).
            max_samples: Used instead of `settings.max_samples`.
        """
        return plan(
            n_training,
            n_visited,
            n_operations,
            budget=self.settings.budget,
            n_draws=self.settings.n_draws,
            max_samples=self.settings.max_samples if max_samples is None else max_samples,
            n_neighbors=self.settings.n_neighbors,
        )

    def plan_checks(
        self, n_training: int, n_visited: int, n_operations: int, *, max_samples: int | None = None
    ) -> Plan:
        """Decide as `planned` says; a training that is resumed, or has decided, keeps its plan."""
        self.plan = self.plan or self.planned(n_training, n_visited, n_operations, max_samples=max_samples)
        return self.plan

    def prepare(
        self,
        samples: Samples,
        *,
        module: nn.Module | None = None,
        cache: Path | Literal["auto"] | None = None,
        has_progress_bar: bool = False,
        is_saved: bool = True,
        class_weight: ClassWeight | None = None,
    ) -> str:
        """Compute all that does not depend on the network.

        Args:
            samples: As many as planned.
            module: The network, as it is before training: its features may be the space of neighbours.
            cache: File to read what is computed from, or to write it to; `"auto"` for one in the user's cache folder,
                None for none.
            has_progress_bar: Show a progress bar after a few seconds.
            is_saved: Write the cache if it is not there.
            class_weight: Weights of the classes, if `settings.class_weight` is None.

        Returns:
            Fingerprint of samples and settings, for `go_on`.

        Raises:
            ValueError: As for `Signals.fit` and `Signals.load`.
            TypeError: As for `Signals.fit`.
        """
        if samples.n_ignored:
            self.warn(
                f"{samples.n_ignored} samples have the label {IGNORED}, which torch's losses ignore: they are left out."
            )
        self._warn_of_small_budget(samples)
        samples, n_draws = self._within_memory(samples)
        self._warn_of_many_classes(samples)
        signals = self.settings.make_signals(n_draws, module, class_weight)
        boundary = signals.boundary
        if self.history:  # as it was chosen when the run began
            boundary.known_space = self._space
        self._signals = self._restored(signals, samples)
        file = cache if isinstance(cache, Path) else None
        if self._signals is None and boundary.may_use_module(samples.inputs):
            is_asked_for = boundary.feature_extractor is not None
            if file is not None and is_asked_for:
                self.warn(f"Features of a network differ from run to run: they are not kept in the cache {file}.")
                file = None
            # What a file holds follows from the samples alone; and a run that resumes has learnt the labels by now.
            elif not is_asked_for and (file is not None or (self.history and self._space is None)):
                boundary.module = None
        if self._signals is None:
            options: dict[str, Any] = {
                "sample_weight": samples.weights,
                "has_progress_bar": has_progress_bar,
                "is_saved": is_saved,
            }
            if cache == "auto":
                cached = fit_or_find(signals, samples.inputs, samples.labels, **options)
            else:
                cached = fit_or_load(signals, samples.inputs, samples.labels, file, **options)
            self.found_in, self.kept_in = cached.found_in, cached.kept_in
            if cached.refusal:
                self.warn(f"{cached.refusal} To turn the cache off: `cache=None` or `BU_TORCH_CACHE=off`.")
            self._signals = signals
            self._keep_space(signals, samples.inputs)
        self._rows = samples.rows
        self._adapt(len(samples.inputs))
        present, shares = class_shares(self._signals.boundary.labels, samples.weights)
        self._about = {
            "data": {
                "n_samples": len(samples.inputs),
                "n_draws": n_draws,
                "n_training": samples.n_training,
                "n_classes": int(samples.labels.max()) + 1,
                "n_present": len(present),
                "smallest_class_share": round(float(shares.min()), 4),  # as training draws them
                "largest_class_share": round(float(shares.max()), 4),
                "sampling": "uniform" if samples.weights is None else "weighted",
                "shape": list(samples.inputs.shape[1:]),
                "space": self._signals.boundary.space_name_,
                "perturbation": self._signals.boundary.kind_of_perturbation(samples.inputs),
            },
            "classes": samples.classes,
        }
        return self._signals.fingerprint

    def _warn_of_small_budget(self, samples: Samples) -> None:
        """Say so where a number has left hardly more than one cluster of neighbours, which no score can be made of."""
        asked, n_samples = self.settings, len(samples.inputs)
        is_bound = asked.max_samples is None and asked.budget not in (None, "auto") and n_samples < samples.n_training
        if is_bound and n_samples < _FEWEST_CLUSTERS * asked.n_neighbors:
            self.warn(
                f"`budget={asked.budget:g}` leaves {n_samples} of {samples.n_training} samples for a check, hardly more"
                f" than one cluster of `n_neighbors={asked.n_neighbors}`. Raise `budget`, or leave it at 'auto', which"
                " has a floor for small data."
            )

    def _warn_of_many_classes(self, samples: Samples) -> None:
        n_samples = len(samples.inputs)
        n_present = len(torch.unique(as_labels(samples.labels, n_samples)))
        if n_present > _MOST_CLASSES * n_samples:
            more = "" if n_samples == samples.n_training else " Look at more of them (`max_samples`)."
            self.warn(
                f"The {n_samples} samples that are looked at have {n_present} different labels, so that neighbours say"
                f" little of a label.{more} Where labels are numbers to be predicted, that is a regression, which has"
                " no decision boundary: this is for classifiers."
            )

    def _adapt(self, n_samples: int) -> None:
        if self.selection is not None:
            self.selection.rule.adapt(n_samples, self.settings.n_neighbors)

    def _keep_space(self, signals: Signals, inputs: Tensor) -> None:
        """Keep what a resumed run cannot find again, for the network has changed by then."""
        self._prepared = self._space = None
        if signals.boundary.may_use_module(inputs):
            match signals.boundary.space_name_:
                case "inputs":
                    self._space = "inputs"
                case "patches":
                    self._space = "patches"
                case "tokens":
                    self._space = "tokens"
                case _:
                    self._prepared = signals.prepared()

    def _restored(self, signals: Signals, samples: Samples) -> Signals | None:
        """The signals of a run that resumes, where the network of its start was the space; else None."""
        if self._prepared is None or not self.history or not signals.boundary.may_use_module(samples.inputs):
            return None
        try:
            return signals.restore(self._prepared, samples.inputs, samples.labels, samples.weights)
        except ValueError:  # of other samples, or damaged: what follows says so
            self.is_restored = False
            return None

    def _within_memory(self, samples: Samples) -> tuple[Samples, int]:
        """As many samples and draws of those planned as there is room for: some arrays have a column for each class."""
        made = self.plan_checks(len(samples.inputs), len(samples.inputs), 0)
        labels = as_labels(samples.labels, len(samples.inputs))
        n_rows = MOST_ENTRIES // len(torch.unique(labels))
        n_samples = len(labels)
        if made.n_draws * n_samples <= n_rows:
            return samples, made.n_draws
        n_draws = made.n_draws if self.settings.n_draws is not None else max(1, n_rows // n_samples)
        if self.settings.max_samples is None and n_draws * n_samples > n_rows >= self.settings.n_neighbors:
            n_samples = n_rows // n_draws
            rows = stratified_rows(len(labels), n_samples, self.settings.seed, labels)
            samples = samples.at(rows)
        self.plan = Plan(n_samples, n_draws)
        self.warn(
            f"So many classes need much memory: a check looks at {n_samples} samples, {n_draws} times perturbed, where"
            f" {made.n_samples} and {made.n_draws} were planned."
        )
        return samples, n_draws

    def go_on(self, fingerprint: str, is_restored: bool = True, n_samples: int | None = None) -> bool:
        """Compare the samples with those of the checks so far; False if they differ, so that those count no more.

        Args:
            fingerprint: What `prepare` gave where it was called.
            is_restored: What `is_restored` was there: whether the state could be gone on with.
            n_samples: What `n_samples` was there, where that is another process.
        """
        if n_samples is not None:
            self._adapt(n_samples)
        are_the_same = not self.history or (is_restored and self._fingerprint in (None, fingerprint))
        if not are_the_same:
            self._compare_nothing_before()
        self._fingerprint = fingerprint
        return are_the_same

    def release(self) -> None:
        """Free what `prepare` computed, and the average: training has ended."""
        self._signals = None
        if self.average is not None:
            self.average.forget()
        self._measurement = None

    @property
    def is_prepared(self) -> bool:
        """Whether `prepare` has been called here."""
        return self._signals is not None

    @property
    def signals(self) -> Signals:
        """What was prepared.

        Raises:
            RuntimeError: If `prepare` has not been called.
        """
        if self._signals is None:
            raise RuntimeError("This Tracker has no samples yet: call `prepare` first.")
        return self._signals

    def cache(self) -> str:
        """What of the preparation was found or is kept, and where, in words; "" where neither."""
        if self.found_in is not None:
            return (
                f"Boundary uncertainty found what an earlier run has prepared: {self.found_in}. `cache=None` computes"
                " it anew."
            )
        if self.kept_in is None:
            return ""
        is_shared = self.kept_in.parent == user_cache.folder()
        off = "`cache=None` or `BU_TORCH_CACHE=off`" if is_shared else "`cache=None`"
        return (
            "Boundary uncertainty kept neighbours, distances, class probabilities and labels of"
            f" {len(self.signals.boundary.labels)} samples for later runs: {self.kept_in}. To change it: {off}."
        )

    def balance(self) -> str:
        """How classes count in what is measured, where that is worth a word; else ""."""
        boundary = self.signals.boundary
        if boundary.class_weight is not None:
            return ""
        drawn = "" if boundary.weights is None else "Samples count as often as the sampler draws them."
        if (rare := rare_class(boundary.labels, boundary.weights)) is None:
            return drawn
        label, share = rare
        return (
            f"{drawn}{drawn and ' '}Class {label} is {share:.1%} of what training draws, and has that weight in"
            " expected accuracy. To change it: `class_weight='balanced'` counts all classes alike."
        )

    def space(self) -> str:
        """Where neighbours are found, and why, where it was chosen; else ""."""
        boundary = self.signals.boundary
        if not boundary.skills_:
            return ""
        told = ", ".join(f"{name} {skill:.2f}" for name, skill in boundary.skills_.items())
        where = {
            "inputs": "the inputs",
            "patches": "features of patches",
            "tokens": "counts of tokens",
            "module": "the network's own features",
        }
        found = where[boundary.space_name_]
        return f"Neighbours are found among {found}: left-out labels are predicted best there ({told})."

    @property
    def perturbed_inputs(self) -> Tensor:
        """Where the network is to be read, (n_draws * N, ...)."""
        return self.signals.perturbed_inputs

    @property
    def n_samples(self) -> int:
        """How many samples a check looks at."""
        return int(self._about["data"]["n_samples"])

    @property
    def n_classes(self) -> int:
        """The least number of logits that a network must give."""
        return int(self._about["data"]["n_classes"])

    def to(self, device: torch.device | str) -> None:
        """Move what was prepared to where the network is."""
        self.signals.to(device)

    def update_average(self, model: object, epoch: int, step: int | None = None) -> None:
        """Let the weights of a check enter the average, where there is one, before the check is measured.

        Args:
            model: The network in training; what is no `torch.nn.Module` has no weights to average.
            epoch: As for `add`; what takes the last check's place enters no second time.
            step: Likewise.
        """
        if self.average is not None and isinstance(model, nn.Module):
            self.average.update(model, is_again=self._is_last(epoch, step))

    def averaged(self, model: object) -> AbstractContextManager[None]:
        """Have what is measured and kept in the network: the average, where there is one."""
        if self.average is None or not isinstance(model, nn.Module):
            return nullcontext()
        return self.average.inside(model)

    def _is_last(self, epoch: int, step: int | None) -> bool:
        return bool(self.history) and (self.history[-1]["epoch"], self.history[-1].get("step")) == (epoch, step)

    def measure(self, logits: Tensor) -> dict[str, float]:
        """Signals and `standard_error` of the network's logits at `perturbed_inputs`; waits for the device once.

        Args:
            logits: (n_draws * N, J), on the device of what was prepared.

        Raises:
            RuntimeError: If `prepare` has not been called.
            TypeError: If the logits are not a floating-point tensor.
            ValueError: If they have the wrong shape.
        """
        if self.check_seconds == 0:
            warn_of_probabilities(logits, "The module", self.warn)
        before, best = (
            known.to(logits.device) if len(known) == len(logits) else None
            for known in (self._predictions, self._best_predictions)
        )
        self._n_columns = logits.shape[1]
        self._measurement = self.signals.measure(logits, before, best)
        self._predictions = self._measurement.predictions
        values = {**self._measurement.values, STANDARD_ERROR: self._measurement.standard_error}
        scalars = torch.stack(list(values.values()))
        if self.selection is None:
            return dict(zip(values, scalars.tolist(), strict=True))
        measured = torch.cat((scalars, self._measurement.recalls())).tolist()
        self._recognition.take(measured[len(values) :])
        return dict(zip(values, measured[: len(values)], strict=True))

    def add(
        self, epoch: int, values: Mapping[str, float], step: int | None = None, *, is_counted: bool = True
    ) -> dict[str, Any]:
        """Add a check to the history, and decide.

        Args:
            epoch: At least that of the last check.
            values: What `measure` gave.
            step: Optimiser steps so far, where they are known. A check of the same epoch and step as the last one, as a
                resumed training may end an epoch a second time, takes its place.
            is_counted: False for a check that counts neither for the patience nor as best, nor does any before it.

        Returns:
            The new entry of `history`.
        """
        if self._is_last(epoch, step):
            self.history.pop()
            self.n_not_compared = min(self.n_not_compared, len(self.history))
            self._decide_anew()
        entry = {"epoch": epoch, **({} if step is None else {"step": step}), **values}
        if self._is_of_highest_accuracy(entry):
            self._best_predictions = self._predictions
        self.history.append(entry)
        if self.selection is not None:
            self.selection.complete(self.compared)
            before = self._standing.largest
            self._decide(entry)
            if self.last_standing is not None:
                self._recognition.add(epoch, step, is_kept=self._standing.largest > before)
        if not is_counted:
            self._compare_nothing_before()
        self._warn_of_worse_than_chance()  # last, for a warning may be made an error
        return entry

    def _is_of_highest_accuracy(self, entry: Mapping[str, Any]) -> bool:
        """Whether no check that counts had an expected accuracy as high as this one, which counts."""
        first = 0 if self.selection is None else self.selection.start_from_epoch
        accuracy = entry.get("expected_accuracy", math.nan)
        before = (check.get("expected_accuracy", math.nan) for check in self.compared if check["epoch"] >= first)
        return entry["epoch"] >= first and math.isfinite(accuracy) and not any(other >= accuracy for other in before)

    def _warn_of_worse_than_chance(self) -> None:
        """Say once that the network predicts what the labels contradict, which no training aims at."""
        n_classes = self._about["data"].get("n_present", 0)
        if self._has_warned or not n_classes:
            return
        accuracy, n_checks = self.history[-1]["expected_accuracy"], len(self.history)
        last = [entry["expected_accuracy"] for entry in self.history[-_SETTLED:]]
        is_rising = last[-1] > last[0]  # as that of a network that still learns
        is_too_wide = n_checks == 1 and self._n_columns > self.n_classes
        is_settled = n_checks >= _SETTLED and not is_rising
        if not (is_too_wide or is_settled) or not all(one < _BELOW_CHANCE / n_classes for one in last):
            return
        self._has_warned = True
        if is_too_wide:
            self.warn(
                f"The network gives {self._n_columns} columns, and the labels have {n_classes} classes. Expected"
                f" accuracy is {accuracy:.2f} at the first check, worse than chance. If `forward` returns an embedding,"
                " let it return the logits, one for each class; `output_key=` names them in a tuple or a dict."
            )
            return
        self.warn(
            f"Expected accuracy is {accuracy:.2f} after {n_checks} checks, worse than chance with {n_classes} classes."
            " Does `training_step` change the labels, or does `forward` give something other than one logit for each"
            " class of the labels? If so, the scores do not describe the trained network. Change labels in the dataset"
            " or in `on_after_batch_transfer`."
        )

    @property
    def compared(self) -> list[dict[str, Any]]:
        """The checks that can be compared with one another: all but the first `n_not_compared`."""
        return self.history[self.n_not_compared :]

    @property
    def kept(self) -> dict[str, Any] | None:
        """The check whose weights are to be kept; None if no check counts yet."""
        return None if self.selection is None else self.selection.kept(self.compared)

    @property
    def highest(self) -> dict[str, Any] | None:
        """The check of the highest score, which may not be the one to keep; None if no check counts yet."""
        return None if self.selection is None else self.selection.highest(self.compared)

    @property
    def score_name(self) -> str:
        """The entry of a check that holds its score; "" without a rule."""
        return "" if self.selection is None else self.selection.score_name

    @property
    def last_standing(self) -> float | None:
        """By what the last check compares with those before it (`Standing.last`); None if it counts not."""
        return self._standing.last

    def check_of_standing(
        self, standing: float, epoch: int | None = None, step: int | None = None
    ) -> dict[str, Any] | None:
        """The first check of exactly this standing; of `epoch` and `step`, if those are known.

        Where none has it, as with a rule that has changed its mind about an earlier check, that of `epoch` and `step`.
        """
        if self.selection is None:
            return None
        standings = self.selection.standings(self.compared)
        found = [entry for entry, one in zip(self.compared, standings, strict=True) if one == standing]
        found = found or [entry for entry in self.compared if entry["epoch"] == epoch and entry.get("step") == step]
        of_epoch = [entry for entry in found if entry["epoch"] == epoch]
        of_step = [entry for entry in of_epoch if entry.get("step") == step]
        return next(iter((*of_step, *of_epoch, *found)), None)

    def why_stopped(self, epoch: int, step: int | None = None) -> str:
        """Why training should stop, in words; "" where it should go on.

        Args:
            epoch: In which it should.
            step: Likewise, where checks are made within epochs.
        """
        if self.selection is None or not self.verdict.should_stop:
            return ""
        settings = self.settings
        assert isinstance(settings, Settings)  # noqa: S101  (there is a rule)
        where = f"in epoch {epoch}" if step is None else f"at step {step} of epoch {epoch}"
        start = f"Stopped {where}: {self.selection.title}"
        if self.verdict.reason == Reason.NON_FINITE_METRIC:
            return f"{start} gave a score that is not finite ({self.last_standing})."
        if self.verdict.reason == Reason.STOPPING_THRESHOLD:
            return f"{start} rose above the stopping threshold {settings.stopping_threshold}."
        wait = self.verdict.wait
        now, unit = (epoch, "epoch") if step is None else (step, "step")
        then = self.compared[-1 - wait].get(unit) if wait < len(self.compared) else None
        since = f" ({now - then} {unit}s)" if then is not None and now - then > wait else ""
        checks = "check" if wait == 1 else f"{wait} checks"
        return f"{start} did not improve in the last {checks}{since}."

    def why_none_kept(self) -> str:
        """Why no epoch is kept, in words."""
        if not self.history:
            return "no check was made"
        if not self.compared:
            return "no check counted"
        if self.selection is not None and all(self.selection.score(entry) is None for entry in self.compared):
            return f"all checks were of epochs before `start_from_epoch={self.selection.start_from_epoch}`"
        return "no finite check counted"

    def unrecognised(self, check: Mapping[str, Any]) -> str:
        """Name a class that loses much by what is kept; "" if none does, or if classes are weighted.

        Args:
            check: Kept entry of `history`.
        """
        if self._signals is None or self._signals.boundary.class_weight is not None:
            return ""
        classes, counts = torch.unique(self._signals.boundary.labels, return_counts=True)
        return self._recognition.line(check, classes, counts)

    def details(self) -> Details | None:
        """What the last check saw behind its numbers, until `end_check`; None where it was not measured here."""
        return None if self._measurement is None else self._measurement.details()

    # The record.

    @property
    def record_path(self) -> str:
        """The table of checks on disk; "" where there is none."""
        return "" if self._record is None or self._record.path is None else str(self._record.path)

    def begin(self, started: float, folder: Path | None, settings: Mapping[str, Any]) -> None:
        """Training begins: count its time from now on, and open a record.

        Args:
            started: When the preparation began, by `time.perf_counter`.
            folder: Where to leave the record; None for nowhere.
            settings: What the record tells of them.
        """
        self._began = time.perf_counter()
        self._has_resumed = bool(self.history)
        self._seconds_elsewhere = 0.0
        self.setup_seconds = self._began - started
        if folder is not None:
            rule = None if self.selection is None else self.selection.rule.name
            settings = {**settings, **self._rule_settings()}
            header = header_line({**settings, "rule": rule}, self._about, self.n_not_compared, self.setup_seconds)
            self._record = Record(folder, header, map(row, self.history), self._columns())

    def end_check(self, started: float, details: Details | None, train_loss: float | None = None) -> None:
        """Count what the last check took, and write it to the record.

        Args:
            started: When it began, by `time.perf_counter`.
            details: What it saw; None to leave that out.
            train_loss: The loss on the training samples; None where it is not known.
        """
        if self._record is not None and self._record.path is not None and details is not None:
            self._record.tell(check_line(self.history[-1], details, self._rows) | self._not_compared())
        self._measurement = None  # it holds the logits
        now = time.perf_counter()
        self.check_seconds += now - started
        if self._record is not None:
            seconds = now - self._began - self._seconds_elsewhere
            self._record.append(row(self.history[-1], seconds, self.check_seconds, train_loss))

    @contextmanager
    def saving(self) -> Iterator[None]:
        """Within, what is kept is saved: its time counts as that."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self.saving_seconds += time.perf_counter() - started

    def leave_out(self, seconds: float) -> None:
        """Count so many seconds, which have just passed, neither as training nor as checks: others took them."""
        self._seconds_elsewhere += seconds

    @property
    def is_recorded(self) -> bool:
        """Whether there is a record that can be written."""
        return bool(self.record_path)

    def end(self, reason: str, **kept: Any) -> None:
        """Write the last line of the record.

        Args:
            reason: Why training ended.
            **kept: `kept_epoch`, `kept_step`, `stopped_epoch` and `best_model_path`, of what decided.
        """
        if self._record is not None:
            self._record.tell(end_line(reason, **kept) | self._not_compared())

    def _not_compared(self) -> dict[str, int]:
        """What the header of the record did not know yet."""
        return {"n_not_compared": self.n_not_compared} if self.n_not_compared else {}

    @property
    def training_seconds(self) -> float:
        """Time since `begin` without checks, saving, and what others took, in seconds."""
        beside = self._seconds_elsewhere + self.check_seconds + self.saving_seconds
        return time.perf_counter() - self._began - beside

    def cost(self) -> str:
        """What this training has cost beside training itself, in words; of a resumed one, since then.

        At least so much: what a trainer does for its hooks and with what is logged is not known here.
        """
        parts = {"preparation": self.setup_seconds, "checks": self.check_seconds, "saving": self.saving_seconds}
        seconds = self.training_seconds
        share = sum(parts.values()) / max(seconds, 1e-9)
        told = ", ".join(f"{name} {spent:.1f} s" for name, spent in parts.items() if spent or name != "saving")
        total = sum(round(spent, 1) for spent in parts.values())  # of the parts as they are told
        start = "Since the run resumed, boundary" if self._has_resumed else "Boundary"
        return (
            f"{start} uncertainty took at least {total:.1f} s ({told}) beside {seconds:.1f} s of training: {share:.0%}."
        )

    # What a resumed training needs.

    def state_dict(self) -> dict[str, Any]:
        """All of it, as plain numbers, strings and tensors on the CPU."""
        state = {
            "history": self.history,
            "predictions": self._predictions.cpu().to(torch.int32),
            "best_predictions": self._best_predictions.cpu().to(torch.int32),
            "plan": None if self.plan is None else dataclasses.astuple(self.plan),
            "asked": self._asked(),
            "samples": self._fingerprint,
            "n_not_compared": self.n_not_compared,
        }
        if recalls := self._recognition.state_dict():
            state["recalls"] = recalls
        if self._prepared is not None:
            state["prepared"] = dict(self._prepared)
        if self._space is not None:
            state["space"] = self._space
        if self.average is not None:
            state["average"] = self.average.state_dict()
        if self.selection is not None:
            state |= {"settings": self._compared_settings(), "rule": self.selection.rule.state_dict()}
        return state

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on where `state_dict` was taken; with other settings, patience and the best epoch start anew.

        Raises:
            ValueError: If it is no state of a tracker, or was taken under a rule that was removed.
        """
        state = read_state(state_dict, max(MAX_DRAWS, self.settings.n_draws or 0))
        settings = self._compared_settings() if state.settings is None else state.settings
        refuse_removed_rule(settings.get("rule"))
        self.history = state.history
        self.n_not_compared = state.n_not_compared
        self._predictions, self._best_predictions = state.predictions, state.best_predictions
        self._prepared = state.prepared
        self._recognition = Recognition()
        self._recognition.load_state_dict(state.recalls)
        self._space = state.space
        if self.average is not None and state.average is not None:
            self.average.load_state_dict(state.average)
        if state.plan is not None and state.asked == self._asked():
            self.plan = state.plan
            self._fingerprint = state.samples
        if self.selection is None:
            return
        changed = {
            name: now
            for name, now in self._compared_settings().items()
            if now != settings.get(name) and (name in settings or name not in _SINCE)
        }
        if changed:
            self._compare_nothing_before()
            self._fingerprint = None  # to which weights of classes belong; there is nothing left to compare
            was = ", ".join(f"{name}={settings.get(name)!r:.100}" for name in changed)
            now = ", ".join(f"{name}={value!r:.100}" for name, value in changed.items())
            self.warn(
                f"The run resumes with {now} where it had {was}: its scores cannot be compared with those before, so"
                " patience and the best epoch start anew."
            )
        else:
            self.selection.rule.load_state_dict(state.rule)
            self._decide_anew()

    @property
    def is_comparable(self) -> bool:
        """Whether what is measured from now on can be compared with any check so far."""
        return self.n_not_compared < len(self.history)

    def _compare_nothing_before(self) -> None:
        self._predictions, self._best_predictions = self._predictions[:0], self._best_predictions[:0]
        self.n_not_compared = len(self.history)
        self._recognition = Recognition()
        self.verdict, self._standing = Verdict(), Standing()
        if self.selection is not None:
            self.selection.rule.reset()

    def _decide_anew(self) -> None:
        self.verdict, self._standing = Verdict(), Standing()
        for entry in self.compared:
            self._decide(entry)

    def _decide(self, entry: Mapping[str, Any]) -> None:
        """Go on from the verdict and the standing of the check before."""
        if self.selection is None:
            return
        self._standing = self.selection.stand(self._standing, entry)
        if (score := self.selection.score(entry)) is None:
            return
        assert isinstance(self.settings, Settings)  # noqa: S101  (there is a rule)
        self.verdict = decide(
            self.verdict,
            score,
            patience=self.settings.patience,
            min_delta=self.settings.min_delta,
            min_delta_mode=self.settings.min_delta_mode,
            stopping_threshold=self.settings.stopping_threshold,
            check_finite=self.settings.check_finite,
        )

    def _asked(self) -> list[float | str | None]:
        """Settings that decide what is looked at."""
        asked = self.settings
        return [asked.budget, asked.n_draws, asked.max_samples, asked.n_neighbors, asked.seed, asked.n_components]

    def _compared_settings(self) -> dict[str, Any]:
        if self.selection is None:
            return {}
        named = {name: getattr(self.settings, name) for name in _COMPARED}
        named["averaging"] = None if self.average is None else self.average.past
        if isinstance(weights := named["class_weight"], dict | list):
            named["class_weight"] = repr(weights)  # of all classes
        return {**named, "rule": self.selection.rule.name, **self._rule_settings()}

    def _rule_settings(self) -> dict[str, Any]:
        rule = None if self.selection is None else self.selection.rule
        return {} if rule is None else {f"rule.{name}": value for name, value in rule.settings().items()}

    def _columns(self) -> list[str]:
        """What a check adds to `history` beside its epoch."""
        return [*Signals.NAMES, STANDARD_ERROR, *([] if self.selection is None else self.selection.added)]


def refuse_removed_rule(name: Any) -> None:
    """Raise where a run that resumes was decided by a rule that was removed."""
    if name == REMOVED_RULE:
        raise ValueError(
            f"The run began with `rule={REMOVED_RULE!r}`, which is no more. Begin a new run, from its weights alone if"
            " you like (`Model.load_from_checkpoint`): `rule='expected_accuracy'` is at least as good."
        )


def _warn(message: str) -> None:
    warnings.warn(message, stacklevel=3)
