"""Nearest neighbours: FAISS on the CPU, blocks of torch on an accelerator, exact distances in both.

Beyond a size, cells of the samples are asked in place of all of them, with a recall that is measured.
"""

import logging
from collections.abc import Callable
from functools import cache
from typing import Literal, NamedTuple, Self

import torch
from torch import Tensor

from bu_torch.internal.inputs import safe_unit
from bu_torch.internal.progress import advance
from bu_torch.neighbors.cells import Cells, Groups, few_axes, thinned

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
_MOST_CELLS = 0.5  # as a share
_FIRST_CELLS = 8
_LEAST_SCALE = 1e-30  # of what is safe to scale in float32
_FEW_NEIGHBORS = 8  # k up to which selecting them takes less time than the products, and larger groups pay
_SMALL_GROUP, _LARGE_GROUP = 256, 1024
_SAMPLED, _SAMPLED_OF_FEW = (32, 4), (16, 10)  # groups of which a recall is measured, and queries of each
_NEAR = (1 / 64, 1 / 16, 1 / 4, 1 / 2)  # shares of the queries, nearest first, between which recalls are measured apart
_FARTHEST = 1e15  # in units of the base: beyond, squares of float32 do not tell one row from another


def resolve_backend(backend: str, device: torch.device) -> str:
    """The backend that `"auto"` stands for on `device`."""
    if backend != "auto":
        return backend
    return "faiss" if device.type == "cpu" else "torch"


def is_large(n_base: int, n_features: int, n_queries: int) -> bool:
    """True if an exact search would take longer than about half a minute on two cores."""
    return n_base * n_queries * n_features > _EXACT_PRODUCTS


class Neighbors(NamedTuple):
    """Result of a search: distances (Q, k), float64, ascending; rows of the base (Q, k), int64; recall."""

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
    groups: Groups | None = None,
) -> Neighbors:
    """The k rows of a base (B, d) nearest to each query (Q, d); both float32 or both float64, on one device.

    A search in float32 proposes candidates, and their distances are computed anew in float64. The rounding error of the
    search is bounded. A query is settled when no row outside its candidates can be nearer than the k-th found; the
    others are asked again for four times as many candidates. Cells may miss rows, and their candidates are taken as
    they are. A progress bar that is shown moves by B x Q. Equal distances are in order of their rows.

    Args:
        base: Rows to find.
        queries: Points whose neighbours are wanted.
        k: 1 <= k <= B.
        exclude: Row of `base` that a query must not find (itself), -1 for none, shape (Q,), or None. If that leaves
            fewer than k, the last distances are inf.
        backend: As for `NeighborGraph`.
        exact: False allows the `"faiss"` backend to miss some; None does if B x Q x d is large (`is_large`).
        tolerance: If some may be missed, what is to be found: None for rows as near as the k-th nearest, a number
            for a nearest row at most (1 + tolerance) times as far as the true one.
        groups: What `near_groups` makes of the queries, if several bases are asked the same; None makes them. Not
            used if the queries are the base.
    """
    backend = resolve_backend(backend, base.device)
    if exact is None:
        exact = not is_large(base.shape[0], base.shape[1], queries.shape[0])
    rounding = _Rounding.around(base)
    base32 = rounding.in_blocks(base)
    # Squares of float32 are in range in float64, those of float64 need a unit.
    unit = safe_unit(base - rounding.centre, queries - rounding.centre) if base.dtype == torch.float64 else 1.0
    question = _Question(base, queries, k, exclude, tolerance, rounding, unit)
    distances = torch.full((queries.shape[0], k), torch.inf, dtype=torch.float64, device=base.device)
    rows = torch.empty(queries.shape[0], k, dtype=torch.int64, device=base.device)
    recall = 1.0
    if backend == "faiss" and not exact and len(queries):
        recall = _answer_from_cells(question, base32, groups, distances, rows)
    unsettled = distances[:, -1].isinf().nonzero().flatten()
    if unsettled.numel():
        search = _faiss_search(base32) if backend == "faiss" else _torch_search(base32)
    n_candidates, is_first = question.n_candidates, True
    while unsettled.numel():
        # One mask for all blocks: small tensors kept between the large ones of each block would scatter the heap.
        is_settled = torch.ones_like(unsettled, dtype=torch.bool)
        block_size = max(1, _SEARCHED_ELEMENTS // max(n_candidates, base.shape[1]))
        for part, is_part_settled in zip(unsettled.split(block_size), is_settled.split(block_size), strict=True):
            if n_candidates == len(base):  # also what is too far for float32 to find
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


def near_groups(queries: Tensor, k: int) -> Groups:
    """Queries (Q, d), Q >= 1, in groups that lie near each other, for `nearest` with k."""
    size = _LARGE_GROUP if k <= _FEW_NEIGHBORS else _SMALL_GROUP
    rounding = _Rounding.around(thinned(queries))
    return Groups.of(queries, lambda block: rounding(block).cpu().clamp_(-_FARTHEST, _FARTHEST), size)


class _Rounding(NamedTuple):
    """Turns points into the float32 coordinates that are searched, scaled so that those of the base are in [-1, 1]."""

    centre: Tensor  # (d,), float64
    scale: Tensor  # scalar, float64
    is_single: bool  # whether float32 is enough, as the centre is one of its numbers, and in range

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

    def in_blocks(self, points: Tensor) -> Tensor:
        """The same for many points."""
        return torch.cat([self(block) for block in points.split(max(1, _BLOCK_ELEMENTS // points.shape[1]))])


class _Question(NamedTuple):
    """Which rows of a base are nearest to each query, without the excluded one; a query is named by its row."""

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

    def candidates_in(self, cells: Cells, part: Tensor, queries32: Tensor, mean: Tensor) -> Tensor:
        """Candidates (q, c) for a part of a group in cells near its mean; `queries32` is that part, rounded."""
        n_candidates = self.n_candidates
        if self.tolerance is not None:
            n_candidates = self.k + (self.exclude is not None and bool((self.exclude[part] >= 0).any()))
        return cells.search(queries32.cpu(), mean.cpu(), n_candidates).to(self.base.device)

    def answer(self, part: Tensor, candidates: Tensor) -> tuple[Tensor, Tensor]:
        """Exact distances (q, k) to the k nearest candidates and their rows, ties by row, own rows and -1 left out."""
        distances = torch.empty(len(part), self.k, dtype=torch.float64, device=self.base.device)
        rows = torch.empty(len(part), self.k, dtype=torch.int64, device=self.base.device)
        size = max(1, _RANKED_ELEMENTS // (candidates.shape[1] * self.base.shape[1]))
        for start in range(0, len(part), size):
            block = slice(start, start + size)
            distances[block], rows[block] = self._answer_block(part[block], candidates[block])
        return distances, rows

    def _answer_block(self, part: Tensor, candidates: Tensor) -> tuple[Tensor, Tensor]:
        candidates = candidates.sort(dim=1).values  # a stable sort by distance then leaves ties in order of the rows
        # Several times as fast as `base[candidates]`.
        vectors = self.base.index_select(0, candidates.clamp(min=0).view(-1))
        difference = vectors.view(*candidates.shape, self.base.shape[1]).double()  # (q, c, d)
        difference -= self.queries[part].double().unsqueeze(1)
        if self.unit != 1:
            difference /= self.unit
        exact = difference.square_().sum(dim=2).sqrt_().mul_(self.unit)
        exact = exact.masked_fill(candidates < 0, torch.inf)
        if self.exclude is not None:
            exact = exact.masked_fill(candidates == self.exclude[part].unsqueeze(1), torch.inf)
        exact, order = exact.sort(dim=1, stable=True)
        return exact[:, : self.k], candidates.gather(1, order[:, : self.k])


def _is_proven(kth: Tensor, last_squared: Tensor, queries32: Tensor) -> Tensor:
    """True if no row outside the candidates can be nearer than the k-th found.

    A row y nearer than r to a query x has |y| <= |x| + r. In float32 |x|^2 - 2 x.y + |y|^2 then errs by at most
    (d + 8) eps (|x|^2 + |y|^2). A row left out has a value of at least the last candidate's, so it is farther than r if
    that value exceeds r^2 by the error. At r = 0 nothing can be nearer.
    """
    norm = queries32.double().norm(dim=1)
    eps = torch.finfo(torch.float32).eps
    least = torch.finfo(torch.float32).smallest_normal * eps  # what squares may lose where they are smaller still
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


def _answer_from_cells(
    question: _Question, base32: Tensor, groups: Groups | None, distances: Tensor, rows: Tensor
) -> float:
    """Fill distances (Q, k) and rows (Q, k) with what is found in cells of the base; return the recall.

    Distances stay inf if cells are not worth it or hold fewer than k rows.
    """
    among_all = _faiss_search(base32)
    axes = few_axes(base32.cpu())
    found, n_asked = 0.0, 0
    asks_itself = question.queries is question.base
    for chosen in (None,) if axes is None else (axes, None):
        cells = Cells(base32.cpu(), chosen)
        if asks_itself:
            parts: list[Groups] = [Groups.by(question.base, cells.of_rows)]
        else:
            groups = groups or near_groups(question.queries, question.k)
            nearness = cells.distances_to(question.rounding(groups.means.to(base32.device)).cpu())
            parts = list(groups.parts(_NEAR, nearness))
        left: list[Groups] = []
        for part in parts:
            recall = _visit_few(cells, question, part, among_all)
            if recall is None:
                left.append(part)
                continue
            for group, mean in zip(part.rows, question.rounding(part.means.to(base32.device)), strict=True):
                group = group.to(base32.device)
                queries32 = question.rounding(question.queries[group])
                candidates = question.candidates_in(cells, group, queries32, mean)
                answers, answer_rows = question.answer(group, candidates)
                answers[~(queries32.abs().amax(dim=1) < _FARTHEST)] = torch.inf
                distances[group], rows[group] = answers, answer_rows
                advance(int(answers[:, -1].isfinite().sum()) * base32.shape[0])  # the others are asked again
                n_asked += len(group)
                found += len(group) * recall
        if not left:
            break
        del cells
        groups = Groups([group for part in left for group in part.rows], torch.cat([part.means for part in left]))
    else:
        n_left = len(question.queries) - n_asked
        _log.info(
            "%d of %d points are compared with all %d samples: an approximate search would gain nothing.",
            n_left, len(question.queries), base32.shape[0],
        )  # fmt: skip
    n_queries = len(question.queries)
    return (found + n_queries - n_asked) / n_queries


def _visit_few(cells: Cells, question: _Question, groups: Groups, among_all: _Search) -> float | None:
    """Let groups visit as few cells of the base as the recall allows; the recall of a sample of the queries.

    None where that takes more than half of the cells, which is not worth it. `among_all` finds what recall counts.
    """
    device, rounded = question.base.device, question.rounding
    generator = torch.Generator().manual_seed(0)
    sizes = torch.tensor([len(group) for group in groups.rows], dtype=torch.float64)
    n_groups, n_of_each = _SAMPLED_OF_FEW if question.k <= _FEW_NEIGHBORS else _SAMPLED
    draws, n_draws = sizes.multinomial(n_groups, replacement=True, generator=generator).unique(return_counts=True)
    parts = [
        groups.rows[i][torch.randperm(len(groups.rows[i]), generator=generator)[: n * n_of_each]].to(device)
        for i, n in zip(draws.tolist(), n_draws.tolist(), strict=True)
    ]
    sample = torch.cat(parts)
    candidates = among_all(rounded(question.queries[sample]), question.n_candidates)[1]
    radius = question.answer(sample, candidates)[0][:, -1:] * (1 + (question.tolerance or _ROUNDING))
    radii = radius.split([len(part) for part in parts])
    of_parts = [rounded(question.queries[part]) for part in parts]
    means = rounded(groups.means[draws].to(device))

    @cache
    def recall(n_visited: int) -> float:
        cells.n_visited = n_visited
        is_found = [
            question.answer(part, question.candidates_in(cells, part, queries32, mean))[0] <= radius
            for part, queries32, mean, radius in zip(parts, of_parts, means, radii, strict=True)
        ]
        return float(torch.cat(is_found).double().mean())

    most = max(1, int(_MOST_CELLS * cells.n_cells))
    too_few, enough = 0, min(_FIRST_CELLS, most)
    while recall(enough) < _RECALL:
        if enough == most:
            return None
        too_few, enough = enough, min(2 * enough, most)
    while enough - too_few > max(1, enough // 16):
        between = (too_few + enough) // 2
        too_few, enough = (too_few, between) if recall(between) >= _RECALL else (between, enough)
    cells.n_visited = enough
    return recall(enough)


def _torch_search(base32: Tensor) -> _Search:
    def search(queries32: Tensor, k: int) -> tuple[Tensor, Tensor]:
        rows = max(1, 4 * _BLOCK_ELEMENTS // base32.shape[0])
        found = [
            torch.cdist(block, base32, compute_mode="donot_use_mm_for_euclid_dist").topk(k, dim=1, largest=False)
            for block in queries32.split(rows)
        ]
        return torch.cat([block.values for block in found]).square_(), torch.cat([block.indices for block in found])

    return search
