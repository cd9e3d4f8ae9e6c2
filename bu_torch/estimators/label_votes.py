"""Class probabilities at the training samples: votes of the labels near each."""

from collections.abc import Sequence
from typing import Any, Self

import torch
from torch import Tensor

from bu_torch import functional
from bu_torch.functional.probabilities import best_candidate, shares_of, skill
from bu_torch.functional.votes import count_votes
from bu_torch.internal.inputs import as_labels, check_fitted
from bu_torch.samples.balance import stratified_rows, weights_of

_MOST_VOTES = 100_000  # samples to choose the decay by


class LabelVotes:
    """Class probabilities at each training sample: fit once on labels and neighbours, then score many classifiers.

    The m-th nearest sample of a cluster votes for its label with weight m^-decay. The decay is the one whose votes
    predict left-out labels best (smallest Brier score): small if labels are noisy or classes overlap, large if classes
    are finely shaped but well separated. Of more than 100,000 samples, a stratified subset of so many chooses. This
    estimate is this project's own.

    Raises TypeError or ValueError for an argument of the wrong type, shape or values, RuntimeError before `fit`.

    Args:
        decays: The decays to choose from, at least one, each >= 0; the first of equally good ones is taken.

    Attributes:
        decay_: The chosen decay.
        votes: Class probabilities with the sample's own vote, shape (N, J), float32; J is the largest label + 1.
        left_out: Class probabilities without the sample's own vote, shape (N, J), float32.
        skill_: Skill of `left_out`: 1 minus its Brier score over that of as many labels drawn at random. 1 is certain
            and 0 is chance; 0 also if there is a single class.

    Example:
        >>> labels, neighbors = torch.tensor([0, 0, 1, 1]), torch.tensor([[0, 1], [1, 0], [2, 3], [3, 2]])
        >>> float(LabelVotes().fit(labels, neighbors).score(torch.tensor([0, 0, 1, 0])))
        0.75
    """

    def __init__(self, decays: Sequence[float] = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0)) -> None:
        if len(decays) == 0 or not all(decay >= 0 for decay in decays):
            raise ValueError(f"`decays` must hold at least one number, all >= 0, got {decays!r}.")
        self.decays = tuple(decays)

    def fit(self, labels: Any, neighbors: Tensor, sample_weight: Any = None) -> Self:
        """Choose the decay and count the votes.

        Takes classes (N,), integers >= 0; clusters (N, M) with M >= 2, the sample itself first
        (`NeighborGraph.neighbors`); and how often training draws each sample, (N,), positive: a vote counts by it.
        """
        labels = as_labels(labels, neighbors.shape[0]).to(neighbors.device)
        self._weights = weights = weights_of(labels, None, sample_weight)
        decays: Sequence[float] = self.decays
        if len(labels) > _MOST_VOTES and len(decays) > 1:
            rows = stratified_rows(len(labels), _MOST_VOTES, 0, labels).to(labels.device)
            voters, n_classes = neighbors[rows, 1:].long(), int(labels.max()) + 1
            of_rows = ((decay, count_votes(labels, voters, decay, n_classes, weights)) for decay in decays)
            decays = [best_candidate(of_rows, labels[rows], None if weights is None else weights[rows])[1]]
        candidates = (
            (decay, functional.label_votes(labels, neighbors, decay, leave_one_out=True, weights=weights))
            for decay in decays
        )
        brier_score, self.decay_, self.left_out = best_candidate(candidates, labels, weights)
        # The mean of M - 1 labels drawn at random is off by the error of the shares, and by its own variance.
        n_voters = float(neighbors.shape[1] - 1)
        if weights is not None:  # worth so many of equal weight (Kish 1965)
            n_voters *= float(weights.sum().square() / weights.square().sum() / len(weights))
        self.skill_ = skill(brier_score, shares_of(labels, weights), n_voters)
        self.votes = functional.label_votes(labels, neighbors, self.decay_, weights=weights)
        return self

    def score(self, predictions: Any) -> Tensor:
        """Mean share (float64) of the votes that predictions (D * N,) got, one draw of all N samples after another.

        A class that `fit` never saw has no votes.
        """
        check_fitted(self, "votes")
        predictions = torch.as_tensor(predictions)
        predictions = as_labels(predictions, predictions.shape[0] if predictions.ndim else 1, "predictions")
        return functional.expected_accuracy(self.votes, predictions.to(self.votes.device), weights=self._weights)
