"""Filters of the trust score, as its paper has them: samples that are left out of their class."""

import math
import warnings
from typing import Literal

import torch
from torch import Tensor

from bu_torch.neighbors.graph import nearest


def kept_by(
    filtering: Literal["density", "disagreement"], features: Tensor, labels: Tensor, alpha: float, n_neighbors: int
) -> Tensor:
    """True for each sample that a filter of `TrustScore` keeps, (N,) bool."""
    kept = torch.ones_like(labels, dtype=torch.bool)
    if filtering == "disagreement":
        disagreement, radius = _disagreement(features, labels, n_neighbors)
        order = radius.argsort(stable=True)
        order = order[disagreement[order].argsort(stable=True)]
        n_removed = min(math.floor(alpha * len(labels)), int((disagreement > 0).sum()))
        kept[order[len(labels) - n_removed :]] = False
        return kept
    too_small = []
    for label in range(int(labels.max()) + 1):
        members = torch.nonzero(labels == label).flatten()
        if 0 < len(members) < n_neighbors:
            too_small.append(label)
        elif len(members):
            kept[members] = _is_dense(features[members], alpha, n_neighbors)
    if too_small:
        warnings.warn(
            f"Classes {too_small} have fewer than n_neighbors={n_neighbors} samples: no density can be"
            " estimated there, so all their samples are kept.",
            stacklevel=3,
        )
    return kept


def _is_dense(features: Tensor, alpha: float, n_neighbors: int) -> Tensor:
    """Algorithm 1 within one class: True for samples with a k-NN radius up to the (1 - alpha)-quantile."""
    if n_neighbors == 1:  # a sample is its own first neighbour: every radius is 0
        return torch.ones(len(features), dtype=torch.bool, device=features.device)
    radius = _radius(features, n_neighbors - 1)[0]
    return radius <= radius.sort().values[len(radius) - math.floor(alpha * len(radius)) - 1]


def _disagreement(features: Tensor, labels: Tensor, n_neighbors: int) -> tuple[Tensor, Tensor]:
    """Share of other labels among the k nearest other samples, (N,), and the distance to the k-th, (N,)."""
    if len(features) <= n_neighbors:
        raise ValueError(
            f"`features` must hold more than n_neighbors={n_neighbors} samples to filter by disagreement,"
            f" got {len(features)}."
        )
    radius, rows = _radius(features, n_neighbors)
    return (labels[rows] != labels.unsqueeze(1)).double().mean(dim=1), radius


def _radius(features: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Distance to the k-th nearest other sample, (N,), and the k nearest others, (N, k)."""
    own = torch.arange(len(features), device=features.device)
    found = nearest(features, features, k, exclude=own)
    return found.distances[:, -1], found.rows
