"""Catalogue of signals: how each number that a check measures is computed and called."""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from bu_torch.functional import score
from bu_torch.functional.checks import mean_of, sum_by_group
from bu_torch.signals.metrics import METRICS, ExpectedMetric

if TYPE_CHECKING:
    from bu_torch.signals.measuring import Signals


class NetworkOutputs:
    """The logits (D * N, J) of a check, what several formulas read of them, and all default signals.

    `signals` have been fitted to D draws of N samples, with C classes that have samples, in ascending order.
    """

    def __init__(self, signals: "Signals", logits: Tensor, predictions_before: Tensor | None) -> None:
        self.signals, self.boundary, self.logits = signals, signals.boundary, logits
        self.top = score.top_two(logits)  # (D * N, 2) classes of the two largest logits
        self.predictions = self.top[:, 0]
        pairs = self.boundary.classes.columns(self.top)  # their columns; C or more for a class without samples
        self.predicted_columns = pairs[:, 0]
        self.weights = weights = self.boundary.repeated_weights  # (D * N,) float64; None if all count alike
        of_pairs = score.predicted_probabilities(self.boundary.probabilities_of_present, pairs)
        self.of_predicted = of_pairs[:, 0].contiguous()  # label probability of each prediction, (D * N,) float64
        self.local_uncertainty = 2 * of_pairs.amin(dim=1)  # (D * N,) float64
        self.half_gap = score.half_gap(logits, self.top)
        self.nearness = score.boundary_weights(self.half_gap, weights)  # (D * N,) float64, largest at the boundary
        known = self.predicted_columns.clamp(
            max=self.boundary.classes.n_present
        )  # the last column stands for all other classes
        # Signals, float64 scalars; U is NaN if a logit is not finite.
        self.boundary_uncertainty = score.uncertainty_along_boundary(logits, self.local_uncertainty, self.nearness)
        self.trust_score = score.mean_trust_score(score.trust_score(signals.distances, known), weights)
        self.expected_accuracy = self._mean(self.of_predicted)
        self.label_agreement = self._mean(
            self.predicted_columns.view(-1, len(self.boundary.labels)) == self.boundary.label_columns
        )
        votes = self.boundary.votes_of_present
        self.vote_agreement = score.expected_accuracy(votes, self.predicted_columns, weights=self.boundary.weights)
        self.prediction_changes = torch.ones_like(self.boundary_uncertainty)
        if predictions_before is not None:  # (D * N,) at the last check
            self.prediction_changes = self._mean(self.predictions != predictions_before)
        measured, most = (self.expected_accuracy, self.boundary_uncertainty, self.trust_score), signals.attainable
        if signals.are_rows:
            self.accuracy_uncertainty_trust = score.accuracy_uncertainty_trust(*measured, most, max(signals.skill, 0.0))
        else:  # on images and texts U and trust mislead more often
            agreed = signals.label_weight * self.label_agreement
            self.accuracy_uncertainty_trust = (self.expected_accuracy + agreed) / (most.accuracy + signals.label_weight)

    def _mean(self, values: Tensor) -> Tensor:
        """Weighted mean of values (D * N,)."""
        return mean_of(values.double().view(-1, len(self.boundary.labels)), self.boundary.weights)

    def label_probabilities_for(self, metric: ExpectedMetric) -> Tensor:
        """Label probabilities that a metric takes, with a column for each of the network's outputs."""
        return self.signals.counting_once(self.logits.shape[1], is_sharpened=metric.compares_probabilities)

    def expected(self, metric: ExpectedMetric) -> Tensor:
        """Expected value of a metric; NaN, with a warning, if one of the user's fails in the midst of a training."""
        try:
            return metric.formula(self.logits, self.label_probabilities_for(metric), None)
        except Exception as error:  # the user's code may raise anything
            what = f"{type(error).__name__}: {error}"
            warnings.warn(f"The metric {metric.title} failed, so its value is NaN: {what}", stacklevel=3)
            return torch.full_like(self.boundary_uncertainty, torch.nan)


@dataclass(frozen=True)
class Signal:
    """Name of a number that each check measures, and where its value comes from."""

    name: str  # key in histories, logs and records; the attribute of `NetworkOutputs` with its value
    title: str  # name in words, for plots and pages
    is_larger_better: bool = True
    is_in_progress_bar: bool = False
    is_default: bool = True  # False if it is measured only where it is asked for
    metric: ExpectedMetric | None = None  # its expected value is the signal
    reads_unmoved: bool = False  # `ProposalSignals` measures it, also at samples that are not perturbed


def _of_metric(metric: ExpectedMetric) -> Signal:
    return Signal(metric.signal, f"expected {metric.title}", metric.is_larger_better, is_default=False, metric=metric)


SIGNALS = {
    signal.name: signal
    for signal in (
        Signal("boundary_uncertainty", "boundary uncertainty", is_in_progress_bar=True),
        Signal("trust_score", "trust score", is_in_progress_bar=True),
        Signal("expected_accuracy", "expected accuracy", is_in_progress_bar=True),
        Signal("accuracy_uncertainty_trust", "score"),
        Signal("label_agreement", "agreement with the labels"),
        Signal("vote_agreement", "agreement with the votes nearby"),
        Signal("prediction_changes", "changed since the last check", is_larger_better=False),
        *map(_of_metric, METRICS.values()),
        Signal("parzen_uncertainty", "boundary uncertainty (Proposal 2)", is_default=False, reads_unmoved=True),
        Signal("omission", "boundary left out (omission)", False, is_default=False, reads_unmoved=True),
    )
}


MOST_CLASSES = 100
_N_PARTS, _MOST_MEETINGS, _LEAST_LOSS = 20, 3, 0.01


class Crossing(NamedTuple):
    """Mean uncertainty of the labels at twenty equal parts of the samples, from the boundary outward."""

    network: list[float]  # samples by nearness to the network's boundary
    attainable: list[float]  # samples by uncertainty itself: the most that any boundary reaches


class Doubtful(NamedTuple):
    """A sample whose label is unlikely by all labels."""

    row: int  # among the samples given to `fit`
    label: int
    prediction: int  # at its first draw
    likeliest: int
    probability: float  # of the label, mean of the draws


class Meeting(NamedTuple):
    """Two classes that meet where others are likelier."""

    first: int
    second: int
    share: float  # of the boundary
    loss: float  # part of the most that boundary uncertainty can reach there


class ClassRecall(NamedTuple):
    """Recall of a class at the perturbed samples."""

    label: int
    share: float  # weighted share of the samples
    labelled: float  # share of its samples that are predicted as labelled
    expected: float  # recall by label probabilities in place of labels, which memorising cannot raise


class Details(NamedTuple):
    """Details of a check, by `Measurement.details`."""

    crossing: Crossing  # uncertainty of the labels against nearness to the boundary
    meeting: list[Meeting]  # by what they lose, at most three
    doubtful: list[Doubtful]  # the least likely label first
    recalls: list[ClassRecall]  # sorted by `expected`, least first, at most 100 classes that have samples


@dataclass(frozen=True)
class Measurement:
    """Result of one call of `Signals.measure`; it unpacks into values and predictions."""

    values: dict[str, Tensor]  # scalars by the names of `Signals.NAMES`, float64, on the device of the logits
    predictions: Tensor  # classes at the perturbed inputs, (n_draws * N,) int64
    contributions: Tensor  # of each sample to expected accuracy or the metric, (N,) float64; empty for torchmetrics'
    standard_error: Tensor  # of the gain in it over `best`, float64; 0 without `best`
    _outputs: NetworkOutputs  # what the formulas read

    def __iter__(self) -> Iterator[Any]:
        return iter((self.values, self.predictions))

    def details(self, n_doubtful: int = 50) -> Details:
        """Details behind the values, with the `n_doubtful` >= 1 least likely labels; waits for the device."""
        outputs, most = self._outputs, self._outputs.signals.most_uncertainty
        network = _mean_by_rank(outputs.local_uncertainty, outputs.half_gap, outputs.weights)
        crossing = Crossing(network, _mean_by_rank(most, -most, outputs.weights))
        return Details(crossing, _meeting(outputs), _doubtful(outputs, n_doubtful), _recalls(outputs))


def _mean_by_rank(local: Tensor, place: Tensor, weights: Tensor | None) -> list[float]:
    """Mean of `local` (N,) in each of `_N_PARTS` equal parts of the samples, sorted by `place`; NaN if one is empty."""
    order = place.argsort(stable=True)
    drawn = torch.ones_like(local) if weights is None else weights[order]
    rank = (drawn.cumsum(dim=0) - drawn / 2) / drawn.sum()
    part = (rank * _N_PARTS).long().clamp(max=_N_PARTS - 1)
    mass, mixed = (sum_by_group(values, part, _N_PARTS) for values in (drawn, drawn * local[order]))
    return (mixed / mass).tolist()


def _meeting(outputs: NetworkOutputs) -> list[Meeting]:
    """Pairs of classes along the boundary whose uncertainty falls most below that of the two likeliest."""
    nearness, n_classes = outputs.nearness, outputs.logits.shape[1]
    first, second = outputs.top.sort(dim=1).values.unbind(dim=1)
    pairs, group = torch.unique(first * n_classes + second, return_inverse=True)  # one number for each pair
    lost = nearness * (outputs.signals.most_uncertainty - outputs.local_uncertainty)
    shares, losses = (sum_by_group(one, group, len(pairs)) / nearness.sum() for one in (nearness, lost))
    worst = losses.topk(min(_MOST_MEETINGS, len(losses))).indices
    columns = pairs[worst] // n_classes, pairs[worst] % n_classes, shares[worst], losses[worst]
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return [Meeting(*row) for row in rows if row[-1] > _LEAST_LOSS]


def _doubtful(outputs: NetworkOutputs, n_doubtful: int) -> list[Doubtful]:
    boundary, labels = outputs.boundary, outputs.boundary.labels
    probabilities = boundary.probabilities_of_present.unflatten(0, (-1, len(labels))).mean(dim=0)
    of_label = score.predicted_probabilities(probabilities, boundary.label_columns)
    rows = of_label.sort(stable=True).indices[:n_doubtful]
    classes = labels[rows], outputs.predictions[rows], boundary.classes.classes[probabilities[rows].argmax(dim=1)]
    columns = (column.tolist() for column in (rows, *classes, of_label[rows]))
    return [Doubtful(*row) for row in zip(*columns, strict=True)]


def _recalls(outputs: NetworkOutputs) -> list[ClassRecall]:
    """Recall of the classes that have samples, by labels and by label probabilities, the least expected first."""
    boundary, own = outputs.boundary, outputs.boundary.label_columns.repeat(outputs.boundary.n_draws)
    probabilities, n_classes = boundary.probabilities_of_present, boundary.classes.n_present
    counted = torch.ones_like(outputs.nearness) if outputs.weights is None else outputs.weights
    predicted = outputs.predicted_columns.clamp(max=n_classes - 1)  # larger for a prediction of a class without samples
    labelled, hits = (
        sum_by_group(part, own, n_classes) for part in (counted, (outputs.predicted_columns == own) * counted)
    )
    mass = (counted.to(probabilities) @ probabilities).double()
    recalls = (hits / labelled, sum_by_group(outputs.of_predicted * counted, predicted, n_classes) / mass)
    columns = (boundary.classes.classes, labelled / labelled.sum(), *recalls)
    rows = [ClassRecall(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]
    return sorted(rows, key=lambda row: row.expected)[:MOST_CLASSES]
