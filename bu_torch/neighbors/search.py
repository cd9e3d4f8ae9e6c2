"""Nearest neighbours: FAISS on the CPU, blocks of torch on an accelerator; distances are exact.

Above a certain size, some lists of FAISS's inverted file are searched instead of all samples, and the recall is
measured. Lists are compared on a few principal axes if these hold the variance.
"""

import logging
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from bu_torch.internal.inputs import safe_unit
from bu_torch.internal.printing import advance

_log = logging.getLogger(__name__)
_Search = Callable[[Tensor, int], tuple[Tensor, Tensor]]  # queries (q, d), k -> squared distances, rows (q, k), float32

_BLOCK_ELEMENTS = 2**22  # entries of one temporary block
_SEARCHED_ELEMENTS = 2**21  # queries x features, or x candidates, of one search; FAISS is slower below 2**17
_RANKED_ELEMENTS = 2**20  # candidates x features whose distances are computed at once
_SPARE_CANDIDATES = 8  # at most; a search for one neighbour takes three
_EXACT_PRODUCTS = 1e12  # base x queries x features: an exact search of this size takes about half a minute on two cores
_EXACT_PAIRS = 2.5e9  # base x queries: from here on, lists find 99 % of the neighbours in less than half the time
_RECALL, _RECALL_OF_NEARLY_NEAREST = 0.99, 0.95
_ROUNDING = 1e-5  # relative difference of equal distances
_FIRST_LISTS, _MOST_LISTS = 4, 0.25  # first number of lists to try; largest share of all lists
_LEAST_SCALE = 1e-30  # below this, scaling in float32 is not safe
_SAMPLED = 256  # queries on which a recall is measured
_NEAR = (1 / 64, 1 / 16, 1 / 4)  # the queries, nearest first, are cut at these shares; each part has its own recall
_FARTHEST = 1e15  # in units of the base: farther out, float32 squares do not tell rows apart
_LISTS, _FEWEST_IN_A_LIST = 4, 20  # number of lists, times sqrt(B); rows in a list
_STEPS, _SAMPLES_OF_A_CENTRE = 10, 25  # for K-means
_VARIANCE = 0.99
_SAMPLE = 50_000  # points from which principal axes are found
_MOST_FEATURES = 1024  # with more features, principal axes take too long


def is_large(n_base: int, n_features: int, n_queries: int) -> bool:
    """True if an exact search would take longer than about half a minute on two cores."""
    return n_base * n_queries * n_features > _EXACT_PRODUCTS


class Neighbors(NamedTuple):
    """Distances (Q, k), float64, ascending; rows of the base (Q, k), int64; and the recall of a search."""

    distances: Tensor
    rows: Tensor
    recall: float


def nearest(
    base: Tensor,
    queries: Tensor,
    k: int,
    *,
    exclude: Tensor | None = None,
    exact: bool | None = True,
    tolerance: float | None = None,
) -> Neighbors:
    """The k rows, 1 <= k <= B, of a base (B, d) nearest to queries (Q, d); both float32 or both float64, on one device.

    A search in float32 proposes candidates, whose distances are recomputed in float64. A query is settled when no row
    outside its candidates can be nearer than the k-th found, given the bound of rounding errors; the others are
    searched again with four times as many candidates. Candidates from lists are not checked in this way. Ties are in
    order of the rows. A visible progress bar moves by B x Q.

    `exclude` (Q,) is a row that each query must not find (itself), -1 for none; if fewer than k rows are left, the last
    distances are inf. `exact=False` lets the search on a CPU miss some neighbours; None does so if B x Q or B x Q x d
    is large. There a row counts as found if it is at most (1 + `tolerance`) times as far as the true one; None asks for
    the true rows.
    """
    is_on_cpu = base.device.type == "cpu"
    if exact is None:
        n_base, n_features = base.shape
        exact = n_base * len(queries) <= _EXACT_PAIRS and not is_large(n_base, n_features, len(queries))
    rounding = _Rounding.around(base)
    base32 = torch.cat([rounding(block) for block in base.split(max(1, _BLOCK_ELEMENTS // base.shape[1]))])
    # Squares of float32 values fit in float64; squares of float64 values need a unit.
    unit = safe_unit(base - rounding.centre, queries - rounding.centre) if base.dtype == torch.float64 else 1.0
    question = _Question(base, queries, k, exclude, tolerance, rounding, unit)
    distances = torch.full((queries.shape[0], k), torch.inf, dtype=torch.float64, device=base.device)
    rows = torch.empty(queries.shape[0], k, dtype=torch.int64, device=base.device)
    recall = 1.0
    if is_on_cpu and not exact and len(queries):
        recall = _answer_from_lists(question, base32, distances, rows)
    unsettled = distances[:, -1].isinf().nonzero().flatten()
    if unsettled.numel():
        search = (_faiss_search if is_on_cpu else _torch_search)(base32)
    n_candidates, is_first = question.n_candidates, True
    while unsettled.numel():
        # One mask for all blocks: a small tensor for each would fragment the heap between the large ones.
        is_settled = torch.ones_like(unsettled, dtype=torch.bool)
        block_size = max(1, _SEARCHED_ELEMENTS // max(n_candidates, base.shape[1]))
        for part, is_part_settled in zip(unsettled.split(block_size), is_settled.split(block_size), strict=True):
            if n_candidates == len(base):  # includes rows that are too far for float32
                candidates = torch.arange(n_candidates, device=base.device).expand(len(part), -1)
                distances[part], rows[part] = question.answer(part, candidates)
            else:
                queries32 = rounding(queries[part])
                squared32, candidates = search(queries32, n_candidates)
                distances[part], rows[part] = question.answer(part, candidates)
                kth = distances[part, -1] / rounding.scale
                is_part_settled.copy_(_is_proven(kth, squared32[:, -1], queries32))
            if is_first:
                advance(len(part) * len(base))
        unsettled, is_first = unsettled[~is_settled], False
        n_candidates = min(4 * n_candidates, len(base))
    return Neighbors(distances, rows, recall)


class _InvertedFile:
    """The rows of a base (B, d), float32 on the CPU, in about 4 sqrt(B) lists around the centres of K-means.

    Coordinates are compared on `axes` (a, d); None for all coordinates.
    """

    def __init__(self, base: Tensor, axes: Tensor | None = None) -> None:
        import faiss

        self._axes = axes
        self.n_lists = max(1, min(round(_LISTS * len(base) ** 0.5), len(base) // _FEWEST_IN_A_LIST))
        points = self._coordinates(base)
        self._centres: Any = faiss.IndexFlatL2(points.shape[1])
        self._index: Any = faiss.IndexIVFFlat(self._centres, points.shape[1], self.n_lists)
        self._index.cp.niter, self._index.cp.seed = _STEPS, 0
        self._index.cp.min_points_per_centroid, self._index.cp.max_points_per_centroid = 1, _SAMPLES_OF_A_CENTRE
        self._index.train(points)
        self._index.add(points)

    def nearest_list(self, queries: Tensor) -> tuple[Tensor, Tensor]:
        """Squared distance of queries (q, d), float32, to the centre of the nearest list (q,), and that list (q,)."""
        squared, lists = self._centres.search(self._coordinates(queries), 1)
        return torch.from_numpy(squared[:, 0]), torch.from_numpy(lists[:, 0])

    def search(self, queries: Tensor, k: int, n_probed: int) -> Tensor:
        """Rows of the base (q, k) nearest to queries (q, d) in the `n_probed` nearest lists; -1 if they hold fewer."""
        self._index.nprobe = n_probed
        return torch.from_numpy(self._index.search(self._coordinates(queries), k)[1])

    def _coordinates(self, points: Tensor) -> Any:
        return (points if self._axes is None else points @ self._axes.T).contiguous().numpy()


class _Rounding(NamedTuple):
    """Maps points to the float32 coordinates that are searched; those of the base lie in [-1, 1]."""

    centre: Tensor  # (d,), float64
    scale: Tensor  # scalar, float64
    is_single: bool  # True if float32 suffices: the centre is exact in it, and the scale is in range

    @classmethod
    def around(cls, base: Tensor) -> Self:
        centre = base.median(dim=0).values.double()
        spread = torch.maximum(base.amax(dim=0).double() - centre, centre - base.amin(dim=0).double()).max()
        scale = torch.where(spread > 0, spread, torch.ones_like(spread))
        return cls(centre, scale, base.dtype == torch.float32 and _LEAST_SCALE < float(scale) < 1 / _LEAST_SCALE)

    def __call__(self, points: Tensor) -> Tensor:
        if self.is_single and points.dtype == torch.float32:
            return (points - self.centre.float()).div_(self.scale.float())
        return (points.double() - self.centre).div_(self.scale).float()


class _Question(NamedTuple):
    """Rows of a base to find for each query, except the excluded one; queries are given by their rows."""

    base: Tensor
    queries: Tensor
    k: int
    exclude: Tensor | None
    tolerance: float | None
    rounding: _Rounding
    unit: float

    @property
    def n_candidates(self) -> int:
        return min(self.k + min(_SPARE_CANDIDATES, self.k + 2), self.base.shape[0])

    @property
    def wanted_recall(self) -> float:
        return _RECALL if self.tolerance is None else _RECALL_OF_NEARLY_NEAREST

    def candidates_in(self, lists: _InvertedFile, part: Tensor, queries32: Tensor, n_probed: int) -> Tensor:
        """Candidates (q, c) for the queries of `part`, `queries32` after rounding, in the lists nearest to each."""
        n_candidates = self.n_candidates
        if self.tolerance is not None:
            n_candidates = self.k + (self.exclude is not None and bool((self.exclude[part] >= 0).any()))
        return lists.search(queries32.cpu(), n_candidates, n_probed).to(self.base.device)

    def answer(self, part: Tensor, candidates: Tensor) -> tuple[Tensor, Tensor]:
        """Exact distances (q, k) to the k nearest candidates, and their rows; leaves out -1 and excluded rows."""
        distances = torch.empty(len(part), self.k, dtype=torch.float64, device=self.base.device)
        rows = torch.empty(len(part), self.k, dtype=torch.int64, device=self.base.device)
        size = max(1, _RANKED_ELEMENTS // (candidates.shape[1] * self.base.shape[1]))
        for start in range(0, len(part), size):
            block = slice(start, start + size)
            some = candidates[block].sort(dim=1).values  # the stable sort below keeps ties in this order
            # `index_select` is several times as fast as `base[some]`.
            vectors = self.base.index_select(0, some.clamp(min=0).view(-1))
            difference = vectors.view(*some.shape, self.base.shape[1]).double()  # (q, c, d)
            difference -= self.queries[part[block]].double().unsqueeze(1)
            if self.unit != 1:
                difference /= self.unit
            exact = difference.square_().sum(dim=2).sqrt_().mul_(self.unit).masked_fill_(some < 0, torch.inf)
            if self.exclude is not None:
                exact.masked_fill_(some == self.exclude[part[block]].unsqueeze(1), torch.inf)
            exact, order = exact.sort(dim=1, stable=True)
            distances[block], rows[block] = exact[:, : self.k], some.gather(1, order[:, : self.k])
        return distances, rows


def _is_proven(kth: Tensor, last_squared: Tensor, queries32: Tensor) -> Tensor:
    """True if no row outside the candidates can be nearer than the k-th found.

    A row y nearer than r to a query x has |y| <= |x| + r; the float32 error of |x|^2 - 2 x.y + |y|^2 is then at most
    (d + 8) eps (|x|^2 + |y|^2). This value is no smaller for a row outside the candidates than for the last candidate,
    so such a row is farther than r if the last candidate's value exceeds r^2 by the error.
    """
    norm = queries32.double().norm(dim=1)
    eps = torch.finfo(torch.float32).eps
    least = torch.finfo(torch.float32).smallest_normal * eps  # largest error of a square that underflows
    error = (queries32.shape[1] + 8) * (eps * (norm.square() + (norm + kth).square()) + 4 * least)
    return (kth == 0) | (last_squared.double() > kth.square() + error)


def _faiss_search(base32: Tensor) -> _Search:
    import faiss

    index = faiss.IndexFlatL2(base32.shape[1])
    index.add(base32.cpu().numpy())

    def search(queries32: Tensor, k: int) -> tuple[Tensor, Tensor]:
        squared, rows = index.search(queries32.cpu().numpy(), k)
        return torch.from_numpy(squared).to(base32.device), torch.from_numpy(rows).to(base32.device)

    return search


def _answer_from_lists(question: _Question, base32: Tensor, distances: Tensor, rows: Tensor) -> float:
    """Search lists of the base, fill distances (Q, k) and rows (Q, k), and return the recall.

    Distances stay inf if lists would gain nothing or hold fewer than k rows.
    """
    among_all = _faiss_search(base32)
    axes = _few_axes(base32.cpu())
    n_queries, found = len(question.queries), 0.0
    left = torch.arange(n_queries, device="cpu")
    for chosen in (None,) if axes is None else (axes, None):
        lists = _InvertedFile(base32.cpu(), chosen)
        parts, left = _by_nearness(lists, question, left), left[:0]
        for part in parts:
            part = part.to(base32.device)
            n_probed, recall = _probe_few(lists, question, part, among_all)
            if recall < question.wanted_recall:
                left = torch.cat((left, part.cpu()))
                continue
            for block in part.split(max(1, _SEARCHED_ELEMENTS // base32.shape[1])):
                queries32 = question.rounding(question.queries[block])
                answers, answer_rows = question.answer(block, question.candidates_in(lists, block, queries32, n_probed))
                answers[~(queries32.abs().amax(dim=1) < _FARTHEST)] = torch.inf
                distances[block], rows[block] = answers, answer_rows
                advance(int(answers[:, -1].isfinite().sum()) * len(base32))  # the others are searched again
            found += len(part) * recall
        if not len(left):
            break
        del lists
    else:
        text = "%d of %d points are compared with all %d samples: an approximate search would not be faster."
        _log.debug(text, len(left), n_queries, len(base32))
    return (found + len(left)) / n_queries


def _by_nearness(lists: _InvertedFile, question: _Question, queries: Tensor) -> list[Tensor]:
    """Parts of the queries, nearest to the base first, each in order of its lists; one part if they are the base."""
    blocks = queries.split(max(1, _BLOCK_ELEMENTS // question.base.shape[1]))
    rows = (block.to(question.base.device) for block in blocks)
    found = [lists.nearest_list(question.rounding(question.queries[block]).cpu()) for block in rows]
    squared, near = (torch.cat(parts) for parts in zip(*found, strict=True))
    ends = [] if question.queries is question.base else [round(share * len(queries)) for share in _NEAR]
    parts = squared.argsort(stable=True).tensor_split(ends)
    return [queries[part[near[part].argsort(stable=True)]] for part in parts if len(part)]


def _probe_few(lists: _InvertedFile, question: _Question, part: Tensor, among_all: _Search) -> tuple[int, float]:
    """Smallest number of lists with the wanted recall, at most a quarter of all, and its recall for some queries.

    `among_all` finds their true neighbours.
    """
    order = torch.randperm(len(part), generator=torch.Generator().manual_seed(0), device="cpu")
    sample = part[order[:_SAMPLED].to(part.device)]
    queries32 = question.rounding(question.queries[sample])
    candidates = among_all(queries32, question.n_candidates)[1]
    radius = question.answer(sample, candidates)[0][:, -1:] * (1 + (question.tolerance or _ROUNDING))

    @cache
    def recall(n_probed: int) -> float:
        answers = question.answer(sample, question.candidates_in(lists, sample, queries32, n_probed))[0]
        return float((answers <= radius).double().mean())

    wanted, most = question.wanted_recall, max(1, int(_MOST_LISTS * lists.n_lists))
    too_few, enough = 0, min(_FIRST_LISTS, most)
    while recall(enough) < wanted and enough < most:
        too_few, enough = enough, min(2 * enough, most)
    while recall(enough) >= wanted and enough - too_few > max(1, enough // 16):
        between = (too_few + enough) // 2
        too_few, enough = (too_few, between) if recall(between) >= wanted else (between, enough)
    return enough, recall(enough)


def _torch_search(base32: Tensor) -> _Search:
    def search(queries32: Tensor, k: int) -> tuple[Tensor, Tensor]:
        rows = max(1, 4 * _BLOCK_ELEMENTS // base32.shape[0])
        found = [
            torch.cdist(block, base32, compute_mode="donot_use_mm_for_euclid_dist").topk(k, dim=1, largest=False)
            for block in queries32.split(rows)
        ]
        return torch.cat([block.values for block in found]).square_(), torch.cat([block.indices for block in found])

    return search


def _few_axes(points: Tensor) -> Tensor | None:
    """Principal axes (a, d) of points (N, d) that hold 99 % of their variance; None if a > d / 2, d > 1024 or d > N."""
    import faiss

    n_features = points.shape[1]
    if n_features > min(_MOST_FEATURES, len(points)):
        return None
    principal = faiss.PCAMatrix(n_features, n_features)
    principal.train(points[:: max(1, len(points) // _SAMPLE)].numpy())
    shares = torch.from_numpy(faiss.vector_to_array(principal.eigenvalues)).double().clamp_(min=0)
    n_axes = 1 + int(torch.searchsorted(shares.cumsum(0), _VARIANCE * shares.sum()))
    axes = torch.from_numpy(faiss.vector_to_array(principal.A)).view(n_features, n_features)
    return axes[:n_axes] if 2 * n_axes <= n_features else None
