"""Anchors found by steps along the gradient."""

import math
from collections.abc import Callable
from typing import Any, Literal, Self, get_args

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from bu_torch.functional.checks import as_logits, check_choice
from bu_torch.functional.score import top_two
from bu_torch.internal.inputs import as_tensor, check_fitted, check_integer
from bu_torch.internal.network import copy_to
from bu_torch.internal.replica import evaluation_copy
from bu_torch.neighbors.graph import NeighborGraph
from bu_torch.papers.anchors import AnchorEstimator, Anchors, Measure, class_uncertainty
from bu_torch.papers.bandwidth import BANDWIDTHS, Bandwidth, boundary_kernel
from bu_torch.papers.parzen import top_pairs

Gap = Literal["own", "pair"]

_BATCH = 4096
_STEP_RANGE = (2.0**-10, 2.0**5)  # limits for the common step, in standard deviations
_STEP_HALVINGS = 20
_STEP_TOLERANCE = 10  # anchors


class GradientAnchorUncertainty(AnchorEstimator):
    """Boundary uncertainty at anchors found along the gradient; a class gets as many as it has near-boundary samples.

    Ha (2019), chapter 4. The number of anchors of a class is that of its samples in the bin at zero of the histogram of
    their near-boundary-ness (section 4.4.1; NumPy's `"auto"` bins). All samples of a class move by a common step along
    the gradient of g_D2 - g_D1; the step is bisected until that many samples cross the boundary, and an anchor lies on
    the way of each (section 4.4.2). The value comes from a smooth count of the labels among the neighbours of the
    anchor's sample (sections 4.5, 4.6). Nothing is random. The model must be differentiable with respect to its inputs.

    Choices where the source is silent, and departures:

    - Steps are in standard deviations of the features, from 2^-10 to 2^5 (20 bisections); a constant feature does not
      change. Samples whose gradient is 0 or not finite get no anchor.
    - The number of anchors may be off by 10, as in the source, but by no more than a tenth. If no step comes so near,
      the closest one is taken.
    - A class without errors has no bin at zero and gets no anchor. If this holds for all classes, each takes the bin
      nearest to zero: the thesis gives the worst value only if all samples are predicted alike.
    - The anchor is found by bisection. Its `pairs` are the classes predicted on its two sides. As in the thesis, the
      value depends on the two commonest labels of its neighbours, so a classifier that swaps two classes scores like
      the right one.

    Args:
        n_neighbors: Number M of neighbours around an anchor, its sample included, >= 2.
        bandwidth: Width of the kernel, `"cvml"` as in the thesis (`functional.cvml_bandwidth`) or `"silverman"`.
        measure: Local uncertainty, `"triangle"` or `"entropy"` (scaled to [0, 1]).
        gap: Distance of a neighbour from the boundary: `"own"`, the gap between its own two largest logits, as in the
            thesis, or `"pair"`, that of the anchor's two classes. They differ if there are more than two.

    Attributes:
        inputs, labels, mean_, scale_: As in `BisectionAnchorUncertainty`.
        neighbors: (N, n_neighbors) int64.
    """

    def __init__(
        self, n_neighbors: int = 40, bandwidth: Bandwidth = "cvml", measure: Measure = "triangle", *, gap: Gap = "own"
    ) -> None:
        self.n_neighbors = check_integer("n_neighbors", n_neighbors, 2)
        self.bandwidth = check_choice("bandwidth", bandwidth, BANDWIDTHS)
        self.measure = check_choice("measure", measure, get_args(Measure))
        self.gap = check_choice("gap", gap, get_args(Gap))

    def fit(self, features: Any, labels: Any) -> Self:
        super().fit(features, labels)
        self.neighbors = NeighborGraph(self.n_neighbors).fit(self._standardized).neighbors
        return self

    def score(self, model: Callable[[Tensor], Any]) -> Tensor:
        """Boundary uncertainty of a classifier; takes and gives what `BisectionAnchorUncertainty.score` does.

        The output for a sample must not depend on other samples. Gradients of parameters are not changed. The value is
        0, the worst, if there is no anchor. Raises TypeError if the model is not differentiable.
        """
        logits, found = self._find_anchors(model)
        if not len(found.samples):
            return logits.new_zeros(())
        values = self._local_uncertainty(logits, self.neighbors[found.samples])
        return values.double().mean().clamp(max=1).to(values.dtype)  # Eq. 4.5

    def _find_anchors(self, model: Callable[[Tensor], Any]) -> tuple[Tensor, Anchors]:
        """Logits at the samples (N, J), and the anchors in order of their samples (section 4.4)."""
        check_fitted(self, "neighbors")
        flat = self.inputs.flatten(1)
        logits = self._read(model, flat)
        predicted = logits.argmax(dim=1)
        samples = predicted[:0]
        if bool((predicted != predicted[0]).any()):
            direction = self._direction(model)
            ends = flat + self._steps(model, direction, predicted, self._wanted(logits)) * direction
            samples = (self._read(model, ends).argmax(dim=1) != predicted).nonzero().squeeze(1)
        if not len(samples):
            return logits, Anchors(self.inputs[:0], predicted.new_zeros(0, 2), samples)
        points, pairs = self._bisect(model, flat[samples], ends[samples])
        return logits, Anchors(points.view(-1, *self.inputs.shape[1:]), pairs, samples)

    def _wanted(self, logits: Tensor) -> Tensor:
        """Number of anchors of each class (J,): its near-boundary-ness values in the bin at zero, or nearest to it."""
        signed = near_boundary_ness(logits, self.labels).double().cpu().numpy()
        labels = self.labels.cpu().numpy()
        of_classes = [signed[labels == c] for c in range(int(labels.max()) + 1)]
        holds_zero = np.array([bool(len(values)) and values.min() <= 0 <= values.max() for values in of_classes])
        bins = [np.histogram(values, bins="auto") for values in of_classes]
        counts = np.array([n[np.clip(np.searchsorted(edges, 0, side="right"), 1, len(n)) - 1] for n, edges in bins])
        wanted = np.where(holds_zero, counts, 0) if holds_zero.any() else counts
        return torch.from_numpy(wanted).to(self.labels.device)

    def _direction(self, model: Callable[[Tensor], Any]) -> Tensor:
        """Step of each sample towards the boundary (N, d), of length 1 in standardised features, in units of inputs."""
        flat = self.inputs.flatten(1)
        scale = torch.where((flat != flat[:1]).any(dim=0), self.scale_, 0.0)
        gradients = []
        with evaluation_copy(model) as network, torch.inference_mode(False), torch.enable_grad():
            try:
                for batch in self.inputs.split(_BATCH):
                    inputs = copy_to(network, batch).detach().clone().requires_grad_()
                    logits = as_logits(as_tensor(network(inputs), "logits"))
                    gap = -logits.gather(1, top_pairs(logits.detach())).diff(dim=1).abs().sum()
                    gradients.append(torch.autograd.grad(gap, inputs)[0].to(flat.device).flatten(1))
            except RuntimeError as error:
                others = "for other classifiers use `BisectionAnchorUncertainty`"
                raise TypeError(f"`model` must be differentiable by its inputs ({others}), got: {error}") from error
        slope = torch.cat(gradients).double().nan_to_num(nan=0.0, posinf=0.0, neginf=0.0) * scale
        slope = normalize(slope, math.inf, eps=torch.finfo(torch.float64).tiny)  # keeps squares in range
        return (normalize(slope) * scale).to(flat.dtype)

    def _steps(self, model: Callable[[Tensor], Any], direction: Tensor, predicted: Tensor, wanted: Tensor) -> Tensor:
        """Step of each sample (N, 1), common to its class; 0 for a class without anchors."""
        flat = self.inputs.flatten(1)
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

    def _local_uncertainty(self, logits: Tensor, neighbors: Tensor) -> Tensor:
        """Local uncertainty (S,) of each anchor from a smooth count of the labels around it (section 4.5).

        The classes i and j of an anchor are the two commonest labels of its neighbours (S, M), nearest first; of
        equally common ones, the nearer. All neighbours are placed on one axis by their near-boundary-ness, and those
        labelled j are mirrored (Fig. 4.5), so the boundary is at zero. Each neighbour labelled i or j counts
        exp(-(gap / h)^2 / 2) for its label (Eq. 4.4), a count and not a density, and the value is the measure of
        k_i / (k_i + k_j). The thesis does not say where neighbours of a third class lie: here they are not mirrored,
        and they affect the widths but not the counts.
        """
        given = self.labels[neighbors]
        shape, n_members = (len(given), logits.shape[1]), given.shape[1]
        counts = given.new_zeros(shape).scatter_add_(1, given, torch.ones_like(given))
        place = torch.arange(n_members, device=given.device).expand_as(given)
        first = given.new_full(shape, n_members).scatter_reduce_(1, given, place, "amin")
        i, j = top_two(counts * (n_members + 1) - first).split(1, dim=1)
        if self.gap == "own":
            nearness = near_boundary_ness(logits, self.labels)[neighbors]
            axis = torch.where(given == j, -nearness, nearness)
        else:
            axis = logits[neighbors, j] - logits[neighbors, i]
        kernel = boundary_kernel(axis, self.bandwidth)
        smooth = torch.stack([torch.where(given == own, kernel, 0).sum(dim=1) for own in (i, j)], dim=1)
        pair = torch.arange(2, device=i.device).expand_as(smooth)
        return class_uncertainty(smooth, pair, measure=self.measure)


def near_boundary_ness(logits: Tensor, labels: Tensor) -> Tensor:
    """Gap between the two largest logits (N, J), negative if the prediction is the label (N,): section 4.3."""
    top = top_two(logits)
    first, second = logits.gather(1, top).unbind(dim=1)
    return torch.where(top[:, 0] == labels, second - first, first - second)
