"""Catalogue of signals: a formula and an entry for each number that a check measures."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from operator import attrgetter

import torch
from torch import Tensor

from bu_torch.functional import score as formulas
from bu_torch.functional.checks import mean_of
from bu_torch.signals.metrics import METRICS, ExpectedMetric
from bu_torch.signals.prepare import Prepared


class SignalInputs:
    """Arguments of all formulas: what was prepared, the logits (D * N, J), and what several formulas share."""

    def __init__(self, prepared: Prepared, logits: Tensor, predictions_before: Tensor | None) -> None:
        self.prepared, self.boundary, self.logits = prepared, prepared.boundary, logits
        self.predictions_before = predictions_before  # (D * N,) at the last check; None at the first
        self.top = formulas.top_two(logits)  # (D * N, 2) classes of the two largest logits
        self.predictions = self.top[:, 0]
        self.pairs = self.boundary.classes.columns(self.top)  # their columns; C or more for a class without samples
        self.columns = self.pairs[:, 0]
        self.weights = weights = self.boundary.repeated_weights  # (D * N,) float64; None if all count alike
        probabilities = self.boundary.probabilities_of_present
        self.local_uncertainty = formulas.uncertainty_between(probabilities, self.pairs)  # (D * N,) float64
        self.half_gap = formulas.half_gap(logits, self.top)
        self.kernel = formulas.boundary_weights(self.half_gap, weights)  # (D * N,) float64, largest at the boundary
        # Signals that other signals read, float64 scalars; U is NaN if a logit is not finite.
        self.uncertainty = formulas.uncertainty_along_boundary(logits, self.local_uncertainty, self.kernel)
        self.likely = formulas.predicted_probabilities(probabilities, self.columns)  # (D * N,) of the predicted classes
        self.accuracy = self.mean_of_samples(self.likely)
        known = self.columns.clamp(max=len(self.boundary.classes))  # the last column stands for all other classes
        self.mean_trust = formulas.mean_trust_score(formulas.trust_score(prepared.distances, known), weights)

    def mean_of_samples(self, values: Tensor) -> Tensor:
        """Weighted mean of values (D * N,), or (N,)."""
        return mean_of(values.double().view(-1, len(self.boundary.labels)), self.boundary.weights)

    def labels_for(self, metric: ExpectedMetric) -> Tensor:
        """Label probabilities that a metric takes, with a column for each of the network's outputs."""
        return self.prepared.counting_once(self.logits.shape[1], is_sharp=metric.is_of_sharp)

    def expected(self, metric: ExpectedMetric) -> Tensor:
        """Expected value of a metric, in which each sample counts once."""
        return metric.formula(self.logits, self.labels_for(metric), None)


@dataclass(frozen=True)
class Signal:
    """Name and formula of a number that each check measures."""

    name: str  # key in histories, logs and records
    title: str  # name in words, for plots and pages
    is_larger_better: bool
    formula: Callable[[SignalInputs], Tensor] | None = None  # returns a float64 scalar
    is_in_progress_bar: bool = False
    is_default: bool = True  # False if it is measured only where it is asked for
    # In place of a formula, a module whose `prepare(boundary, points)` gives an object with `measure(logits, own)`, a
    # dict of signals by the logits at the perturbed samples and at the samples themselves, and `to(device)`.
    measured_in: str = ""


def _accuracy_uncertainty_trust(inputs: SignalInputs) -> Tensor:
    """The score; on images and texts, where U and trust mislead more often, the share of accuracy alone.

    Where samples are read again, that is accuracy by the other samples. Then agreement with a sample's own label has a
    weight of its own: half of what a memorised label costs, so that memorising never pays.
    """
    prepared = inputs.prepared
    if not prepared.are_rows:
        agreed = prepared.label_weight * _label_agreement(inputs)
        return (inputs.accuracy + agreed) / (prepared.attainable.accuracy + prepared.label_weight)
    measured = (inputs.accuracy, inputs.uncertainty, inputs.mean_trust)
    skill = min(max(inputs.boundary.vote_skill, inputs.boundary.regression_skill, 0.0), 1.0)
    return formulas.accuracy_uncertainty_trust(*measured, prepared.attainable, skill)


def _label_agreement(inputs: SignalInputs) -> Tensor:
    return inputs.mean_of_samples(inputs.columns == inputs.prepared.label_columns)


def _vote_agreement(inputs: SignalInputs) -> Tensor:
    votes = inputs.boundary.votes_of_present
    return formulas.expected_accuracy(votes, inputs.columns, weights=inputs.boundary.weights)


def _prediction_changes(inputs: SignalInputs) -> Tensor:
    if inputs.predictions_before is None:
        return torch.ones_like(inputs.uncertainty)
    return inputs.mean_of_samples(inputs.predictions != inputs.predictions_before)


def _of_metric(metric: ExpectedMetric) -> Signal:
    formula = partial(SignalInputs.expected, metric=metric)
    return Signal(metric.signal, f"expected {metric.title}", metric.is_larger_better, formula, is_default=False)


_of_paper = partial(Signal, is_default=False, measured_in="bu_torch.papers.proposal2")

SIGNALS = {
    signal.name: signal
    for signal in (
        Signal("boundary_uncertainty", "boundary uncertainty", True, attrgetter("uncertainty"), True),
        Signal("trust_score", "trust score", True, attrgetter("mean_trust"), True),
        Signal("expected_accuracy", "expected accuracy", True, attrgetter("accuracy"), True),
        Signal("accuracy_uncertainty_trust", "score", True, _accuracy_uncertainty_trust),
        Signal("label_agreement", "agreement with the labels", True, _label_agreement),
        Signal("vote_agreement", "agreement with the votes nearby", True, _vote_agreement),
        Signal("prediction_changes", "changed since the last check", False, _prediction_changes),
        *map(_of_metric, METRICS.values()),
        _of_paper("parzen_uncertainty", "boundary uncertainty (Proposal 2)", True),
        _of_paper("omission", "boundary left out (omission)", False),
    )
}
