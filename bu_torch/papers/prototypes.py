"""Prototypes of classes, which tell the two classes that a sample lies between."""

import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Literal, Self

import torch
from torch import Tensor

from bu_torch.internal.inputs import (
    as_flat_features,
    as_labels,
    check_fitted,
    check_integer,
    check_seed,
)
from bu_torch.neighbors.graph import class_distances, lloyd
from bu_torch.papers.parzen import top_pairs

_MAX_SAMPLES = 10_000  # for K-means of one class
_MOST_PROTOTYPES = 39
_CANDIDATES = 16  # for each new centre of K-means
_STEPS, _LAST_STEPS = 2, 25  # Lloyd steps for each number tried, and for the chosen one


class PrototypeClassifier:
    """Class-wise K-means prototypes; the score of a class is minus the distance to its nearest prototype.

    Ha et al. (2021), Eq. 35 and Algorithm 2. The number of prototypes of a class, among 1, 3, ..., 39, minimises
    Akaike's information criterion of K-means as a mixture of K spherical Gaussians of one width: N_j d ln(2 pi s2) +
    N_j d + 2 N_j ln K + 2 (K d + 1) with s2 = SSE / (N_j d), for K <= N_j / 2 (or K = 1) with SSE > 0. All numbers are
    tried in one run of K-means that adds two prototypes at a time; the chosen prototypes then take further steps. A
    class with more than 10,000 samples is represented by a random 10,000 of them.

    Args:
        n_prototypes: Prototypes of a class, >= 1, or `"aic"`; at most the number of distinct samples of the class.
        seed: Seed of the choice of samples, 0 <= seed < 2**64.

    Attributes:
        n_prototypes_: Prototypes of each class, (J,) int64, 0 for a class without samples; J is the largest label + 1.
        prototypes_: One tensor (n_prototypes_[j], d) a class.

    Example:
        >>> features = torch.tensor([[0.0], [0.1], [1.0], [1.1], [5.0], [5.1]])
        >>> classifier = PrototypeClassifier(n_prototypes=1).fit(features, torch.tensor([0, 0, 1, 1, 2, 2]))
        >>> classifier.top_pairs(torch.tensor([[0.2], [4.0]])).tolist()
        [[0, 1], [1, 2]]
    """

    def __init__(self, n_prototypes: int | Literal["aic"] = "aic", seed: int = 0) -> None:
        self.n_prototypes = n_prototypes if n_prototypes == "aic" else check_integer("n_prototypes", n_prototypes, 1)
        self.seed = check_seed(seed)

    def fit(self, features: Any, labels: Any) -> Self:
        """Find the prototypes of each class, on the device of the features.

        Takes samples (N, d), finite, in a space of Euclidean distances, and classes (N,), integers >= 0, at least two
        different ones. A class without samples is infinitely far from everything.
        """
        features = as_flat_features(features)
        labels = as_labels(labels, features.shape[0], are_several=True).to(features.device)
        self.prototypes_ = [features[:0]] * (int(labels.max()) + 1)
        for label in labels.unique().tolist():
            self.prototypes_[label] = self._fit_class(features[labels == label])
        self.n_prototypes_ = torch.tensor([len(found) for found in self.prototypes_], device=features.device)
        return self

    def class_distances(self, features: Any) -> Tensor:
        """Distance of samples (n, d), with the d of `fit`, to the nearest prototype of each class.

        Shape (n, J), inf for a class without samples; dtype and device of the features.
        """
        check_fitted(self, "n_prototypes_")
        features = as_flat_features(features, n_features=self.prototypes_[0].shape[1])
        prototypes, labels = torch.cat(self.prototypes_).to(features), torch.repeat_interleave(self.n_prototypes_)
        found = class_distances(features, prototypes, labels.to(features.device), len(self.prototypes_))
        return found.to(features.dtype)

    def top_pairs(self, features: Any) -> Tensor:
        """Likely Bayes pair of samples (n, d), with the d of `fit`: the two classes with the nearest prototypes.

        Shape (n, 2), int64, ascending; ties go to the lowest class.
        """
        return top_pairs(-self.class_distances(features))

    def _fit_class(self, features: Tensor) -> Tensor:
        if len(features) > _MAX_SAMPLES:
            order = torch.randperm(len(features), generator=torch.Generator().manual_seed(self.seed), device="cpu")
            features = features[order[:_MAX_SAMPLES].to(features.device)]
        n_distinct = len(torch.unique(features, dim=0))
        if self.n_prototypes == "aic":
            # With as many prototypes as distinct samples the SSE is 0, and the criterion is not defined.
            numbers = range(1, max(1, min(_MOST_PROTOTYPES, len(features) // 2, n_distinct - 1)) + 1, 2)
        else:
            most = min(self.n_prototypes, n_distinct)
            numbers = range(2 - most % 2, most + 1, 2)
        unit = 2.0 ** math.frexp(float(features.abs().max()))[1]
        mean = (features / unit).mean(dim=0)
        points = (features / unit - mean).float()
        found = list(grown(points, numbers, _STEPS))
        best = min(found, key=partial(_aic, features.shape)) if self.n_prototypes == "aic" else found[-1]
        centers, _ = lloyd(points, best[0], _LAST_STEPS)
        return (centers.to(features) + mean) * unit


def grown(points: Tensor, numbers: Sequence[int], n_steps: int) -> Iterator[tuple[Tensor, float]]:
    """Centres (k, d) of centred points (N, d), and their error as by `lloyd`, for each of ascending numbers k.

    The first centre is the mean; each number starts from the centres of the one before. A new centre is the candidate
    that lowers the error most, as in greedy k-means++; candidates are spread by error, without random numbers.
    """

    def squares(others: Tensor) -> Tensor:  # (N, k), by a matrix product
        return torch.addmm(others.square().sum(dim=1), points, others.T, alpha=-2).add_(norms).clamp_(min=0)

    norms = points.square().sum(dim=1, keepdim=True)
    centers = points.mean(dim=0, keepdim=True)
    places = (torch.arange(_CANDIDATES, device=points.device) + 0.5) / _CANDIDATES
    for k in numbers:
        squared = squares(centers).amin(dim=1, keepdim=True)
        for _ in range(k - len(centers)):
            shares = squared.squeeze(1).cumsum(dim=0)
            candidates = points[torch.searchsorted(shares, places * shares[-1]).clamp(max=len(points) - 1)]
            with_each = torch.minimum(squared, squares(candidates))
            best = with_each.sum(dim=0).argmin(keepdim=True)
            centers, squared = torch.cat((centers, candidates[best])), with_each[:, best]
        centers, error = lloyd(points, centers, n_steps)
        yield centers, error


def _aic(shape: tuple[int, ...], fitted: tuple[Tensor, float]) -> float:
    """Akaike's criterion of centres (k, d) and their error (SSE), infinite for an error of 0."""
    n_samples, n_features = shape
    k, sse = len(fitted[0]), fitted[1]
    if sse <= 0:
        return math.inf
    variance = sse / (n_samples * n_features)
    fit = n_samples * n_features * (math.log(2 * math.pi * variance) + 1) + 2 * n_samples * math.log(k)
    return fit + 2 * (k * n_features + 1)
