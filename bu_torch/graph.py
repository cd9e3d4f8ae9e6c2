"""Nearest neighbours: FAISS on the CPU, blocks of torch on an accelerator, exact distances in both.

Beyond a size, FAISS asks an inverted file (IVF) in place of all samples, with a recall that is measured.
"""

import logging
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, Self

import torch
from torch import Tensor

from bu_torch._inputs import as_flat_features, check_integer, safe_unit
from bu_torch._progress import advance

_log = logging.getLogger(__name__)
Backend = Literal["auto", "faiss", "torch"]

_BLOCK_ELEMENTS = 2**22  # entries of one temporary block
_SEARCHED_ELEMENTS = 2**21  # queries x features, or x candidates, of one search; FAISS is slower below 2**17
_RANKED_ELEMENTS = 2**20  # candidates x features whose distances are computed at once
_SPARE_CANDIDATES = 8  # at most; a search for one sample takes three
_EXACT_PRODUCTS = 1e12  # base x queries x features: an exact search of this size takes about half a minute on two cores
_RECALL = 0.95
_MOST_LISTS = 1 / 8
_RECALL_SAMPLE = 1000


class NeighborGraph:
    """The cluster of each sample: the sample itself and its nearest other samples.

    Ha et al. (2021), Eq. 26. A sample is left out of its own list by index, never by distance, so duplicates keep their
    place. FAISS proposes candidates in float32; the distances that are kept are computed from the vectors in float64,
    and a row counts as done only when no sample outside its candidates can be nearer, so the result is exact. Equal
    distances are ordered by index, except among zero distances, where any of the duplicates may be taken.

    Where that would take longer than about half a minute on two cores (N^2 d above 1e12: 180,000 samples of 32
    features), FAISS asks an inverted file instead, with as many lists as it takes to find 95 % of the true neighbours
    of a random thousand samples; all samples all the same where that is more than an eighth of the lists, as among many
    features that are independent. Distances stay those of the vectors; what is missed is a neighbour now and then.

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
) -> Neighbors:
    """The k rows of `base` nearest to each query.

    Candidates come from float32 arithmetic whose error is bounded: a row is taken when the k-th exact distance lies
    below all that the candidates left out could have; other rows are searched again among four times as many. A search
    that is not exact takes the candidates of an inverted file as they are.

    Args:
        base: Shape (B, d), float32 or float64.
        queries: Shape (Q, d), dtype and device of `base`.
        k: 1 <= k <= B.
        exclude: Row of `base` that a query must not find (itself), -1 for none, shape (Q,), or None. Where that leaves
            fewer than k, the last distances are inf.
        backend: As for `NeighborGraph`.
        exact: False allows FAISS to miss some; None does where B x Q x d is large.

    A progress bar that is shown moves by B x Q.

    Returns:
        Distances and rows, equal distances in order of the rows, and the recall.
    """
    backend = resolve_backend(backend, base.device)
    if exact is None:
        exact = base.shape[0] * queries.shape[0] * base.shape[1] <= _EXACT_PRODUCTS
    centre = base.median(dim=0).values.double()
    spread = torch.maximum(base.amax(dim=0).double() - centre, centre - base.amin(dim=0).double()).max()
    scale = torch.where(spread > 0, spread, torch.ones_like(spread))

    def to_float32(part: Tensor) -> Tensor:
        return (part.double() - centre).div_(scale).float()

    base32 = torch.cat([to_float32(block) for block in base.split(max(1, _BLOCK_ELEMENTS // base.shape[1]))])
    n_candidates = min(k + min(_SPARE_CANDIDATES, k + 2), base.shape[0])
    inverted, recall = None, 1.0
    if backend == "faiss" and not exact:
        inverted, recall = _inverted_file(base32, queries, to_float32, n_candidates)
    is_approximate = inverted is not None
    search = inverted or (_faiss_search(base32) if backend == "faiss" else _torch_search(base32))

    # Squares of float32 are in range in float64.
    unit = safe_unit(base - centre, queries - centre) if base.dtype == torch.float64 else 1.0
    distances = torch.empty(queries.shape[0], k, dtype=torch.float64, device=base.device)
    rows = torch.empty(queries.shape[0], k, dtype=torch.int64, device=base.device)
    todo = torch.arange(queries.shape[0], device=base.device)
    is_first_pass = True
    while todo.numel():
        n_candidates = min(n_candidates, base.shape[0])
        # One mask, and no small tensors that stay: between the large ones of each block they would scatter the heap.
        is_left = torch.zeros_like(todo, dtype=torch.bool)
        n_searched = max(1, _SEARCHED_ELEMENTS // max(n_candidates, base.shape[1]))
        for part, is_part_left in zip(todo.split(n_searched), is_left.split(n_searched), strict=True):
            queries32 = to_float32(queries[part])
            approximate, candidates = search(queries32, n_candidates)
            own = None if exclude is None else exclude[part]
            kept, found = _rerank(base, queries[part], candidates, own, k, unit)
            distances[part], rows[part] = kept, found
            if is_first_pass:
                advance(len(part) * base.shape[0])
            if is_approximate:
                is_part_left.copy_(kept[:, -1].isinf())  # lists with too few samples in them
            elif n_candidates < base.shape[0]:
                is_part_left.copy_(~_is_proven(kept[:, -1] / scale, approximate[:, -1], queries32))
        todo = todo[is_left]
        is_first_pass = False
        if is_approximate:
            search, is_approximate = _faiss_search(base32), False
        else:
            n_candidates *= 4
    return Neighbors(distances, rows, recall)


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
    difference = base[candidates].double() - queries.double().unsqueeze(1)  # (q, c, d)
    if unit != 1:
        difference /= unit
    exact = difference.square_().sum(dim=2).sqrt_().mul_(unit)
    exact = exact.masked_fill(candidates < 0, torch.inf)
    if own is not None:
        exact = exact.masked_fill(candidates == own.unsqueeze(1), torch.inf)
    exact, order = exact.sort(dim=1, stable=True)
    return exact[:, :k], candidates.gather(1, order[:, :k])


def _is_proven(kth: Tensor, last_squared: Tensor, queries32: Tensor) -> Tensor:
    """Whether no sample outside the candidates can be nearer than the k-th found.

    A sample y nearer than r to x has |y| <= |x| + r. In float32 |x|^2 - 2 x.y + |y|^2 then errs by at most
    (d + 8) eps (|x|^2 + |y|^2), so a sample left out, whose value was at least the last candidate's, is farther than r
    when that value exceeds r^2 by the error. At r = 0 nothing can be nearer.
    """
    norm = queries32.double().norm(dim=1)
    eps = torch.finfo(torch.float32).eps
    error = (queries32.shape[1] + 8) * eps * (norm.square() + (norm + kth).square())
    return (kth == 0) | (last_squared.double() > kth.square() + error)


def _faiss_search(base32: Tensor) -> Any:
    import faiss

    index = faiss.IndexFlatL2(base32.shape[1])
    index.add(base32.cpu().numpy())

    def search(queries32: Tensor, k: int) -> tuple[Tensor, Tensor]:
        squared, rows = index.search(queries32.cpu().numpy(), k)
        return torch.from_numpy(squared).to(base32.device), torch.from_numpy(rows).to(base32.device)

    return search


def _inverted_file(
    base32: Tensor, queries: Tensor, to_float32: Callable[[Tensor], Tensor], k: int
) -> tuple[Any, float]:
    """A search in an inverted file, and its recall among the k nearest of a random sample; None and 1 if all is asked.

    As many of the lists are asked, half as many more each time, as the recall takes; all samples where that would be
    more than an eighth of them, for FAISS measures eight distances to all in the time of one in a list. What is as
    near as the k-th nearest counts as found.
    """
    import faiss

    n_lists = max(1, min(round(4 * base32.shape[0] ** 0.5), base32.shape[0] // 20))
    index = faiss.IndexIVFFlat(faiss.IndexFlatL2(base32.shape[1]), base32.shape[1], n_lists)
    index.cp.seed, index.cp.min_points_per_centroid, index.cp.max_points_per_centroid = 0, 1, 50
    index.train(base32.cpu().numpy())
    index.add(base32.cpu().numpy())

    def search(queries32: Tensor, k: int) -> tuple[Tensor, Tensor]:
        squared, rows = index.search(queries32.cpu().numpy(), k)
        return torch.from_numpy(squared).to(base32.device), torch.from_numpy(rows).to(base32.device)

    chosen = torch.randperm(len(queries), generator=torch.Generator().manual_seed(0))[:_RECALL_SAMPLE]
    sample = to_float32(queries[chosen.to(queries.device)])
    radius = _faiss_search(base32)(sample, k)[0][:, -1:]
    radius = radius * (1 + 1e-5) + 1e-12
    index.nprobe = 4
    while index.nprobe <= _MOST_LISTS * n_lists:
        recall = float((search(sample, k)[0] <= radius).double().mean())
        if recall >= _RECALL:
            return search, recall
        index.nprobe += index.nprobe // 2
    _log.info("An eighth of the %d lists of an inverted file does not hold enough: all samples are asked.", n_lists)
    return None, 1.0


def _torch_search(base32: Tensor) -> Any:
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
