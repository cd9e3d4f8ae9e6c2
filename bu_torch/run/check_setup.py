"""Samples that checks use, their number, and the signals fitted to them."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn

from bu_torch.estimators.space_choice import SpaceName
from bu_torch.internal.inputs import as_labels
from bu_torch.internal.logits import packed_model
from bu_torch.internal.packing import Packing
from bu_torch.internal.printing import untold
from bu_torch.perturbation.draws import kind_of
from bu_torch.run.budget import Plan, describe_ignored, plan
from bu_torch.run.settings import Settings, settings_for
from bu_torch.samples.balance import ClassWeight, class_shares, rare_class
from bu_torch.samples.readings import with_readings
from bu_torch.samples.samples import Samples, fewer_of
from bu_torch.signals.measuring import Signals
from bu_torch.signals.preparation import fit_with_progress

_MOST_CLASSES_A_SAMPLE = 1 / 3


class Prepared(NamedTuple):
    """Parts of a preparation that all processes need."""

    plan: Plan | None
    packing: Packing | None  # layout of several tensors a sample in one
    takes_readings: bool  # perturbed samples are further readings
    fingerprint: str  # digest of samples and settings
    is_restored: bool  # False if the preparation in a resumed state is damaged or does not fit them


class CheckSetup:
    """Plan of the checks, the fitted `Signals`, and the part of both that a resumed run needs.

    The first process calls `prepare`, and all `accept` what it returns. `warn` and `tell` take lines for the log.
    """

    def __init__(self, settings: Settings, warn: Callable[[str], None], tell: Callable[[str], None]) -> None:
        self.settings, self._warn, self._tell = settings, warn, tell
        self._detail = tell if settings.verbose else untold
        self.plan: Plan | None = None
        self.fingerprint: str | None = None  # identifies the samples of earlier checks
        self._is_restored = True
        self.packing: Packing | None = None
        self.takes_readings = False
        self.about: dict[str, Any] = {"data": {}, "classes": None}  # samples and classes in words, for the record
        self.rows = torch.empty(0, dtype=torch.int64)  # places of the samples in the dataset, (N,)
        self._n_draws = 1
        self._signals: Signals | None = None  # only in the process that has prepared
        # Settings that determine the samples and perturbations: with others, a resumed run plans anew.
        self._plan_settings = [getattr(settings, name) for name in ("n_draws", "max_samples", "n_neighbors", "seed")]
        # A resumed run cannot repeat the choice of a space, because the network has changed. So a state holds the whole
        # preparation if the space is the network's features, and otherwise the name of the space.
        self._saved: dict[str, Any] | None = None  # `Signals.state`
        self._space: SpaceName | None = None

    def _plan_and_choose(self, samples: Samples, planned: Callable[[int, int], Plan] | None, when: str) -> Samples:
        """Plan, unless a resumed run has a plan, and take as many of the samples; augmented ones are read again."""
        if self.plan is None:
            n_training, n_bytes = samples.n_training, samples.inputs[:1].nbytes
            planned = planned or (lambda n, n_bytes: plan(self.settings, n, n, 0, n_bytes))
            self.plan = planned(n_training, n_bytes)
        samples = fewer_of(samples, self.plan.n_samples, self.settings.seed)
        chosen = f"{len(samples.inputs)} samples"
        if samples.is_stratified is not None:
            kind = "stratified random" if samples.is_stratified else "random"
            chosen = f"a {kind} {len(samples.inputs)} of {samples.n_training} training samples"
        draws = "1 draw" if self.plan.n_draws == 1 else f"{self.plan.n_draws} draws"
        self._detail(f"bu-torch measures at {chosen}, {draws} each{when}.")
        if line := describe_ignored(samples.n_ignored):
            self._warn(line)
        self._n_draws = self.plan.n_draws
        return with_readings(samples, self._n_draws, self.settings.perturbation, self._warn)

    def prepare(
        self,
        give_samples: Callable[[], Samples],
        planned: Callable[[int, int], Plan] | None = None,
        *,
        when: str = "",
        device: torch.device | None = None,
        module: nn.Module | None = None,
        class_weight: ClassWeight | None = None,
        has_resumed: bool = False,
    ) -> Prepared:
        """Choose samples, fit the signals to them or load them, and say how they are measured.

        `give_samples` gives those to choose from, `planned` the plan of a check from the number of training samples and
        the bytes of one, 0 for no limit; `when` says for the log when checks are due. Checks are made on `device`, or
        that of the samples. The space may be the features of `module` before training, and stays if earlier checks were
        made (`has_resumed`). `class_weight` applies if the settings have none. Errors are those of `Signals`.
        """
        samples = self._plan_and_choose(give_samples(), planned, when)
        self.packing, self.takes_readings = samples.packing, samples.readings is not None
        self._check_classes(samples)
        make_signals = partial(
            settings_for(self.settings, samples).make_signals,
            self._n_draws,
            class_weight=class_weight,
            known_space=self._space,
        )
        signals = make_signals(None if module is None else packed_model(module, samples.packing))
        if not (has_resumed and self._restores(signals, samples)):
            if self._is_space_left_out(signals, samples, has_resumed=has_resumed):
                signals = make_signals(None)
            inputs = samples.inputs.to(self._faster_device(samples, device))
            fit_with_progress(signals, inputs, samples.labels, samples.weights)
            self._note_space(signals, samples)
        self._signals, self.rows = signals.to(device or samples.inputs.device), samples.rows
        self.about = self._describe(signals, samples)
        for line in self._details():
            self._detail(line)
        for line in self._doubts():
            self._tell(line)
        made = self.plan, self.packing, self.takes_readings
        return Prepared(*made, signals.fingerprint, self._is_restored)

    def accept(self, made: Prepared) -> bool:
        """Take over what the first process has prepared; False if it is for other samples than a resumed state has."""
        before, self.fingerprint = self.fingerprint, made.fingerprint
        self.plan, self.packing, self.takes_readings = made.plan, made.packing, made.takes_readings
        return before is None or (made.is_restored and before == made.fingerprint)

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

    def _is_space_left_out(self, signals: Signals, samples: Samples, *, has_resumed: bool) -> bool:
        """True if the network's features must not be chosen as the space.

        A network that has learnt the labels would leak them into the choice of a space.
        """
        is_open = signals.boundary.feature_extractor is None and signals.boundary.may_use_module(samples.inputs)
        return is_open and has_resumed and self._space is None

    def _note_space(self, signals: Signals, samples: Samples) -> None:
        """Note for a resumed run which space was chosen; the whole preparation, if it is the network's features."""
        self._saved = self._space = None
        if signals.boundary.may_use_module(samples.inputs):
            match signals.boundary.space_name_:
                case "inputs" | "patches" | "tokens" | "metric" as name:
                    self._space = name
                case _:
                    self._saved = signals.state()

    def _faster_device(self, samples: Samples, device: torch.device | None) -> torch.device:
        """Device on which preparation is faster: that of the checks for images, else that of the samples."""
        is_image = samples.packing is None and samples.inputs.ndim == 4
        has_own_code = callable(self.settings.feature_extractor) or callable(self.settings.perturbation)
        if device is None or device.type == "mps" or has_own_code or not is_image:  # MPS has no float64
            return samples.inputs.device
        return device

    def _restores(self, signals: Signals, samples: Samples) -> bool:
        """Load the preparation of a run that resumes, if the network of its start was the space."""
        if self._saved is None or not signals.boundary.may_use_module(samples.inputs):
            return False
        try:
            signals.restore(self._saved, samples.inputs, samples.labels, samples.weights)
        except Exception:  # damaged, which may raise anything, or for other samples: the caller warns
            self._is_restored = False
        return self._is_restored

    def _describe(self, signals: Signals, samples: Samples) -> dict[str, Any]:
        present, shares = class_shares(signals.boundary.labels, samples.weights)
        skills = {name: round(skill, 4) for name, skill in signals.boundary.skills_.items()}
        data = {
            "n_samples": len(samples.inputs),
            "n_draws": self._n_draws,
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
                f" {1 + self._n_draws} times: the first is its place among its neighbours, and further ones are"
                " perturbed samples. To change it: `perturbation=` names a way to move it."
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

    def release(self) -> None:
        """Free what was computed, because training has ended."""
        self._signals = None

    def state_dict(self) -> dict[str, Any]:
        return {
            "plan": None if self.plan is None else tuple(self.plan),
            "asked": self._plan_settings,
            "samples": self.fingerprint,
            "prepared": self._saved,
            "space": self._space,
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Continue from a checked state; with other settings, samples are planned anew."""
        self._saved, self._space = state["prepared"], state["space"]
        plan = state["plan"]
        if state["asked"] == self._plan_settings and plan is not None and plan.n_samples >= self.settings.n_neighbors:
            self.plan, self.fingerprint = plan, state["samples"]
