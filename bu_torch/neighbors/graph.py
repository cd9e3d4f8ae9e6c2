"""Clusters of samples and their nearest others, distances from points to groups, and K-means."""

from collections.abc import Sequence
from typing import Any, Self

import torch
from torch import Tensor

from bu_torch.internal.inputs import as_flat_features, check_integer
from bu_torch.internal.printing import advance
from bu_torch.neighbors.search import nearest

_BLOCK_ELEMENTS = 2**22  # float64 temporaries of 32 MB, for any N
_CACHED_ELEMENTS, _LEAST_ROWS = 2**17, 256  # of 1 MB, which fits a cache


class NeighborGraph:
    """The cluster of each sample: the sample itself and its nearest other samples.

    Ha et al. (2021), Eq. 26. A sample is left out of its own list by index, never by distance, so duplicates count as
    neighbours. FAISS on the CPU, and torch elsewhere, find candidates in float32, which are ranked by their distances
    in float64. Ties are ordered by index, zero distances arbitrarily. Beyond 50,000 samples on a CPU, a sixteenth of
    FAISS's inverted lists is searched, and a few neighbours may be missed.

    Raises TypeError or ValueError for an argument of the wrong type, shape or values.

    Args:
        n_neighbors: Size M of a cluster, the sample itself included, >= 2.

    Attributes:
        neighbors: Clusters, (N, M) int64: row n is n, then its M - 1 nearest other samples, nearest first.
        nearest_distance: Smallest positive distance to a sample, (N,), dtype of the features; 0 if there is none.

    Example:
        >>> graph = NeighborGraph(n_neighbors=2).fit(torch.tensor([[0.0], [1.0], [3.0]]))
        >>> graph.neighbors.tolist(), graph.nearest_distance.tolist()
        ([[0, 1], [1, 0], [2, 1]], [1.0, 1.0, 2.0])
    """

    def __init__(self, n_neighbors: int = 40) -> None:
        self.n_neighbors = check_integer("n_neighbors", n_neighbors, 2)

    def fit(self, features: Any) -> Self:
        """Find the clusters of features (N, d), N >= n_neighbors, tensor, array or frame of finite numbers.

        Distances are Euclidean; features are not rescaled. The fitted tensors are on the device of the features.
        """
        features = as_flat_features(features)
        n_samples = features.shape[0]
        if n_samples < self.n_neighbors:
            raise ValueError(
                f"`features` must hold at least n_neighbors={self.n_neighbors} samples, got {n_samples}:"
                " pass a smaller `n_neighbors`."
            )
        own = torch.arange(n_samples, device=features.device)
        found = nearest(features, features, self.n_neighbors - 1, exclude=own)
        self.neighbors = torch.cat((own.unsqueeze(1), found.rows), dim=1)
        self.nearest_distance = first_positive(features, found.distances).to(features.dtype)
        return self


def distance_among(points: Tensor, neighbors: Tensor) -> Tensor:
    """Distance of each point to the nearest of its neighbours at a positive distance, (N,) float64."""
    rows = max(1, _BLOCK_ELEMENTS // (neighbors.shape[1] * points.shape[1]))
    blocks = (points[members].double() for members in neighbors.split(rows))
    return first_positive(points, torch.cat([(block[:, 1:] - block[:, :1]).norm(dim=2) for block in blocks]))


def first_positive(features: Tensor, distances: Tensor) -> Tensor:
    """Distance to the nearest sample at a positive distance (N,), 0 if there is none.

    If all neighbours found are duplicates, the search goes on among the distinct samples.
    """
    positive = torch.where(distances > 0, distances, torch.inf).amin(dim=1)
    left = positive.isinf()
    if not bool(left.any()):
        return positive
    distinct, row = torch.unique(features, dim=0, return_inverse=True)
    if distinct.shape[0] == 1:
        return torch.zeros_like(positive)
    own = row[left].unique()
    found = nearest(distinct, distinct[own], 1, exclude=own)
    of_distinct = torch.zeros(distinct.shape[0], dtype=torch.float64, device=features.device)
    of_distinct[own] = found.distances[:, 0]
    positive[left] = of_distinct[row[left]]
    return positive


def nearest_of_groups(points: Tensor, groups: Sequence[Tensor], left_out: Tensor | None = None) -> Tensor:
    """Distance of points (n, d) to the nearest member of each of G groups, (n, G) float64, each column contiguous.

    The nearest member is found by |y|^2 - 2 x.y in float64, and its distance is that of the difference. A visible
    progress bar moves by points x members.

    Groups hold at least one member (m, d) each, of the dtype and on the device of the points. `left_out` (n, k), int64,
    are members that a point must not find, numbered through all groups, -1 for none; a group left without members is
    infinitely far.
    """
    stacked = torch.cat(list(groups)).double()
    centre = stacked.median(dim=0).values
    parts = [(part, part.square().sum(dim=1)) for part in (stacked - centre).split([len(group) for group in groups])]
    n_elements = _CACHED_ELEMENTS if points.is_cpu else _BLOCK_ELEMENTS
    n_rows = max(_LEAST_ROWS, n_elements * len(groups) // len(stacked))
    distances = torch.empty((len(groups), len(points)), dtype=torch.float64, device=points.device)
    for rows in torch.arange(len(points), device=points.device).split(n_rows):
        block, first = points[rows].double() - centre, 0
        for (members, norms), into in zip(parts, distances, strict=True):
            squared = torch.addmm(norms, block, members.T, alpha=-2)
            if left_out is not None:
                place = left_out[rows] - first
                is_here = (place >= 0) & (place < len(members))
                squared[is_here.nonzero()[:, 0], place[is_here]] = torch.inf
            least, best = squared.min(dim=1)
            into[rows] = (members[best] - block).norm(dim=1).masked_fill_(least.isinf(), torch.inf)
            first += len(members)
        advance(len(rows) * len(stacked))
    return distances.T


def lloyd(points: Tensor, centers: Tensor, n_steps: int) -> tuple[Tensor, float]:
    """Move centres (K, d) to the means of the points (N, d) that are nearest to them, `n_steps` times; both float32.

    Returns the centres, and the sum of squared distances to the nearest centre before the last step. FAISS computes
    them, on the CPU.
    """
    import faiss

    options = {"min_points_per_centroid": 1, "max_points_per_centroid": len(points)}  # FAISS warns of fewer
    k_means = faiss.Kmeans(points.shape[1], len(centers), niter=n_steps, **options)
    k_means.train(points.cpu().numpy(), init_centroids=centers.cpu().numpy())
    return torch.from_numpy(k_means.centroids).to(points.device), float(k_means.obj[-1])  # type: ignore[index]
