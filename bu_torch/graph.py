"""Nearest neighbours: FAISS on the CPU, blocks of torch on an accelerator, exact distances in both.

Beyond a size, FAISS asks an inverted file (IVF) in place of all samples, with a recall that is measured.
"""

import logging
from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from bu_torch._inputs import as_flat_features, check_integer, safe_unit
from bu_torch._progress import advance

_log = logging.getLogger(__name__)
Backend = Literal["auto", "faiss", "torch"]
_Search = Callable[[Tensor, int], tuple[Tensor, Tensor]]  # queries (q, d), k -> squared distances, rows (q, k), float32

_BLOCK_ELEMENTS = 2**22  # entries of one temporary block
_SEARCHED_ELEMENTS = 2**21  # queries x features, or x candidates, of one search; FAISS is slower below 2**17
_RANKED_ELEMENTS = 2**20  # candidates x features whose distances are computed at once
_SPARE_CANDIDATES = 8  # at most; a search for one sample takes three
_EXACT_PRODUCTS = 1e12  # base x queries x features: an exact search of this size takes about half a minute on two cores
_RECALL = 0.95
_ROUNDING = 1e-5  # of distances that are equal
_FEWEST_LISTS, _MOST_LISTS = 1, 1 / 8  # the most as a share
_VARIANCE, _AXES_SAMPLE = 0.99, 50_000
_MOST_FEATURES = 1024  # of which principal axes are found in a moment
_RECALL_SAMPLE = 500


class NeighborGraph:
    """The cluster of each sample: the sample itself and its nearest other samples.

    Ha et al. (2021), Eq. 26. A sample is left out of its own list by index, never by distance, so duplicates keep their
    place. FAISS proposes candidates in float32; the distances that are kept are computed from the vectors in float64,
    and a row counts as done only when no sample outside its candidates can be nearer, so the result is exact. Equal
    distances are ordered by index, except among zero distances, where any of the duplicates may be taken.

    Where that would take longer than about half a minute on two cores (N^2 d above 1e12: 180,000 samples of 32
    features), FAISS asks an inverted file instead, with as many lists as it takes to find 95 % of the true neighbours
    of 500 random samples. Where few principal axes of at most 1024 features hold 99 % of the variance, it looks at the
    coordinates on those alone. It asks all samples all the same where that would be more than an eighth of the lists,
    as among many features that are independent. Distances stay those of the vectors; what is missed is a neighbour now
    and then.

    Args:
        n_neighbors: Size M of a cluster, the sample itself included, >= 2.
        backend: `"faiss"` searches on the CPU, `"torch"` on the device of the features; `"auto"` takes FAISS for
            features on the CPU and torch elsewhere, and says so in the log.
        exact: Whether FAISS must look at all samples; None decides by size. The torch backend always does.

    Attributes:
        neighbors: Clusters, (N, M) int64: row n is n, then its M - 1 nearest other samples, nearest first.
        nearest_distance: Distance to the nearest sample at a positive distance, (N,), dtype of the features; 0 where no
            sample is at a positive distance.
        backend_: The backend that was used.
        recall_: Share of the true neighbours that were found, measured on a sample; 1 for an exact search.

    Example:
        >>> graph = NeighborGraph(n_neighbors=2).fit(torch.tensor([[0.0], [1.0], [3.0]]))
        >>> graph.neighbors.tolist(), graph.nearest_distance.tolist()
        ([[0, 1], [1, 0], [2, 1]], [1.0, 1.0, 2.0])
    """

    neighbors: Tensor
    nearest_distance: Tensor
    backend_: str
    recall_: float

    def __init__(self, n_neighbors: int = 40, backend: Backend = "auto", exact: bool | None = None) -> None:
        self.n_neighbors = check_integer("n_neighbors", n_neighbors, 2)
        if backend not in ("auto", "faiss", "torch"):
            raise ValueError(f"`backend` must be 'auto', 'faiss' or 'torch', got {backend!r}.")
        self.backend = backend
        if exact not in (None, True, False):
            raise ValueError(f"`exact` must be True, False or None, got {exact!r}.")
        self.exact = exact

    def fit(self, features: Any) -> Self:
        """Find the clusters of `features`.

        Args:
            features: Samples, shape (N, d) with N >= n_neighbors, tensor or array of numbers, finite. Distances are
                Euclidean in this space, as it comes.

        Returns:
            The fitted graph; its tensors are on the device of the features.

        Raises:
            ValueError: If N < n_neighbors, or features are not finite or not of shape (N, d).
            TypeError: If features are not real numbers.
        """
        features = as_flat_features(features)
        n_samples = features.shape[0]
        if n_samples < self.n_neighbors:
            raise ValueError(
                f"`features` must hold at least n_neighbors={self.n_neighbors} samples, got {n_samples}:"
                " pass a smaller `n_neighbors`."
            )
        self.backend_ = resolve_backend(self.backend, features.device)
        own = torch.arange(n_samples, device=features.device)
        found = nearest(features, features, self.n_neighbors - 1, exclude=own, backend=self.backend_, exact=self.exact)
        self.recall_ = found.recall
        _log.info(
            "Nearest neighbours of %d samples by %s on %s, recall %.3f.",
            n_samples,
            self.backend_,
            features.device,
            self.recall_,
        )
        self.neighbors = torch.cat((own.unsqueeze(1), found.rows), dim=1)
        self.nearest_distance = first_positive(features, found.distances, self.backend_).to(features.dtype)
        return self


def resolve_backend(backend: str, device: torch.device) -> str:
    """The backend that `"auto"` stands for on `device`."""
    if backend != "auto":
        return backend
    return "faiss" if device.type == "cpu" else "torch"


def is_large(n_base: int, n_features: int, n_queries: int) -> bool:
    """Whether an exact search would take longer than about half a minute on two cores."""
    return n_base * n_queries * n_features > _EXACT_PRODUCTS


class Neighbors(NamedTuple):
    """What a search found: distances (Q, k), float64, ascending; rows of the base (Q, k), int64; recall."""

    distances: Tensor
    rows: Tensor
    recall: float


def nearest(
    base: Tensor,
    queries: Tensor,
    k: int,
    *,
    exclude: Tensor | None = None,
    backend: str = "auto",
    exact: bool | None = True,
    tolerance: float | None = None,
) -> Neighbors:
    """The k rows of `base` nearest to each query.

    A search in float32 proposes candidates, and their distances are computed anew in float64. The rounding error of the
    search is bounded. A query is settled when no row outside its candidates can be nearer than the k-th found; the
    others are asked again for four times as many candidates. An inverted file may miss rows, and its candidates are
    taken as they are. A progress bar that is shown moves by B x Q.

    Args:
        base: Shape (B, d), float32 or float64.
        queries: Shape (Q, d), dtype and device of `base`.
        k: 1 <= k <= B.
        exclude: Row of `base` that a query must not find (itself), -1 for none, shape (Q,), or None. Where that leaves
            fewer than k, the last distances are inf.
        backend: As for `NeighborGraph`.
        exact: False allows FAISS to miss some; None does where B x Q x d is large (`is_large`).
        tolerance: Where FAISS may miss some, what it is to find: None for rows as near as the k-th nearest, a number
            for a nearest row at most (1 + tolerance) times as far as the true one.

    Returns:
        Distances and rows, equal distances in order of the rows, and the recall.
    """
    backend = resolve_backend(backend, base.device)
    if exact is None:
        exact = not is_large(base.shape[0], base.shape[1], queries.shape[0])
    rounding = _Rounding.around(base)
    base32 = torch.cat([rounding(block) for block in base.split(max(1, _BLOCK_ELEMENTS // base.shape[1]))])
    n_candidates = min(k + min(_SPARE_CANDIDATES, k + 2), base.shape[0])
    # Squares of float32 are in range in float64, those of float64 need a unit.
    unit = safe_unit(base - rounding.centre, queries - rounding.centre) if base.dtype == torch.float64 else 1.0
    inverted_file, recall = None, 1.0
    if backend == "faiss" and not exact:
        chosen = torch.randperm(len(queries), generator=torch.Generator().manual_seed(0))[:_RECALL_SAMPLE]
        sample = queries[chosen.to(queries.device)]
        own = None if exclude is None else exclude[chosen.to(exclude.device)]

        def distances_found(search: _Search) -> Tensor:
            return _rerank(base, sample, search(rounding(sample), n_candidates)[1], own, k, unit)[0]

        inverted_file, recall = _inverted_file(base32, distances_found, tolerance)

    distances = torch.empty(queries.shape[0], k, dtype=torch.float64, device=base.device)
    rows = torch.empty(queries.shape[0], k, dtype=torch.int64, device=base.device)
    unsettled = torch.arange(queries.shape[0], device=base.device)
    for number, attempt in enumerate(_attempts(base32, backend, inverted_file, n_candidates)):
        # One mask for all blocks: small tensors kept between the large ones of each block would scatter the heap.
        is_settled = torch.empty_like(unsettled, dtype=torch.bool)
        block_size = max(1, _SEARCHED_ELEMENTS // max(attempt.n_candidates, base.shape[1]))
        for part, is_part_settled in zip(unsettled.split(block_size), is_settled.split(block_size), strict=True):
            queries32 = rounding(queries[part])
            squared32, candidates = attempt.search(queries32, attempt.n_candidates)
            own = None if exclude is None else exclude[part]
            kept, kept_rows = _rerank(base, queries[part], candidates, own, k, unit)
            distances[part], rows[part] = kept, kept_rows
            is_part_settled.copy_(attempt.is_settled(kept[:, -1] / rounding.scale, squared32[:, -1], queries32))
            if number == 0:
                advance(len(part) * base.shape[0])
        unsettled = unsettled[~is_settled]
        if not unsettled.numel():
            break
    return Neighbors(distances, rows, recall)


class _Rounding(NamedTuple):
    """Turns points into the float32 coordinates that are searched, scaled so that those of the base are in [-1, 1]."""

    centre: Tensor  # (d,), float64
    scale: Tensor  # scalar, float64

    @classmethod
    def around(cls, base: Tensor) -> Self:
        centre = base.median(dim=0).values.double()
        spread = torch.maximum(base.amax(dim=0).double() - centre, centre - base.amin(dim=0).double()).max()
        return cls(centre, torch.where(spread > 0, spread, torch.ones_like(spread)))

    def __call__(self, points: Tensor) -> Tensor:
        return (points.double() - self.centre).div_(self.scale).float()


class _Attempt(NamedTuple):
    """One search for candidates of the queries that are not settled yet, and the test that settles them."""

    search: _Search
    n_candidates: int
    is_settled: Callable[[Tensor, Tensor, Tensor], Tensor]  # k-th distance, last candidate's squared one, queries32


def _attempts(base32: Tensor, backend: str, inverted_file: _Search | None, n_candidates: int) -> Iterator[_Attempt]:
    """What to try in turn: the inverted file if there is one, then all rows, with more and more candidates."""
    if inverted_file is not None:
        yield _Attempt(inverted_file, n_candidates, _is_filled)
    search = _faiss_search(base32) if backend == "faiss" else _torch_search(base32)
    while n_candidates < base32.shape[0]:
        yield _Attempt(search, n_candidates, _is_proven)
        n_candidates *= 4
    yield _Attempt(search, base32.shape[0], _is_anything)


def _rerank(
    base: Tensor, queries: Tensor, candidates: Tensor, own: Tensor | None, k: int, unit: float
) -> tuple[Tensor, Tensor]:
    """Exact distances (q, k) to the k nearest candidates and their rows, ties by row, `own` and -1 left out."""
    distances = torch.empty(queries.shape[0], k, dtype=torch.float64, device=base.device)
    rows = torch.empty(queries.shape[0], k, dtype=torch.int64, device=base.device)
    block = max(1, _RANKED_ELEMENTS // (candidates.shape[1] * base.shape[1]))
    for start in range(0, queries.shape[0], block):
        part = slice(start, start + block)
        excluded = None if own is None else own[part]
        distances[part], rows[part] = _rerank_block(base, queries[part], candidates[part], excluded, k, unit)
    return distances, rows


def _rerank_block(
    base: Tensor, queries: Tensor, candidates: Tensor, own: Tensor | None, k: int, unit: float
) -> tuple[Tensor, Tensor]:
    candidates = candidates.sort(dim=1).values  # a stable sort by distance then leaves ties in order of the rows
    vectors = base.index_select(0, candidates.clamp(min=0).view(-1))  # several times as fast as `base[candidates]`
    difference = vectors.view(*candidates.shape, base.shape[1]).double()  # (q, c, d)
    difference -= queries.double().unsqueeze(1)
    if unit != 1:
        difference /= unit
    exact = difference.square_().sum(dim=2).sqrt_().mul_(unit)
    exact = exact.masked_fill(candidates < 0, torch.inf)
    if own is not None:
        exact = exact.masked_fill(candidates == own.unsqueeze(1), torch.inf)
    exact, order = exact.sort(dim=1, stable=True)
    return exact[:, :k], candidates.gather(1, order[:, :k])


def _is_filled(kth: Tensor, last_squared: Tensor, queries32: Tensor) -> Tensor:
    """Whether k rows were found: the lists of an inverted file may hold fewer."""
    return ~kth.isinf()


def _is_anything(kth: Tensor, last_squared: Tensor, queries32: Tensor) -> Tensor:
    """True throughout: where all rows were candidates, nothing is left to search."""
    return torch.ones_like(kth, dtype=torch.bool)


def _is_proven(kth: Tensor, last_squared: Tensor, queries32: Tensor) -> Tensor:
    """Whether no row outside the candidates can be nearer than the k-th found.

    A row y nearer than r to a query x has |y| <= |x| + r. In float32 |x|^2 - 2 x.y + |y|^2 then errs by at most
    (d + 8) eps (|x|^2 + |y|^2). A row left out has a value of at least the last candidate's, so it is farther than r if
    that value exceeds r^2 by the error. At r = 0 nothing can be nearer.
    """
    norm = queries32.double().norm(dim=1)
    eps = torch.finfo(torch.float32).eps
    error = (queries32.shape[1] + 8) * eps * (norm.square() + (norm + kth).square())
    return (kth == 0) | (last_squared.double() > kth.square() + error)


def _faiss_search(base32: Tensor) -> _Search:
    import faiss

    index = faiss.IndexFlatL2(base32.shape[1])
    index.add(base32.cpu().numpy())
    return _search_in(index, base32.device)


def _search_in(index: Any, device: torch.device) -> _Search:
    """A search in an index of FAISS."""

    def search(queries32: Tensor, k: int) -> tuple[Tensor, Tensor]:
        squared, rows = index.search(queries32.cpu().numpy(), k)
        return torch.from_numpy(squared).to(device), torch.from_numpy(rows).to(device)

    return search


def _inverted_file(
    base32: Tensor, distances_found: Callable[[_Search], Tensor], tolerance: float | None
) -> tuple[_Search | None, float]:
    """A search in an inverted file, and its recall of a sample of the queries.

    Where few principal axes hold nearly all of the variance, the file holds the coordinates on those alone. It looks at
    as few lists as the recall allows. More than an eighth of the lists are not worth it, since FAISS computes eight
    distances to all rows in the time of one in a list: then the result is None, and 1.

    Args:
        base32: The rows, (B, d).
        distances_found: Distances of the sample to the nearest of what a search proposes, (S, k) ascending.
        tolerance: As for `nearest`.
    """
    rows = base32.cpu().numpy()
    radius = distances_found(_faiss_search(base32))[:, -1:] * (1 + (tolerance or _ROUNDING))
    n_lists = max(1, min(round(2 * len(rows) ** 0.5), len(rows) // 20))
    axes = _few_axes(rows)
    for chosen in (axes, None) if axes is not None else (None,):
        index, lists = _index_of_lists(rows, n_lists, chosen)
        search = _search_in(index, base32.device)
        lists.nprobe = _FEWEST_LISTS
        while lists.nprobe <= _MOST_LISTS * n_lists:
            recall = float((distances_found(search) <= radius).double().mean())
            if recall >= _RECALL:
                return search, recall
            lists.nprobe += -(-lists.nprobe // 4)
    _log.info("An eighth of the %d lists of an inverted file does not hold enough: all samples are asked.", n_lists)
    return None, 1.0


def _few_axes(rows: np.ndarray) -> Any:
    """FAISS's map to the principal axes that hold nearly all of the variance; None where they are half of all or more.

    None too where features are many, or more than rows.
    """
    import faiss

    n_features = rows.shape[1]
    if n_features > min(_MOST_FEATURES, len(rows)):
        return None
    every = faiss.PCAMatrix(n_features, n_features)
    every.train(rows[:: max(1, len(rows) // _AXES_SAMPLE)])
    shares = faiss.vector_to_array(every.eigenvalues).astype(np.float64).clip(min=0)
    n_axes = 1 + int(np.searchsorted(shares.cumsum(), _VARIANCE * shares.sum()))
    if 2 * n_axes > n_features:
        return None
    few = faiss.PCAMatrix(n_features, n_axes)
    few.copy_from(every)
    return few


def _index_of_lists(rows: np.ndarray, n_lists: int, axes: Any) -> tuple[Any, Any]:
    """An index of FAISS of all rows, and the inverted file in it: of their coordinates on `axes`, unless None."""
    import faiss

    width = rows.shape[1] if axes is None else axes.d_out
    lists = faiss.IndexIVFFlat(faiss.IndexFlatL2(width), width, n_lists)
    lists.cp.seed, lists.cp.min_points_per_centroid, lists.cp.max_points_per_centroid = 0, 1, 25
    index = lists if axes is None else faiss.IndexPreTransform(axes, lists)
    index.train(rows)
    index.add(rows)
    return index, lists


def _torch_search(base32: Tensor) -> _Search:
    def search(queries32: Tensor, k: int) -> tuple[Tensor, Tensor]:
        rows = max(1, 4 * _BLOCK_ELEMENTS // base32.shape[0])
        found = [
            torch.cdist(block, base32, compute_mode="donot_use_mm_for_euclid_dist").topk(k, dim=1, largest=False)
            for block in queries32.split(rows)
        ]
        return torch.cat([block.values for block in found]).square_(), torch.cat([block.indices for block in found])

    return search


def first_positive(features: Tensor, distances: Tensor, backend: str = "auto") -> Tensor:
    """Distance to the nearest sample at a positive distance (N,), 0 where there is none.

    Where all neighbours found are duplicates, the search goes on among the distinct samples.
    """
    positive = torch.where(distances > 0, distances, torch.inf).amin(dim=1)
    left = positive.isinf()
    if not bool(left.any()):
        return positive
    distinct, row = torch.unique(features, dim=0, return_inverse=True)
    if distinct.shape[0] == 1:
        return torch.zeros_like(positive)
    own = row[left].unique()
    found = nearest(distinct, distinct[own], 1, exclude=own, backend=backend, exact=None)
    of_distinct = torch.zeros(distinct.shape[0], dtype=torch.float64, device=features.device)
    of_distinct[own] = found.distances[:, 0]
    positive[left] = of_distinct[row[left]]
    return positive
