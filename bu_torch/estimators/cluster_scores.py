"""Boundary uncertainty of logits at perturbed samples whose clusters and likely pairs of classes are known."""

from typing import Literal, Self

import torch
from torch import Tensor

from bu_torch.functional.boundary import PairTerms, dtype_of_labels, index_pairs, pair_terms, top_pairs
from bu_torch.functional.checks import as_logits
from bu_torch.functional.parzen import Bandwidth
from bu_torch.internal.inputs import as_labels, check_fitted
from bu_torch.perturbation.draws import PerturbedInputs

_STACKED_ELEMENTS = 2**18  # members of clusters in one call: with fewer, the calls take longer than the arithmetic

PairsAt = Literal["perturbed", "sample"]


class ClusterScores:
    """Scores of logits at fitted samples, all at once or in parts: the base of `BoundaryUncertainty`."""

    n_draws: int
    bandwidth: Bandwidth
    pairs_at: PairsAt
    perturbed: PerturbedInputs
    labels: Tensor
    neighbors: Tensor
    nearest_distance: Tensor
    bayes_pairs: Tensor
    mean_: Tensor
    scale_: Tensor
    weights: Tensor | None = None
    logits: Tensor | None = None

    @property
    def perturbed_inputs(self) -> Tensor:
        """Points at which a classifier is read, (n_draws, N, ...); made when they are read, and not kept.

        With `pairs_at="sample"` the samples themselves are one more draw, the last.
        """
        check_fitted(self, "mean_")
        return self.perturbed.whole().unflatten(0, (-1, len(self.labels)))

    def score_logits(self, logits: Tensor) -> Tensor:
        """Boundary uncertainty of logits (n, J) that were read at `perturbed_inputs.flatten(0, 1)`, (n, ...).

        They have at least one column for each class (one, or none, for two). Gives a scalar in [0, 1], mean over the
        draws, float64 for float64 logits, else float32; NaN if any logit is not finite. Waits for no device.
        """
        return self.score_terms(self.terms(logits)).to(as_logits(logits).dtype)

    def terms(self, logits: Tensor) -> list[PairTerms]:
        """Terms of boundary uncertainty by pair of classes and by sample, one `PairTerms` a draw; as `score_logits`."""
        logits = self._as_class_logits(logits)
        n_samples, n_rows = self.labels.shape[0], len(self.perturbed)
        if logits.shape[0] != n_rows:
            raise ValueError(
                f"`logits` must have one row for each of the {n_rows // n_samples} x {n_samples} perturbed inputs,"
                f" got {logits.shape[0]}."
            )
        pairs = None
        if self.pairs_at == "sample":
            logits, own = logits[:-n_samples], logits[-n_samples:]
            logits, pairs = torch.where(own.isfinite().all(), logits, torch.nan), top_pairs(own)
        return [terms for part in logits.split(len(self._members)) for terms in self._terms_of_part(part, pairs)]

    @staticmethod
    def score_terms(terms: list[PairTerms]) -> Tensor:
        """Boundary uncertainty of the result of `terms`: a scalar, float64."""
        return torch.stack([torch.dot(of_draw.values, of_draw.shares) for of_draw in terms]).mean()

    def update(self, logits: Tensor, index: Tensor) -> None:
        """Take in logits (n, J) at some rows (n,) of `perturbed_inputs.flatten(0, 1)`; they replace earlier ones."""
        logits = self._as_class_logits(logits)
        index = as_labels(index, logits.shape[0], "index", are_classes=False).to(logits.device)
        n_rows = len(self.perturbed)
        if int(index.max()) >= n_rows:
            raise ValueError(f"`index` must hold rows in [0, {n_rows}), got {int(index.max())}.")
        if self.logits is None:
            self.logits = logits.new_full((n_rows, logits.shape[1]), torch.nan)
            self._is_given = torch.zeros(n_rows, dtype=torch.bool, device=logits.device)
        if logits.shape[1] != self.logits.shape[1]:
            raise ValueError(f"`logits` must have {self.logits.shape[1]} columns, as before, got {logits.shape[1]}.")
        self.logits[index] = logits.to(self.logits)
        self._is_given[index] = True

    def compute(self) -> Tensor:
        """Boundary uncertainty of the logits given since `reset`; RuntimeError says how many rows are missing."""
        check_fitted(self, "mean_")
        n_missing = len(self.perturbed) if self.logits is None else int((~self._is_given).sum())
        if self.logits is None or n_missing:
            raise RuntimeError(f"{n_missing} perturbed inputs have no logits yet: call `update` with their rows first.")
        return self.to(self.logits.device).score_logits(self.logits)

    def reset(self) -> None:
        """Forget all logits."""
        self.logits = None

    def to(self, device: torch.device | str) -> Self:
        """Move all tensors to `device`, in place: the fitted ones, the perturbed inputs and the logits given."""
        check_fitted(self, "mean_")
        for name, value in vars(self).items():
            if isinstance(value, Tensor | PerturbedInputs):
                setattr(self, name, value.to(device))
        return self

    def _index(self) -> Self:
        """Lay out the clusters as the counts read them at each check, several draws of small data in one call."""
        self._pairs, self._pair_index = index_pairs(self.bayes_pairs)
        n_stacked = min(self.n_draws, max(1, _STACKED_ELEMENTS // self.neighbors.numel()))
        draw = torch.arange(n_stacked, device=self.labels.device).repeat_interleave(len(self.labels))
        self._members = (self.neighbors.repeat(n_stacked, 1) + (draw * len(self.labels)).unsqueeze(1)).to(torch.int32)
        self._n_classes = int(self.labels.max()) + 1
        narrow = self.labels.to(dtype_of_labels(self._n_classes))
        self._member_labels = narrow[self.neighbors].repeat(n_stacked, 1)
        self._pair_of_draw = self._pair_index.repeat(n_stacked) + draw * len(self._pairs)
        self.logits = None
        return self

    def _terms_of_part(self, logits: Tensor, predicted_pairs: Tensor | None) -> list[PairTerms]:
        """Terms of each of a few draws (n * N, J), measured as one draw of n times the samples and pairs of classes."""
        n_rows = len(logits)
        n_draws = n_rows // len(self.labels)
        terms = pair_terms(
            logits,
            self.labels.repeat(n_draws),
            self._members[:n_rows],
            self._pairs.repeat(n_draws, 1),
            self._pair_of_draw[:n_rows],
            predicted_pairs=None if predicted_pairs is None else predicted_pairs.repeat(n_draws, 1),
            bandwidth=self.bandwidth,
            weights=None if self.weights is None else self.weights.repeat(n_draws),
            member_labels=self._member_labels[:n_rows],
        )
        terms = terms._replace(shares=terms.shares * n_draws)
        return [PairTerms(*of_draw) for of_draw in zip(*(column.chunk(n_draws) for column in terms), strict=True)]

    def _as_class_logits(self, logits: Tensor) -> Tensor:
        check_fitted(self, "mean_")
        logits = as_logits(logits).detach()
        if logits.shape[1] < self._n_classes:
            raise ValueError(
                f"`logits` must have at least {self._n_classes} columns, one for each class of `fit`,"
                f" got {logits.shape[1]}."
            )
        return logits
