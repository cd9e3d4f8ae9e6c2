"""Clusters of samples and their nearest others, distances from points to groups, and K-means."""

import logging
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from bu_torch.functional.checks import check_choice, check_index, check_range
from bu_torch.internal.inputs import as_flat_features, as_tensor, check_fitted, check_integer, safe_unit
from bu_torch.internal.printing import advance
from bu_torch.neighbors.search import nearest

_log = logging.getLogger(__name__)
_BLOCK_ELEMENTS = 2**22  # float64 temporaries of 32 MB, for any N
_ON_CPU = (512, 256)  # members x points in a block: 1 MB, which fits a cache
_ELSEWHERE = (4096, 4096)
_SMALL = 1e-8  # below this, relative to |x|^2 + |y|^2, a squared distance is computed from differences
_RECOMPUTED_ELEMENTS = 2**18  # differences in one block


class NeighborGraph:
    """The cluster of each sample: the sample itself and its nearest other samples.

    Ha et al. (2021), Eq. 26. A sample is left out of its own list by index, never by distance, so duplicates count as
    neighbours. Candidates are found in float32, by FAISS on the CPU and by torch elsewhere; distances are computed in
    float64, and the search continues until no other sample can be nearer, so the result is exact. Ties are ordered by
    index, zero distances arbitrarily.

    Beyond 50,000 samples, or N^2 d = 1e12, K-means puts the samples into lists (FAISS's inverted file). Lists are
    compared on a few principal axes if these hold 99 % of the variance of at most 1024 features. The search takes as
    many lists as are needed to find 99 % of the true neighbours of some samples; if that is more than a quarter of the
    lists, it takes all samples. Distances are always those of the features.

    Raises TypeError or ValueError for an argument of the wrong type, shape or values.

    Args:
        n_neighbors: Size M of a cluster, the sample itself included, >= 2.
        exact: Compare all samples (True) or use lists (False); None decides by size. Accelerators compare all.

    Attributes:
        neighbors: Clusters, (N, M) int64: row n is n, then its M - 1 nearest other samples, nearest first.
        nearest_distance: Smallest positive distance to a sample, (N,), dtype of the features; 0 if there is none.
        recall_: Share of the true neighbours that were found, a mean over some samples; 1 for an exact search. It may
            be lower for samples that lie apart from the others.

    Example:
        >>> graph = NeighborGraph(n_neighbors=2).fit(torch.tensor([[0.0], [1.0], [3.0]]))
        >>> graph.neighbors.tolist(), graph.nearest_distance.tolist()
        ([[0, 1], [1, 0], [2, 1]], [1.0, 1.0, 2.0])
    """

    def __init__(self, n_neighbors: int = 40, exact: bool | None = None) -> None:
        self.n_neighbors = check_integer("n_neighbors", n_neighbors, 2)
        self.exact = check_choice("exact", exact, (True, False, None))

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
        found = nearest(features, features, self.n_neighbors - 1, exclude=own, exact=self.exact)
        self.recall_ = found.recall
        _log.debug("Nearest neighbours of %d samples on %s, recall %.3f.", n_samples, features.device, self.recall_)
        self.neighbors = torch.cat((own.unsqueeze(1), found.rows), dim=1)
        self.nearest_distance = first_positive(features, found.distances).to(features.dtype)
        return self

    def take(self, features: Tensor, neighbors: Any) -> Self:
        """Take known neighbours instead of searching features (N, d).

        `neighbors` is a tensor or array of rows (N, k): at least n_neighbors - 1 nearest others of each sample, nearest
        first, with or without the sample itself. It may also be a fitted `NeighborGraph`, or a sparse matrix (N, N) of
        distances with k in each row (scikit-learn's `kneighbors_graph(mode="distance")`).
        """
        found = as_tensor(_rows_of(neighbors), "neighbors").to(features.device)
        check_index("neighbors", found, (len(features), "k"), features.device)
        check_range("neighbors", found, len(features), "rows of `features`")
        own = torch.arange(len(features), device=features.device).unsqueeze(1)
        is_own = found == own
        n_others = int((~is_own).sum(dim=1).min())
        if n_others < self.n_neighbors - 1:
            raise ValueError(
                f"`neighbors` must hold at least {self.n_neighbors - 1} others of each sample, for"
                f" n_neighbors={self.n_neighbors} with the sample itself, got {n_others}."
            )
        others = found.long().gather(1, is_own.byte().argsort(dim=1, stable=True))
        self.neighbors = torch.cat((own, others[:, : self.n_neighbors - 1]), dim=1)
        self.nearest_distance = distance_among(features, self.neighbors).to(features.dtype)
        return self


def _rows_of(neighbors: Any) -> Any:
    """Rows (N, k) of a graph or of a sparse matrix; anything else is returned unchanged."""
    if isinstance(neighbors, NeighborGraph):
        check_fitted(neighbors, "neighbors")
        return neighbors.neighbors
    if not hasattr(neighbors, "tocsr"):
        return neighbors
    matrix = neighbors.tocsr()
    counts = np.diff(matrix.indptr)
    if len(set(counts.tolist())) > 1:
        raise ValueError(f"`neighbors` must have as many entries in each row, got {counts.min()} to {counts.max()}.")
    order = np.argsort(matrix.data.reshape(len(counts), -1), axis=1, kind="stable")
    return np.take_along_axis(matrix.indices.reshape(len(counts), -1), order, axis=1).astype(np.int64)


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
    found = nearest(distinct, distinct[own], 1, exclude=own, exact=None)
    of_distinct = torch.zeros(distinct.shape[0], dtype=torch.float64, device=features.device)
    of_distinct[own] = found.distances[:, 0]
    positive[left] = of_distinct[row[left]]
    return positive


def nearest_of_groups(points: Tensor, groups: Sequence[Tensor], left_out: Tensor | None = None) -> Tensor:
    """Distance of points (n, d) to the nearest member of each of G groups, (n, G) float64, each column contiguous.

    Squared distances are computed as |x|^2 - 2 x.y + |y|^2 in float64, and the smallest from differences, because that
    formula is inexact for them. A visible progress bar moves by points x members.

    Groups hold at least one member (m, d) each, of the dtype and on the device of the points. `left_out` (n, k), int64,
    are members that a point must not find, numbered through all groups, -1 for none; a group left without members is
    infinitely far.
    """
    n_members, n_points = _ON_CPU if points.device.type == "cpu" else _ELSEWHERE
    members = torch.cat(list(groups))
    unit = safe_unit(points, members) if points.dtype == torch.float64 else 1.0
    members = members.double() / unit
    centre = members.median(dim=0).values
    members -= centre
    norms = members.square().sum(dim=1, keepdim=True)
    largest = norms.max()
    group_of = torch.repeat_interleave(torch.tensor([len(group) for group in groups], device="cpu"))
    runs = [[one.tolist() for one in part.unique_consecutive(return_counts=True)] for part in group_of.split(n_members)]
    parts = list(zip(members.split(n_members), norms.split(n_members), runs, strict=True))
    found = torch.empty((len(groups), len(points)), dtype=torch.float64, device=points.device)
    for start in range(0, len(points), n_points):
        rows = slice(start, start + n_points)
        block = points[rows].double() / unit - centre
        own = torch.full_like(block[:, :1], -1, dtype=torch.int64) if left_out is None else left_out[rows]
        norm = block.square().sum(dim=1)
        least = _least_squares(block, parts, len(groups), own).add_(norm)
        small = (least.amin(dim=0) < _SMALL * (norm + largest)).nonzero().squeeze(1)
        if len(small):
            least[:, small] = _least_squares(block[small], parts, len(groups), own[small], is_small=True)
        found[:, rows] = least
        advance(len(block) * len(members))
    return found.sqrt_().mul_(unit).T


def _least_squares(
    points: Tensor,
    parts: list[tuple[Tensor, Tensor, list[list[int]]]],
    n_groups: int,
    own: Tensor,
    *,
    is_small: bool = False,
) -> Tensor:
    """Smallest squared distance of points (n, d) to each group, (G, n), leaving out their own members (n, k).

    The points' own squares are not added, unless `is_small`; small distances are then computed from differences. A part
    holds members (m, d), their squares (m, 1), their groups, and the number of members of each.
    """
    norm = points.square().sum(dim=1)
    found = norm.new_full((n_groups, len(points)), torch.inf)
    columns = points.T.contiguous()
    first = 0
    for members, norms, (groups, sizes) in parts:
        squared = torch.addmm(norms, members, columns, alpha=-2)
        if is_small:
            squared += norm
            limit = _SMALL * (norm + norms)
            for pairs in (squared < limit).nonzero().split(max(1, _RECOMPUTED_ELEMENTS // points.shape[1])):
                rows, near = pairs.unbind(dim=1)
                squared[rows, near] = (members[rows] - points[near]).square().sum(dim=1)
        place = own - first
        is_here = (place >= 0) & (place < len(members))
        squared[place[is_here], is_here.nonzero()[:, 0]] = torch.inf
        for group, part in zip(groups, squared.split(sizes), strict=True):
            torch.minimum(found[group], part.amin(dim=0), out=found[group])
        first += len(members)
    return found


def lloyd(points: Tensor, centers: Tensor, n_steps: int) -> tuple[Tensor, float]:
    """Move centres (K, d) to the means of the points (N, d) that are nearest to them, `n_steps` times; both float32.

    Returns the centres, and the sum of squared distances to the nearest centre before the last step. FAISS works on the
    CPU, torch on an accelerator: there a centre without points moves to one that is far from its centre, and sums are
    matrix products in float64, so the result is the same in each run.
    """
    if points.device.type == "cpu":
        import faiss

        options = {"min_points_per_centroid": 1, "max_points_per_centroid": len(points)}  # FAISS warns of fewer
        k_means = faiss.Kmeans(points.shape[1], len(centers), niter=n_steps, **options)
        k_means.train(points.numpy(), init_centroids=centers.numpy())
        return torch.from_numpy(k_means.centroids), float(k_means.obj[-1])  # type: ignore[index]
    numbers = torch.arange(len(centers), device=points.device)
    for _ in range(n_steps):
        # A matrix product would lose small distances.
        distances = torch.cdist(points, centers, compute_mode="donot_use_mm_for_euclid_dist")
        squared, nearest_centre = distances.double().square_().min(dim=1)
        is_member = (nearest_centre.unsqueeze(1) == numbers).double()
        counts = is_member.sum(dim=0).unsqueeze(1)
        is_empty = counts == 0
        far = points[squared.topk(len(centers)).indices[(is_empty.squeeze(1).cumsum(0) - 1).clamp(min=0)]]
        means = is_member.T @ points.double() / counts.clamp(min=1)
        centers = torch.where(is_empty, far, means.to(centers))
    return centers, float(squared.sum())
