"""Choice between a space and the metric that labels teach in it, by samples whose labels the metric has not seen."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Self

import torch
from torch import Tensor

from bu_torch.estimators.label_regression import LabelRegression
from bu_torch.estimators.label_votes import LabelVotes
from bu_torch.functional.probabilities import best_candidate, brier_score, mixing_weight, shares_of, skill
from bu_torch.functional.votes import count_votes
from bu_torch.functional.weights import mean_of
from bu_torch.samples.balance import stratified_rows, weights_of
from bu_torch.space.metric import LabelMetric

_FOLDS = 3
_COMPARED = 1200  # samples
_VOTERS = 39  # nearest samples, as many as a cluster has by default
_DECAYS = LabelVotes().decays
_LANDMARKS = 200  # fewer than later: time grows with the cube
_LEAST_UNTAUGHT = 1000  # samples that tell more than the folds
_NEIGHBORS, _REGRESSION = 1.0, 2.0  # standard errors that a gain must exceed
_NEARLY_ALL = 0.95  # with so much of the weight here, the other regression is not worth its time


class Honest(NamedTuple):
    """Class probabilities (n, C) of samples by others alone, with labels (n,) and weights (n,) to judge them by."""

    votes: Tensor
    regression: Tensor
    labels: Tensor
    weights: Tensor | None

    def skill(self, probabilities: Tensor) -> float:
        """Brier skill score of one of them: 1 is certain, 0 chance."""
        score = float(brier_score(probabilities, self.labels, weights=self.weights))
        return skill(score, shares_of(self.labels, self.weights))


@dataclass(frozen=True)
class MetricTrial:
    """Class probabilities (n, C) of n samples in a space and in the metric, made of other samples alone.

    Three folds are made of at most 1200 samples. The metric, a regression and the votes of the nearest see two of them,
    and predict the third. (Leave-one-out predictions given the metric promise too much, because it has seen the label.)
    """

    labels: Tensor  # (n,)
    weights: Tensor | None  # (n,)
    votes: tuple[Tensor, Tensor]  # in the space, in the metric
    regressions: tuple[Tensor, Tensor]

    @classmethod
    def of(cls, points: Tensor, labels: Tensor, weights: Tensor | None = None, seed: int = 0) -> Self:
        """Try both with points (N, d), labels (N,), integers >= 0, and weights (N,) of the samples."""
        labels = torch.unique(labels, return_inverse=True)[1]
        rows = stratified_rows(len(points), _COMPARED, seed, labels).to(points.device)
        points, labels = points[rows], labels[rows]
        weights = None if weights is None else weights_of(labels, None, weights[rows])
        n_classes = int(labels.max()) + 1
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed)).to(labels.device)
        order = order[labels[order].argsort(stable=True)]
        fold = torch.empty_like(labels)
        fold[order] = torch.arange(len(labels), device=labels.device) % _FOLDS  # each class is spread over all
        votes = points.new_zeros(2, len(_DECAYS), len(points), n_classes, dtype=torch.float32)
        regressions = torch.zeros_like(votes[:, 0])
        for number in range(_FOLDS):
            seen, held = fold != number, fold == number
            own = None if weights is None else weights[seen]
            metric = LabelMetric(n_landmarks=_LANDMARKS, seed=seed).fit(points[seen], labels[seen], own)
            for place, space in enumerate((points, metric.transform(points))):
                n_voters = min(_VOTERS, int(seen.sum()))
                voters = torch.cdist(space[held], space[seen]).topk(n_voters, largest=False).indices
                for column, decay in enumerate(_DECAYS):
                    votes[place, column, held] = count_votes(labels[seen], voters, decay, n_classes, own)
                regression = LabelRegression(_LANDMARKS, seed=seed).fit(space[seen], labels[seen], own)
                predicted = regression.predict_proba(space[held])
                regressions[place, held] = torch.nn.functional.pad(predicted, (0, n_classes - predicted.shape[1]))
        first, second = (best_candidate(zip(_DECAYS, of_space, strict=True), labels, weights)[2] for of_space in votes)
        return cls(labels, weights, (first, second), (regressions[0], regressions[1]))

    @property
    def prefers_metric(self) -> bool:
        """True if the votes of the nearest are better in the metric by more than a standard error (Brier score)."""
        return self._is_better(*self.votes, _NEIGHBORS)

    @property
    def vote_skills(self) -> tuple[float, float]:
        """Skill of the votes in the space and in the metric: 1 is certain, 0 chance."""
        honest = Honest(*self.votes, self.labels, self.weights)
        return honest.skill(self.votes[0]), honest.skill(self.votes[1])

    @property
    def regression_weight(self) -> float:
        """Weight in [0, 1] of the regression in the metric beside that in the space.

        It is 0 unless the mixture is better than the regression in the space by more than two standard errors, and 1 if
        it is near 1.
        """
        weight = float(mixing_weight(*self.regressions, self.labels, weights=self.weights))
        mixture = torch.lerp(*self.regressions, weight)
        if not self._is_better(self.regressions[0], mixture, _REGRESSION):
            return 0.0
        return 1.0 if weight > _NEARLY_ALL else weight

    def _is_better(self, first: Tensor, second: Tensor, n_errors: float) -> bool:
        """True if the Brier score of the second is less by more than so many standard errors."""
        one_hot = torch.nn.functional.one_hot(self.labels, first.shape[1])
        distances = [(one - one_hot).double().square().sum(dim=1) for one in (first, second)]
        gains = distances[0] - distances[1]
        gain = mean_of(gains, self.weights)
        deviations = gains - gain if self.weights is None else (gains - gain) * self.weights
        return bool(gain > n_errors * deviations.square().sum().sqrt() / len(gains))


class MetricRegression:
    """Two regressions of the labels, in a space and in the metric that labels teach in it, mixed.

    Used as `LabelRegression`, on points of the space. The weights of the mixture, beside votes too, and the skills come
    of predictions that are honest: those of samples that have not taught the metric, if they are 1000 or more, and else
    those of the trial.

    Args:
        trial: The trial.
        metric: The fitted metric, if the votes are those of neighbours in it; None to learn it, for the regression.
        seed: Seed of the random choices.
    """

    def __init__(self, trial: MetricTrial, metric: LabelMetric | None, *, seed: int = 0) -> None:
        self.trial, self.has_votes_in_metric = trial, metric is not None
        self.metric = LabelMetric(seed=seed) if metric is None else metric
        self.parts = (LabelRegression(seed=seed), LabelRegression(seed=seed))

    def fit(self, features: Tensor, labels: Tensor, sample_weight: Tensor | None = None) -> Self:
        """Fit both to points (N, d) of the space, labels (N,) and weights (N,)."""
        if not self.has_votes_in_metric:
            self.metric.fit(features, labels, sample_weight)
        self.weight_ = self.trial.regression_weight
        first, second = self.parts
        if self.weight_ < 1:
            left_out = first.fit(features, labels, sample_weight).left_out
        if self.weight_ > 0:
            in_metric = second.fit(self.metric.transform(features), labels, sample_weight).left_out
        self.rows_ = (first if self.weight_ < 1 else second).rows_
        untaught = ~torch.isin(self.rows_, self.metric.rows_)
        self._untaught = untaught if int(untaught.sum()) >= _LEAST_UNTAUGHT else None
        if self._untaught is not None and 0 < self.weight_ < 1:
            rows = self.rows_[untaught]
            weights = None if sample_weight is None else sample_weight[rows]
            both = left_out[untaught], in_metric[untaught]
            self.weight_ = float(mixing_weight(*both, labels[rows], weights=weights))
        self.left_out = self._mixed(lambda: left_out, lambda: in_metric)
        return self

    def predict_proba(self, features: Tensor) -> Tensor:
        """Class probabilities (P, J), float32, at points (P, d) of the space."""
        first, second = self.parts
        return self._mixed(
            lambda: first.predict_proba(features), lambda: second.predict_proba(self.metric.transform(features))
        )

    def _mixed(self, first: Callable[[], Tensor], second: Callable[[], Tensor]) -> Tensor:
        if self.weight_ in (0, 1):
            return second() if self.weight_ else first()
        return torch.lerp(first(), second(), self.weight_)

    def honest(self, votes: LabelVotes, labels: Tensor, weights: Tensor | None) -> Honest:
        """Predictions of votes and of the mixture for labels that have not taught the metric."""
        if self._untaught is None:
            trial = self.trial
            mixture = torch.lerp(*trial.regressions, self.weight_)
            return Honest(trial.votes[self.has_votes_in_metric], mixture, trial.labels, trial.weights)
        rows = self.rows_[self._untaught]
        of_rows = None if weights is None else weights_of(labels[rows], None, weights[rows])
        return Honest(votes.left_out[rows], self.left_out[self._untaught], labels[rows], of_rows)
