"""Nearest neighbours: FAISS on the CPU, blocks of torch on an accelerator, exact distances in both."""

import logging
from typing import Any, Literal, Self

import torch
from torch import Tensor

from bu_torch._inputs import as_flat_features, check_integer

_log = logging.getLogger(__name__)
Backend = Literal["auto", "faiss", "torch"]

_BLOCK_ELEMENTS = 2**22  # entries of one temporary block
_SPARE_CANDIDATES = 8  # at most; a search for one sample takes three


class NeighborGraph:
    """The cluster of each sample: the sample itself and its nearest other samples.

    Ha et al. (2021), Eq. 26. A sample is left out of its own list by index, never by distance, so duplicates keep their
    place. FAISS proposes candidates in float32; the distances that are kept are computed from the vectors in float64,
    and a row counts as done only when no sample outside its candidates can be nearer, so the result is exact. Equal
    distances are ordered by index, except among zero distances, where any of the duplicates may be taken.

    Args:
        n_neighbors: Size M of a cluster, the sample itself included, >= 2.
        backend: `"faiss"` searches on the CPU, `"torch"` on the device of the features; `"auto"` takes FAISS for
            features on the CPU and torch elsewhere, and says so in the log.

    Attributes:
        neighbors: Clusters, (N, M) int64: row n is n, then its M - 1 nearest other samples, nearest first.
        nearest_distance: Distance to the nearest sample at a positive distance, (N,), dtype of the features; 0 where no
            sample is at a positive distance.
        backend_: The backend that was used.

    Example:
        >>> graph = NeighborGraph(n_neighbors=2).fit(torch.tensor([[0.0], [1.0], [3.0]]))
        >>> graph.neighbors.tolist(), graph.nearest_distance.tolist()
        ([[0, 1], [1, 0], [2, 1]], [1.0, 1.0, 2.0])
    """

    neighbors: Tensor
    nearest_distance: Tensor
    backend_: str

    def __init__(self, n_neighbors: int = 40, backend: Backend = "auto") -> None:
        self.n_neighbors = check_integer("n_neighbors", n_neighbors, 2)
        if backend not in ("auto", "faiss", "torch"):
            raise ValueError(f"`backend` must be 'auto', 'faiss' or 'torch', got {backend!r}.")
        self.backend = backend

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
        _log.info("Nearest neighbours of %d samples by %s on %s.", n_samples, self.backend_, features.device)
        own = torch.arange(n_samples, device=features.device)
        distances, others = nearest(features, features, self.n_neighbors - 1, exclude=own, backend=self.backend_)
        self.neighbors = torch.cat((own.unsqueeze(1), others), dim=1)
        self.nearest_distance = _first_positive(features, distances, self.backend_).to(features.dtype)
        return self


def resolve_backend(backend: str, device: torch.device) -> str:
    """The backend that `"auto"` stands for on `device`."""
    if backend != "auto":
        return backend
    return "faiss" if device.type == "cpu" else "torch"


def nearest(
    base: Tensor, queries: Tensor, k: int, *, exclude: Tensor | None = None, backend: str = "faiss"
) -> tuple[Tensor, Tensor]:
    """The k rows of `base` nearest to each query, exactly.

    Candidates come from float32 arithmetic whose error is bounded: a row is taken when the k-th exact distance lies
    below all that the candidates left out could have; other rows are searched again among four times as many.

    Args:
        base: Shape (B, d), float32 or float64.
        queries: Shape (Q, d), dtype and device of `base`.
        k: 1 <= k <= B.
        exclude: Row of `base` that a query must not find (itself), -1 for none, shape (Q,), or None. Where that leaves
            fewer than k, the last distances are inf.
        backend: `"faiss"` or `"torch"`.

    Returns:
        Distances (Q, k), float64, ascending, and rows of `base` (Q, k), int64; equal distances in order of the rows.
    """
    centre = base.median(dim=0).values.double()
    spread = torch.maximum(base.amax(dim=0).double() - centre, centre - base.amin(dim=0).double()).max()
    scale = torch.where(spread > 0, spread, torch.ones_like(spread))

    def to_float32(part: Tensor) -> Tensor:
        return (part.double() - centre).div_(scale).float()

    base32 = torch.cat([to_float32(block) for block in base.split(max(1, _BLOCK_ELEMENTS // base.shape[1]))])
    search = _faiss_search(base32) if backend == "faiss" else _torch_search(base32)

    distances = torch.empty(queries.shape[0], k, dtype=torch.float64, device=base.device)
    rows = torch.empty(queries.shape[0], k, dtype=torch.int64, device=base.device)
    todo = torch.arange(queries.shape[0], device=base.device)
    n_candidates = k + min(_SPARE_CANDIDATES, k + 2)
    while todo.numel():
        n_candidates = min(n_candidates, base.shape[0])
        left: list[Tensor] = []
        for part in todo.split(max(1, _BLOCK_ELEMENTS // (n_candidates * base.shape[1]))):
            queries32 = to_float32(queries[part])
            approximate, candidates = search(queries32, n_candidates)
            own = None if exclude is None else exclude[part]
            exact, found = _rerank(base, queries[part], candidates, own, k)
            distances[part], rows[part] = exact, found
            if n_candidates < base.shape[0]:
                is_proven = _is_proven(exact[:, -1] / scale, approximate[:, -1], queries32)
                left.append(part[~is_proven])
        todo = torch.cat(left) if left else todo[:0]
        n_candidates *= 4
    return distances, rows


def _rerank(base: Tensor, queries: Tensor, candidates: Tensor, own: Tensor | None, k: int) -> tuple[Tensor, Tensor]:
    """Exact distances (q, k) to the k nearest candidates and their rows, ties by row, `own` left out."""
    candidates = candidates.sort(dim=1).values  # a stable sort by distance then leaves ties in order of the rows
    difference = base[candidates].double() - queries.double().unsqueeze(1)  # (q, c, d)
    exact = difference.square_().sum(dim=2).sqrt_()
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


def _torch_search(base32: Tensor) -> Any:
    def search(queries32: Tensor, k: int) -> tuple[Tensor, Tensor]:
        rows = max(1, 4 * _BLOCK_ELEMENTS // base32.shape[0])
        found = [
            torch.cdist(block, base32, compute_mode="donot_use_mm_for_euclid_dist").topk(k, dim=1, largest=False)
            for block in queries32.split(rows)
        ]
        return torch.cat([block.values for block in found]).square_(), torch.cat([block.indices for block in found])

    return search


def _first_positive(features: Tensor, distances: Tensor, backend: str) -> Tensor:
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
    found, _ = nearest(distinct, distinct[own], 1, exclude=own, backend=backend)
    of_distinct = torch.zeros(distinct.shape[0], dtype=torch.float64, device=features.device)
    of_distinct[own] = found[:, 0]
    positive[left] = of_distinct[row[left]]
    return positive
