"""The signals: one entry for each number that a check measures. A new signal is a new entry, and its formula."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from bu_torch import functional
from bu_torch.functional.boundary import PairTerms
from bu_torch.functional.omission import omission_of_counts
from bu_torch.functional.weights import mean_of


@dataclass(frozen=True)
class Reading:
    """Data that a formula may look at: D draws of N samples, C classes that have samples; from `labels` on fixed."""

    predictions: Tensor  # at the perturbed inputs, one draw after another, (D * N,)
    predictions_before: Tensor | None  # those of the check before; None at the first
    columns: Tensor  # of each prediction in arrays of C columns, (D * N,); C or more for a class without samples
    terms: list[PairTerms]  # parts of boundary uncertainty, one a draw
    uncertainty: Tensor  # a scalar; NaN if a logit is not finite
    trust: Tensor  # trust scores of the predictions, the sample that was perturbed left out, (D * N,)
    labels: Tensor  # classes of the samples, (N,)
    own: Tensor  # columns of the labels, (D * N,)
    label_trust: Tensor  # trust scores of the labels at the perturbed inputs, (D * N,)
    nearest_class: Tensor  # there, the sample that was perturbed left out, (D * N,)
    label_probabilities: Tensor  # of the classes at the perturbed inputs, (D * N, C)
    label_votes: Tensor  # of the labels near each sample, (N, C)
    pairs: Tensor  # likely Bayes pairs that there are, (P, 2)
    pair_index: Tensor  # the pair of each sample, (N,)
    cluster_counts: tuple[Tensor, Tensor, Tensor]  # of `functional.omission.cluster_counts`
    members: Tensor  # clusters of as many draws as are measured in one call, (rows, M)
    weights: Tensor | None  # of each sample, (N,) float64 with mean 1; None if all count alike

    def by_sample(self, values: Tensor) -> Tensor:
        """Values at the perturbed inputs, (D * N,), with a row for each draw, (D, N)."""
        return values.view(-1, len(self.labels))


@dataclass(frozen=True)
class Signal:
    """A number that each check measures."""

    name: str  # in histories, logs and records
    title: str  # in words, for plots and pages
    low: float
    high: float
    is_larger_better: bool
    panel: Literal["uncertainty", "trust", "shares"]  # figures it is drawn in
    formula: Callable[[Reading], Tensor]  # to a scalar, float64
    is_in_progress_bar: bool = False


def _boundary_uncertainty(read: Reading) -> Tensor:
    return read.uncertainty.double()


def _trust_score(read: Reading) -> Tensor:
    return functional.mean_trust_score(read.by_sample(read.trust), read.weights, validate_args=False)


def _expected_accuracy(read: Reading) -> Tensor:
    weights = None if read.weights is None else read.weights.repeat(len(read.columns) // len(read.labels))
    return functional.expected_accuracy(read.label_probabilities, read.columns, weights=weights, validate_args=False)


def _label_agreement(read: Reading) -> Tensor:
    return mean_of((read.by_sample(read.predictions) == read.labels).double(), read.weights)


def _vote_agreement(read: Reading) -> Tensor:
    return functional.expected_accuracy(read.label_votes, read.columns, weights=read.weights, validate_args=False)


def _neighbor_agreement(read: Reading) -> Tensor:
    return functional.neighbor_agreement(read.by_sample(read.trust), read.weights, validate_args=False)


def _prediction_changes(read: Reading) -> Tensor:
    if read.predictions_before is None:
        return torch.ones_like(read.uncertainty).double()
    return mean_of(read.by_sample((read.predictions != read.predictions_before).double()), read.weights)


def _omission(read: Reading) -> Tensor:
    return omission_of_counts(*read.cluster_counts, read.columns, read.members, weights=read.weights)


SIGNALS = {
    signal.name: signal
    for signal in (
        Signal("boundary_uncertainty", "boundary uncertainty", 0, 1, True, "uncertainty", _boundary_uncertainty, True),
        Signal("trust_score", "trust score", 1e-3, 1e3, True, "trust", _trust_score, True),
        Signal("expected_accuracy", "expected accuracy", 0, 1, True, "shares", _expected_accuracy, True),
        Signal("label_agreement", "agreement with the labels", 0, 1, True, "shares", _label_agreement),
        Signal("vote_agreement", "agreement with the votes nearby", 0, 1, True, "shares", _vote_agreement),
        Signal("neighbor_agreement", "agreement with the nearest class", 0, 1, True, "shares", _neighbor_agreement),
        Signal("prediction_changes", "changed since the last check", 0, 1, False, "shares", _prediction_changes),
        Signal("omission", "boundary left out (omission)", 0, 1, False, "shares", _omission),
    )
}
