"""Numbers of a check, and the details behind them: samples and classes."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bu_torch.functional.checks import index_pairs, sum_by_group
from bu_torch.functional.score import predicted_probabilities
from bu_torch.signals.catalogue import SignalInputs

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
    of_label = predicted_probabilities(probabilities, boundary.classes.columns(labels))
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
