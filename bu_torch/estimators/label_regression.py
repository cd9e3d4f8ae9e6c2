"""Class probabilities at any point: a kernel regression on the training labels."""

import math
from collections.abc import Iterator, Sequence
from typing import Any, Self

import torch
from torch import Tensor

from bu_torch.functional.probabilities import as_probabilities, best_candidate, shares_of, skill
from bu_torch.functional.regression import landmark_factor, left_out_predictions, tangent_kernel
from bu_torch.internal.inputs import as_flat_features, as_labels, check_fitted, check_integer, check_seed
from bu_torch.internal.progress import advance
from bu_torch.neighbors.k_means import lloyd
from bu_torch.samples.balance import stratified_rows, weights_of
from bu_torch.space.features import common_standardization, standardize

_BLOCK_ELEMENTS = 2**18  # kernel entries at once: 2 MB, which a processor keeps at hand
_LEAST_PENALTY = 1e-8  # with a smaller one, leave-one-out predictions are lost in rounding
_LLOYD_STEPS = 4  # K-means for landmarks gains nothing by more


class LabelRegression:
    """Class probabilities by ridge regression of one-hot labels with the kernel of a wide ReLU network.

    Regression with a neural tangent kernel is what an infinitely wide network learns, and does well on small tables
    (Arora et al. 2020). It sees shapes that the nearest neighbours do not: a plane through many features, or a rule of
    a few. The penalty is the one that predicts left-out labels best (smallest Brier score, leave-one-out in closed
    form). Points are centred and divided by their root mean square, so shift, scale and rotation do not matter. Of more
    than `n_landmarks` samples, centres of K-means span the solution (Nystroem; Zhang, Tsang, Kwok 2008), which is
    fitted to all samples, or to `max_samples` random ones, with the share of each class kept.

    Raises TypeError or ValueError for an argument of the wrong type, shape or values, RuntimeError before `fit`.

    Args:
        n_landmarks: The largest number of points that span the solution, >= 1; time grows with its cube.
        penalties: The penalties to choose from, each >= 1e-8, in units of the kernel's mean diagonal; the first of
            equally good ones is taken.
        max_samples: The largest number of samples to fit to, >= 1.
        seed: Seed of the random choices, 0 <= seed < 2**64.

    Attributes:
        penalty_: The chosen penalty.
        rows_: The S samples that it is fitted to, shape (S,), int64; all N if they are not more than `max_samples`.
        left_out: Class probabilities of each of them by a fit to the others, (S, J), float32; J is the largest label +
            1. Centre, scale and shares of the classes are those of all S.
        skill_: Skill of `left_out`: 1 minus its Brier score over that of the shares of the classes. 1 is certain and 0
            is chance; 0 also if there is a single class.

    Example:
        >>> features = torch.linspace(-1, 1, 40).unsqueeze(1)
        >>> regression = LabelRegression().fit(features, (features > 0).long())
        >>> regression.predict_proba([[-0.5], [0.5]]).argmax(dim=1)
        tensor([0, 1])
    """

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
        """Choose the penalty and solve, for features (N, d) or (N, ...), finite, and labels (N,), integers >= 0.

        The squared error of a sample counts by `sample_weight` (N,), positive: how often training draws it.
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
        self._shares = shares_of(labels, weights)
        targets = torch.nn.functional.one_hot(labels, n_classes).double() - self._shares
        targets = targets if root is None else targets * root
        basis, eigenvalues, projection = self._orthogonal_basis(points, root)
        left_out = left_out_predictions(basis, eigenvalues, targets, self.penalties)
        if root is not None:
            left_out = (predicted / root for predicted in left_out)
        probabilities = (as_probabilities(predicted + self._shares) for predicted in left_out)
        candidates = zip(self.penalties, probabilities, strict=True)
        brier_score, self.penalty_, self.left_out = best_candidate(candidates, labels, weights)
        self._weights = projection / (eigenvalues + self.penalty_) @ (basis.T @ targets)  # (L, J)
        self.skill_ = skill(brier_score, self._shares)
        return self

    def predict_proba(self, features: Any) -> Tensor:
        """Class probabilities (P, J), float32, rows sum to 1, at points (P, d) or (P, ...), as in `fit`."""
        check_fitted(self, "_weights")
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
        single = points.float()
        return lloyd(single, single[rows.to(points.device)], _LLOYD_STEPS)[0].to(points)

    def _orthogonal_basis(self, points: Tensor, root: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Coordinates B (S, L) of points, times `root` (S, 1), so that B'B = diag(e); e (L,); P (L, L)."""
        kernel = tangent_kernel(self._landmarks, self._landmarks)
        factor, unit = landmark_factor(kernel).T, kernel.diagonal().mean()
        basis = torch.empty(len(points), len(factor), dtype=factor.dtype, device=factor.device)
        for block, of_block in zip(self._blocks(basis), self._kernel_blocks(points), strict=True):
            block.copy_(torch.linalg.solve_triangular(factor, of_block / unit, upper=True, left=False))
        if root is not None:
            basis *= root
        squared_lengths, rotation = torch.linalg.eigh(basis.T @ basis)
        for block in self._blocks(basis):
            block.copy_(block @ rotation)
        projection = torch.linalg.solve_triangular(factor, rotation, upper=True) / unit
        return basis, squared_lengths.clamp(min=0), projection

    def _kernel_blocks(self, points: Tensor) -> Iterator[Tensor]:
        """Kernel of points and landmarks, (S, L), block by block of the points."""
        for block in self._blocks(points):
            yield tangent_kernel(standardize(block.double(), self._center, self._scale), self._landmarks)
            advance(len(block) * len(self._landmarks))

    def _blocks(self, rows: Tensor) -> tuple[Tensor, ...]:
        return rows.split(max(1, _BLOCK_ELEMENTS // max(self._landmarks.shape)))
