"""Catalogue of signals: a formula and an entry for each number that a check measures."""

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from operator import attrgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bu_torch.estimators.boundary import BoundaryUncertainty
from bu_torch.functional import score as formulas
from bu_torch.functional.checks import index_pairs, mean_of, sum_by_group
from bu_torch.functional.probabilities import as_probabilities, scale_to_shares
from bu_torch.perturbation.draws import Readings
from bu_torch.signals.metrics import METRICS, ExpectedMetric


@dataclass(frozen=True)
class Prepared:
    """What checks read, for D draws of N samples and the C classes that have samples, in ascending order.

    What follows from the fields is computed where it is first read.
    """

    boundary: BoundaryUncertainty  # fitted: samples, neighbours, perturbed inputs, label probabilities, weights
    distances: Tensor  # (D * N, C + 1) to each class, without samples it is made from, and inf
    are_rows: bool  # samples are rows of a table: no images, no texts
    fingerprint: str  # digest of samples and settings, 64 hexadecimal digits
    of_papers: Any = None  # `ProposalSignals` if signals that have no formula are asked for

    @cached_property
    def label_columns(self) -> Tensor:
        """Columns of the labels, (D * N,)."""
        return self.boundary.classes.columns(self.boundary.labels).repeat(self.boundary.n_draws)

    @cached_property
    def most_uncertainty(self) -> Tensor:
        """Uncertainty between the two likeliest classes, (D * N,) float64."""
        return formulas.largest_uncertainty(self.boundary.probabilities_of_present)

    @cached_property
    def attainable(self) -> formulas.Attainable:
        """Most that accuracy, uncertainty and trust reach."""
        boundary = self.boundary
        return formulas.attainable(boundary.probabilities_of_present, self.distances[:, :-1], boundary.repeated_weights)

    @cached_property
    def label_weight(self) -> Tensor:
        """Weight of the agreement with the labels beside expected accuracy, a float64 scalar."""
        is_reading = isinstance(self.boundary.perturbation, Readings)  # there samples' own labels are left out
        cost = formulas.cost_of_memorising(self.boundary.probabilities_of_present, self.boundary.repeated_weights)
        return cost * (is_reading / 2)

    def counting_once(self, n_columns: int, *, is_sharp: bool = False) -> Tensor:
        """Label probabilities as metrics take them: each sample counts once, whatever its weight.

        Shape (D * N, n_columns), at least the largest label + 1. Sharp ones are as certain as left-out labels allow.
        """
        return self.boundary.classes.expand(self._sharp if is_sharp else self._plain, n_columns)

    @cached_property
    def _plain(self) -> Tensor:
        return self._scaled(self.boundary.probabilities_of_present)

    @cached_property
    def _sharp(self) -> Tensor:
        if self.boundary.sharpness == 1:
            return self._plain
        sharp = self.boundary.probabilities_of_present.double() ** self.boundary.sharpness
        return self._scaled(as_probabilities(sharp))

    def _scaled(self, probabilities: Tensor) -> Tensor:
        """Probabilities (D * N, C), each class with the mass of its samples if these count once."""
        if self.boundary.weights is None:
            return probabilities
        counts = sum_by_group(torch.ones_like(self.label_columns), self.label_columns, probabilities.shape[1])
        return scale_to_shares(probabilities, counts / counts.sum())


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

    def label_probabilities_for(self, metric: ExpectedMetric) -> Tensor:
        """Label probabilities that a metric takes, with a column for each of the network's outputs."""
        return self.prepared.counting_once(self.logits.shape[1], is_sharp=metric.is_of_sharp)

    def expected(self, metric: ExpectedMetric) -> Tensor:
        """Expected value of a metric; NaN, with a warning, if one of the user's fails in the midst of a training."""
        try:
            return metric.formula(self.logits, self.label_probabilities_for(metric), None)
        except Exception as error:  # the user's code may raise anything
            what = f"{type(error).__name__}: {error}"
            warnings.warn(f"The metric {metric.title} failed, so its value is NaN: {what}", stacklevel=3)
            return torch.full_like(self.accuracy, torch.nan)


@dataclass(frozen=True)
class Signal:
    """Name and formula of a number that each check measures."""

    name: str  # key in histories, logs and records
    title: str  # name in words, for plots and pages
    is_larger_better: bool
    formula: Callable[[SignalInputs], Tensor] | None  # gives a float64 scalar; None for those of `ProposalSignals`
    is_in_progress_bar: bool = False
    is_default: bool = True  # False if it is measured only where it is asked for


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
    skill = max(inputs.boundary.vote_skill, inputs.boundary.regression_skill, 0.0)
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
        Signal("parzen_uncertainty", "boundary uncertainty (Proposal 2)", True, None, is_default=False),
        Signal("omission", "boundary left out (omission)", False, None, is_default=False),
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
    _inputs: SignalInputs  # what the formulas read

    def __iter__(self) -> Iterator[Any]:
        return iter((self.values, self.predictions))

    def details(self, n_doubtful: int = 50) -> Details:
        """Details behind the values, with the `n_doubtful` >= 1 least likely labels; waits for the device."""
        inputs, most = self._inputs, self._inputs.prepared.most_uncertainty
        network = _mean_by_rank(inputs.local_uncertainty, inputs.half_gap, inputs.weights)
        crossing = Crossing(network, _mean_by_rank(most, -most, inputs.weights))
        return Details(crossing, _meeting(inputs), _doubtful(inputs, n_doubtful), _recalls(inputs))


def _mean_by_rank(local: Tensor, place: Tensor, weights: Tensor | None) -> list[float]:
    """Mean of `local` (N,) in each of `_N_PARTS` equal parts of the samples, sorted by `place`; NaN if one is empty."""
    order = place.argsort(stable=True)
    drawn = torch.ones_like(local) if weights is None else weights[order]
    rank = (drawn.cumsum(dim=0) - drawn / 2) / drawn.sum()
    part = (rank * _N_PARTS).long().clamp(max=_N_PARTS - 1)
    mass, mixed = (sum_by_group(values, part, _N_PARTS) for values in (drawn, drawn * local[order]))
    return (mixed / mass).tolist()


def _meeting(inputs: SignalInputs) -> list[Meeting]:
    """Pairs of classes along the boundary whose uncertainty falls most below that of the two likeliest."""
    pairs, group = index_pairs(inputs.top.sort(dim=1).values)
    lost = inputs.kernel * (inputs.prepared.most_uncertainty - inputs.local_uncertainty)
    shares, losses = (sum_by_group(one, group, len(pairs)) / inputs.kernel.sum() for one in (inputs.kernel, lost))
    worst = losses.topk(min(_MOST_MEETINGS, len(losses))).indices
    columns = (*pairs[worst].T.tolist(), shares[worst].tolist(), losses[worst].tolist())
    return [Meeting(*row) for row in zip(*columns, strict=True) if row[-1] > _LEAST_LOSS]


def _doubtful(inputs: SignalInputs, n_doubtful: int) -> list[Doubtful]:
    boundary, labels = inputs.boundary, inputs.boundary.labels
    probabilities = boundary.probabilities_of_present.unflatten(0, (-1, len(labels))).mean(dim=0)
    of_label = formulas.predicted_probabilities(probabilities, boundary.classes.columns(labels))
    rows = of_label.sort(stable=True).indices[:n_doubtful]
    classes = labels[rows], inputs.predictions[rows], boundary.classes.classes[probabilities[rows].argmax(dim=1)]
    columns = (column.tolist() for column in (rows, *classes, of_label[rows]))
    return [Doubtful(*row) for row in zip(*columns, strict=True)]


def _recalls(inputs: SignalInputs) -> list[ClassRecall]:
    """Recall of the classes that have samples, by labels and by label probabilities, the least expected first."""
    boundary, own = inputs.boundary, inputs.prepared.label_columns
    probabilities, n_classes = boundary.probabilities_of_present, len(boundary.classes)
    counted = torch.ones_like(inputs.kernel) if inputs.weights is None else inputs.weights
    predicted = inputs.columns.clamp(max=n_classes - 1)  # larger for a prediction of a class without samples
    labelled, hits = (sum_by_group(part, own, n_classes) for part in (counted, (inputs.columns == own) * counted))
    mass = (counted.to(probabilities) @ probabilities).double()
    recalls = (hits / labelled, sum_by_group(inputs.likely * counted, predicted, n_classes) / mass)
    columns = (boundary.classes.classes, labelled / labelled.sum(), *recalls)
    rows = [ClassRecall(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]
    return sorted(rows, key=lambda row: row.expected)[:MOST_CLASSES]
