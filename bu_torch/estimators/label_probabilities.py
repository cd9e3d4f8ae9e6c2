"""Class probabilities at perturbed samples: votes of the nearest labels and a regression on all, mixed."""

from typing import Any, Self

import torch
from torch import Tensor

from bu_torch import functional
from bu_torch.estimators.label_regression import LabelRegression
from bu_torch.estimators.label_votes import LabelVotes
from bu_torch.estimators.metric_choice import Honest, MetricRegression
from bu_torch.functional.probabilities import mixing_weight
from bu_torch.internal.inputs import as_flat_features, as_labels, check_fitted
from bu_torch.samples.balance import weights_of
from bu_torch.samples.samples import copies


class LabelProbabilities:
    """Class probabilities at perturbed samples: fit once on the training labels, then score many classifiers.

    Two estimates are mixed: the votes of the labels near a sample (`LabelVotes`), and a regression on all labels
    (`LabelRegression`), by the weight that predicts left-out labels best (smallest Brier score). For samples with exact
    copies, as measurements in whole numbers often have, that is mixed once more with the shares of their labels, in the
    same way. The score of a classifier is its expected accuracy, the mean probability of the classes that it predicts,
    which needs no labels beyond those of the training samples. This estimate is this project's own.

    Raises TypeError or ValueError for an argument of the wrong type, shape or values, RuntimeError before `fit`.

    Args:
        votes: Estimator of the votes, fitted in place; None for `LabelVotes()`.
        regression: Estimator of the regression, fitted in place; None for `LabelRegression()`.

    Attributes:
        votes, regression: The fitted estimators.
        weight_: Weight of the regression, in [0, 1]; the votes have the rest.
        copy_weight_: Weight of the copies' labels, in [0, 1], for samples with exact copies in their cluster; the
            mixture has the rest. 0 if no sample has any.
        skills_: Skills of votes and regression, 1 is certain and 0 chance: honest ones if a metric is learnt from the
            labels (`MetricRegression`).

    Example:
        >>> labels = torch.arange(40) // 20
        >>> features = labels.unsqueeze(1) + torch.linspace(-0.3, 0.3, 40).unsqueeze(1)
        >>> neighbors = torch.cdist(features, features).argsort(dim=1)[:, :5]
        >>> probabilities = LabelProbabilities().fit(features, labels, neighbors)
        >>> bool(probabilities.score(features + 0.01, labels) > 0.95)
        True
    """

    def __init__(
        self, votes: LabelVotes | None = None, regression: LabelRegression | MetricRegression | None = None
    ) -> None:
        self.votes = LabelVotes() if votes is None else votes
        self.regression = LabelRegression() if regression is None else regression

    def fit(self, features: Any, labels: Any, neighbors: Tensor, sample_weight: Any = None) -> Self:
        """Fit the votes and the regression, and find the weight of their mixture.

        Takes features (N, d) or (N, ...), finite; labels (N,), integers >= 0; and clusters (N, M) with M >= 2, the
        sample itself first (`NeighborGraph.neighbors`), on the device of the features. `sample_weight` (N,), positive,
        is how often training draws each sample: the probabilities, and the score, are those of that distribution.
        """
        labels = as_labels(labels, neighbors.shape[0]).to(neighbors.device)
        self._weights = weights_of(labels, None, sample_weight)
        self.votes.fit(labels, neighbors, self._weights)
        self.regression.fit(features, labels, self._weights)
        if isinstance(self.regression, MetricRegression):
            honest = self.regression.honest(self.votes, labels, self._weights)
            self.skills_ = self.votes.skill_, honest.skill(honest.regression)
            if self.regression.has_votes_in_metric:
                self.skills_ = honest.skill(honest.votes), self.skills_[1]
        else:
            rows = self.regression.rows_
            weights = None if self._weights is None else self._weights[rows]
            honest = Honest(self.votes.left_out[rows], self.regression.left_out, labels[rows], weights)
            self.skills_ = self.votes.skill_, self.regression.skill_
        self.weight_ = float(mixing_weight(honest.votes, honest.regression, honest.labels, weights=honest.weights))
        self._fit_copies(as_flat_features(features).to(labels.device), labels, neighbors)
        return self

    def _fit_copies(self, features: Tensor, labels: Tensor, neighbors: Tensor) -> None:
        """Rows of the R samples with copies, the weight of these, and shares of the labels of each and its copies."""
        weights = torch.ones_like(labels, dtype=torch.float64) if self._weights is None else self._weights
        self._copied, place = labels[:0], torch.empty_like(labels)
        counts = weights.new_zeros((0, self.votes.votes.shape[1]))
        for rows, others in copies(features, neighbors):
            if not len(self._copied):
                self._copied, counts = rows, weights.new_zeros((len(rows), counts.shape[1]))
                place[rows] = torch.arange(len(rows), device=rows.device)
            counts[place[rows], labels[others]] += weights[others]
        self.copy_weight_ = self._weight_of_copies(counts, labels)
        counts[torch.arange(len(counts), device=counts.device), labels[self._copied]] += weights[self._copied]
        self._copy_shares = _rows_to_one(counts).float()

    def _weight_of_copies(self, counts: Tensor, labels: Tensor) -> float:
        """Weight of the copies that predicts best, by samples that the regression has left out too."""
        rows = self.regression.rows_
        read = torch.full_like(labels, -1)  # the row of each sample among them
        read[rows] = torch.arange(len(rows), device=rows.device)
        is_read = read[self._copied] >= 0
        copied = self._copied[is_read]
        if not len(copied):
            return 0.0
        mixture = torch.lerp(self.votes.left_out[copied], self.regression.left_out[read[copied]], self.weight_)
        weights = None if self._weights is None else self._weights[copied]
        others = _rows_to_one(counts[is_read]).to(mixture)
        return float(mixing_weight(mixture, others, labels[copied], weights=weights))

    def predict_proba(self, perturbed: Any) -> Tensor:
        """Class probabilities (D * N, J) at perturbed samples, float32, rows sum to 1; J is the largest label + 1.

        `perturbed` holds D perturbed copies of each training sample, one draw of all N samples after another.
        """
        check_fitted(self, "weight_")
        perturbed = as_flat_features(perturbed, "perturbed")
        votes = self.votes.votes
        if len(perturbed) % len(votes):
            raise ValueError(f"`perturbed` must hold a multiple of the {len(votes)} samples, got {len(perturbed)}.")
        probabilities = self.regression.predict_proba(perturbed)
        for draw in probabilities.view(-1, *votes.shape):  # in place: with many draws this is a large tensor
            torch.lerp(votes, draw, self.weight_, out=draw)
            draw[self._copied] = torch.lerp(draw[self._copied], self._copy_shares, self.copy_weight_)
        return probabilities

    def score(self, perturbed: Any, predictions: Any) -> Tensor:
        """Expected accuracy, float64, of predictions (D * N,), integers >= 0, at perturbed samples (D * N, ...).

        A class that `fit` never saw has probability 0.
        """
        probabilities = self.predict_proba(perturbed)
        predictions = as_labels(predictions, len(probabilities), "predictions").to(probabilities.device)
        weights = None if self._weights is None else self._weights.repeat(len(probabilities) // len(self._weights))
        return functional.expected_accuracy(probabilities, predictions, weights=weights)


def _rows_to_one(counts: Tensor) -> Tensor:
    return counts / counts.sum(dim=1, keepdim=True)
