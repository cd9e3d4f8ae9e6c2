"""Class probabilities from the training labels: votes of the nearest samples, a kernel regression, their mixture."""

from functools import partial
from typing import Any, Self

import torch
from torch import Tensor
from torch.linalg import solve_triangular

from bu_torch.functional import expected_accuracy
from bu_torch.functional import probabilities as formulas
from bu_torch.internal.inputs import as_flat_features, as_labels, check_fitted, check_integer, check_seed
from bu_torch.neighbors.graph import copies, lloyd
from bu_torch.samples.samples import stratified_rows, weights_of
from bu_torch.space.features import LabelMetric, standardization, standardize

DECAYS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0)  # the votes choose among them
_PENALTIES = (30, 10, 3, 1, 0.3, 0.1, 3e-2, 1e-2, 3e-3, 1e-3)  # in units of the kernel's mean diagonal
_JITTERS = 1e-7, 1e-5, 1e-3  # the least that makes the kernel of the landmarks positive definite is taken
_BLOCK_ELEMENTS = 2**18  # kernel entries at once: 2 MB, which fit into a processor's cache
_LLOYD_STEPS = 2  # K-means with more steps places landmarks no better


class LabelVotes:
    """Class probabilities at each training sample by the votes of its neighbours.

    The m-th nearest sample of a cluster votes for its label with weight m^-decay. The decay, 0 to 3, is the one whose
    votes predict left-out labels best (smallest Brier score). This estimate is this project's own.

    Attributes:
        decay_: The chosen decay, the first of equally good ones.
        votes: Class probabilities with the sample's own vote, shape (N, J), float32; J is the largest label + 1.
        left_out: The same without the sample's own vote.
        skill_: Skill of `left_out`, by its Brier score: 1 is certain, and 0 as many labels drawn at random.
    """

    def fit(self, labels: Any, neighbors: Tensor, sample_weight: Any = None) -> Self:
        """Choose the decay and count the votes.

        Takes classes (N,), integers >= 0; clusters (N, M) with M >= 2, the sample itself first
        (`NeighborGraph.neighbors`); and how often training draws each sample, (N,), positive: a vote counts by it.
        """
        labels = as_labels(labels, neighbors.shape[0]).to(neighbors.device)
        weights = weights_of(labels, None, sample_weight)
        votes = partial(formulas.label_votes, labels, neighbors, weights=weights)
        candidates = ((decay, votes(decay, leave_one_out=True)) for decay in DECAYS)
        self.decay_, self.left_out = formulas.best_candidate(candidates, labels, weights)
        # The mean of M - 1 labels drawn at random is off by the error of the shares, and by its own variance.
        n_voters = float(neighbors.shape[1] - 1)
        if weights is not None:  # number of voters of equal weight (Kish 1965)
            n_voters *= float(weights.sum().square() / weights.square().sum() / len(weights))
        self.skill_ = formulas.skill(self.left_out, labels, weights, n_voters)
        self.votes = votes(self.decay_)
        return self


class LabelRegression:
    """Class probabilities by ridge regression of one-hot labels with the kernel of a wide ReLU network.

    Regression with a neural tangent kernel is what an infinitely wide network learns, and does well on small tables
    (Arora et al. 2020). The penalty, 0.001 to 30 times the kernel's mean diagonal, predicts left-out labels best
    (smallest Brier score, leave-one-out in closed form); penalties are tried from the largest on, until the next is no
    better. Points are centred and divided by their root mean square. Beyond `n_landmarks` samples, centres of K-means
    span the solution (Nystroem; Zhang, Tsang, Kwok 2008), half of which choose the penalty and predict left-out labels.

    Args:
        n_landmarks: The largest number of points that span the solution, >= 1; time grows with its cube.
        max_samples: The largest number of samples to fit to, >= 1: of more, a random part with the share of each class.
        seed: Seed of the random choices, 0 <= seed < 2**64.
        metric: Moves features before they are compared, fitted before; None for no metric.

    Attributes:
        penalty_: The chosen penalty.
        rows_: The S samples that it is fitted to, shape (S,), int64.
        left_out: Class probabilities of each of them by a fit to the others, (S, J), float32. Centre, scale and shares
            of the classes are those of all S; J is the largest label + 1.
        skill_: Skill of `left_out`, by its Brier score: 1 is certain, and 0 the shares of the classes.
    """

    def __init__(
        self, n_landmarks: int = 500, max_samples: int = 10_000, seed: int = 0, metric: LabelMetric | None = None
    ) -> None:
        self.n_landmarks = check_integer("n_landmarks", n_landmarks, 1)
        self.max_samples = check_integer("max_samples", max_samples, 1)
        self.seed = check_seed(seed)
        self.metric = metric

    def fit(self, features: Any, labels: Any, sample_weight: Any = None) -> Self:
        """Choose the penalty and solve, for features (N, d) or (N, ...), finite, and labels (N,), integers >= 0.

        The squared error of a sample counts by `sample_weight` (N,), positive: how often training draws it.
        """
        points = self._points(features)
        labels = as_labels(labels, points.shape[0]).to(points.device)
        weights = weights_of(labels, None, sample_weight)
        self.rows_ = rows = stratified_rows(len(points), self.max_samples, self.seed, labels).to(points.device)
        points, labels = points[rows], labels[rows]
        weights = None if weights is None else weights_of(labels, None, weights[rows])
        # Least squares with weights is least squares of rows that are multiplied by their roots.
        root = points.new_ones(1, dtype=torch.float64) if weights is None else weights.sqrt().unsqueeze(1)
        self._center, self._scale = standardization(points, has_common_scale=True)
        self._landmarks = standardize(points.double(), self._center, self._scale)  # (L, d)
        if len(points) > self.n_landmarks:
            order = torch.randperm(len(points), generator=torch.Generator().manual_seed(self.seed), device="cpu")
            single = self._landmarks.float()
            started = single[order[: self.n_landmarks].to(points.device)]
            self._landmarks = lloyd(single, started, _LLOYD_STEPS)[0].to(self._landmarks)
        self._n_rows = max(1, _BLOCK_ELEMENTS // max(self._landmarks.shape))  # of a block
        self._shares = formulas.shares_of(labels, weights)
        targets = (torch.nn.functional.one_hot(labels) - self._shares) * root
        # F'F is the landmarks' kernel times its mean diagonal, with a jitter, because landmarks may coincide. Points
        # with kernel values K (S, L) have coordinates K F^-1, whose products are the kernel over that mean (Nystroem).
        own = formulas.tangent_kernel(self._landmarks, self._landmarks)
        unit, identity = own.diagonal().mean(), torch.eye(len(own)).to(own)
        for jitter in _JITTERS:
            triangle, info = torch.linalg.cholesky_ex(own / unit + jitter * identity)
            if not bool(info):
                break
        factor = triangle.T * unit
        kernels = map(self._kernel, points.split(self._n_rows))
        basis = torch.cat([solve_triangular(factor, one, upper=True, left=False) for one in kernels]).mul_(root)
        products, moments = basis.T @ basis, basis.T @ targets
        predicted = formulas.left_out_predictions(basis, products, targets, _PENALTIES)
        left_out = (formulas.as_probabilities(one / root + self._shares) for one in predicted)
        candidates = zip(_PENALTIES, left_out, strict=True)
        self.penalty_, self.left_out = formulas.best_candidate(candidates, labels, weights, ends_early=True)
        self.skill_ = formulas.skill(self.left_out, labels, weights)
        # The hat matrix is K (A'A)^-1 K', with weighted rows; its entries are products of rows of K A^-1.
        inner = torch.linalg.cholesky(products + self.penalty_ * identity)
        self._factor = inner.T @ factor  # A (L, L)
        self._coefficients = solve_triangular(factor, torch.cholesky_solve(moments, inner), upper=True)
        return self

    def predict_proba(
        self, features: Any, own: Any = None, labels: Tensor | None = None, weights: Tensor | None = None
    ) -> Tensor:
        """Class probabilities (P, J), float32, rows sum to 1, at points (P, d) or (P, ...), as in `fit`.

        With `own`, samples (P, d) of `fit` with their labels (P,) and weights (P,) of mean 1, each is left out of the
        fit for its point: the leave-one-out prediction in closed form, at another place than the sample.
        """
        check_fitted(self, "_coefficients")
        points = self._points(features, len(self._center)).to(self._center.device)
        own = None if own is None else self._points(own)
        # All blocks go into one tensor. Small tensors that outlive the large temporary ones would scatter the heap.
        probabilities = torch.empty(len(points), len(self._shares), device=points.device, dtype=torch.float32)
        start = 0
        for block, into in zip(points.split(self._n_rows), probabilities.split(self._n_rows), strict=True):
            kernel, rows = self._kernel(block), slice(start, start := start + len(block))
            predicted = kernel @ self._coefficients + self._shares
            if own is not None and labels is not None:
                there = self._kernel(own[rows].to(points))
                residual = torch.nn.functional.one_hot(labels[rows], len(self._shares)) - self._shares
                residual = residual - there @ self._coefficients
                at_point, at_sample = (
                    solve_triangular(self._factor, one, upper=True, left=False) for one in (kernel, there)
                )
                weight = 1.0 if weights is None else weights[rows]
                leverage = weight * at_sample.square().sum(dim=1)
                pull = weight * (at_point * at_sample).sum(dim=1) / (1 - leverage)
                predicted -= pull.unsqueeze(1) * residual
            into.copy_(formulas.as_probabilities(predicted))
        return probabilities

    def held_out(self, votes: LabelVotes, labels: Tensor, weights: Tensor | None) -> tuple[Any, ...]:
        """Left-out predictions of votes and of this regression (n, C), their labels and weights (n,), and skills."""
        rows, counted = self.rows_, None if weights is None else weights[self.rows_]
        return votes.left_out[rows], self.left_out, labels[rows], counted, (votes.skill_, self.skill_)

    def _points(self, features: Any, n_features: int | None = None) -> Tensor:
        points = as_flat_features(features, n_features=n_features)
        return points if self.metric is None else self.metric.transform(points)

    def _kernel(self, points: Tensor) -> Tensor:
        """Kernel (S, L) of points (S, d) and landmarks."""
        return formulas.tangent_kernel(standardize(points.double(), self._center, self._scale), self._landmarks)


class LabelProbabilities:
    """Class probabilities at perturbed samples: fit once on the training labels, then score many classifiers.

    Two estimates are mixed, votes of the labels near a sample (`LabelVotes`) and a regression on all labels
    (`LabelRegression`), with the weight that predicts left-out labels best (smallest Brier score). For samples with
    exact copies, common among whole-numbered measurements, the mixture is mixed in the same way with the shares of the
    copies' labels. At the perturbed samples, it is scaled so that each class has the mass that its labels have, because
    a regression overstates rare classes. This estimate is this project's own.

    Args:
        regression: Estimator of the regression, fitted in place; None for `LabelRegression()`.

    Attributes:
        votes, regression: The fitted estimators.
        weight_: Weight of the regression, in [0, 1]; the votes have the rest.
        copy_weight_: Weight of the copies' labels, in [0, 1], for samples with exact copies in their cluster.
        skills_: Skills of votes and regression, 1 is certain and 0 chance.
        sharpness_: Exponent, >= 1, that makes the probabilities as certain as left-out labels allow, by log loss: a
            regression is less certain than a good network. The probabilities themselves are not sharpened.
    """

    def __init__(self, regression: Any = None) -> None:
        self.votes = LabelVotes()
        self.regression = LabelRegression() if regression is None else regression

    def fit(self, features: Any, labels: Any, neighbors: Tensor, sample_weight: Any = None) -> Self:
        """Fit the votes and the regression, and find the weight of their mixture.

        Takes features (N, d) or (N, ...), finite; labels (N,), integers >= 0; clusters (N, M) with M >= 2, the sample
        itself first (`NeighborGraph.neighbors`), on the device of the features; and how often training draws each
        sample, (N,), positive: the probabilities, and the score, are those of that distribution.
        """
        labels = as_labels(labels, neighbors.shape[0]).to(neighbors.device)
        self._weights = weights_of(labels, None, sample_weight)
        self.votes.fit(labels, neighbors, self._weights)
        self.regression.fit(features, labels, self._weights)
        votes, regression, targets, weights, self.skills_ = self.regression.held_out(self.votes, labels, self._weights)
        self.weight_ = float(formulas.mixing_weight(votes, regression, targets, weights))
        self.sharpness_ = formulas.best_sharpness(torch.lerp(votes, regression, self.weight_), targets, weights)
        # Samples with copies, and the shares of the copies' labels, without and with the sample's own.
        weights = torch.ones_like(labels, dtype=torch.float64) if self._weights is None else self._weights
        counts = weights.new_zeros(self.votes.votes.shape)
        for rows, others in copies(as_flat_features(features).to(labels.device), neighbors):
            counts[rows, labels[others]] += weights[others]
        self._copied = copied = counts.sum(dim=1).nonzero().squeeze(1)
        of_others, own = formulas.as_probabilities(counts[copied]).float(), (copied, labels[copied])
        counts[own] += weights[copied]
        self._copy_shares = of_others, formulas.as_probabilities(counts[copied]).float()
        # Only samples that the regression has left out too can judge the weight.
        rows = self.regression.rows_  # ascending
        is_judge = torch.isin(copied, rows)
        judges = copied[is_judge]
        by_regression = self.regression.left_out[torch.searchsorted(rows, judges)]
        mixture = torch.lerp(self.votes.left_out[judges], by_regression, self.weight_)
        self.copy_weight_ = float(formulas.mixing_weight(mixture, of_others[is_judge], labels[judges], weights[judges]))
        self._labels = labels
        return self

    def predict_proba(self, perturbed: Any, own: Any = None) -> Tensor:
        """Class probabilities (D * N, J) at perturbed samples, float32, rows sum to 1; J is the largest label + 1.

        `perturbed` holds D perturbed copies of each training sample, one draw of all N samples after another. With the
        samples of `fit` themselves (N, d) as `own`, each sample's own label is left out at its copies.
        """
        check_fitted(self, "weight_")
        perturbed = as_flat_features(perturbed, "perturbed")
        votes = self.votes.votes
        if len(perturbed) % len(votes):
            raise ValueError(f"`perturbed` must hold a multiple of the {len(votes)} samples, got {len(perturbed)}.")
        n_draws, (of_others, shares) = len(perturbed) // len(votes), self._copy_shares
        repeated = None if self._weights is None else self._weights.repeat(n_draws)
        if own is None:
            probabilities = self.regression.predict_proba(perturbed)
        else:
            own = as_flat_features(own, "own").repeat(n_draws, 1)
            probabilities = self.regression.predict_proba(perturbed, own, self._labels.repeat(n_draws), repeated)
            votes, shares = self.votes.left_out, of_others
        for draw in probabilities.view(-1, *votes.shape):  # in place: with many draws this is a large tensor
            torch.lerp(votes, draw, self.weight_, out=draw)
            draw[self._copied] = torch.lerp(draw[self._copied], shares, self.copy_weight_)
        return formulas.scale_to_shares(probabilities, formulas.shares_of(self._labels, self._weights), repeated)

    def score(self, perturbed: Any, predictions: Any) -> Tensor:
        """Expected accuracy, float64, of predictions (D * N,), integers >= 0, at perturbed samples (D * N, ...).

        A class that `fit` never saw has probability 0.
        """
        probabilities = self.predict_proba(perturbed)
        predictions = as_labels(predictions, len(probabilities), "predictions").to(probabilities.device)
        weights = None if self._weights is None else self._weights.repeat(len(probabilities) // len(self._weights))
        return expected_accuracy(probabilities, predictions, weights=weights)
