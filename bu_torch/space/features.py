"""Space in which distances are measured: standardised inputs or features of them, and a metric that labels teach."""

from collections.abc import Callable
from contextlib import nullcontext
from inspect import ismethod
from typing import Any, Literal, Self, get_args

import torch
from torch import Tensor, nn

from bu_torch.functional.checks import check_choice
from bu_torch.functional.probabilities import left_out_predictions, shares_of
from bu_torch.internal.inputs import as_flat_features, as_floats, as_tensor, check_seed
from bu_torch.internal.network import copy_to
from bu_torch.internal.replica import evaluated_in_place, evaluation_copy
from bu_torch.neighbors.graph import full_precision
from bu_torch.samples.samples import stratified_rows, weights_of
from bu_torch.space.extractors import MixedFeatures, PatchFeatures, TokenFeatures, pooled

BaseSpace = Literal["inputs", "patches", "tokens"]  # needs no network and no labels

_BATCH, _LEAST_BATCH, _BATCH_ELEMENTS = 1024, 64, 2**22  # samples that an extractor copies and takes at once
_BLOCK_ELEMENTS = 2**20  # float64 temporaries of 8 MB, which a cache holds, for any N

# Of a metric.
_ITERATIONS = 2
_PENALTIES = [1e-3, 1e-2, 0.1, 1.0, 10.0]
_PAIRS = 2**18  # enough for the median distance
_JITTER = 1e-3  # added to the diagonal of the landmarks' kernel, because tables repeat their rows


class FeatureSpace:
    """Space in which distances are measured: features of the inputs, standardised.

    Ha et al. (2021), section 4.2.2, leave the space open (for speech they take features, not waveforms). Distances
    between raw inputs of thousands of values say little and take long to search.

    Args:
        feature_extractor: Callable from inputs (n, ...) to features (n, k) or (n, ...): a function, or a frozen module,
            which runs in eval mode, on its own device and in its own precision, without gradient. `"patches"` takes
            `PatchFeatures` of images (n, C, H, W); `"tokens"` takes `TokenFeatures` of token ids (n, L), with one scale
            for all axes; `"inputs"` and None take the inputs; `MixedFeatures` are for numbers and categories.
        seed: Seed of `PatchFeatures` and `TokenFeatures`, 0 <= seed < 2**64.
        module: A module that the extractor function calls: it runs in eval mode, and its modes and buffers are restored
            afterwards. If the extractor is a module or a method of one, a copy runs.

    Attributes:
        name: `"inputs"`, `"patches"`, `"tokens"`, `"mixed"` or `"custom"`.
    """

    mean_: Tensor
    scale_: Tensor
    _features: MixedFeatures | PatchFeatures | TokenFeatures | None = None

    def __init__(
        self,
        feature_extractor: Callable[[Tensor], Any] | BaseSpace | MixedFeatures | None = None,
        seed: int = 0,
        module: nn.Module | None = None,
    ) -> None:
        self.seed, self.module = check_seed(seed), module
        self.name, self.feature_extractor = "inputs", None
        if isinstance(feature_extractor, str):
            self.name = check_choice("feature_extractor", feature_extractor, get_args(BaseSpace))
            if self.name != "inputs":
                self._features = (PatchFeatures if self.name == "patches" else TokenFeatures)(seed=self.seed)
        elif isinstance(feature_extractor, MixedFeatures):
            self.name, self._features = "mixed", feature_extractor
        elif callable(feature_extractor):
            self.name, self.feature_extractor = "custom", feature_extractor
        elif feature_extractor is not None:
            raise TypeError(
                "`feature_extractor` must be callable, (n, ...) -> (n, k), the name of a space, or None,"
                f" got {type(feature_extractor).__name__}."
            )

    def fit(self, inputs: Tensor) -> Self:
        """Find mean and scale of the features of `inputs` (N, ...), a row of real, finite ones for each sample."""
        self.fit_transform(inputs)
        return self

    def fit_transform(self, inputs: Tensor) -> Tensor:
        """Fit to inputs (N, ...), and give them as points (N, k)."""
        if self.name == "patches":
            inputs = pooled(inputs)  # once, for `fit` and for `extract`
        if self._features is not None:
            self._features.fit(inputs)
        flat = self.extract(inputs)
        # The first axes of texts hold most of the information, the last ones mostly noise.
        self.mean_, self.scale_ = standardization(flat, has_common_scale=self.name == "tokens")
        if isinstance(self._features, MixedFeatures):
            self.scale_ = self._features.common_scale(inputs, self.scale_)
        return standardize(flat, self.mean_, self.scale_)

    def transform(self, inputs: Tensor) -> Tensor:
        """Inputs (n, ...) as points (n, k) of the space; float64 for float64 features and float32 for all others."""
        return standardize(self.extract(inputs), self.mean_, self.scale_)

    def extract(self, inputs: Tensor) -> Tensor:
        """Features (n, d) of inputs (n, ...), not standardised."""
        if self._features is not None:
            return self._features.transform(pooled(inputs) if self.name == "patches" else inputs)
        if self.feature_extractor is None:
            return (pooled(inputs) if inputs.ndim == 4 else as_floats(inputs)).flatten(1)
        name = "feature_extractor(inputs)"  # in errors
        # A function holds its own reference to the module, so a copy cannot replace it.
        evaluated = nullcontext() if self.module is None else evaluated_in_place(self.module)
        with evaluation_copy(self.feature_extractor) as extractor, evaluated:
            taker = extractor.__self__ if ismethod(extractor) else extractor
            n_rows = min(_BATCH, max(_LEAST_BATCH, _BATCH_ELEMENTS // inputs[0].numel()))
            parts = [as_tensor(extractor(copy_to(taker, part)), name) for part in inputs.split(n_rows)]
        features = as_flat_features(torch.cat(parts).to(inputs.device), name)
        if len(features) != len(inputs):
            raise ValueError(f"`feature_extractor` must give {len(inputs)} rows, one a sample, got {len(features)}.")
        return features


def standardization(flat: Tensor, *, has_common_scale: bool = False) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of each feature, (d,) float64; 1 for a constant feature.

    A common scale, a scalar, is the root mean square deviation of all features, 1 if that is 0.
    """
    blocks = flat.split(max(1, _BLOCK_ELEMENTS // flat.shape[1]))
    mean = torch.stack([block.double().sum(dim=0) for block in blocks]).sum(dim=0) / len(flat)
    squares = [(block.double() - mean).square().sum(dim=0) for block in blocks]
    scale = (torch.stack(squares).sum(dim=0) / len(flat)).sqrt()
    scale = torch.where(flat.amax(dim=0) == flat.amin(dim=0), 0.0, scale)
    if has_common_scale:
        scale = scale.square().mean().sqrt()
    return mean, torch.where(scale == 0, 1.0, scale)


def standardize(inputs: Tensor, mean: Tensor, scale: Tensor) -> Tensor:
    """Flatten inputs (n, ...), subtract the mean and divide by the scale: (n, d), dtype of the inputs."""
    flat = inputs.flatten(1)
    blocks = flat.split(max(1, _BLOCK_ELEMENTS // flat.shape[1]))
    return torch.cat([((block.double() - mean) / scale).to(flat.dtype) for block in blocks])


class LabelMetric:
    """Linear map after which distances measure what changes the class: the metric of recursive feature machines.

    A ridge regression of one-hot labels with the Laplace kernel is fitted, and M is its average gradient outer product
    (`average_gradient_outer_product`; Radhakrishnan, Beaglehole, Pandit, Belkin, Science 2024), scaled to the trace d.
    A second iteration does the same with the points times M^(1/2), and the penalty of the first. Features should have a
    common scale. The regression is smaller than theirs: at most `n_landmarks` samples span it, and leave-one-out in
    closed form, with half of them if they are not all samples, chooses its penalty. Of more than `max_samples` samples,
    a random subset that keeps the shares of the classes is learnt from.

    Left-out predictions in this space are too optimistic, because the metric has seen the labels.
    """

    root_: Tensor  # map M^(1/2), (d, d), symmetric, of the dtype of the features
    rows_: Tensor  # samples that it was learnt from, (S,) int64

    def __init__(self, n_landmarks: int = 500, max_samples: int = 2500, seed: int = 0) -> None:
        self.n_landmarks, self.max_samples, self.seed = n_landmarks, max_samples, seed

    @full_precision()
    def fit(self, points: Tensor, labels: Tensor, weights: Tensor | None = None) -> Self:
        """Learn the metric from points (N, d), labels (N,), integers >= 0, and weights (N,), positive."""
        self.rows_ = rows = stratified_rows(len(points), self.max_samples, self.seed, labels).to(points.device)
        points, labels = points[rows], labels[rows]
        weights = None if weights is None else weights_of(labels, None, weights[rows])
        targets = torch.nn.functional.one_hot(labels) - shares_of(labels, weights)
        targets = targets[:, targets.abs().amax(dim=0) > 0].to(points)  # classes without samples have no targets
        order = torch.randperm(len(points), generator=torch.Generator().manual_seed(self.seed), device="cpu")
        chosen = order[: self.n_landmarks].to(points.device)
        self.root_ = torch.eye(points.shape[1]).to(points)
        penalty = None  # the first iteration chooses it
        for _ in range(_ITERATIONS if targets.numel() else 0):  # of one class alone there is nothing to learn
            moved = points @ self.root_
            landmarks = moved[chosen]
            distances = torch.cdist(moved, landmarks)
            some = distances.flatten()[:: max(1, distances.numel() // _PAIRS)]
            some = some[some > 0]
            width = float(some.median()) if len(some) else 1.0
            among = torch.cdist(landmarks, landmarks, compute_mode="donot_use_mm_for_euclid_dist")  # 0 for copies
            kernel, own = torch.exp(distances / -width), torch.exp(among / -width)
            coefficients, penalty = kernel_ridge(kernel, own, targets, penalty, weights)
            inner = average_gradient_outer_product(moved, landmarks, distances, coefficients, width, weights)
            # A gradient with respect to the points is the root times the gradient with respect to the moved points.
            self.root_ = metric_root(self.root_ @ inner @ self.root_)
        return self

    @full_precision()
    def transform(self, points: Tensor) -> Tensor:
        """Points (n, d) times the root, (n, d), of their dtype."""
        return points @ self.root_.to(points)


def kernel_ridge(
    kernel: Tensor, own: Tensor, targets: Tensor, penalty: float | None = None, weights: Tensor | None = None
) -> tuple[Tensor, float]:
    """Coefficients (L, J) of L landmarks by ridge regression, and its penalty.

    The function at a point with the kernel values k (L,) is k @ coefficients (Nystroem). Without a penalty, it is the
    one of 0.001 to 10 whose left-out predictions (`left_out_predictions`) have the smallest squared error.

    Takes the kernel of N points and the landmarks (N, L), 1 at distance 0; the landmarks' `own` (L, L); targets (N, J),
    centred; and weights of the squared errors, (N,) with mean 1. All are of one dtype but the weights.
    """
    identity = torch.eye(len(own), dtype=torch.float64, device=own.device)
    factor = torch.linalg.cholesky(own.double() + _JITTER * identity)
    projection = torch.linalg.solve_triangular(factor, identity, upper=False).T.to(kernel)
    basis = kernel @ projection
    if weights is not None:
        root = weights.to(kernel).sqrt().unsqueeze(1)
        basis, targets = basis * root, targets * root
    gram = (basis.T @ basis).double()
    if penalty is None:
        left_out = left_out_predictions(basis, gram, targets, _PENALTIES)
        errors = [float((targets - one).square().sum()) for one in left_out]
        penalty = _PENALTIES[errors.index(min(errors))]
    factor = torch.linalg.cholesky(gram + penalty * identity)
    return projection @ torch.cholesky_solve((basis.T @ targets).double(), factor).to(kernel), penalty


def average_gradient_outer_product(
    points: Tensor, landmarks: Tensor, distances: Tensor, coefficients: Tensor, width: float, weights: Tensor | None
) -> Tensor:
    """Mean outer product of the gradients of a function, at the points and summed over its J outputs.

    The function is f(x) = sum over landmarks z of exp(-|x - z| / width) times the coefficients of z. Its gradient is
    known in closed form; a landmark adds nothing at its own place, where it has none. The matrix is large in the
    directions in which the function changes (Eq. 5 of the paper that `LabelMetric` names).

    Takes points (N, d), landmarks (L, d), their distances (N, L), coefficients (L, J) and weights of the points, (N,)
    with mean 1; gives a symmetric, positive semi-definite matrix (d, d).
    """
    n_features = points.shape[1]
    total = points.new_zeros(n_features, n_features)
    root = None if weights is None else weights.to(points).sqrt().view(-1, 1, 1)
    for of_outputs in coefficients.split(max(1, _BLOCK_ELEMENTS // (len(landmarks) * n_features)), dim=1):
        # The gradient is the sum over landmarks of slope * coefficient * (z - x), for each output.
        directions = (of_outputs.unsqueeze(2) * landmarks.unsqueeze(1)).flatten(1)  # (L, J * d)
        n_rows = max(1, _BLOCK_ELEMENTS // max(directions.shape))
        for rows in torch.arange(len(points), device=points.device).split(n_rows):
            block, apart = points[rows], distances[rows]
            slopes = torch.where(apart > 0, torch.exp(apart / -width) / (width * apart), 0.0)
            gradients = (slopes @ directions).view(len(rows), -1, n_features)
            gradients -= (slopes @ of_outputs).unsqueeze(2) * block.unsqueeze(1)
            gradients = (gradients if root is None else gradients * root[rows]).flatten(0, 1)
            total += gradients.T @ gradients
    return total / len(points)


def metric_root(matrix: Tensor) -> Tensor:
    """Root M^(1/2) (d, d), symmetric, of a metric that is scaled to the trace d first; the identity if it is 0.

    Distances in the metric are Euclidean distances of points times the root.
    """
    trace = float(matrix.diagonal().sum())
    if not trace > 0:
        return torch.eye(len(matrix)).to(matrix)
    eigenvalues, axes = torch.linalg.eigh(matrix.double() * (len(matrix) / trace))
    return (axes * eigenvalues.clamp(min=0).sqrt() @ axes.T).to(matrix)
