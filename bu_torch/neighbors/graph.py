"""Nearest neighbours: clusters of samples, distances from points to classes, and K-means."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor

from bu_torch.internal.inputs import as_flat_features, check_integer

_EXACT_PAIRS = 50_000**2  # base x queries; beyond it, inverted lists are searched on a CPU
_BLOCK_ELEMENTS = 2**22  # entries of one temporary block
_SEARCHED_ELEMENTS = 2**21  # queries x features, or x candidates, of one search; FAISS is slower below 2**17
_RANKED_ELEMENTS = 2**20  # candidates x features whose distances are computed at once
_SPARE_CANDIDATES = 8  # at most; a search for one neighbour takes three
_FARTHEST = 1e15  # in units of the base; squares of more are none of float32
_LISTS, _SEARCHED = 4, 1 / 16  # number of inverted lists by sqrt(B), and the share of them that is searched
_STEPS, _SAMPLES_OF_A_CENTRE = 10, 25  # for K-means
_CACHED_ELEMENTS, _LEAST_ROWS = 2**17, 256  # of 1 MB, which fits a cache
_BACKENDS: Any = torch.backends  # mypy does not know its attributes
_ROUNDING = (
    _BACKENDS.cudnn.conv,  # the default is TF32, with three digits
    _BACKENDS.cuda.matmul,  # `torch.set_float32_matmul_precision` lowers this and the next two
    _BACKENDS.mkldnn.conv,
    _BACKENDS.mkldnn.matmul,
)


class NeighborGraph:
    """The cluster of each sample: the sample itself and its nearest other samples.

    Ha et al. (2021), Eq. 26. A sample is left out of its own list by index, never by distance, so duplicates count as
    neighbours. Ties are ordered by index, zero distances arbitrarily. Beyond 50,000 samples on a CPU, a sixteenth of
    FAISS's inverted lists is searched, and a few neighbours may be missed. Raises TypeError or ValueError for an
    argument of the wrong type, shape or values.

    Args:
        n_neighbors: Size M of a cluster, the sample itself included, >= 2.

    Attributes:
        neighbors: Clusters, (N, M) int64: row n is n, then its M - 1 nearest other samples, nearest first.
        nearest_distance: Smallest positive distance to a sample, (N,), dtype of the features; 0 if there is none.
    """

    def __init__(self, n_neighbors: int = 40) -> None:
        self.n_neighbors = check_integer("n_neighbors", n_neighbors, 2)

    def fit(self, features: Any) -> Self:
        """Find the Euclidean clusters of features (N, d), N >= n_neighbors: a tensor, array or frame, finite."""
        features = as_flat_features(features)
        if len(features) < self.n_neighbors:
            got = f"{len(features)}: pass a smaller `n_neighbors`"
            raise ValueError(f"`features` must hold at least n_neighbors={self.n_neighbors} samples, got {got}.")
        own = torch.arange(len(features), device=features.device)
        distances, rows = nearest(features, None, self.n_neighbors - 1)
        self.neighbors = torch.cat((own.unsqueeze(1), rows), dim=1)
        self.nearest_distance = first_positive(features, distances).to(features.dtype)
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
    if bool(left.any()):
        distinct, row = torch.unique(features, dim=0, return_inverse=True)
        if len(distinct) == 1:
            return torch.zeros_like(positive)
        positive[left] = nearest(distinct, features[left], 1, exclude=row[left])[0].squeeze(1)
    return positive


def class_distances(
    points: Tensor, samples: Tensor, labels: Tensor, n_classes: int, left_out: Tensor | None = None
) -> Tensor:
    """Distance of points (n, d) to the nearest sample of each class, (n, J) float64, each column contiguous.

    The nearest of the samples (m, d) is found by |y|^2 - 2 x.y in float64, on a CPU with many by `nearest`, and its
    distance is that of the difference. A sample with the label -1 (m,) is of no class, and a class without samples is
    infinitely far. `left_out` (n, k), int64, are samples that a point must not find.
    """
    order = labels.argsort(stable=True)[int((labels < 0).sum()) :]
    place = torch.full_like(labels, -1)  # of each sample, class by class
    place[order] = torch.arange(len(order), device=labels.device)
    left_out = None if left_out is None else place[left_out]
    members, sizes = samples[order].double(), labels[order].bincount(minlength=n_classes).tolist()
    distances = torch.full((n_classes, len(points)), torch.inf, dtype=torch.float64, device=points.device)
    if points.is_cpu and len(points) * len(members) > _EXACT_PAIRS:
        first, wide, n_left_out = 0, points.double(), 0 if left_out is None else left_out.shape[1]
        for part, into in zip(members.split(sizes), distances, strict=True):
            if len(part):
                found, rows = nearest(part, wide, min(len(part), 1 + n_left_out))
                if left_out is not None:
                    found[(rows.unsqueeze(2) == (left_out - first).unsqueeze(1)).any(dim=2)] = torch.inf
                into[:] = found.amin(dim=1)
            first += len(part)
        return distances.T
    centre = members.median(dim=0).values
    parts = [(part, part.square().sum(dim=1)) for part in (members - centre).split(sizes)]
    n_elements = _CACHED_ELEMENTS if points.is_cpu else _BLOCK_ELEMENTS
    n_rows = max(_LEAST_ROWS, n_elements * sum(size > 0 for size in sizes) // len(members))
    for rows in torch.arange(len(points), device=points.device).split(n_rows):
        block, first = points[rows].double() - centre, 0
        for (part, norms), into in zip(parts, distances, strict=True):
            if not len(part):
                continue
            squared = torch.addmm(norms, block, part.T, alpha=-2)
            if left_out is not None:
                column = left_out[rows] - first
                is_here = (column >= 0) & (column < len(part))
                squared[is_here.nonzero()[:, 0], column[is_here]] = torch.inf
            least, best = squared.min(dim=1)
            into[rows] = (part[best] - block).norm(dim=1).masked_fill_(least.isinf(), torch.inf)
            first += len(part)
    return distances.T


def lloyd(points: Tensor, centers: Tensor, n_steps: int) -> tuple[Tensor, float]:
    """Move centres (K, d) to the means of the points (N, d) nearest to them, `n_steps` times; both float32, by FAISS.

    Returns the centres, and the sum of squared distances to the nearest centre before the last step.
    """
    import faiss

    options = {"min_points_per_centroid": 1, "max_points_per_centroid": len(points)}  # FAISS warns of fewer
    k_means = faiss.Kmeans(points.shape[1], len(centers), niter=n_steps, **options)
    k_means.train(points.cpu().numpy(), init_centroids=centers.cpu().numpy())
    return torch.from_numpy(k_means.centroids).to(points.device), float(k_means.obj[-1])  # type: ignore[index]


def nearest(base: Tensor, queries: Tensor | None, k: int, *, exclude: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The k rows, 1 <= k <= B, of a base (B, d) nearest to queries (Q, d); both float32 or both float64, on one device.

    Without queries, they are the rows of the base, none of which finds itself.
    Gives distances (Q, k), float64, ascending, and rows (Q, k), int64. A search in float32 proposes some more than k
    candidates, which are ranked by their distances in float64; ties are in order of the rows. `exclude` (Q,) is a row
    that each query must not find (itself), -1 for none; if fewer than k rows are left, the last distances are inf.
    """
    if queries is None:
        queries, exclude = base, torch.arange(len(base), device=base.device)
    n_candidates = min(k + min(_SPARE_CANDIDATES, k + 2), len(base))
    centre = base.median(dim=0).values.double()
    scale = max(float((base.amax(dim=0) - centre).max()), float((centre - base.amin(dim=0)).max())) or 1.0

    def rank(part: Tensor, candidates: Tensor) -> list[Tensor]:
        """Distances and rows of the k nearest candidates (q, c) to the queries of `part`; -1 is infinitely far."""
        blocks = []
        size = max(1, _RANKED_ELEMENTS // (candidates.shape[1] * base.shape[1]))
        for rows, some in zip(part.split(size), candidates.sort(dim=1).values.split(size), strict=True):
            # `index_select` is several times as fast as `base[some]`.
            difference = base.index_select(0, some.clamp(min=0).view(-1)).view(*some.shape, -1).double()
            difference -= queries[rows].double().unsqueeze(1)
            is_left_out = some < 0 if exclude is None else (some < 0) | (some == exclude[rows].unsqueeze(1))
            exact = difference.square_().sum(dim=2).sqrt_().masked_fill_(is_left_out, torch.inf)
            exact, order = exact.sort(dim=1, stable=True)
            blocks.append((exact[:, :k], some.gather(1, order[:, :k])))
        return [torch.cat(parts) for parts in zip(*blocks, strict=True)]

    both = []
    for points in (base,) if queries is base else (base, queries):
        blocks = points.split(max(1, _BLOCK_ELEMENTS // base.shape[1]))
        scaled = (((block.double() - centre) / scale).clamp_(-_FARTHEST, _FARTHEST) for block in blocks)
        both.append(torch.cat([block.float() for block in scaled]))
    base32, queries32 = both[0], both[-1]
    among_all = search = _search_of(base32)
    if base.is_cpu and len(base) * len(queries) > _EXACT_PAIRS:
        search = _search_of(base32, has_lists=True)
    own = torch.arange(len(queries), device=base.device)
    parts = []
    for part in own.split(max(1, _SEARCHED_ELEMENTS // max(n_candidates, base.shape[1]))):
        distances, rows = rank(part, search(queries32[part], n_candidates))
        is_short = distances[:, -1].isinf()
        if search is not among_all and bool(is_short.any()):  # lists that hold few
            left = part[is_short]
            distances[is_short], rows[is_short] = rank(left, among_all(queries32[left], n_candidates))
        parts.append((distances, rows))
    distances, rows = (torch.cat(columns) for columns in zip(*parts, strict=True))
    return distances, rows


def _search_of(base32: Tensor, *, has_lists: bool = False) -> Callable[[Tensor, int], Tensor]:
    """Function from float32 queries (q, d) and a number of candidates c to rows (q, c) of a base, -1 for none.

    It is of FAISS on a CPU, else of torch; with `has_lists` it looks into the nearest of FAISS's inverted lists alone.
    """
    if not base32.is_cpu:
        return partial(_search_by_torch, base32)
    import faiss

    n_features, n_lists = base32.shape[1], round(_LISTS * len(base32) ** 0.5)
    index: Any = faiss.IndexFlatL2(n_features)
    if has_lists:
        index = faiss.IndexIVFFlat(index, n_features, n_lists)
        index.cp.niter, index.cp.seed = _STEPS, 0
        index.cp.min_points_per_centroid, index.cp.max_points_per_centroid = 1, _SAMPLES_OF_A_CENTRE
        index.train(base32.numpy())
        index.nprobe = max(1, round(_SEARCHED * n_lists))
    index.add(base32.numpy())
    return lambda queries32, n_candidates: torch.from_numpy(index.search(queries32.numpy(), n_candidates)[1])


def _search_by_torch(base32: Tensor, queries32: Tensor, n_candidates: int) -> Tensor:
    blocks = queries32.split(max(1, 4 * _BLOCK_ELEMENTS // len(base32)))
    exact = (torch.cdist(block, base32, compute_mode="donot_use_mm_for_euclid_dist") for block in blocks)
    return torch.cat([distances.topk(n_candidates, largest=False).indices for distances in exact])


def copies(features: Tensor, neighbors: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield rows (R,) of samples (N, ...) and of an exact copy of each, one neighbour rank at a time.

    `neighbors` (N, M) come from `NeighborGraph`. Each yield holds only rows that the one before held, R >= 1.
    """
    rows = torch.arange(len(features), device=features.device)
    for others in neighbors[:, 1:].unbind(dim=1):
        blocks = rows.split(max(1, _BLOCK_ELEMENTS // features[0].numel()))
        rows = torch.cat([part[(features[others[part]] == features[part]).flatten(1).all(dim=1)] for part in blocks])
        if not len(rows):
            return
        yield rows, others[rows].long()


@contextmanager
def full_precision() -> Iterator[None]:
    """Compute products and convolutions in full float32 within, because distances are small differences of them."""
    before = [part.fp32_precision for part in _ROUNDING]
    try:
        for part in _ROUNDING:
            part.fp32_precision = "ieee"
        yield
    finally:
        for part, precision in zip(_ROUNDING, before, strict=True):
            part.fp32_precision = precision
