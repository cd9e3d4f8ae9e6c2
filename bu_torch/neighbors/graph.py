"""Clusters of samples and their nearest others, distances from points to groups, and K-means."""

from collections.abc import Sequence
from typing import Any, Self

import torch
from torch import Tensor

from bu_torch.internal.inputs import as_flat_features, check_integer, safe_unit
from bu_torch.internal.printing import advance
from bu_torch.neighbors.search import nearest

_BLOCK_ELEMENTS = 2**22  # float64 temporaries of 32 MB, for any N
_ON_CPU = (512, 256)  # members x points in a block: 1 MB, which fits a cache
_ELSEWHERE = (4096, 4096)
_SMALL = 1e-8  # below this, relative to |x|^2 + |y|^2, a squared distance is computed from differences
_RECOMPUTED_ELEMENTS = 2**18  # differences in one block


class NeighborGraph:
    """The cluster of each sample: the sample itself and its nearest other samples.

    Ha et al. (2021), Eq. 26. A sample is left out of its own list by index, never by distance, so duplicates count as
    neighbours. FAISS on the CPU, and torch elsewhere, find candidates in float32, which are ranked by their distances
    in float64. Ties are ordered by index, zero distances arbitrarily. Beyond 50,000 samples on a CPU, as many of
    FAISS's inverted lists are searched as hold 99 % of the true neighbours of some samples.

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

    The points' own squares are added if `is_small`. A part has members (m, d), their squares, groups, and numbers.
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
