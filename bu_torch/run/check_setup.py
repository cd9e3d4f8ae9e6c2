"""Samples that checks use, the signals fitted to them, and what one check leaves for the next."""

import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, get_args

import torch
from torch import Tensor, nn

from bu_torch.estimators.space_choice import SpaceName
from bu_torch.internal.inputs import as_labels
from bu_torch.internal.logits import packed_model
from bu_torch.internal.packing import Packing
from bu_torch.internal.printing import untold
from bu_torch.perturbation.draws import kind_of
from bu_torch.rule.rules import STANDARD_ERROR, MetricRule
from bu_torch.run.budget import Plan, describe_ignored, plan
from bu_torch.run.history import JUDGED_RULES, Confidence, History, confidence_in
from bu_torch.run.settings import Settings, settings_for
from bu_torch.samples.balance import ClassWeight, class_shares, rare_class
from bu_torch.samples.readings import with_readings
from bu_torch.samples.samples import Samples, fewer_of
from bu_torch.signals.details import (
    Measurement,
    accuracy_alone,
    class_names,
    describe_blindness,
    describe_few,
    describe_threshold,
)
from bu_torch.signals.measuring import Signals
from bu_torch.signals.preparation import fit_with_progress

_MOST_CLASSES_A_SAMPLE = 1 / 3


class CheckSetup:
    """Plan of the checks, the fitted `Signals`, what the last check left, and the part of these for a resumed run.

    The first process calls `prepare`, and all `accept` what it returns. `warn` and `tell` take lines for the log.
    """

    def __init__(self, settings: Settings, warn: Callable[[str], None], tell: Callable[[str], None]) -> None:
        self.settings, self._warn, self._tell = settings, warn, tell
        self._detail = tell if settings.verbose else untold
        self.plan: Plan | None = None
        self.fingerprint: str | None = None  # identifies the samples of earlier checks
        self.packing: Packing | None = None  # layout of several tensors a sample in one
        self.takes_readings = False  # perturbed samples are further readings
        self.about: dict[str, Any] = {"data": {}, "classes": None}  # samples and classes in words, for the record
        self.rows = torch.empty(0, dtype=torch.int64)  # places of the samples in the dataset, (N,)
        self._signals: Signals | None = None  # only in the process that has prepared
        # A resumed run cannot repeat the choice of a space, because the network has changed. So a state holds the whole
        # preparation if the space is the network's features, and otherwise the name of the space.
        self._saved: dict[str, Any] | None = None  # `Signals.state`
        self._space: SpaceName | None = None
        self.n_columns = 0  # width of the last logits that this process measured
        self.measurement: Measurement | None = None  # of the check that is running, where it was measured
        # The next check is compared with the last one, (n_draws * N,), and with the best by expected accuracy, or
        # metric, (N,), which may be another check than the one with the best score.
        self.predictions: Tensor | None = None
        self.contributions: Tensor | None = None
        self.best_contributions: Tensor | None = None

    def _plan_and_choose(self, samples: Samples, planned: Callable[[int, int], Plan] | None) -> Samples:
        """Plan, unless a resumed run has a plan, and take as many of the samples; augmented ones are read again."""
        planned = planned or (lambda n, n_bytes: plan(self.settings, n, n, 0, n_bytes))
        self.plan = self.plan or planned(samples.n_training, samples.inputs[:1].nbytes)
        samples = fewer_of(samples, self.plan.n_samples, self.settings.seed)
        chosen = f"{len(samples.inputs)} samples"
        if self.plan.n_samples < samples.n_training:
            chosen = f"a random {len(samples.inputs)} of {samples.n_training} training samples"
        draws = "1 draw" if self.plan.n_draws == 1 else f"{self.plan.n_draws} draws"
        self._detail(f"bu-torch measures at {chosen}, {draws} each.")
        if line := describe_ignored(samples.n_ignored):
            self._warn(line)
        return with_readings(samples, self.plan.n_draws, self.settings.perturbation, self._warn)

    def prepare(
        self,
        give_samples: Callable[[], Samples],
        planned: Callable[[int, int], Plan] | None = None,
        *,
        device: torch.device | None = None,
        module: nn.Module | None = None,
        class_weight: ClassWeight | None = None,
        has_resumed: bool = False,
    ) -> tuple[Any, ...]:
        """Choose samples, fit the signals to them or load them, and say how they are measured.

        `give_samples` gives those to choose from, `planned` the plan of a check from the number of training samples and
        the bytes of one, 0 for no limit. Checks are made on `device`, or
        that of the samples. The space may be the features of `module` before training, and stays if earlier checks were
        made (`has_resumed`). `class_weight` applies if the settings have none. Errors are those of `Signals`.
        """
        samples = self._plan_and_choose(give_samples(), planned)
        assert self.plan is not None  # noqa: S101  (made just now)
        self.packing, self.takes_readings = samples.packing, samples.readings is not None
        self._check_classes(samples)
        make_signals = partial(
            settings_for(self.settings, samples).make_signals,
            self.plan.n_draws,
            class_weight=class_weight,
            known_space=self._space,
        )
        signals = make_signals(None if module is None else packed_model(module, samples.packing))
        may_use_module, is_restored = signals.boundary.may_use_module(samples.inputs), True
        if has_resumed and may_use_module and self._saved is not None:
            try:
                signals.restore(self._saved, samples.inputs, samples.labels, samples.weights)
            except Exception:  # damaged, which may raise anything, or for other samples: the caller warns
                is_restored = False
        if not (has_resumed and may_use_module and self._saved is not None and is_restored):
            is_open = may_use_module and signals.boundary.feature_extractor is None and self._space is None
            if has_resumed and is_open:  # a network that has learnt the labels would leak them into the choice
                signals, may_use_module = make_signals(None), False
            inputs = samples.inputs.to(self._faster_device(samples, device))
            fit_with_progress(signals, inputs, samples.labels, samples.weights)
            name: Any = signals.boundary.space_name_
            self._space = name if may_use_module and name in get_args(SpaceName) else None
            self._saved = signals.state() if may_use_module and self._space is None else None
        self._signals, self.rows = signals.to(device or samples.inputs.device), samples.rows
        self.about = self._describe(signals, samples)
        for line in self._details():
            self._detail(line)
        for line in self._doubts():
            self._tell(line)
        return self.plan, self.packing, self.takes_readings, signals.fingerprint, is_restored

    def accept(self, prepared: tuple[Any, ...]) -> bool:
        """Take over what the first process has prepared; False if it is for other samples than a resumed state has."""
        before = self.fingerprint
        self.plan, self.packing, self.takes_readings, self.fingerprint, is_restored = prepared
        return before is None or (is_restored and before == self.fingerprint)

    def _check_classes(self, samples: Samples) -> None:
        """Warn if labels look like numbers to predict."""
        n_samples, labels = len(samples.inputs), as_labels(samples.labels, len(samples.inputs))
        n_present = len(torch.unique(labels))
        if n_present > _MOST_CLASSES_A_SAMPLE * n_samples:
            more = "" if n_samples == samples.n_training else " Use more of them (`max_samples`)."
            self._warn(
                f"The {n_samples} samples in use have {n_present} different labels, so neighbours say little about a"
                f" label.{more} If the labels are numbers to predict, the task is a regression, which has no decision"
                " boundary: this is for classifiers."
            )

    def _faster_device(self, samples: Samples, device: torch.device | None) -> torch.device:
        """Device on which preparation is faster: that of the checks for images, else that of the samples."""
        is_image = samples.packing is None and samples.inputs.ndim == 4
        has_own_code = callable(self.settings.feature_extractor) or callable(self.settings.perturbation)
        if device is None or device.type == "mps" or has_own_code or not is_image:  # MPS has no float64
            return samples.inputs.device
        return device

    def _describe(self, signals: Signals, samples: Samples) -> dict[str, Any]:
        present, shares = class_shares(signals.boundary.labels, samples.weights)
        skills = {name: round(skill, 4) for name, skill in signals.boundary.skills_.items()}
        data = {
            "n_samples": len(samples.inputs),
            "n_draws": signals.boundary.n_draws,
            "n_training": samples.n_training,
            "n_classes": int(samples.labels.max()) + 1,
            "n_present": len(present),
            "smallest_class_share": round(float(shares.min()), 4),  # weighted as training draws samples
            "largest_class_share": round(float(shares.max()), 4),
            "sampling": "uniform" if samples.weights is None else "weighted",
            "shape": list(samples.inputs.shape[1:]),
            "space": signals.boundary.space_name_,
            **({"space_skills": skills} if "metric" in skills else {}),
            "perturbation": kind_of(signals.boundary.perturbation, samples.inputs),
        }
        left_out = {"votes": round(signals.vote_skill, 4), "regression": round(signals.regression_skill, 4)}
        return {"data": data, "classes": samples.classes, "skills": left_out}

    @property
    def is_prepared(self) -> bool:
        return self._signals is not None

    @property
    def signals(self) -> Signals:
        """Signals that were prepared; a RuntimeError before."""
        if self._signals is None:
            raise RuntimeError("This Tracker has no samples yet: call `start` first.")
        return self._signals

    def _doubts(self) -> Iterator[str]:
        """A metric that may be of the wrong class, or tells networks apart badly; a class that hardly counts."""
        boundary, metric = self.signals.boundary, self.signals.metric
        if metric is None:
            rare = rare_class(boundary.labels, boundary.weights) if boundary.class_weight is None else None
            if rare is not None:
                yield (
                    f"Class {rare[0]} makes up {rare[1]:.1%} of what training draws, and counts that much in expected"
                    " accuracy. To change it: another `metric`, such as 'balanced_accuracy'. A loss that weighs the"
                    " classes needs `class_weight=`."
                )
            return
        share = float((boundary.labels == 1).double().mean())
        if metric.is_of_one and boundary.classes.n_classes == 2 and share > 0.5:
            whose = f"The {metric.title} is that of class 1, {share:.0%} of the labels."
            yield f"{whose} Swap the labels if you mean class 0."
        elif doubt := metric.doubt(self.about["data"]["n_present"]):
            sentence = f"{doubt[0].upper()}{doubt[1:]}"
            yield f"{sentence}, so the expected {metric.title} tells networks apart badly. Let accuracy decide."

    def _details(self) -> Iterator[str]:
        """How samples are perturbed, in which space neighbours are found, and the prices of a metric."""
        if self.takes_readings:
            yield (
                "A sample differs each time it is read (random augmentation), so bu-torch reads each sample"
                f" {1 + self.signals.boundary.n_draws} times: the first is its place among its neighbours, and further"
                " ones are perturbed samples. To change it: `perturbation=` names a way to move it."
            )
        boundary, metric = self.signals.boundary, self.signals.metric
        if boundary.skills_:
            skills = ", ".join(f"{name} {skill:.2f}" for name, skill in boundary.skills_.items())
            yield (
                f"Neighbours are found in the space {boundary.space_name_!r}, where they predict left-out labels best"
                f" (skill: {skills}). To change it: `feature_extractor`."
            )
        if metric is not None and metric.prices:
            yield metric.prices

    def measure(self, logits: Tensor) -> dict[str, float]:
        """Signals and `standard_error` of the network's logits at the perturbed inputs; waits for the device once."""
        signals = self.signals
        n_samples = len(signals.boundary.labels)
        known = ((self.predictions, n_samples * signals.boundary.n_draws), (self.best_contributions, n_samples))
        before, best = (None if one is None or len(one) != n_rows else one.to(logits.device) for one, n_rows in known)
        self.n_columns = logits.shape[1]
        self.measurement = signals.measure(logits, before, best)
        self.predictions, self.contributions = self.measurement.predictions, self.measurement.contributions
        values = {**self.measurement.values, STANDARD_ERROR: self.measurement.standard_error}
        return dict(zip(values, torch.stack(list(values.values())).tolist(), strict=True))

    def forget_checks(self) -> None:
        """Compare the next check with none before."""
        self.predictions = self.best_contributions = None

    def judge(self, check: Mapping[str, Any], history: History) -> tuple[Confidence | None, str, list[str]]:
        """Judge the kept check; give the doubt about it, "" for none, and what else is to say."""
        signals, selection, metric = self.signals, history.selection, self.signals.metric
        boundary, n_samples = signals.boundary, len(signals.boundary.labels)
        names, value, sign = class_names(boundary.labels, self.about["classes"]), history.value_name, history.sign
        counted = [one for one in history.compared if selection is None or selection.score(one) is not None]
        column, alone = accuracy_alone(boundary.probabilities_of_present, n_samples, boundary.weights)
        if metric is not None:
            alone = metric.uninformed(signals.plain_probabilities(self.n_columns))
        finite = [one[value] for one in counted if math.isfinite(one[value])]
        best = max(finite, key=lambda one: sign * one, default=math.nan)
        skills = signals.vote_skill, signals.regression_skill
        blind, confidence = describe_blindness(best, alone, names[column], skills, metric), None
        rule = None if selection is None else selection.rule
        is_judged = rule is not None and metric is None and rule.name in JUDGED_RULES
        if is_judged or (isinstance(rule, MetricRule) and not rule.metric.is_drawn):
            doubt = "" if metric is None else metric.doubt(len(names))
            if metric is not None and not metric.is_of_sharp:
                doubt = doubt or describe_few(boundary.labels)
            numbers = signals.skill, n_samples, alone
            confidence = confidence_in(check, counted, *numbers, is_blind=bool(blind), metric=metric, doubt=doubt)
        line = blind or ("" if confidence is None else confidence.line())
        threshold = "" if metric is None or blind else describe_threshold(check, metric)
        if confidence is not None and confidence.word == "clear":
            return confidence, "", [remark for remark in (line, threshold) if remark]
        return confidence, line, [threshold] if threshold else []

    def release(self) -> None:
        """Free what was computed, because training has ended."""
        self._signals = self.measurement = None

    def state_dict(self) -> dict[str, Any]:
        """State for a resumed run; predictions are on the CPU, in the smallest type that holds all classes."""
        predictions, best = self.predictions, self.best_contributions
        if predictions is not None:
            is_narrow = int(predictions.max()) <= torch.iinfo(torch.uint8).max
            predictions = predictions.cpu().to(torch.uint8 if is_narrow else torch.int32)
        return {
            "plan": None if self.plan is None else tuple(self.plan),
            "samples": self.fingerprint,
            "prepared": self._saved,
            "space": self._space,
            "predictions": predictions,
            "best_contributions": None if best is None else best.cpu(),
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Continue from a checked state."""
        self._saved, self._space = state["prepared"], state["space"]
        self.predictions, self.best_contributions = state["predictions"], state["best_contributions"]
        plan = state["plan"]
        if plan is not None and plan.n_samples >= self.settings.n_neighbors:
            self.plan, self.fingerprint = plan, state["samples"]
