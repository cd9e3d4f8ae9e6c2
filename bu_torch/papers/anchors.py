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

from bu_torch.internal.inputs import as_features, as_labels, check_fitted
from bu_torch.internal.network import read_logits
from bu_torch.space.features import standardization, standardize

Measure = Literal["entropy", "triangle"]


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
        of_pair = of_pair / torch.where(priors == 0, 1.0, priors).to(counts)[pairs]
    total = of_pair.sum(dim=1)
    share = of_pair.amin(dim=1) / torch.where(total == 0, 1.0, total)
    entropy = (torch.special.entr(share) + torch.special.entr(1 - share)) / math.log(2)
    value = 2 * share if measure == "triangle" else entropy
    return torch.where(is_beaten, 0.0, value)


class Anchors(NamedTuple):
    """Points on the decision boundary (S, ...), the classes on their two sides (S, 2), and their samples (S,)."""

    points: Tensor
    pairs: Tensor
    samples: Tensor


class AnchorEstimator:
    """Base of the estimators by anchors: it holds the samples and reads logits of a model."""

    n_halvings = 30  # bisections of a segment

    def fit(self, features: Any, labels: Any) -> Self:
        """Keep inputs (N, d) or (N, ...), finite, and classes (N,); compute what does not depend on the classifier."""
        inputs = as_features(features)
        labels = as_labels(labels, inputs.shape[0], are_several=True).to(inputs.device)
        self.mean_, self.scale_ = standardization(inputs.flatten(1))
        self._standardized = standardize(inputs, self.mean_, self.scale_)
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
        """Points of the boundary on segments (n, d) whose ends are predicted differently, and the two classes (n, 2).

        The dichotomy of Algorithm 2: if the middle is predicted like the start, the start moves there, else the end
        does. The ends stay predicted differently, so the predicted class changes at the point found (Ha et al. 2021,
        section 3.3). Algorithm 4 as printed always moves the end, even to a middle predicted like the start; the
        segment may then hold no boundary.
        """
        step = end - start
        low, high = start.new_zeros(len(start), 1), start.new_ones(len(start), 1)
        first, second = (self._read(model, points).argmax(dim=1) for points in (start, end))
        for _ in range(self.n_halvings):
            middle = (low + high) / 2
            found = self._read(model, start + middle * step).argmax(dim=1)
            is_first = (found == first).unsqueeze(1)
            low, high = torch.where(is_first, middle, low), torch.where(is_first, high, middle)
            second = torch.where(found == first, second, found)
        return start + (low + high) / 2 * step, torch.stack((first, second), dim=1)
