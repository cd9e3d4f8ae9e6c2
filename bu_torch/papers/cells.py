"""The supremum of the CUD bound over linear classifiers: best-first branch and bound over the sides of the samples.

A cell is the set of all coefficients that put every sample on the same side. Within a cell the errors are fixed and g
falls with the loss, so the value of a cell is its errors times g at its smallest loss. Let w_i = c_i - 1, and choose
the sign s of the sum. Each sample then has a wanted side, and s sum_i w_i err_i = P - (sum of the |w_i| of the samples
on their other side). Samples on one line through 0 count as one sample; its pull is the sum of w_i times the target.

A node is a set of samples held to a side, wanted or not, and the point of least loss on the closed cone that these
constraints leave. This point is a projection, whose dual is a non-negative least squares problem. If the point lies a
distance d beyond the wanted side of a sample, holding the sample to that side costs at least d^2 more loss, because a
projection onto a convex set makes an obtuse angle with everything in the set. Samples not worth this cost are held to
the other side at once, and the best threshold on d bounds the value of a node. Samples whose boundary holds the point
are judged by their open cone alone. Gordan's alternative, again by non-negative least squares, finds conflicts among
them, and each of several disjoint conflicts costs at least its lightest sample.
"""

import heapq
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Rows = NDArray[np.intp]

GAP = 1e-9  # a node is opened if its bound exceeds the best value by this, in units of one sample
TOUCH = 1e-9  # relative distance below which a point lies on a sample's boundary
NULL = 1e-7  # relative singular value below which a draw leaves a direction undetermined
FLAT = 1e-5  # relative singular value that such a direction gets: the loss is exact to its square


class Node(NamedTuple):
    """Samples held to a side, and the least loss there; nodes are ordered by `promise`."""

    promise: float  # minus the upper bound
    order: int
    total: float  # the sum if every sample that is not held gets its wanted side
    side: NDArray[np.int8]  # 1 held to the wanted side, -1 to the other, 0 free
    rows: Floats  # (d, r) unit normals in the whitened space, pointing to the wanted side
    normals: Floats  # the same in the space of the design
    point: Floats  # (r,)
    loss: float  # excess over the least loss of the draw
    n_active: int  # rows that carry the point


class CellSearch:
    """Search for Q of one draw; make a new object for each draw.

    Takes orthonormal columns that span the features (n, r), targets -1 or 1 (n,), and multiplicities of the draw (n,).
    """

    def __init__(self, design: Floats, targets: Floats, counts: Floats) -> None:
        rows, self.center, loss = _whiten(design, targets, counts)
        self.slack = float(np.sum(counts * (targets - design @ (design.T @ targets)) ** 2)) - loss
        norms = np.linalg.norm(design, axis=1)
        weights = counts - 1
        is_zero = norms <= TOUCH * norms.max(initial=0)
        self.constant = float(weights[is_zero] @ (targets[is_zero] < 0))  # a zero row is of class 1
        normals = design[~is_zero] / norms[~is_zero, None]
        self.constant += float(weights[~is_zero].sum()) / 2
        pulls, used = _merged(normals, (weights * targets)[~is_zero])
        self.pulls, self.values, self.normals = pulls, np.abs(pulls), normals[used]
        self.rows = rows[~is_zero][used]
        self.rows /= np.linalg.norm(self.rows, axis=1, keepdims=True)
        self.touch = TOUCH * (1 + float(np.linalg.norm(self.center)))
        self.best, self.heap, self.n_nodes = 0.0, list[Node](), 0

    def run(self) -> float:
        """The largest value of a cell, in samples."""
        for sign in (1, -1):
            wanted = -sign * np.sign(self.pulls)[:, None]
            total = sign * self.constant + float(self.values.sum()) / 2
            side = np.zeros(len(self.values), dtype=np.int8)
            self._push(total, total, side, self.rows * wanted, self.normals * wanted, self.center, 0.0, 0)
        while self.heap and -self.heap[0].promise > self.best + GAP:
            self._open(heapq.heappop(self.heap))
        return self.best

    def _push(self, bound: float, *fields: object) -> None:
        if bound > self.best + GAP:
            self.n_nodes += 1
            heapq.heappush(self.heap, Node(-bound, self.n_nodes, *fields))  # type: ignore[arg-type]

    def _g(self, loss: float) -> float:
        return min(max(1 + self.slack - loss, 0.0), 1.0)

    def _open(self, node: Node) -> None:
        margins = node.rows @ node.point
        beyond = np.flatnonzero((node.side == 0) & (margins < -self.touch))
        beyond = beyond[np.argsort(margins[beyond], kind="stable")]  # farthest first
        g = self._g(node.loss)
        limit = node.total - (self.best + GAP) / g
        rows = np.flatnonzero(np.abs(margins) <= self.touch)
        side, lost, missed, conflict = node.side[rows], 0.0, rows[:0], rows[:0]
        # The rows of the multipliers are independent: if no others touch the point, their open cone is not empty.
        if len(rows) > node.n_active or not side.all():
            normals = node.normals[rows] * np.where(side < 0, -1, 1)[:, None]
            lost, is_met, in_conflict = _conflicts(normals, side != 0, self.values[rows], limit)
            missed, conflict = rows[~is_met & (side == 0)], rows[in_conflict]
        if lost == np.inf:  # no classifier lies here, or none that is better
            return
        self.best = max(self.best, (node.total - self.values[beyond].sum() - self.values[missed].sum()) * g)

        total, side = node.total, node.side.copy()
        dearer = np.clip(1 + self.slack - node.loss - margins[beyond] ** 2, 0, 1)
        while len(beyond) and (total - lost) * dearer[0] <= self.best + GAP:  # not worth holding to the wanted side
            total, side[beyond[0]] = total - self.values[beyond[0]], -1
            beyond, dearer = beyond[1:], dearer[1:]
        if len(beyond):
            bounds = (total - lost - np.cumsum(self.values[beyond])) * np.append(dearer[1:], g)
            self._branch(node, beyond[0], total, side, float(bounds.max()))
            self._hold(node, beyond[0], total, side, (total - lost) * float(dearer[0]))
        elif len(conflict):
            row = conflict[np.argmax(self.values[conflict])]
            self._branch(node, row, total, side, min(total - lost, total - self.values[row]) * g)
            side[row] = 1
            self._push((total - lost) * g, total, side, *node[4:])

    def _branch(self, node: Node, row: np.intp, total: float, side: NDArray[np.int8], bound: float) -> None:
        """Push the child with `row` on its other side, where the node's point lies already."""
        side = side.copy()
        side[row] = -1
        self._push(bound, total - self.values[row], side, *node[4:])

    def _hold(self, node: Node, row: np.intp, total: float, side: NDArray[np.int8], bound: float) -> None:
        """Push the child with `row` held to its wanted side: project the draw's fit onto the smaller cone."""
        if bound <= self.best + GAP:
            return
        side[row] = 1
        held = np.flatnonzero(side)
        cone = node.rows[held] * side[held, None]
        multipliers, _ = _nnls(cone.T, -self.center)
        step = cone.T @ multipliers
        loss = float(step @ step)
        bound = min(bound, total * self._g(loss))
        n_active = int(np.sum(multipliers > 0))
        self._push(bound, total, side, node.rows, node.normals, self.center + step, loss, n_active)


def _merged(normals: Floats, pulls: Floats) -> tuple[Floats, Rows]:
    """Merge samples on one line through 0: sums of pulls that are not 0, and the first sample of each such line."""
    cosines = normals @ normals.T
    one, other = np.nonzero(np.triu(np.abs(cosines) > 1 - TOUCH, 1))
    apart = np.linalg.norm(normals[other] - cosines[one, other, None] * normals[one], axis=1)
    first = np.arange(len(pulls))
    np.minimum.at(first, other[apart <= TOUCH], one[apart <= TOUCH])
    merged = np.zeros_like(pulls)
    np.add.at(merged, first, np.sign(cosines[first, np.arange(len(first))]) * pulls)
    used = np.flatnonzero(merged)
    return merged[used], used


def _whiten(design: Floats, targets: Floats, counts: Floats) -> tuple[Floats, Floats, float]:
    """Rows (n, r) and the draw's fit (r,) in coordinates in which loss is squared distance, and the least loss."""
    _, singular, axes = np.linalg.svd(np.sqrt(counts)[:, None] * design)
    singular = np.append(singular, np.zeros(design.shape[1] - len(singular)))
    largest = singular.max(initial=0) or 1.0  # 0 if all rows of the draw are zero
    is_null = singular <= NULL * largest
    scale = np.where(is_null, FLAT * largest, singular)
    rows = design @ axes.T / scale
    center = np.where(is_null, 0, axes @ (design.T @ (counts * targets)) / scale)
    return rows, center, float(np.sum(counts * (targets - rows @ center) ** 2))


def _conflicts(normals: Floats, is_held: Bools, values: Floats, limit: float) -> tuple[float, Bools, Rows]:
    """Find disjoint conflicts: sets of rows that no direction puts all on their positive side.

    The convex hull of such a set holds 0 (Gordan). A conflict costs its lightest free row; this cost is subtracted from
    all its free rows, and those with nothing left are dropped. A conflict of held rows alone costs infinity. Returns
    the total cost, infinity once it reaches `limit`; the rows on the positive side of a direction that satisfies all
    rows left; and the free rows of the first conflict.
    """
    values, first, cost = values.copy(), np.arange(0), 0.0
    left = np.flatnonzero(is_held | (values > 0))
    system = np.vstack((normals.T, np.ones(len(normals))))  # its solution is the point of the hull nearest to 0
    goal = np.append(np.zeros(normals.shape[1]), 1.0)
    while len(left):
        hull, distance = _nnls(system[:, left], goal)
        if distance > TOUCH:
            way = system[:-1, left] @ hull
            is_met = normals @ way > TOUCH * np.linalg.norm(way)  # not within rounding of the plane
            is_met[left] = True
            return cost, is_met, first
        free = left[(hull > 0) & ~is_held[left]]
        if not len(free):
            return np.inf, is_held, first
        first = first if len(first) else free
        lightest = values[free].min()
        cost += lightest
        if cost >= limit:
            return np.inf, is_held, first
        values[free] -= lightest
        left = left[is_held[left] | (values[left] > 0)]
    return cost, np.zeros(len(values), dtype=np.bool_), first


def _nnls(matrix: Floats, goal: Floats) -> tuple[Floats, float]:
    from scipy.optimize import nnls

    return nnls(matrix, goal, maxiter=30 * matrix.shape[1])
