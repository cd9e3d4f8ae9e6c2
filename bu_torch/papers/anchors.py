"""The two estimators of boundary uncertainty before `BoundaryUncertainty`: both look for points on the boundary."""

from collections.abc import Callable
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from bu_torch import functional
from bu_torch.functional.anchors import GAPS, MEASURES, Gap, Measure, near_boundary_ness
from bu_torch.functional.checks import as_logits, check_choice
from bu_torch.functional.parzen import BANDWIDTHS, Bandwidth
from bu_torch.internal.inputs import as_features, as_labels, check_integer, check_seed, check_two_classes
from bu_torch.internal.network import as_taken, check_callable, read_logits
from bu_torch.internal.traces import evaluation_mode
from bu_torch.neighbors.clusters import divisive_clusters
from bu_torch.neighbors.graph import NeighborGraph, nearest
from bu_torch.space.features import standardization, standardize

_BATCH = 4096
_STEP_RANGE = (2.0**-10, 2.0**5)  # of the common step, in standard deviations
_STEP_HALVINGS = 20
_STEP_TOLERANCE = 10  # anchors


class Anchors(NamedTuple):
    """Points on the decision boundary.

    Attributes:
        points: (S, ...) in the units and the shape of the inputs.
        pairs: Classes on the two sides, (S, 2) int64.
        samples: The training sample each is taken to, (S,) int64.
    """

    points: Tensor
    pairs: Tensor
    samples: Tensor


class _AnchorUncertainty:
    """What both estimators keep of the samples, and how they read a model."""

    inputs: Tensor
    labels: Tensor
    mean_: Tensor
    scale_: Tensor

    def fit(self, features: Any, labels: Any) -> Self:
        """Keep the labelled samples and what does not depend on the classifier.

        Args:
            features: Training inputs, shape (N, d) or (N, ...), tensor or array of numbers, finite. Distances are
                measured between flattened, standardised inputs.
            labels: Classes, shape (N,), integers >= 0; at least two different ones.

        Returns:
            The fitted estimator, on the device of the features.

        Raises:
            ValueError: If shapes do not fit, features are not finite, there are too few, or there is only one class.
            TypeError: If an argument is not made of real numbers.
        """
        inputs = as_features(features)
        labels = as_labels(labels, inputs.shape[0]).to(inputs.device)
        check_two_classes(labels)
        self.mean_, self.scale_ = standardization(inputs.flatten(1))
        self._standardized = standardize(inputs, self.mean_, self.scale_)
        self._prepare()
        self.inputs, self.labels = inputs, labels
        return self

    def to(self, device: torch.device | str) -> Self:
        """Move what `fit` computed to `device`, in place."""
        self._check_fitted()
        for name, value in vars(self).items():
            if isinstance(value, Tensor):
                setattr(self, name, value.to(device))
        return self

    def _prepare(self) -> None:
        """Compute what else does not depend on the classifier."""

    def _read(self, model: Callable[[Tensor], Any], points: Tensor) -> Tensor:
        """Logits (n, J) at flat points (n, d), on the device of the samples."""
        logits = read_logits(model, points.view(-1, *self.inputs.shape[1:])).to(self.labels.device)
        n_classes = int(self.labels.max()) + 1
        if logits.shape[1] < n_classes:
            raise ValueError(
                f"`model` must give at least {n_classes} columns, one for each class of `fit`, got {logits.shape[1]}."
            )
        return logits

    def _bisect(self, model: Callable[[Tensor], Any], start: Tensor, end: Tensor, n: int) -> tuple[Tensor, Tensor]:
        return functional.bisect_segments(lambda x: self._read(model, x).argmax(dim=1), start, end, n_halvings=n)

    def _check_fitted(self) -> None:
        if not hasattr(self, "inputs"):
            raise RuntimeError(f"This {type(self).__name__} is not fitted yet: call `fit` first.")


class BisectionAnchorUncertainty(_AnchorUncertainty):
    """Boundary uncertainty (Proposal 1): label mixtures in small clusters of the samples nearest to the boundary.

    Ha (2019), chapter 2, and Ha et al. (2021), section 3. Segments between samples that are predicted differently are
    bisected down to anchors on the boundary; the sample nearest to each is near the boundary (Algorithms 2, 4, 5); the
    near-boundary samples are divided into clusters (Algorithm 3), whose local uncertainties are averaged with their
    sizes as weights. `BoundaryUncertainty` came later, costs one forward pass where this costs hundreds, and is
    steadier; this one is there for comparison, and to find anchors.

    What the sources leave open, and departures:

    - A round takes each sample once as the first end of a segment, the other end at random from its list: those of the
      mirrored pair of top classes A_ji, else those of any other class with i second (Algorithm 5), else, where that is
      empty too, all that are predicted differently. A pair of classes stops when a round brings it no new sample.
    - The sample nearest to an anchor is looked for among all samples, also those predicted as a third class.
    - In Eq. 10 of the paper |P| is the number of samples in the clusters that are kept, so that the weights of a repeat
      add up to 1; the mean over the repeats is that of Eq. 11.
    - A cluster's pair of classes are the two that most of its samples are predicted as; where one class is alone, the
      one that is most often their second. Corrected posteriors are renormalised over the pair.

    A boundary has few nearest samples where there is one feature alone (one sample for each point of it), so that no
    cluster fills up and the value is 0; two features or more are needed.

    Args:
        measure: Local uncertainty, `"entropy"` (scaled to [0, 1]) as in the sources, or `"triangle"`.
        prior_correction: Divide posteriors by the shares of the classes: part of Proposal 1 in both sources (thesis,
            section 2.4.4; Ha et al. 2021, section 4.4.4). Chapter 4 of the thesis calls it ad hoc and leaves it out.
            With many classes and few samples of each, most classes of a cluster occur once, and the correction decides
            these ties by the shares of the classes; there False is better.
        max_anchors: Generate no more anchors than so many, >= 1.
        n_halvings: Bisections of a segment, >= 1.
        min_size: N_m, smaller clusters are left out, >= 1.
        max_size: N_M, larger clusters are divided, >= min_size.
        n_repeats: R, independent clusterings, >= 1.
        seed: Seed of segments and clusterings, 0 <= seed < 2**64. Global random numbers are neither used nor changed.

    Attributes:
        inputs: The samples, (N, ...).
        labels: (N,) int64.
        mean_, scale_: Of the standardisation, (d,) float64; a constant feature has scale 1.

    Example:
        >>> generator = torch.Generator().manual_seed(0)
        >>> labels = torch.arange(400) % 2
        >>> features = torch.randn(400, 2, generator=generator) + 2 * labels.unsqueeze(1)
        >>> uncertainty = BisectionAnchorUncertainty().fit(features, labels)
        >>> bool(uncertainty.score(lambda x: x.sum(1) - 2) > uncertainty.score(lambda x: x.sum(1) - 4))
        True
    """

    def __init__(
        self,
        measure: Measure = "entropy",
        prior_correction: bool = True,
        *,
        max_anchors: int = 10_000,
        n_halvings: int = 30,
        min_size: int = 8,
        max_size: int = 12,
        n_repeats: int = 10,
        seed: int = 0,
    ) -> None:
        self.measure = check_choice("measure", measure, MEASURES)
        if not isinstance(prior_correction, bool):
            raise TypeError(f"`prior_correction` must be True or False, got {prior_correction!r}.")
        self.prior_correction = prior_correction
        self.max_anchors = check_integer("max_anchors", max_anchors, 1)
        self.n_halvings = check_integer("n_halvings", n_halvings, 1)
        self.min_size = check_integer("min_size", min_size, 1)
        self.max_size = check_integer("max_size", max_size, self.min_size)
        self.n_repeats = check_integer("n_repeats", n_repeats, 1)
        self.seed = check_seed(seed)

    def score(self, model: Callable[[Tensor], Any]) -> Tensor:
        """Boundary uncertainty of a classifier.

        Args:
            model: As for `BoundaryUncertainty.score`: any callable from inputs (n, ...) to logits or probabilities
                (n, J), also `decision_function` or `predict_proba` of a scikit-learn classifier.

        Returns:
            Scalar in [0, 1], on the device of the samples, float64 for float64 logits and float32 for all others; 0,
            the worst, where all samples are predicted alike or no cluster is large enough.

        Raises:
            RuntimeError: If `fit` has not been called.
            TypeError: If the model cannot be called or does not give floating-point numbers.
            ValueError: If logits are not finite, have the wrong shape, or fewer columns than there are classes.
        """
        logits, first, second = self._predict(model)
        samples = self._anchors(model, first, second, logits.shape[1]).samples.unique()
        if len(samples) < self.min_size:
            return logits.new_zeros(())
        points = self._standardized[samples]
        clusters = divisive_clusters(points, self.max_size, self.n_repeats, self.seed)
        n_clusters = int(clusters.max()) + 1
        size = torch.bincount(clusters.flatten(), minlength=n_clusters)
        repeat = torch.zeros_like(size).scatter_(
            0, clusters.flatten(), torch.arange(self.n_repeats, device=size.device).repeat_interleave(len(samples))
        )

        def count(classes: Tensor) -> Tensor:
            code = clusters * logits.shape[1] + classes[samples]
            return torch.bincount(code.flatten(), minlength=n_clusters * logits.shape[1]).view(n_clusters, -1)

        # Second choices decide between classes that equally many samples are predicted as.
        pairs = functional.top_pairs(count(first) * (self.max_size + len(samples)) + count(second))
        priors = torch.bincount(self.labels, minlength=logits.shape[1]) / len(self.labels)
        local = functional.class_uncertainty(
            count(self.labels).double(),
            pairs,
            priors=priors if self.prior_correction else None,
            measure=self.measure,
        )
        weight = torch.where(size >= self.min_size, size, 0).double()
        kept = weight.new_zeros(self.n_repeats).index_add_(0, repeat, weight)
        total = weight.new_zeros(self.n_repeats).index_add_(0, repeat, weight * local)
        return (total / kept.clamp(min=1)).mean().clamp(max=1).to(logits.dtype)

    def anchors(self, model: Callable[[Tensor], Any]) -> Anchors:
        """Anchors on the boundary of a classifier, and the sample nearest to each (Algorithms 2, 4 and 5).

        Args:
            model: As for `score`.

        Returns:
            The anchors; none where all samples are predicted alike. Their distinct `samples` are the near-boundary set.

        Raises:
            RuntimeError: If `fit` has not been called.
            TypeError: As for `score`.
            ValueError: As for `score`.
        """
        logits, first, second = self._predict(model)
        return self._anchors(model, first, second, logits.shape[1])

    def _predict(self, model: Callable[[Tensor], Any]) -> tuple[Tensor, Tensor, Tensor]:
        """Logits (N, J), the class predicted of each sample and its second choice (N,)."""
        self._check_fitted()
        logits = self._read(model, self.inputs.flatten(1))
        first = logits.argmax(dim=1)
        return logits, first, functional.top_pairs(logits).sum(dim=1) - first

    def _anchors(self, model: Callable[[Tensor], Any], first: Tensor, second: Tensor, n_classes: int) -> Anchors:
        flat = self.inputs.flatten(1)
        found = [Anchors(flat[:0], first.new_zeros(0, 2), first[:0])]
        code = first * n_classes + second
        is_active = torch.ones(n_classes**2, dtype=torch.bool, device=code.device)
        is_near = torch.zeros_like(first, dtype=torch.bool)
        generator = torch.Generator().manual_seed(self.seed)
        left = self.max_anchors if int(first.min()) < int(first.max()) else 0
        partners = _Partners(first, second, n_classes)
        while left and bool(is_active[code].any()):
            order = torch.randperm(len(flat), generator=generator).to(code.device)
            starts = order[is_active[code[order]]][:left]
            ends = partners.draw(starts, torch.rand(len(starts), dtype=torch.float64, generator=generator))
            points, pairs = self._bisect(model, flat[starts], flat[ends], self.n_halvings)
            samples = self._nearest(points)
            found.append(Anchors(points, pairs, samples))
            is_active = torch.zeros_like(is_active)
            is_active[code[starts[~is_near[samples]]]] = True
            is_near[samples] = True
            left -= len(starts)
        points, pairs, samples = (torch.cat(parts) for parts in zip(*found, strict=True))
        return Anchors(points.view(-1, *self.inputs.shape[1:]), pairs, samples)

    def _nearest(self, points: Tensor) -> Tensor:
        """Row of the sample nearest to each point (n,)."""
        queries = standardize(points, self.mean_, self.scale_)
        return nearest(self._standardized, queries, 1, exact=None).rows[:, 0]


class GradientAnchorUncertainty(_AnchorUncertainty):
    """Boundary uncertainty at anchors found along the gradient, as many in each class as lie near the boundary.

    Ha (2019), chapter 4. How many anchors a class gets: the samples of the class in that bin of the histogram of their
    near-boundary-ness that holds zero (section 4.4.1; NumPy's `"auto"` bins). Where: each sample is moved by a common
    step along the gradient of g_D2 - g_D1; where that crosses the boundary an anchor lies between, and the step is
    bisected until the class has its number (section 4.4.2). What: a smooth count of the labels among the neighbours of
    the anchor's sample (section 4.5; `bu_torch.functional.anchor_uncertainty`). Nothing is random.

    The model must be differentiable by autograd with respect to its inputs.

    What the source leaves open, and departures:

    - Steps are in standard deviations of the features, from 2^-10 to 2^5 (20 bisections), and leave a constant feature
      as it is. Samples whose gradient is 0 or not finite have no direction and get no anchor.
    - The number of anchors may be off by 10, as in the source, but by no more than a tenth: to a class that should have
      ten, none would do. Where no step comes so near, the nearest is taken.
    - The anchor is found by bisection (`bu_torch.functional.bisect_segments`). Its `pairs` are the classes predicted on
      its two sides; as in the thesis the value does not depend on them, but on the two classes that most neighbours are
      labelled as. A classifier that exchanges classes is therefore not told from the right one.
    - The neighbours of an anchor are those of the sample that it was found from, as in the thesis (section 4.6).

    Args:
        n_neighbors: Number M of neighbours around an anchor, its sample included, >= 2.
        bandwidth: Width of the kernel, `"cvml"` as in the thesis (`bu_torch.functional.cvml_bandwidth`) or
            `"silverman"`.
        measure: Local uncertainty, `"triangle"` or `"entropy"` (scaled to [0, 1]).
        gap: How near a neighbour is to the boundary: `"own"`, the gap between its own two largest logits, as in the
            thesis, or `"pair"`, that of the anchor's two classes. They differ where there are more than two.
        n_halvings: Bisections from a sample to its anchor, >= 1.

    Attributes:
        inputs: The samples, (N, ...).
        labels: (N,) int64.
        neighbors: (N, n_neighbors) int64.
        mean_, scale_: Of the standardisation, (d,) float64; a constant feature has scale 1.

    Example:
        >>> generator = torch.Generator().manual_seed(0)
        >>> labels = torch.arange(400) % 2
        >>> features = torch.randn(400, 2, generator=generator) + 2 * labels.unsqueeze(1)
        >>> uncertainty = GradientAnchorUncertainty().fit(features, labels)
        >>> bool(uncertainty.score(lambda x: x.sum(1) - 2) > uncertainty.score(lambda x: x.sum(1) - 4))
        True
    """

    neighbors: Tensor

    def __init__(
        self,
        n_neighbors: int = 40,
        bandwidth: Bandwidth = "cvml",
        measure: Measure = "triangle",
        *,
        gap: Gap = "own",
        n_halvings: int = 30,
    ) -> None:
        self.n_neighbors = check_integer("n_neighbors", n_neighbors, 2)
        self.bandwidth = check_choice("bandwidth", bandwidth, BANDWIDTHS)
        self.measure = check_choice("measure", measure, MEASURES)
        self.gap = check_choice("gap", gap, GAPS)
        self.n_halvings = check_integer("n_halvings", n_halvings, 1)

    def score(self, model: Callable[[Tensor], Any]) -> Tensor:
        """Boundary uncertainty of a classifier.

        Args:
            model: A module or function from inputs (n, ...) to logits or probabilities (n, J), made of differentiable
                torch operations that treat samples one by one. One column, or shape (n,), counts as the classes [0, z].
                A module is run in eval mode, on its own device and in its own precision, and left in the mode it was
                in; its parameters' gradients stay as they are.

        Returns:
            Scalar in [0, 1], on the device of the samples, float64 for float64 logits and float32 for all others; 0,
            the worst, where all samples are predicted alike or there is no anchor.

        Raises:
            RuntimeError: If `fit` has not been called.
            TypeError: If the model cannot be called, is not differentiable, or does not give floating-point numbers.
            ValueError: If logits are not finite, have the wrong shape, or fewer columns than there are classes.
        """
        logits, found = self._anchors(model)
        if not len(found.samples):
            return logits.new_zeros(())
        values = functional.anchor_uncertainty(
            logits,
            self.labels,
            self.neighbors[found.samples],
            bandwidth=self.bandwidth,
            measure=self.measure,
            gap=self.gap,
        )
        return values.double().mean().clamp(max=1).to(values.dtype)

    def anchors(self, model: Callable[[Tensor], Any]) -> Anchors:
        """Anchors on the boundary of a classifier, and the sample each was found from (section 4.4).

        Args:
            model: As for `score`.

        Returns:
            The anchors, in order of their samples.

        Raises:
            RuntimeError: If `fit` has not been called.
            TypeError: As for `score`.
            ValueError: As for `score`.
        """
        return self._anchors(model)[1]

    def _prepare(self) -> None:
        self.neighbors = NeighborGraph(self.n_neighbors).fit(self._standardized).neighbors

    def _anchors(self, model: Callable[[Tensor], Any]) -> tuple[Tensor, Anchors]:
        """Logits at the samples (N, J), and the anchors."""
        self._check_fitted()
        check_callable(model)
        flat = self.inputs.flatten(1)
        logits = self._read(model, flat)
        predicted = logits.argmax(dim=1)
        none = Anchors(self.inputs[:0], predicted.new_zeros(0, 2), predicted[:0])
        if bool((predicted == predicted[0]).all()):
            return logits, none
        direction = self._direction(model)
        ends = flat + self._steps(model, flat, direction, predicted, self._wanted(logits)) * direction
        samples = (self._read(model, ends).argmax(dim=1) != predicted).nonzero().squeeze(1)
        if not len(samples):
            return logits, none
        points, pairs = self._bisect(model, flat[samples], ends[samples], self.n_halvings)
        return logits, Anchors(points.view(-1, *self.inputs.shape[1:]), pairs, samples)

    def _wanted(self, logits: Tensor) -> Tensor:
        """Number of anchors of each class (J,): the histogram of near-boundary-ness at zero."""
        signed = near_boundary_ness(logits, self.labels).double().cpu().numpy()
        labels = self.labels.cpu().numpy()
        counts = [_histogram_at_zero(signed[labels == c]) for c in range(int(labels.max()) + 1)]
        return torch.tensor(counts, device=self.labels.device)

    def _direction(self, model: Callable[[Tensor], Any]) -> Tensor:
        """Unit step of each sample towards the boundary (N, d): unit in standardised features, in input units."""
        flat = self.inputs.flatten(1)
        varies = (flat != flat[:1]).any(dim=0)
        scale = torch.where(varies, self.scale_, torch.zeros_like(self.scale_))
        gradients = []
        with evaluation_mode(model), torch.inference_mode(False), torch.enable_grad():
            for batch in self.inputs.split(_BATCH):
                gradients.append(_gap_gradient(model, as_taken(model, batch)).to(flat.device).flatten(1))
        slope = torch.cat(gradients).double().nan_to_num(nan=0.0, posinf=0.0, neginf=0.0) * scale
        # Scaled first, so that squares stay in range.
        slope = slope / slope.abs().amax(dim=1, keepdim=True).clamp(min=torch.finfo(torch.float64).tiny)
        norm = slope.norm(dim=1, keepdim=True)
        return (slope / torch.where(norm == 0, torch.ones_like(norm), norm) * scale).to(flat.dtype)

    def _steps(
        self, model: Callable[[Tensor], Any], flat: Tensor, direction: Tensor, predicted: Tensor, wanted: Tensor
    ) -> Tensor:
        """The step of each sample (N, 1), common to its class; 0 for a class that wants no anchors."""
        tolerance = (wanted / 10).clamp(max=_STEP_TOLERANCE)
        low, high = (torch.full_like(tolerance, end, dtype=torch.float64) for end in _STEP_RANGE)
        best, miss = torch.zeros_like(low), wanted.double()
        for _ in range(_STEP_HALVINGS):
            rows = (miss > tolerance)[self.labels].nonzero().squeeze(1)
            if not len(rows):
                break
            middle = (low + high) / 2
            labels = self.labels[rows]
            ends = flat[rows] + middle[labels].unsqueeze(1).to(flat.dtype) * direction[rows]
            crossed = self._read(model, ends).argmax(dim=1) != predicted[rows]
            excess = torch.bincount(labels[crossed], minlength=len(wanted)) - wanted
            is_better = (miss > tolerance) & (excess.abs() < miss)
            best = torch.where(is_better, middle, best)
            miss = torch.where(is_better, excess.abs().double(), miss)
            low, high = torch.where(excess > 0, low, middle), torch.where(excess > 0, middle, high)
        return best[self.labels].unsqueeze(1).to(flat.dtype)


class _Partners:
    """The samples that the other end of a segment is drawn from: lists as ranges of sorted rows (Algorithm 5)."""

    def __init__(self, first: Tensor, second: Tensor, n_classes: int) -> None:
        self.first, self.second, self.n_classes = first, second, n_classes
        self.by_pair, self.pair_start, self.pair_size = _ranges(first * n_classes + second, n_classes**2)
        self.by_second, self.second_start, self.second_size = _ranges(second, n_classes)
        self.by_first, self.first_start, self.first_size = _ranges(first, n_classes)

    def draw(self, starts: Tensor, chance: Tensor) -> Tensor:
        """One partner for each row of `starts` (n,), by numbers in [0, 1)."""
        own, chance = self.first[starts], chance.to(starts.device)
        mirrored = self.second[starts] * self.n_classes + own
        n_mirrored, n_second = self.pair_size[mirrored], self.second_size[own]
        n_other = len(self.first) - self.first_size[own]
        other = _pick(n_other, chance)
        other = other + torch.where(other >= self.first_start[own], self.first_size[own], 0)
        from_pair = self.by_pair[(self.pair_start[mirrored] + _pick(n_mirrored, chance)).clamp(max=len(self.first) - 1)]
        from_second = self.by_second[(self.second_start[own] + _pick(n_second, chance)).clamp(max=len(self.first) - 1)]
        rest = torch.where(n_second > 0, from_second, self.by_first[other])
        return torch.where(n_mirrored > 0, from_pair, rest)


def _ranges(code: Tensor, n_codes: int) -> tuple[Tensor, Tensor, Tensor]:
    """Rows sorted by code (N,), and where the range of each code starts and how long it is (n_codes,)."""
    size = torch.bincount(code, minlength=n_codes)
    return code.argsort(stable=True), size.cumsum(0) - size, size


def _pick(size: Tensor, chance: Tensor) -> Tensor:
    return (chance * size).long().clamp(max=(size - 1).clamp(min=0))


def _histogram_at_zero(values: np.ndarray) -> int:
    """Number of values in the bin that holds zero; 0 where zero is outside of all."""
    if not len(values) or not values.min() <= 0 <= values.max():
        return 0
    counts, edges = np.histogram(values, bins="auto")
    return int(counts[min(int(np.searchsorted(edges, 0, side="right")), len(counts)) - 1])


def _gap_gradient(model: Callable[[Tensor], Any], batch: Tensor) -> Tensor:
    """Gradient of g_D2 - g_D1 at each input."""
    inputs = batch.detach().clone().requires_grad_()
    try:
        logits = as_logits(torch.as_tensor(model(inputs)))
        gap = -logits.gather(1, functional.top_pairs(logits.detach())).diff(dim=1).abs().sum()
        return torch.autograd.grad(gap, inputs)[0]
    except RuntimeError as error:
        raise TypeError(
            "`model` must be differentiable by autograd with respect to its inputs (for other classifiers take"
            f" `BisectionAnchorUncertainty`), got: {error}"
        ) from error
