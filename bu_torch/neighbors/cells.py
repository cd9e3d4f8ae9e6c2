"""Approximate nearest neighbours: groups of near queries look at the cells of the base that lie nearest to them."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Self

import torch
from torch import Tensor

from bu_torch.neighbors.k_means import partition

_VARIANCE = 0.99
_SAMPLE = 50_000  # points that say how the others lie
_MOST_FEATURES = 1024  # of which principal axes are found in a moment
_AXES_OF_GROUPS = 16  # groups on more are no better, and take ten times as long to find
_CELLS, _FEWEST_IN_A_CELL = 4, 20  # times sqrt(B)
_PRODUCTS = 2**22  # query x candidate at a time, 16 MiB
_MOST_OF_A_BLOCK = 16
_MULTIPLE = 64  # of which the number of candidates is made one, so that blocks of blocks are whole
_FEW_VALUES, _FEW_TO_SELECT = 64, 1024  # of so few `argmin` and `topk` are faster than blocks


class Cells:
    """The rows of a base (B, d), float32 on the CPU, in about 4 sqrt(B) cells around the centres of K-means (FAISS).

    An inverted file that serves a group of near queries at once: all look at the same cells, those whose centres are
    nearest to the mean of the group. Their squared distances are one product of matrices, several times as fast as
    FAISS's scan of the lists of each query. Coordinates are compared on `axes` (a, d); None for those of the base.

    Attributes:
        n_visited: Cells that a group looks at, to be set, >= 1.
        n_cells: All cells.
        of_rows: The cell of each row, (B,) int64.
    """

    def __init__(self, base: Tensor, axes: Tensor | None = None) -> None:
        coordinates = base if axes is None else base @ axes.T
        self.n_cells = max(1, min(round(_CELLS * len(base) ** 0.5), len(base) // _FEWEST_IN_A_CELL))
        self._axes = axes
        self._centres, self.of_rows = partition(coordinates, self.n_cells)
        self._rows = self.of_rows.argsort(stable=True)
        self._ends = self.of_rows.bincount(minlength=self.n_cells).cumsum(0).tolist()
        self._coordinates = coordinates[self._rows]
        self._products = self._coordinates.new_empty(_PRODUCTS)
        self.n_visited = 1

    def distances_to(self, points: Tensor) -> Tensor:
        """Distance of points (n, d), float32, to the centre of the nearest cell, (n,)."""
        return torch.cdist(points if self._axes is None else points @ self._axes.T, self._centres).amin(dim=1)

    def search(self, queries: Tensor, mean: Tensor, k: int) -> Tensor:
        """Rows of the base (q, k) that may be nearest to queries (q, d) of a group with this mean (d,), in no order.

        -1 if the cells hold fewer.
        """
        if self._axes is not None:
            queries, mean = queries @ self._axes.T, mean @ self._axes.T
        nearest = (self._centres - mean).square_().sum(dim=1).topk(self.n_visited, largest=False).indices.tolist()
        parts = [slice(self._ends[cell - 1] if cell else 0, self._ends[cell]) for cell in nearest]
        rows = torch.cat([self._rows[part] for part in parts])
        # Around the mean of the group: |x|^2 - 2 x.y + |y|^2 would lose the digits of what is near in what is far.
        candidates = torch.cat([self._coordinates[part] for part in parts]).sub_(mean)
        n_candidates = len(rows)
        rows = torch.nn.functional.pad(rows, (0, -n_candidates % _MULTIPLE), value=-1)
        factors = candidates.new_empty(len(rows), candidates.shape[1] + 1)
        torch.mul(candidates, -2, out=factors[:n_candidates, :-1])
        torch.sum(candidates.square_(), dim=1, out=factors[:n_candidates, -1])
        factors[n_candidates:, :-1], factors[n_candidates:, -1] = 0, torch.inf
        found = queries.new_full((len(queries), k), -1, dtype=torch.int64)
        if not len(rows):
            return found
        points = torch.nn.functional.pad(queries - mean, (0, 1), value=1.0)
        if len(rows) > len(self._products):
            self._products = self._products.new_empty(len(rows))
        at_a_time = len(self._products) // len(rows)
        for part, part_found in zip(points.split(at_a_time), found.split(at_a_time), strict=True):
            products = self._products[: len(part) * len(rows)].view(len(part), len(rows))
            torch.mm(part, factors.T, out=products)  # less |x|^2, which is the same for all candidates of x
            places = _least(products, min(k, len(rows)))
            part_found[:, : places.shape[1]] = rows.take(places)  # faster than rows[places]
        return found


class Groups(NamedTuple):
    """Queries in groups that lie near each other."""

    rows: list[Tensor]  # of each group, int64
    means: Tensor  # of the queries of each group, (G, d) float64

    @classmethod
    def by(cls, queries: Tensor, numbers: Tensor) -> Self:
        """Queries (Q, d) in the groups whose numbers (Q,), int64, are given."""
        present, groups, sizes = numbers.unique(return_inverse=True, return_counts=True)
        means = torch.zeros(len(present), queries.shape[1], dtype=torch.float64)
        n_at_a_time = max(1, _PRODUCTS // queries.shape[1])
        for block, group in zip(queries.split(n_at_a_time), groups.split(n_at_a_time), strict=True):
            means.index_add_(0, group, block.cpu().double() / sizes[group].unsqueeze(1))
        return cls(list(groups.argsort(stable=True).split(sizes.tolist())), means)

    @classmethod
    def of(cls, queries: Tensor, rounded: Callable[[Tensor], Tensor], size: int) -> Self:
        """Group queries (Q, d), Q >= 1, by K-means (FAISS) on their first principal axes, about `size` a group.

        `rounded` makes coordinates in float32 on the CPU of some of them.
        """
        principal = _principal_axes(rounded(thinned(queries)))
        axes = None if principal is None else principal[0][:_AXES_OF_GROUPS].T
        blocks = (rounded(block) for block in queries.split(max(1, _PRODUCTS // queries.shape[1])))
        coordinates = torch.cat([block if axes is None else block @ axes for block in blocks])
        return cls.by(queries, partition(coordinates, -(-len(queries) // size))[1])

    def parts(self, shares: Sequence[float], values: Tensor) -> Iterator[Self]:
        """The groups with the least values (G,) that hold a share of the queries, those with the next, and so on."""
        order = values.argsort(stable=True)
        sizes = torch.tensor([len(rows) for rows in self.rows], dtype=torch.float64)[order]
        part_of = torch.bucketize(
            (sizes.cumsum(0) - sizes / 2) / sizes.sum(), torch.tensor(shares, dtype=torch.float64)
        )
        for part in part_of.unique().tolist():
            chosen = order[part_of == part]
            yield type(self)([self.rows[i] for i in chosen.tolist()], self.means[chosen])


def few_axes(points: Tensor) -> Tensor | None:
    """Principal axes (a, d) of points (N, d) that hold 99 % of their variance; None if a > d / 2, d > 1024 or d > N."""
    principal = _principal_axes(points)
    if principal is None:
        return None
    axes, shares = principal
    n_axes = 1 + int(torch.searchsorted(shares.cumsum(0), _VARIANCE * shares.sum()))
    return axes[:n_axes] if 2 * n_axes <= len(axes) else None


def thinned(points: Tensor) -> Tensor:
    """Some 50,000 to 100,000 of the points (N, d), evenly spaced; all where there are no more."""
    return points[:: max(1, len(points) // _SAMPLE)]


def _least(values: Tensor, k: int) -> Tensor:
    """Columns (q, k) of the k least of each row of values (q, c) with c >= k, in no order.

    They lie in the k blocks whose own least values are least. `topk` of all values would take many times as long.
    """
    n_values = values.shape[1]
    of_a_block = math.gcd(n_values, 2 ** int(math.log2(n_values / k) / 2), _MOST_OF_A_BLOCK)
    if of_a_block == 1 or n_values <= (_FEW_VALUES if k == 1 else _FEW_TO_SELECT):
        if k == 1:
            return values.argmin(dim=1, keepdim=True)
        return values.topk(k, dim=1, largest=False, sorted=False).indices
    # A block holds every n-th column for n blocks, so that the least of all blocks are found side by side.
    n_blocks = n_values // of_a_block
    blocks = _least(values.unflatten(1, (of_a_block, n_blocks)).amin(dim=1), k)
    within = torch.arange(0, n_values, n_blocks, device=values.device).view(1, -1, 1)
    columns = (blocks.unsqueeze(1) + within).flatten(1)
    return columns.gather(1, _least(values.gather(1, columns), k))


def _principal_axes(points: Tensor) -> tuple[Tensor, Tensor] | None:
    """All principal axes of some points, (d, d), and the variance on each; None where d is large, or above N."""
    import faiss

    n_features = points.shape[1]
    if n_features > min(_MOST_FEATURES, len(points)):
        return None
    principal = faiss.PCAMatrix(n_features, n_features)
    principal.train(thinned(points).numpy())
    axes = torch.from_numpy(faiss.vector_to_array(principal.A)).view(n_features, n_features)
    return axes, torch.from_numpy(faiss.vector_to_array(principal.eigenvalues)).double().clamp_(min=0)
