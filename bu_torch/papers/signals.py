"""Signals of a check that only the papers' rules read: boundary uncertainty by Proposal 2, and omission."""

from typing import Self

import torch
from torch import Tensor

from bu_torch import functional
from bu_torch.estimators.perturbed import PerturbedSamples
from bu_torch.papers.omission import cluster_counts, omission_of_counts
from bu_torch.papers.proposal2 import ClusterCounts, mean_of_draws


class ProposalSignals:
    """Signals of Proposal 2 at fitted samples, whose two likeliest classes are read at the samples, as in the paper.

    Args:
        samples: The fitted samples.
        bayes_pairs: Their likely Bayes pairs, (N, 2) (`likely_bayes_pairs`).
        columns: Column of each sample's class among those that have samples, (N,).
    """

    NAMES = ("parzen_uncertainty", "omission")

    def __init__(self, samples: PerturbedSamples, bayes_pairs: Tensor, columns: Tensor) -> None:
        self._counts = ClusterCounts(samples, bayes_pairs)
        shares = functional.label_votes(columns, samples.neighbors, 0.0, weights=samples.weights)
        self._omitted = cluster_counts(shares, samples.neighbors, samples.weights)

    def measure(self, logits: Tensor, own: Tensor, columns: Tensor) -> dict[str, Tensor]:
        """Both signals, scalars, float64, of logits (D * N, J) and (N, J), and columns (D * N,) of the predictions."""
        weights, members = self._counts.weights, self._counts.members
        left_out = omission_of_counts(*self._omitted, columns, members, weights=weights)
        uncertainty = mean_of_draws(self._counts.terms(logits, own)).to(logits.dtype).double()
        return {"parzen_uncertainty": uncertainty, "omission": left_out}

    def to(self, device: torch.device | str) -> Self:
        """Move all tensors, in place."""
        self._counts.to(device)
        self._omitted = (self._omitted[0].to(device), self._omitted[1].to(device), self._omitted[2].to(device))
        return self
