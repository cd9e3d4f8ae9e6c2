"""Votes of the labels nearby, with the decay that predicts left-out labels best."""

import math
from collections.abc import Sequence
from typing import Any, Self

import torch
from torch import Tensor

from bu_torch import functional
from bu_torch._inputs import as_labels


class LabelVotes:
    """Class probabilities at each training sample: fit once on labels and neighbours, then score many classifiers.

    The m-th nearest of a cluster votes for its label with weight m^-decay. The decay is the one whose votes predict the
    label of the sample left out best (smallest Brier score): where labels are noisy or classes overlap it comes out
    small and many samples are asked; where classes are well separated and finely shaped it comes out large and the
    sample's own label nearly decides alone. This estimate is this project's own.

    Args:
        decays: The decays to choose from, each >= 0; of equally good ones the first is taken.

    Attributes:
        decay_: The chosen decay.
        votes: Class probabilities with the sample's own vote, shape (N, J), float32; J is the largest label + 1.
        left_out: The same without the sample's own vote.
        skill_: How well the others' votes predict the label left out: 1 minus their Brier score over that of as many
            labels drawn at random from the data. 1 is certain, 0 chance; 0 also where there is one class alone.

    Example:
        >>> labels, neighbors = torch.tensor([0, 0, 1, 1]), torch.tensor([[0, 1], [1, 0], [2, 3], [3, 2]])
        >>> float(LabelVotes().fit(labels, neighbors).score(torch.tensor([0, 0, 1, 0])))
        0.75
    """

    decay_: float
    votes: Tensor
    left_out: Tensor
    skill_: float

    def __init__(self, decays: Sequence[float] = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0)) -> None:
        if len(decays) == 0 or not all(decay >= 0 for decay in decays):
            raise ValueError(f"`decays` must hold at least one number, all >= 0, got {decays!r}.")
        self.decays = tuple(decays)

    def fit(self, labels: Any, neighbors: Tensor) -> Self:
        """Choose the decay and count the votes.

        Args:
            labels: Classes, shape (N,), integers >= 0.
            neighbors: Clusters, shape (N, M) with M >= 2, the sample itself first (`NeighborGraph.neighbors`).

        Returns:
            The fitted estimator, on the device of the neighbours.

        Raises:
            ValueError: If shapes do not fit.
            TypeError: If an argument is not made of integers.
        """
        labels = as_labels(labels, neighbors.shape[0]).to(neighbors.device)
        best = math.inf
        for decay in self.decays:
            left_out = functional.label_votes(labels, neighbors, decay, leave_one_out=True)
            score = float(functional.brier_score(left_out, labels))
            if score < best:
                best, self.decay_, self.left_out = score, decay, left_out
        shares = torch.bincount(labels).double() / len(labels)
        # The mean of M - 1 labels drawn at random is off by the error of the shares, and by its own variance.
        by_chance = float(1 - shares.square().sum()) * (1 + 1 / (neighbors.shape[1] - 1))
        self.skill_ = 1 - best / by_chance if by_chance else 0.0
        self.votes = functional.label_votes(labels, neighbors, self.decay_)
        return self

    def score(self, predictions: Any) -> Tensor:
        """Mean share of the votes that the predictions got.

        Args:
            predictions: Predicted classes at D * N points, those of the N samples one draw after another, shape
                (D * N,), integers >= 0. A class that `fit` never saw had no vote.

        Returns:
            Scalar in [0, 1], float64, on the device of the votes.

        Raises:
            RuntimeError: If `fit` has not been called.
            ValueError: If the length is not a multiple of N.
            TypeError: If the predictions are not integers.
        """
        if not hasattr(self, "votes"):
            raise RuntimeError("This LabelVotes is not fitted yet: call `fit` first.")
        predictions = torch.as_tensor(predictions)
        predictions = as_labels(predictions, predictions.shape[0] if predictions.ndim else 1, "predictions")
        return functional.vote_agreement(self.votes, predictions.to(self.votes.device))
