"""Catalogue of signals: a formula and an entry for each number that a check measures, and the values of a metric."""

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from operator import attrgetter

import torch
from torch import Tensor

from bu_torch import functional
from bu_torch.functional.accuracy import accuracy_of, predicted_probabilities
from bu_torch.functional.boundary import TopTwo
from bu_torch.functional.metrics import best_threshold, decided_at, influence, left_out_thresholds
from bu_torch.functional.probabilities import as_probabilities
from bu_torch.functional.weights import mean_and_error, mean_of, sum_by_group
from bu_torch.signals.metrics import METRICS, THRESHOLD, ExpectedMetric, MisfitError

OF_SHARP = [metric.signal for metric in METRICS.values() if metric.is_of_sharp]


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
    top: TopTwo  # two largest logits at each perturbed input
    kernel: Tensor  # (D * N,) nearness to the network's boundary times the weight, float64
    local_uncertainty: Tensor  # (D * N,) uncertainty between the network's two largest classes, float64
    labels: Tensor  # (N,) classes of the samples
    label_columns: Tensor  # (D * N,) columns of the labels
    most_uncertainty: Tensor  # (D * N,) uncertainty between the two likeliest classes, float64
    label_probabilities: Tensor  # (D * N, C) class probabilities at the perturbed inputs
    label_votes: Tensor  # (N, C) votes of the labels near each sample
    plain_probabilities: Tensor  # (D * N, C) the same if each sample counts once, whatever its weight
    sharp_probabilities: Tensor  # (D * N, C) these, as certain as left-out labels allow
    classes: Tensor  # (C,) classes that have samples
    weights: Tensor | None  # (N,) float64 weights with mean 1; None if all samples count alike
    repeated_weights: Tensor | None  # (D * N,) the same for each draw
    class_masses: tuple[Tensor, Tensor]  # weights of each class, by labels and by label probabilities, (C,) float64
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
    return accuracy_of(inputs.label_votes, inputs.columns, inputs.weights)


def _prediction_changes(inputs: SignalInputs) -> Tensor:
    if inputs.predictions_before is None:
        return torch.ones_like(inputs.uncertainty)
    return mean_of(inputs.by_sample((inputs.predictions != inputs.predictions_before).double()), inputs.weights)


SIGNALS = {
    signal.name: signal
    for signal in (
        Signal("boundary_uncertainty", "boundary uncertainty", True, attrgetter("uncertainty"), True),
        Signal("trust_score", "trust score", True, attrgetter("mean_trust"), True),
        Signal("expected_accuracy", "expected accuracy", True, attrgetter("accuracy"), True),
        Signal("accuracy_uncertainty_trust", "accuracy, uncertainty and trust", True, _accuracy_uncertainty_trust),
        Signal("label_agreement", "agreement with the labels", True, _label_agreement),
        Signal("vote_agreement", "agreement with the votes nearby", True, _vote_agreement),
        Signal("prediction_changes", "changed since the last check", False, _prediction_changes),
        *(
            Signal(
                metric.signal,
                f"expected {metric.title}",
                metric.is_larger_better,
                partial(SignalInputs.expected, metric=metric),
                is_default=False,
            )
            for metric in METRICS.values()
        ),
        # Those of the papers have no formula here: they need what `papers.proposal2` prepares.
        Signal("parzen_uncertainty", "boundary uncertainty (Proposal 2)", True, is_default=False),
        Signal("omission", "boundary left out (omission)", False, is_default=False),
    )
}


def counting_once(probabilities: Tensor, columns: Tensor, weights: Tensor | None) -> Tensor:
    """Class probabilities (D * N, C) if each sample counts once, from those of weighted samples.

    Each class is divided by the mean of the weights (N,) of its samples, those whose `columns` (N,) name it (Saerens et
    al. 2002). Without weights they are the probabilities themselves.
    """
    if weights is None:
        return probabilities
    n_classes = probabilities.shape[1]
    counted, drawn = (sum_by_group(one, columns, n_classes) for one in (torch.ones_like(weights), weights))
    return as_probabilities(probabilities * (counted / drawn))


def metric_values(metric: ExpectedMetric, inputs: SignalInputs, *, has_threshold: bool) -> dict[str, Tensor]:
    """Expected value, and for two classes the threshold and the value there, NaN if the network has more outputs.

    A metric of the user's that fails in the midst of a training is NaN, with a warning.
    """
    try:
        values = {metric.signal: inputs.expected(metric)}
    except MisfitError:
        raise
    except Exception as error:  # the user's code may raise anything
        what = f"{type(error).__name__}: {error}"
        warnings.warn(f"The metric {metric.title} failed, so its value is NaN: {what}", stacklevel=2)
        values = {metric.signal: torch.full_like(inputs.accuracy, torch.nan)}
    if not has_threshold or metric.of_counts is None:
        return values
    if inputs.logits.shape[1] > 2:
        return values | dict.fromkeys((THRESHOLD, metric.at_threshold), torch.full_like(inputs.accuracy, torch.nan))
    # Another threshold counts only if it gains more than two standard errors where it was not chosen.
    given = inputs.of_metric(metric), inputs.n_draws
    threshold, best = best_threshold(metric.of_counts, inputs.logits, given[0])
    crossed = decided_at(inputs.logits, left_out_thresholds(metric.of_counts, inputs.logits, *given))
    there, here = (influence(metric.formula, logits, *given) for logits in (crossed, inputs.logits))
    gain = metric.sign * (metric.formula(crossed, given[0], None) - values[metric.signal])
    is_clear = gain > 2 * mean_and_error(there - here, None)[1]
    return values | {
        THRESHOLD: torch.where(is_clear, threshold, metric.threshold),
        metric.at_threshold: torch.where(is_clear, metric.sign * best, values[metric.signal]),
    }


def contributions_to(
    metric: ExpectedMetric | None, inputs: SignalInputs, values: Mapping[str, Tensor]
) -> tuple[Tensor, Tensor | None]:
    """Contribution of each of N samples to a metric, or accuracy, (N,), empty if unknown; and weights of samples."""
    if metric is None:
        found = predicted_probabilities(inputs.label_probabilities, inputs.columns.unsqueeze(1))
        return inputs.by_sample(found.squeeze(1)).mean(dim=0), inputs.weights
    if metric.is_drawn:
        return inputs.accuracy.new_empty(0), None
    logits = decided_at(inputs.logits, values[THRESHOLD]) if metric.is_at_threshold else inputs.logits
    return influence(metric.formula, logits, inputs.of_metric(metric), inputs.n_draws), None
