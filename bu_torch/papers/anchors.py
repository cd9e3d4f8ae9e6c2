"""Boundary uncertainty at anchors: points on the decision boundary, and how evenly two classes mix around them.

Two estimators preceded the one in `bu_torch.papers.parzen`: "Proposal 1" of the thesis of Ha (2019), "A
classifier evaluation method based on boundary uncertainty", chapter 2 (also section 3 of Ha et al. 2021), and the
variant of chapter 4. Numbers of equations with a dot, and Algorithms 2 to 8, are those of the thesis.
"""

import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, Self

import torch
from torch import Tensor

from bu_torch.functional.boundary import top_pairs
from bu_torch.functional.checks import as_logits
from bu_torch.internal.inputs import as_features, as_labels, check_fitted, check_two_classes
from bu_torch.internal.logits import read_logits
from bu_torch.papers.bandwidth import Bandwidth, boundary_kernel
from bu_torch.space.features import standardization, standardize

Measure = Literal["entropy", "triangle"]
Gap = Literal["own", "pair"]


def bisect_segments(
    classify: Callable[[Tensor], Tensor], start: Tensor, end: Tensor, *, n_halvings: int = 30
) -> tuple[Tensor, Tensor]:
    """Points of the decision boundary on segments (n, d) whose ends are predicted differently, and the two classes.

    The dichotomy of Algorithm 2 with the segment rule of Algorithm 4: if the middle is predicted like the start, the
    start moves there, else the end does. The ends stay predicted differently, so the predicted class changes at the
    point found (Ha et al. 2021, section 3.3). Algorithm 4 as printed always moves the end, even to a middle predicted
    like the start; the segment may then hold no boundary. The classes (n, 2) are that of `start` and the one beyond.
    """
    first, second = classify(start), classify(end)
    n_alike = int((first == second).sum())
    if n_alike:
        raise ValueError(f"`start` and `end` must have different predictions, got {n_alike} segments with equal ones.")
    step = end - start
    low = start.new_zeros(len(start), 1)
    high = start.new_ones(len(start), 1)
    for _ in range(n_halvings):
        middle = (low + high) / 2
        found = classify(start + middle * step)
        is_first = found == first
        low = torch.where(is_first.unsqueeze(1), middle, low)
        high = torch.where(is_first.unsqueeze(1), high, middle)
        second = torch.where(is_first, second, found)
    return start + (low + high) / 2 * step, torch.stack((first, second), dim=1)


def class_uncertainty(
    counts: Tensor, pairs: Tensor, *, priors: Tensor | None = None, measure: Measure = "triangle"
) -> Tensor:
    """Local uncertainty of groups of samples: 1 if both classes of the pair are equally common in the group.

    Section 2.3.5: if a third class is more frequent than one of the pair, the boundary is not theirs and the value is
    0. Otherwise it is a measure of p = P_i / (P_i + P_j) in [0, 1]: the binary entropy of p over ln 2 (Eq. 2.4), or the
    triangle 1 - |2 p - 1| of Fig. 4.6, which the thesis calls Gini impurity (that would be 4 p (1 - p)).

    `counts` (n, J) holds the (effective) number of samples of each class in each group, `pairs` (n, 2) the two classes.
    `priors` (J,) holds the shares P(C_j); they divide the posteriors in the measure alone (section 2.4.4), and a class
    with share 0 has no counts. The value is 0 if neither class of the pair has counts, NaN if its counts are NaN.
    """
    other = counts.scatter(1, pairs, 0).amax(dim=1)
    of_pair = counts.gather(1, pairs)
    is_beaten = other > of_pair.amin(dim=1)
    if priors is not None:
        of_pair = of_pair / torch.where(priors == 0, torch.ones_like(priors), priors).to(counts)[pairs]
    total = of_pair.sum(dim=1)
    share = of_pair.amin(dim=1) / torch.where(total == 0, torch.ones_like(total), total)
    entropy = (torch.special.entr(share) + torch.special.entr(1 - share)) / math.log(2)
    value = 2 * share if measure == "triangle" else entropy
    return torch.where(is_beaten, torch.zeros_like(value), value)


def anchor_uncertainty(
    logits: Tensor,
    labels: Tensor,
    neighbors: Tensor,
    *,
    bandwidth: Bandwidth = "cvml",
    measure: Measure = "triangle",
    gap: Gap = "own",
) -> Tensor:
    """Local uncertainty (S,) of each anchor from a smooth count of the labels around it (section 4.5).

    The classes i and j of an anchor are the two commonest labels of its M neighbours; of equally common ones, the
    nearer. All neighbours are placed on one axis by their near-boundary-ness (section 4.3): the gap between their own
    two largest logits, negative if the prediction is the label. Neighbours labelled j are mirrored (Fig. 4.5), so the
    boundary is at zero. Each neighbour labelled i or j counts exp(-(gap / h)^2 / 2) for its label (Eq. 4.4), a count
    and not a density, and the value is the measure of k_i / (k_i + k_j). U is the mean over the anchors (Eq. 4.5).

    The thesis does not say where neighbours of a third class lie: here they are not mirrored, and they affect the
    widths but not the counts. With many classes a neighbour's own gap may belong to another boundary; `gap="pair"`
    takes g_j - g_i for all, as Ha et al. (2021) do in Eq. 27 (the same for two classes). Chapter 4 does not check that
    the boundary runs between i and j, so a classifier that swaps two classes scores like the right one.

    `neighbors` (S, M), M >= 2, holds the samples around each anchor, nearest first. The value is 0 if all of them
    have one label, NaN if the logits (N, J) of one are NaN.
    """
    logits = as_logits(logits)
    n_classes = logits.shape[1]
    nearness = near_boundary_ness(logits, labels)
    given = labels[neighbors]
    represented = _representation(given, n_classes)
    i = represented.argmax(dim=1, keepdim=True)
    j = represented.scatter(1, i, -1).argmax(dim=1, keepdim=True)
    if gap == "own":
        axis = torch.where(given == j, -nearness[neighbors], nearness[neighbors])
    else:
        axis = logits[neighbors, j] - logits[neighbors, i]
    kernel = boundary_kernel(axis, bandwidth)
    counts = torch.cat([torch.where(given == own, kernel, 0).sum(dim=1, keepdim=True) for own in (i, j)], dim=1)
    pair = torch.arange(2, device=i.device).expand_as(counts)
    return class_uncertainty(counts, pair, measure=measure)


def _representation(labels: Tensor, n_classes: int) -> Tensor:
    """Rank of each class in rows of labels (n, M): larger for commoner ones; among equals, for the first to occur."""
    n_members = labels.shape[1]
    counts = labels.new_zeros(len(labels), n_classes).scatter_add_(1, labels, torch.ones_like(labels))
    place = torch.arange(n_members, device=labels.device).expand_as(labels)
    first = labels.new_full((len(labels), n_classes), n_members).scatter_reduce_(1, labels, place, "amin")
    return counts * (n_members + 1) - first + n_members


def near_boundary_ness(logits: Tensor, labels: Tensor) -> Tensor:
    """Gap between the two largest logits (N, J), negative if the prediction is the label (N,): section 4.3."""
    gap = logits.gather(1, top_pairs(logits)).diff(dim=1).abs().squeeze(1)
    return torch.where(logits.argmax(dim=1) == labels, -gap, gap)


class Anchors(NamedTuple):
    """Points on the decision boundary (S, ...), the classes on their two sides (S, 2), and their samples (S,)."""

    points: Tensor
    pairs: Tensor
    samples: Tensor


class AnchorEstimator:
    """Base of the estimators by anchors: it holds the samples and reads logits of a model."""

    n_halvings = 30  # bisections of a segment
    inputs: Tensor
    labels: Tensor
    mean_: Tensor
    scale_: Tensor

    def fit(self, features: Any, labels: Any) -> Self:
        """Keep inputs (N, d) or (N, ...), finite, and classes (N,); compute what does not depend on the classifier."""
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
        check_fitted(self, "inputs")
        for name, value in vars(self).items():
            if isinstance(value, Tensor):
                setattr(self, name, value.to(device))
        return self

    def anchors(self, model: Callable[[Tensor], Any]) -> Anchors:
        """Anchors on the boundary of a classifier, as for `score`; their `samples` lie near it."""
        return self._find_anchors(model)[1]

    def _prepare(self) -> None:
        """Compute what a subclass needs, before the samples are kept."""

    def _find_anchors(self, model: Callable[[Tensor], Any]) -> tuple[Tensor, Anchors]:
        """Logits at the samples (N, J), and the anchors."""
        raise NotImplementedError

    def _read(self, model: Callable[[Tensor], Any], points: Tensor) -> Tensor:
        """Logits (n, J) at flat points (n, d), on the device of the samples."""
        logits = read_logits(model, points.view(-1, *self.inputs.shape[1:])).to(self.labels.device)
        n_classes = int(self.labels.max()) + 1
        if logits.shape[1] < n_classes:
            raise ValueError(f"`model` must give at least {n_classes} columns, one a class, got {logits.shape[1]}.")
        return logits

    def _bisect(self, model: Callable[[Tensor], Any], start: Tensor, end: Tensor) -> tuple[Tensor, Tensor]:
        return bisect_segments(lambda x: self._read(model, x).argmax(dim=1), start, end, n_halvings=self.n_halvings)
