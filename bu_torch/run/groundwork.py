"""The samples that checks look at, and the preparation of them."""

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from bu_torch.estimators.space_choice import SpaceName
from bu_torch.internal.inputs import as_labels
from bu_torch.internal.network import packed_model
from bu_torch.perturbation.draws import PerturbedInputs
from bu_torch.run import messages, user_cache
from bu_torch.run.budget import Plan, plan
from bu_torch.run.caching import fit_or_load
from bu_torch.run.settings import MeasurementSettings
from bu_torch.run.several import settings_for
from bu_torch.run.state import State
from bu_torch.samples.balance import ClassWeight, class_shares
from bu_torch.samples.samples import Samples
from bu_torch.samples.subset import stratified_rows
from bu_torch.signals.measuring import Signals
from bu_torch.signals.preparation import MOST_ENTRIES


class Groundwork:
    """Plan of the checks, the signals that are prepared, and what a resumed run needs of both.

    Attributes:
        plan: Numbers of samples and of perturbations of each; None before `plan_checks`.
        fingerprint: Fingerprint of the samples of the checks so far; None if there is none to compare with.
        is_restored: False if the preparation in a resumed state is damaged or of other samples.
        found_in: File that `prepare` has read; None if it has computed.
        kept_in: File that `prepare` has written; None for none.
        about: Samples and classes in plain words, for the record.
        rows: Places of the samples in the data set, (N,).
    """

    def __init__(self, settings: MeasurementSettings) -> None:
        self.settings = settings
        self.plan: Plan | None = None
        self.fingerprint: str | None = None
        self.is_restored = True
        self.found_in: Path | None = None
        self.kept_in: Path | None = None
        self.about: dict[str, Any] = {"data": {}, "classes": None}
        self.rows = torch.empty(0, dtype=torch.int64)
        self._signals: Signals | None = None  # only in the process that has prepared
        # What a resumed run cannot find again, because the network has changed by then: the whole preparation if
        # features of the network are its space, or the space if they might have been.
        self._packed: Tensor | None = None
        self._space: SpaceName | None = None

    def planned(
        self, n_training: int, n_visited: int, n_operations: int, *, n_bytes: int = 0, max_samples: int | None = None
    ) -> Plan:
        """Plan by the settings alone, as `bu_torch.run.budget.plan` does; `max_samples` takes the setting's place.

        A sample takes `n_bytes`; 0 if that is not known.
        """
        most = self.settings.max_bytes
        return plan(
            n_training,
            n_visited,
            n_operations,
            budget=self.settings.budget,
            n_draws=self.settings.n_draws,
            max_samples=self.settings.max_samples if max_samples is None else max_samples,
            n_neighbors=self.settings.n_neighbors,
            n_fitting=math.inf if most is None or not n_bytes else most // n_bytes,
        )

    def plan_checks(self, n_training: int, n_visited: int, n_operations: int, n_bytes: int = 0) -> Plan:
        """Plan as `planned` does; a training that is resumed, or has decided, keeps its plan."""
        self.plan = self.plan or self.planned(n_training, n_visited, n_operations, n_bytes=n_bytes)
        return self.plan

    def prepare(
        self,
        samples: Samples,
        warn: Callable[[str], None],
        *,
        has_resumed: bool,
        module: nn.Module | None = None,
        cache: Path | Literal["auto"] | None = None,
        has_progress_bar: bool = False,
        tell: Callable[[str], None] | None = None,
        class_weight: ClassWeight | None = None,
    ) -> str:
        """Make or find the preparation; returns the fingerprint of samples and settings, for `Tracker.go_on`.

        If checks were made before (`has_resumed`), the space of neighbours stays. Features of `module`, as it is before
        training, may be that space. `class_weight` holds if the settings have none. `tell` takes a line on how long it
        will take, if that is long. Errors are those of `Signals.fit` and `Signals.load`.
        """
        if line := messages.ignored(samples.n_ignored):
            warn(line)
        samples, n_draws = self._within_memory(samples, warn)
        n_samples = len(samples.inputs)
        n_present = len(torch.unique(as_labels(samples.labels, n_samples)))
        if line := messages.many_classes(n_samples, n_present, samples.n_training):
            warn(line)
        module = None if module is None else packed_model(module, samples.packing)
        signals = settings_for(self.settings, samples.packing).make_signals(n_draws, module, class_weight)
        if has_resumed:  # as it was chosen when the run began
            signals.boundary.known_space = self._space
        if not (has_resumed and self._takes_back(signals, samples)):
            file = self._file(signals, samples.inputs, cache, warn, has_resumed=has_resumed)
            cached = fit_or_load(
                signals,
                samples.inputs,
                samples.labels,
                file,
                sample_weight=samples.weights,
                has_progress_bar=has_progress_bar,
                tell=tell,
            )
            self.found_in, self.kept_in = cached.found_in, cached.kept_in
            if cached.refusal:
                warn(f"{cached.refusal} To turn the cache off: `cache=None` or `BU_TORCH_CACHE=off`.")
            self._keep_for_resume(signals, samples.inputs)
        self._signals, self.rows = signals, samples.rows
        self.about = self._describe(signals, samples, n_draws)
        return signals.fingerprint

    def _takes_back(self, signals: Signals, samples: Samples) -> bool:
        """Load the preparation of a run that resumes, if the network of its start was the space."""
        if self._packed is None or not signals.boundary.may_use_module(samples.inputs):
            return False
        try:
            signals.load(self._packed, samples.inputs, samples.labels, samples.weights)
        except ValueError:  # of other samples, or damaged: what follows says so
            self.is_restored = False
        return self.is_restored

    def _file(
        self,
        signals: Signals,
        inputs: Tensor,
        cache: Path | Literal["auto"] | None,
        warn: Callable[[str], None],
        *,
        has_resumed: bool,
    ) -> Path | Literal["auto"] | None:
        """File to read or to write; takes the network from `signals` if it may not be the space."""
        boundary = signals.boundary
        if not boundary.may_use_module(inputs):
            return cache
        is_of_user = isinstance(cache, Path)
        if boundary.feature_extractor is not None:
            if is_of_user:
                warn(f"Features of a network differ from run to run: they are not kept in the cache {cache}.")
            return None if is_of_user else cache
        # What a file holds follows from the samples alone; and a run that resumes has learnt the labels by now.
        if is_of_user or (has_resumed and self._space is None):
            boundary.module = None
        return cache

    def _describe(self, signals: Signals, samples: Samples, n_draws: int) -> dict[str, Any]:
        """Samples and classes, as plain data."""
        present, shares = class_shares(signals.boundary.labels, samples.weights)
        data = {
            "n_samples": len(samples.inputs),
            "n_draws": n_draws,
            "n_training": samples.n_training,
            "n_classes": int(samples.labels.max()) + 1,
            "n_present": len(present),
            "smallest_class_share": round(float(shares.min()), 4),  # as training draws them
            "largest_class_share": round(float(shares.max()), 4),
            "sampling": "uniform" if samples.weights is None else "weighted",
            "shape": list(samples.inputs.shape[1:]),
            "space": signals.boundary.space_name_,
            "perturbation": signals.boundary.kind_of_perturbation(samples.inputs),
        }
        return {"data": data, "classes": samples.classes}

    def _keep_for_resume(self, signals: Signals, inputs: Tensor) -> None:
        self._packed = self._space = None
        if signals.boundary.may_use_module(inputs):
            match signals.preparation.space:
                case "inputs" | "patches" | "tokens" as name:
                    self._space = name
                case _:
                    self._packed = signals.preparation.packed()

    def _within_memory(self, samples: Samples, warn: Callable[[str], None]) -> tuple[Samples, int]:
        """Take fewer samples or draws than planned if memory demands it: some arrays have a column for each class."""
        made = self.plan_checks(len(samples.inputs), len(samples.inputs), 0)
        labels = as_labels(samples.labels, len(samples.inputs))
        n_rows = MOST_ENTRIES // len(torch.unique(labels))
        n_samples = len(labels)
        if made.n_draws * n_samples <= n_rows:
            return samples, made.n_draws
        n_draws = made.n_draws if self.settings.n_draws is not None else max(1, n_rows // n_samples)
        if self.settings.max_samples is None and n_draws * n_samples > n_rows >= self.settings.n_neighbors:
            n_samples = n_rows // n_draws
            samples = samples.at(stratified_rows(len(labels), n_samples, self.settings.seed, labels))
        self.plan = Plan(n_samples, n_draws)
        warn(messages.little_memory(made, self.plan))
        return samples, n_draws

    @property
    def is_prepared(self) -> bool:
        """True if `prepare` has been called here."""
        return self._signals is not None

    @property
    def signals(self) -> Signals:
        """Signals that were prepared; a RuntimeError before."""
        if self._signals is None:
            raise RuntimeError("This Tracker has no samples yet: call `prepare` first.")
        return self._signals

    @property
    def perturbed(self) -> PerturbedInputs:
        """Inputs at which the network is to be read, (n_draws * N, ...), made batch by batch."""
        return self.signals.perturbed

    @property
    def perturbed_inputs(self) -> Tensor:
        """All of them as one tensor."""
        return self.perturbed.whole()

    @property
    def n_samples(self) -> int:
        """Number of samples that a check looks at."""
        return int(self.about["data"]["n_samples"])

    @property
    def n_classes(self) -> int:
        """Least number of logits that a network must give."""
        return int(self.about["data"]["n_classes"])

    def lines(self) -> list[str]:
        """Lines for the log: which cache, which space, and how classes count."""
        boundary = self.signals.boundary
        lines = (
            messages.cache(self.found_in, self.kept_in, len(boundary.labels), user_cache.folder()),
            messages.space(boundary.space_name_, boundary.skills_),
            messages.balance(
                boundary.labels,
                boundary.weights,
                is_sampled=boundary.class_weight != "balanced" and self.about["data"]["sampling"] == "weighted",
                has_class_weight=boundary.class_weight is not None,
            ),
        )
        return [line for line in lines if line]

    def release(self) -> None:
        """Free what was computed: training has ended."""
        self._signals = None

    def state_dict(self) -> dict[str, Any]:
        """Plain data that a resumed run needs."""
        state: dict[str, Any] = {
            "plan": None if self.plan is None else dataclasses.astuple(self.plan),
            "asked": self._requested(),
            "samples": self.fingerprint,
        }
        if self._packed is not None:
            state["prepared"] = self._packed
        return state if self._space is None else state | {"space": self._space}

    def load(self, state: State) -> None:
        """Go on where the state was taken; with other settings, samples are planned anew."""
        self._packed, self._space = state.prepared, state.space
        if state.plan is not None and state.asked == self._requested():
            self.plan, self.fingerprint = state.plan, state.samples

    def _requested(self) -> list[float | str | None]:
        """Settings that decide what is looked at."""
        asked = self.settings
        return [asked.budget, asked.n_draws, asked.max_samples, asked.n_neighbors, asked.seed]
