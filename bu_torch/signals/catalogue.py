"""Catalogue of signals: a formula and an entry for each number that a check measures."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Literal

import torch
from torch import Tensor

from bu_torch import functional
from bu_torch.functional.weights import mean_of
from bu_torch.signals.metrics import METRICS, ExpectedMetric


@dataclass(frozen=True)
class SignalInputs:
    """Arguments of all formulas, for D draws of N samples and C classes that have samples.

    Arrays of classes have C columns, in ascending order. Fields from `labels` on are the same at each check.
    """

    predictions: Tensor  # (D * N,) classes at the perturbed inputs, one draw after another
    predictions_before: Tensor | None  # (D * N,) at the last check; None at the first
    columns: Tensor  # (D * N,) columns of the predictions; C or more for a class without samples
    logits: Tensor  # (D * N, J) at the perturbed inputs
    uncertainty: Tensor  # boundary uncertainty of the check, a float64 scalar; NaN if a logit is not finite
    accuracy: Tensor  # expected accuracy of the check, a float64 scalar
    trust: Tensor  # (D * N,) trust scores of the predictions, without the sample that was perturbed
    mean_trust: Tensor  # trust score of the check, a float64 scalar
    labels: Tensor  # (N,) classes of the samples
    label_columns: Tensor  # (D * N,) columns of the labels
    label_trust: Tensor  # (D * N,) trust scores of the labels at the perturbed inputs
    nearest_class: Tensor  # (D * N,) nearest class, without the sample that was perturbed
    label_probabilities: Tensor  # (D * N, C) class probabilities at the perturbed inputs
    label_votes: Tensor  # (N, C) votes of the labels near each sample
    plain_probabilities: Tensor  # (D * N, C) the same if each sample counts once, whatever its weight
    sharp_probabilities: Tensor  # (D * N, C) these, as certain as left-out labels allow
    classes: Tensor  # (C,) classes that have samples
    local_uncertainty: Tensor  # (D * N,) uncertainty of the labels at the perturbed inputs, float64
    weights: Tensor | None  # (N,) float64 weights with mean 1; None if all samples count alike
    repeated_weights: Tensor | None  # (D * N,) the same for each draw
    kernel: Tensor  # (D * N,) nearness to the network's boundary times the weight, float64
    attainable: functional.Attainable  # most that accuracy, uncertainty and trust reach at the perturbed inputs
    attainable_crossing: list[float]  # `Crossing.attainable`
    skill: float  # skill of predicting left-out labels, in [0, 1]
    are_rows: bool  # samples are rows of a table: no images, no texts
    label_weight: Tensor  # weight of the agreement with the labels beside expected accuracy, a float64 scalar

    @property
    def n_draws(self) -> int:
        return len(self.columns) // len(self.labels)

    def by_sample(self, values: Tensor) -> Tensor:
        """Reshape values at the perturbed inputs, (D * N,), to a row for each draw, (D, N)."""
        return values.view(-1, len(self.labels))

    def of_metric(self, metric: ExpectedMetric) -> Tensor:
        """Label probabilities that a metric takes, with a column for each of the network's outputs."""
        probabilities = self.sharp_probabilities if metric.is_of_sharp else self.plain_probabilities
        if self.logits.shape[1] == len(self.classes):
            return probabilities
        wide = probabilities.new_zeros(self.logits.shape)
        return wide.index_copy_(1, self.classes, probabilities)

    def expected(self, metric: ExpectedMetric) -> Tensor:
        """Expected value of a metric, in which each sample counts once."""
        return metric.formula(self.logits, self.of_metric(metric), None)


@dataclass(frozen=True)
class Signal:
    """Name and formula of a number that each check measures."""

    name: str  # key in histories, logs and records
    title: str  # name in words, for plots and pages
    is_larger_better: bool
    # Figure of a page: "scores"; for shares "agreement" or, if smaller is better, "changes"; "deciding" if it decides.
    panel: Literal["scores", "shares", "deciding"]
    formula: Callable[[SignalInputs], Tensor] | None = None  # returns a float64 scalar
    is_in_progress_bar: bool = False
    is_default: bool = True  # False if it is measured only where it is asked for

    @property
    def reads_samples(self) -> bool:
        """True for a signal of the papers, which reads the network at the samples themselves too."""
        return self.formula is None


def _accuracy_uncertainty_trust(inputs: SignalInputs) -> Tensor:
    """The score; on images and texts, where U and trust mislead more often, the share of accuracy alone.

    Where samples are read again, that is accuracy by the other samples. Then agreement with a sample's own label has a
    weight of its own: half of what a memorised label costs, so that memorising never pays.
    """
    if not inputs.are_rows:
        agreed = inputs.label_weight * _label_agreement(inputs)
        return (inputs.accuracy + agreed) / (inputs.attainable.accuracy + inputs.label_weight)
    measured = (inputs.accuracy, inputs.uncertainty, inputs.mean_trust)
    return functional.accuracy_uncertainty_trust(*measured, inputs.attainable, inputs.skill)


def _label_agreement(inputs: SignalInputs) -> Tensor:
    return mean_of((inputs.by_sample(inputs.predictions) == inputs.labels).double(), inputs.weights)


def _vote_agreement(inputs: SignalInputs) -> Tensor:
    return functional.expected_accuracy(inputs.label_votes, inputs.columns, weights=inputs.weights, validate_args=False)


def _prediction_changes(inputs: SignalInputs) -> Tensor:
    if inputs.predictions_before is None:
        return torch.ones_like(inputs.uncertainty)
    return mean_of(inputs.by_sample((inputs.predictions != inputs.predictions_before).double()), inputs.weights)


SIGNALS = {
    signal.name: signal
    for signal in (
        Signal("boundary_uncertainty", "boundary uncertainty", True, "scores", attrgetter("uncertainty"), True),
        Signal("trust_score", "trust score", True, "scores", attrgetter("mean_trust"), True),
        Signal("expected_accuracy", "expected accuracy", True, "shares", attrgetter("accuracy"), True),
        Signal(
            "accuracy_uncertainty_trust",
            "accuracy, uncertainty and trust",
            True,
            "deciding",
            _accuracy_uncertainty_trust,
        ),
        Signal("label_agreement", "agreement with the labels", True, "shares", _label_agreement),
        Signal("vote_agreement", "agreement with the votes nearby", True, "shares", _vote_agreement),
        Signal("prediction_changes", "changed since the last check", False, "shares", _prediction_changes),
        *(
            Signal(
                metric.signal,
                f"expected {metric.title}",
                metric.is_larger_better,
                "deciding",
                partial(SignalInputs.expected, metric=metric),
                is_default=False,
            )
            for metric in METRICS.values()
        ),
        # Those of the papers have no formula here: they need what `papers.proposal2` prepares.
        Signal("parzen_uncertainty", "boundary uncertainty (Proposal 2)", True, "scores", is_default=False),
        Signal("omission", "boundary left out (omission)", False, "shares", is_default=False),
    )
}
