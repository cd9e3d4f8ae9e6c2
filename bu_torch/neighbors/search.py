"""Nearest neighbours: candidates found in float32, by FAISS on the CPU and torch elsewhere, then ranked in float64."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bu_torch.internal.printing import advance

_Search = Callable[[Tensor, int], Tensor]  # float32 queries (q, d), number of candidates c -> rows (q, c), -1 for none

_EXACT_PAIRS = 50_000**2  # base x queries; beyond it, inverted lists are searched on a CPU
_BLOCK_ELEMENTS = 2**22  # entries of one temporary block
_SEARCHED_ELEMENTS = 2**21  # queries x features, or x candidates, of one search; FAISS is slower below 2**17
_RANKED_ELEMENTS = 2**20  # candidates x features whose distances are computed at once
_SPARE_CANDIDATES = 8  # at most; a search for one neighbour takes three
_FARTHEST = 1e15  # in units of the base; squares of more are none of float32
_LISTS = 4  # number of inverted lists, times sqrt(B)
_STEPS, _SAMPLES_OF_A_CENTRE = 10, 25  # for K-means
_SEARCHED = 1 / 16  # share of the lists


class Neighbors(NamedTuple):
    """Distances (Q, k), float64, ascending, and rows of the base (Q, k), int64."""

    distances: Tensor
    rows: Tensor


def nearest(base: Tensor, queries: Tensor, k: int, *, exclude: Tensor | None = None) -> Neighbors:
    """The k rows, 1 <= k <= B, of a base (B, d) nearest to queries (Q, d); both float32 or both float64, on one device.

    A search in float32 proposes some more than k candidates, which are ranked by their distances in float64; ties are
    in order of the rows. If B x Q > 50,000^2 on a CPU, it looks into a sixteenth of FAISS's inverted lists. A visible
    progress bar moves by B x Q.

    `exclude` (Q,) is a row that each query must not find (itself), -1 for none; if fewer than k rows are left, the last
    distances are inf.
    """
    n_candidates = min(k + min(_SPARE_CANDIDATES, k + 2), len(base))
    centre = base.median(dim=0).values.double()
    scale = max(float((base.amax(dim=0) - centre).max()), float((centre - base.amin(dim=0)).max())) or 1.0

    def as_searched(points: Tensor) -> Tensor:
        return ((points.double() - centre) / scale).clamp_(-_FARTHEST, _FARTHEST).float()

    def rank(part: Tensor, candidates: Tensor) -> Neighbors:
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
        return Neighbors(*(torch.cat(parts) for parts in zip(*blocks, strict=True)))

    base32 = torch.cat([as_searched(block) for block in base.split(max(1, _BLOCK_ELEMENTS // base.shape[1]))])
    among_all = search = (_faiss_search if base.is_cpu else _torch_search)(base32)
    if base.is_cpu and len(base) * len(queries) > _EXACT_PAIRS:
        search = _search_of_lists(base32)
    own = torch.arange(len(queries), device=base.device)
    parts = [Neighbors(base.new_empty((0, k), dtype=torch.float64), own.new_empty((0, k)))]
    for part in own.split(max(1, _SEARCHED_ELEMENTS // max(n_candidates, base.shape[1]))) if len(own) else ():
        queries32 = as_searched(queries[part])
        distances, rows = rank(part, search(queries32, n_candidates))
        is_short = distances[:, -1].isinf()
        if search is not among_all and bool(is_short.any()):  # lists that hold few
            distances[is_short], rows[is_short] = rank(part[is_short], among_all(queries32[is_short], n_candidates))
        parts.append(Neighbors(distances, rows))
        advance(len(part) * len(base))
    return Neighbors(*(torch.cat(columns) for columns in zip(*parts, strict=True)))


def _faiss_search(base32: Tensor, index: Any = None) -> _Search:
    import faiss

    index = faiss.IndexFlatL2(base32.shape[1]) if index is None else index
    index.add(base32.numpy())
    return lambda queries32, n_candidates: torch.from_numpy(index.search(queries32.numpy(), n_candidates)[1])


def _search_of_lists(base32: Tensor) -> _Search:
    import faiss

    n_features, n_lists = base32.shape[1], round(_LISTS * len(base32) ** 0.5)
    index: Any = faiss.IndexIVFFlat(faiss.IndexFlatL2(n_features), n_features, n_lists)
    index.cp.niter, index.cp.seed = _STEPS, 0
    index.cp.min_points_per_centroid, index.cp.max_points_per_centroid = 1, _SAMPLES_OF_A_CENTRE
    index.train(base32.numpy())
    index.nprobe = max(1, round(_SEARCHED * n_lists))
    return _faiss_search(base32, index)


def _torch_search(base32: Tensor) -> _Search:
    def search(queries32: Tensor, n_candidates: int) -> Tensor:
        blocks = queries32.split(max(1, 4 * _BLOCK_ELEMENTS // len(base32)))
        exact = (torch.cdist(block, base32, compute_mode="donot_use_mm_for_euclid_dist") for block in blocks)
        return torch.cat([distances.topk(n_candidates, largest=False).indices for distances in exact])

    return search
