"""Class probabilities from the training labels: votes of the nearest, a regression on all, and their mixture."""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Self

import torch
from torch import Tensor

from bu_torch import functional
from bu_torch.functional.probabilities import as_probabilities, brier_score, mixing_weight
from bu_torch.functional.regression import landmark_projection, left_out_predictions, tangent_kernel
from bu_torch.functional.votes import count_votes
from bu_torch.internal.inputs import as_flat_features, as_labels, check_integer, check_seed
from bu_torch.internal.progress import advance
from bu_torch.neighbors.k_means import lloyd, log_device
from bu_torch.samples.balance import weights_of
from bu_torch.samples.copies import copies
from bu_torch.samples.subset import stratified_rows
from bu_torch.space.features import common_standardization, standardize

_BLOCK_ELEMENTS = 2**18  # kernel entries at once: 2 MB, which a processor keeps at hand
_LEAST_PENALTY = 1e-8  # with a smaller one, leave-one-out predictions are lost in rounding
_MOST_VOTES = 100_000  # of which the decay is chosen
_LLOYD_STEPS = 4  # of K-means for landmarks; more gain nothing


class LabelVotes:
    """Class probabilities at each training sample: fit once on labels and neighbours, then score many classifiers.

    The m-th nearest sample of a cluster votes for its label with weight m^-decay. The decay is the one whose votes
    predict left-out labels best (smallest Brier score). It comes out small where labels are noisy or classes overlap,
    so many samples have a say. It comes out large where classes are finely shaped but well separated, so the sample's
    own label nearly decides alone. Of more than 100,000 samples, a stratified subset of so many chooses. This estimate
    is this project's own.

    Args:
        decays: The decays to choose from, each >= 0; the first of equally good ones is taken.

    Attributes:
        decay_: The chosen decay.
        votes: Class probabilities with the sample's own vote, shape (N, J), float32; J is the largest label + 1.
        left_out: Class probabilities without the sample's own vote, shape (N, J), float32.
        skill_: How well the votes of the others predict a sample's label: 1 minus their Brier score over that of as
            many labels drawn at random. 1 is certain and 0 is chance; 0 also where there is a single class.

    Raises:
        ValueError: If there are no decays, or one is negative.

    Example:
        >>> labels, neighbors = torch.tensor([0, 0, 1, 1]), torch.tensor([[0, 1], [1, 0], [2, 3], [3, 2]])
        >>> float(LabelVotes().fit(labels, neighbors).score(torch.tensor([0, 0, 1, 0])))
        0.75
    """

    decay_: float
    votes: Tensor
    left_out: Tensor
    skill_: float
    _weights: Tensor | None

    def __init__(self, decays: Sequence[float] = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0)) -> None:
        if len(decays) == 0 or not all(decay >= 0 for decay in decays):
            raise ValueError(f"`decays` must hold at least one number, all >= 0, got {decays!r}.")
        self.decays = tuple(decays)

    def fit(self, labels: Any, neighbors: Tensor, sample_weight: Any = None) -> Self:
        """Choose the decay and count the votes.

        Args:
            labels: Classes, shape (N,), integers >= 0.
            neighbors: Clusters, shape (N, M) with M >= 2, the sample itself first (`NeighborGraph.neighbors`).
            sample_weight: How often training draws each sample, relative to the others, shape (N,), positive: a vote
                counts by it. None where it draws all alike.

        Returns:
            The fitted estimator, on the device of the neighbours.

        Raises:
            ValueError: If shapes do not fit.
            TypeError: If an argument is not made of integers.
        """
        labels = as_labels(labels, neighbors.shape[0]).to(neighbors.device)
        self._weights = weights = weights_of(labels, None, sample_weight)
        decays: Sequence[float] = self.decays
        if len(labels) > _MOST_VOTES and len(decays) > 1:
            decays = [self._decay_of_some(labels, neighbors, weights)]
        candidates = (
            (decay, functional.label_votes(labels, neighbors, decay, leave_one_out=True, weights=weights))
            for decay in decays
        )
        brier_score, self.decay_, self.left_out = _best_candidate(candidates, labels, weights)
        # The mean of M - 1 labels drawn at random is off by the error of the shares, and by its own variance.
        n_voters = (neighbors.shape[1] - 1) * _evenness(weights)
        by_chance = _score_of_shares(_shares(labels, weights)) * (1 + 1 / n_voters)
        self.skill_ = _skill(brier_score, by_chance)
        self.votes = functional.label_votes(labels, neighbors, self.decay_, weights=weights)
        return self

    def _decay_of_some(self, labels: Tensor, neighbors: Tensor, weights: Tensor | None) -> float:
        """The decay whose votes predict best the labels of a subset."""
        rows = stratified_rows(len(labels), _MOST_VOTES, 0, labels).to(labels.device)
        voters, n_classes = neighbors[rows, 1:].long(), int(labels.max()) + 1
        candidates = ((decay, count_votes(labels, voters, decay, n_classes, weights)) for decay in self.decays)
        return _best_candidate(candidates, labels[rows], None if weights is None else weights[rows])[1]

    def score(self, predictions: Any) -> Tensor:
        """Mean share of the votes that the predictions got.

        Args:
            predictions: Predicted classes of D perturbed copies of each sample, one draw of all N samples after
                another, shape (D * N,), integers >= 0. A class that `fit` never saw has no votes.

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
        return functional.expected_accuracy(self.votes, predictions.to(self.votes.device), weights=self._weights)


class LabelRegression:
    """Class probabilities by ridge regression of one-hot labels with the kernel of a wide ReLU network.

    Regression with a neural tangent kernel is what an infinitely wide network learns, and does well on small tables
    (Arora et al. 2020). It sees shapes that the nearest neighbours do not: a plane through many features, or a rule of
    a few. The penalty is the one that predicts left-out labels best (smallest Brier score, leave-one-out in closed
    form); it comes out large where labels are noisy. Points are centred and divided by their root mean square, so
    shift, scale and rotation do not matter. Of more than `n_landmarks` samples, centres of K-means span the solution
    (Nystroem; Zhang, Tsang, Kwok 2008). They are fitted to the labels of all samples, or of `max_samples` random ones,
    where each class keeps its share.

    Args:
        n_landmarks: The largest number of points that span the solution, >= 1; time grows with its cube.
        penalties: The penalties to choose from, each >= 1e-8, in units of the kernel's mean diagonal; the first of
            equally good ones is taken.
        max_samples: The largest number of samples to fit to, >= 1.
        seed: Seed of the random choices, 0 <= seed < 2**64.

    Attributes:
        penalty_: The chosen penalty.
        rows_: The S samples that it is fitted to, shape (S,), int64; all N where they are not more than `max_samples`.
        left_out: Class probabilities of each of them by a fit to the others, shape (S, J), float32; J is the largest
            label + 1. Centre, scale and shares of the classes are those of all S.
        skill_: How well they predict a sample's label: 1 minus their Brier score over that of the shares of the
            classes. 1 is certain and 0 is chance; 0 also where there is a single class.

    Raises:
        ValueError: If an argument is out of range.
        TypeError: If an integer is none.

    Example:
        >>> features = torch.linspace(-1, 1, 40).unsqueeze(1)
        >>> regression = LabelRegression().fit(features, (features > 0).long())
        >>> regression.predict_proba([[-0.5], [0.5]]).argmax(dim=1)
        tensor([0, 1])
    """

    penalty_: float
    rows_: Tensor
    left_out: Tensor
    skill_: float
    _center: Tensor  # (d,)
    _scale: Tensor  # scalar
    _landmarks: Tensor  # (L, d), centred and scaled
    _weights: Tensor  # (L, J)
    _shares: Tensor  # (J,)

    def __init__(
        self,
        n_landmarks: int = 500,
        penalties: Sequence[float] = (1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1, 3, 10, 30),
        max_samples: int = 10_000,
        seed: int = 0,
    ) -> None:
        self.n_landmarks = check_integer("n_landmarks", n_landmarks, 1)
        if len(penalties) == 0 or not all(_LEAST_PENALTY <= penalty < math.inf for penalty in penalties):
            raise ValueError(
                f"`penalties` must hold at least one number, all finite and >= {_LEAST_PENALTY}, got {penalties!r}."
            )
        self.penalties = tuple(penalties)
        self.max_samples = check_integer("max_samples", max_samples, 1)
        self.seed = check_seed(seed)

    def fit(self, features: Any, labels: Any, sample_weight: Any = None) -> Self:
        """Choose the penalty and solve.

        Args:
            features: Shape (N, d) or (N, ...), tensor or array of numbers, finite.
            labels: Classes, shape (N,), integers >= 0.
            sample_weight: How often training draws each sample, relative to the others, shape (N,), positive: its
                squared error counts by it. None where it draws all alike.

        Returns:
            The fitted estimator, on the device of the features.

        Raises:
            ValueError: If shapes do not fit, or a value is not finite.
            TypeError: If the labels are not classes.
        """
        points = as_flat_features(features)
        labels = as_labels(labels, points.shape[0]).to(points.device)
        weights = weights_of(labels, None, sample_weight)
        n_classes = int(labels.max()) + 1
        self.rows_ = torch.arange(len(points), device=points.device)
        if len(points) > self.max_samples:
            self.rows_ = stratified_rows(len(points), self.max_samples, self.seed, labels).to(points.device)
            points, labels = points[self.rows_], labels[self.rows_]
            weights = None if weights is None else weights_of(labels, None, weights[self.rows_])
        # Least squares with weights is least squares of rows that are multiplied by their roots.
        root = None if weights is None else weights.sqrt().unsqueeze(1)
        self._center, self._scale = common_standardization(points)
        self._landmarks = self._choose_landmarks(points)
        self._shares = _shares(labels, weights)
        targets = torch.nn.functional.one_hot(labels, n_classes).double() - self._shares
        targets = targets if root is None else targets * root
        basis, eigenvalues, projection = self._orthogonal_basis(points, root)
        left_out = left_out_predictions(basis, eigenvalues, targets, self.penalties)
        probabilities = (self._as_probabilities(predicted, root) for predicted in left_out)
        candidates = zip(self.penalties, probabilities, strict=True)
        brier_score, self.penalty_, self.left_out = _best_candidate(candidates, labels, weights)
        self._weights = projection / (eigenvalues + self.penalty_) @ (basis.T @ targets)
        self.skill_ = _skill(brier_score, _score_of_shares(self._shares))
        return self

    def _as_probabilities(self, predicted: Tensor, root: Tensor | None) -> Tensor:
        return as_probabilities((predicted if root is None else predicted / root) + self._shares)

    def predict_proba(self, features: Any) -> Tensor:
        """Class probabilities at any points.

        Args:
            features: Shape (P, d) or (P, ...), as for `fit`.

        Returns:
            Shape (P, J), rows sum to 1, float32, on the device of the fitted tensors.

        Raises:
            RuntimeError: If `fit` has not been called.
            ValueError: If the number of features differs from that of `fit`, or a value is not finite.
        """
        if not hasattr(self, "_weights"):
            raise RuntimeError("This LabelRegression is not fitted yet: call `fit` first.")
        points = as_flat_features(features, n_features=len(self._center)).to(self._center.device)
        # All blocks go into one tensor. Small tensors that outlive the large temporary ones would scatter the heap.
        probabilities = torch.empty(len(points), len(self._shares), device=points.device, dtype=torch.float32)
        kernels = self._kernel_blocks(points)
        for block, kernel in zip(self._blocks(probabilities), kernels, strict=True):
            block.copy_(as_probabilities(kernel @ self._weights + self._shares))
        return probabilities

    def _choose_landmarks(self, points: Tensor) -> Tensor:  # (S, d) -> (L, d)
        points = standardize(points.double(), self._center, self._scale)
        if len(points) <= self.n_landmarks:
            return points
        rows = torch.randperm(len(points), generator=torch.Generator().manual_seed(self.seed))[: self.n_landmarks]
        log_device(points.device)
        on_host = points.float().cpu().numpy()
        centers, _ = lloyd(on_host, on_host[rows.numpy()], _LLOYD_STEPS)
        return torch.from_numpy(centers).to(points)

    def _orthogonal_basis(self, points: Tensor, root: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Coordinates B (S, R) of points, with B'B = diag(e); e (R,); and the P (L, R) with B = kernel @ P.

        With `root` (S, 1) each row of the kernel is multiplied by its own.
        """
        landmarks = self._landmarks
        eigenvalues, projection = landmark_projection(tangent_kernel(landmarks, landmarks))
        basis = torch.empty(len(points), len(eigenvalues), dtype=projection.dtype, device=projection.device)
        for block, kernel in zip(self._blocks(basis), self._kernel_blocks(points), strict=True):
            torch.matmul(kernel, projection, out=block)
        if root is not None:
            basis *= root
        if root is None and len(points) == len(landmarks):  # all span the basis: it is orthogonal already
            return basis, eigenvalues, projection
        squared_lengths, rotation = torch.linalg.eigh(basis.T @ basis)
        for block in self._blocks(basis):
            block.copy_(block @ rotation)
        return basis, squared_lengths.clamp(min=0), projection @ rotation

    def _kernel_blocks(self, points: Tensor) -> Iterator[Tensor]:
        """Kernel of points and landmarks, (S, L), block by block of the points."""
        for block in self._blocks(points):
            yield tangent_kernel(standardize(block.double(), self._center, self._scale), self._landmarks)
            advance(len(block) * len(self._landmarks))

    def _blocks(self, rows: Tensor) -> tuple[Tensor, ...]:
        return rows.split(max(1, _BLOCK_ELEMENTS // max(self._landmarks.shape)))


class LabelProbabilities:
    """Class probabilities at perturbed samples: fit once on the training labels, then score many classifiers.

    Two estimates are mixed: the votes of the labels near a sample (`LabelVotes`), and a regression on all labels
    (`LabelRegression`). The weight of the mixture is the one that predicts left-out labels best (smallest Brier score).
    Where a sample has exact copies, as measurements in whole numbers often have, that is mixed once more with the
    shares of their labels, by the weight that predicts left-out labels of such samples best.

    The score of a classifier is its expected accuracy: the mean probability of the classes that it predicts. It needs
    no labels beyond those of the training samples. This estimate is this project's own.

    Args:
        votes: Estimator of the votes, fitted in place; None for `LabelVotes()`.
        regression: Estimator of the regression, fitted in place; None for `LabelRegression()`.

    Attributes:
        votes: The fitted `LabelVotes`.
        regression: The fitted `LabelRegression`.
        weight_: Weight of the regression, in [0, 1]; the votes have the rest.
        copy_weight_: Weight of the copies' labels, in [0, 1], where a sample has exact copies in its cluster; the
            mixture has the rest. 0 where no sample has any.

    Example:
        >>> labels = torch.arange(40) // 20
        >>> features = labels.unsqueeze(1) + torch.linspace(-0.3, 0.3, 40).unsqueeze(1)
        >>> neighbors = torch.cdist(features, features).argsort(dim=1)[:, :5]
        >>> probabilities = LabelProbabilities().fit(features, labels, neighbors)
        >>> bool(probabilities.score(features + 0.01, labels) > 0.95)
        True
    """

    weight_: float
    copy_weight_: float
    _weights: Tensor | None
    _copied: Tensor  # rows of the samples with copies, (R,)
    _copy_shares: Tensor  # of the labels of each of them and its copies, (R, J)

    def __init__(self, votes: LabelVotes | None = None, regression: LabelRegression | None = None) -> None:
        self.votes = LabelVotes() if votes is None else votes
        self.regression = LabelRegression() if regression is None else regression

    def fit(self, features: Any, labels: Any, neighbors: Tensor, sample_weight: Any = None) -> Self:
        """Fit the votes and the regression, and find the weight of their mixture.

        Args:
            features: Training samples, shape (N, d) or (N, ...), tensor or array of numbers, finite.
            labels: Classes, shape (N,), integers >= 0.
            neighbors: Clusters, shape (N, M) with M >= 2, the sample itself first (`NeighborGraph.neighbors`), on the
                device of the features.
            sample_weight: How often training draws each sample, relative to the others, shape (N,), positive; the
                probabilities, and the score, are those of that distribution. None where it draws all alike.

        Returns:
            The fitted estimator, on the device of the features.

        Raises:
            ValueError: If shapes do not fit, or a value is not finite.
            TypeError: If an argument has the wrong type.
        """
        labels = as_labels(labels, neighbors.shape[0]).to(neighbors.device)
        self._weights = weights_of(labels, None, sample_weight)
        self.votes.fit(labels, neighbors, self._weights)
        self.regression.fit(features, labels, self._weights)
        rows = self.regression.rows_
        left_out = self.votes.left_out[rows], self.regression.left_out
        weights = None if self._weights is None else self._weights[rows]
        self.weight_ = float(mixing_weight(*left_out, labels[rows], weights=weights))
        self._fit_copies(as_flat_features(features).to(labels.device), labels, neighbors)
        return self

    def _fit_copies(self, features: Tensor, labels: Tensor, neighbors: Tensor) -> None:
        """Count the labels of exact copies, and find their weight."""
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
        """By samples that the regression has left out, too."""
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
        """Class probabilities at perturbed samples.

        Args:
            perturbed: D perturbed copies of each training sample, one draw of all N samples after another, shape
                (D * N, d) or (D * N, ...), as the features in `fit`.

        Returns:
            Shape (D * N, J), in [0, 1], rows sum to 1, float32, on the device of the fitted tensors; J is the largest
            label + 1.

        Raises:
            RuntimeError: If `fit` has not been called.
            ValueError: If the length is not a multiple of N, the number of features differs from that of `fit`, or a
                value is not finite.
        """
        if not hasattr(self, "weight_"):
            raise RuntimeError("This LabelProbabilities is not fitted yet: call `fit` first.")
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
        """Expected accuracy of predictions at perturbed samples.

        Args:
            perturbed: As for `predict_proba`.
            predictions: Predicted classes there, shape (D * N,), integers >= 0. A class that `fit` never saw has
                probability 0.

        Returns:
            Scalar in [0, 1], float64, on the device of the fitted tensors.

        Raises:
            RuntimeError: If `fit` has not been called.
            ValueError: If shapes do not fit, or a value is not finite.
            TypeError: If the predictions are not integers.
        """
        probabilities = self.predict_proba(perturbed)
        predictions = as_labels(predictions, len(probabilities), "predictions").to(probabilities.device)
        weights = None if self._weights is None else self._weights.repeat(len(probabilities) // len(self._weights))
        return functional.expected_accuracy(probabilities, predictions, weights=weights)


def _best_candidate(
    candidates: Iterable[tuple[float, Tensor]], labels: Tensor, weights: Tensor | None
) -> tuple[float, float, Tensor]:
    """Of (parameter, left-out probabilities): the least Brier score, its parameter and probabilities in float32."""
    scored = (
        (float(brier_score(left_out, labels, weights=weights)), parameter, left_out.float())
        for parameter, left_out in candidates
    )
    return min(scored, key=lambda candidate: candidate[0])


def _rows_to_one(counts: Tensor) -> Tensor:
    return counts / counts.sum(dim=1, keepdim=True)


def _shares(labels: Tensor, weights: Tensor | None) -> Tensor:
    """Share of each class (J,), float64."""
    counts = torch.zeros(int(labels.max()) + 1, dtype=torch.float64, device=labels.device)
    counts.index_add_(0, labels, torch.ones_like(labels, dtype=torch.float64) if weights is None else weights)
    return counts / counts.sum()


def _evenness(weights: Tensor | None) -> float:
    """Samples of equal weight that a mean with these weights is worth, as a share of their number (Kish 1965)."""
    return 1.0 if weights is None else float(weights.sum().square() / weights.square().sum() / len(weights))


def _score_of_shares(shares: Tensor) -> float:
    """Brier score of the shares of the classes (J,) as the probabilities of every sample."""
    return float(1 - shares.square().sum())


def _skill(brier_score: float, by_chance: float) -> float:
    """Brier skill score: 1 is certain, 0 is chance; 0 also where there is a single class."""
    return 1 - brier_score / by_chance if by_chance else 0.0
