"""Class probabilities anywhere, by kernel regression of the labels."""

import math
from collections.abc import Iterator, Sequence
from typing import Any, Self

import torch
from torch import Tensor

from bu_torch import functional
from bu_torch._inputs import as_flat_features, as_labels, check_integer, check_seed, safe_unit
from bu_torch._labelled_data import stratified_rows
from bu_torch._progress import advance
from bu_torch.space import moments, standardize

_LEAST_EIGENVALUE = 1e-10  # of the largest; those below are rounding
_BLOCK_ELEMENTS = 2**20  # kernel entries at once
_LEAST_PENALTY = 1e-8  # below it, a sample left out is lost in rounding


class LabelRegression:
    """Class probabilities by ridge regression of one-hot labels with the kernel of a wide ReLU network.

    Regression with a neural tangent kernel is what an infinitely wide network learns, and does well on small tables
    (Arora et al. 2020); here it says what a classifier should predict at points that have no label. It sees shapes that
    the nearest neighbours do not: a plane through many features, a rule of a few. The penalty is the one that predicts
    left-out labels best (smallest Brier score, leave-one-out in closed form), so that there is nothing to set: where
    labels are noisy it comes out large. Points are centred and divided by their root mean square, so that shift, scale
    and rotation do not matter. Of more than `n_landmarks` samples, so many random ones span the solution (Nystroem),
    which is fitted to the labels of all, or of `max_samples` random ones, each class with its share.

    Args:
        n_landmarks: Samples that span the solution at most, >= 1; time grows with its cube.
        penalties: The penalties to choose from, each >= 1e-8, in units of the kernel's mean diagonal; of equally
            good ones the first is taken.
        max_samples: Fit to so many samples at most, >= 1.
        seed: Seed of the random choices, 0 <= seed < 2**64.

    Attributes:
        penalty_: The chosen penalty.
        rows_: The S samples that it is fitted to, shape (S,), int64; all N where they are not more than `max_samples`.
        left_out: Class probabilities at each of them by the others, shape (S, J), float32; J is the largest label + 1.
            Only the mean, the scale and the shares of the classes know the sample itself.
        skill_: How well they predict the label left out: 1 minus their Brier score over that of the shares of the
            classes. 1 is certain, 0 chance; 0 also where there is one class alone.

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
    _landmarks: Tensor
    _center: Tensor
    _scale: Tensor
    _weights: Tensor
    _shares: Tensor

    def __init__(
        self,
        n_landmarks: int = 2000,
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

    def fit(self, features: Any, labels: Any) -> Self:
        """Choose the penalty and solve.

        Args:
            features: Shape (N, d) or (N, ...), tensor or array of numbers, finite.
            labels: Classes, shape (N,), integers >= 0.

        Returns:
            The fitted estimator, on the device of the features.

        Raises:
            ValueError: If shapes do not fit, or a value is not finite.
            TypeError: If the labels are not classes.
        """
        points = as_flat_features(features)
        labels = as_labels(labels, points.shape[0]).to(points.device)
        n_classes = int(labels.max()) + 1
        self.rows_ = torch.arange(len(points), device=points.device)
        if len(points) > self.max_samples:
            self.rows_ = stratified_rows(len(points), self.max_samples, self.seed, labels).to(points.device)
            points, labels = points[self.rows_], labels[self.rows_]
        self._center, deviations = moments(points)
        range_unit = safe_unit(deviations)
        self._scale = (deviations / range_unit).square().mean().sqrt() * range_unit
        self._scale = torch.where(self._scale > 0, self._scale, torch.ones_like(self._scale))
        landmarks = torch.randperm(len(points), generator=torch.Generator().manual_seed(self.seed))[: self.n_landmarks]
        self._landmarks = standardize(points[landmarks.to(points.device)].double(), self._center, self._scale)
        kernel = functional.tangent_kernel(self._landmarks, self._landmarks)
        unit = kernel.diagonal().mean()
        values, vectors = torch.linalg.eigh(kernel / unit)
        is_kept = values > _LEAST_EIGENVALUE * values.max()
        values, to_basis = values[is_kept], vectors[:, is_kept] / values[is_kept].sqrt() / unit
        basis = torch.empty(len(points), len(values), dtype=values.dtype, device=values.device)
        for block, kernel in zip(self._blocks(basis), self._kernel(points), strict=True):
            torch.matmul(kernel, to_basis, out=block)
        if len(points) > len(self._landmarks):  # else it is orthogonal as it is
            values, vectors = torch.linalg.eigh(basis.T @ basis)
            values, to_basis = values.clamp(min=0), to_basis @ vectors
            for block in self._blocks(basis):
                block.copy_(block @ vectors)
        one_hot = torch.nn.functional.one_hot(labels, n_classes).double()
        self._shares = one_hot.mean(dim=0)
        targets = one_hot - self._shares
        best = math.inf
        for penalty in self.penalties:
            predicted = functional.left_out_predictions(basis, values, targets, penalty) + self._shares
            left_out = functional.as_probabilities(predicted)
            score = float(functional.brier_score(left_out, labels))
            if score < best:
                best, self.penalty_, self.left_out = score, penalty, left_out.float()
        self._weights = to_basis / (values + self.penalty_) @ (basis.T @ targets)
        by_chance = float(1 - self._shares.square().sum())
        self.skill_ = 1 - best / by_chance if by_chance else 0.0
        return self

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
        # In one tensor: small ones kept between large ones that are freed make the heap grow with each.
        probabilities = torch.empty(len(points), len(self._shares), device=points.device, dtype=torch.float32)
        for block, kernel in zip(self._blocks(probabilities), self._kernel(points), strict=True):
            block.copy_(functional.as_probabilities(kernel @ self._weights + self._shares))
        return probabilities

    def _kernel(self, points: Tensor) -> Iterator[Tensor]:
        """Kernel of points and landmarks, block by block."""
        for block in self._blocks(points):
            yield functional.tangent_kernel(standardize(block.double(), self._center, self._scale), self._landmarks)
            advance(len(block) * len(self._landmarks))

    def _blocks(self, rows: Tensor) -> tuple[Tensor, ...]:
        return rows.split(max(1, _BLOCK_ELEMENTS // max(self._landmarks.shape)))
