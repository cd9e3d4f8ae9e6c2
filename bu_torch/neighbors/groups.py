"""Distance to the nearest point of each group, by products of matrices."""

from collections.abc import Sequence

import torch
from torch import Tensor

from bu_torch.internal.inputs import safe_unit
from bu_torch.internal.progress import advance

_ON_CPU = (512, 256)  # members x points at once: 1 MB, which a processor keeps at hand
_ELSEWHERE = (4096, 4096)
_SMALL = 1e-8  # times the squares that a squared distance is the difference of
_RECOMPUTED_ELEMENTS = 2**18  # at once


def nearest_of_groups(points: Tensor, groups: Sequence[Tensor], left_out: Tensor | None = None) -> Tensor:
    """Distance of points (n, d) to the nearest member of each of G groups, (n, G) float64, each column contiguous.

    Squared distances are |x|^2 - 2 x.y + |y|^2 in float64, which is exact enough but for the smallest; those are
    computed from differences. A progress bar that is shown moves by points x members.

    Args:
        points: Points, floating point.
        groups: Members (m, d) of each group, at least one, of the dtype and on the device of the points.
        left_out: The member that a point must not find, counted through all groups, -1 for none, (n,) int64; or None. A
            group that is left without members is infinitely far.
    """
    members = torch.cat(list(groups))
    unit = safe_unit(points, members) if points.dtype == torch.float64 else 1.0
    members = members.double() / unit
    centre = members.median(dim=0).values
    members -= centre
    search = _Search(members, [len(group) for group in groups])
    found = torch.empty((len(groups), len(points)), dtype=torch.float64, device=points.device)
    n_points = (_ON_CPU if points.device.type == "cpu" else _ELSEWHERE)[1]
    for start in range(0, len(points), n_points):
        rows = slice(start, start + n_points)
        block = points[rows].double() / unit - centre
        own = torch.full_like(block[:, 0], -1, dtype=torch.int64) if left_out is None else left_out[rows]
        found[:, rows] = search.least_squares(block, own)
        advance(len(block) * len(members))
    return found.sqrt_().mul_(unit).T


class _Search:
    """Members (m, d), float64, centred, group after group."""

    def __init__(self, members: Tensor, sizes: list[int]) -> None:
        self._n_at_once = (_ON_CPU if members.device.type == "cpu" else _ELSEWHERE)[0]
        self._n_groups = len(sizes)
        norms = members.square().sum(dim=1, keepdim=True)
        self._largest = norms.max()
        group_of = torch.repeat_interleave(torch.tensor(sizes)).split(self._n_at_once)
        parts = [part.unique_consecutive(return_counts=True) for part in group_of]
        self._groups = [(which.tolist(), counts.tolist()) for which, counts in parts]
        self._members, self._norms = members.split(self._n_at_once), norms.split(self._n_at_once)

    def least_squares(self, points: Tensor, own: Tensor, *, is_small: bool = False) -> Tensor:
        """Least squared distance of points (n, d) to each group, (G, n), without their own members (n,)."""
        norm = points.square().sum(dim=1)
        found = norm.new_full((self._n_groups, len(points)), torch.inf)
        columns = points.T.contiguous()
        for number, (groups, sizes) in enumerate(self._groups):
            members, norms = self._members[number], self._norms[number]
            squared = torch.addmm(norms, members, columns, alpha=-2)
            if is_small:
                _recompute(squared.add_(norm), members, points, _SMALL * (norm + norms))
            place = own - number * self._n_at_once
            is_here = (place >= 0) & (place < len(members))
            squared[place[is_here], is_here.nonzero().squeeze(1)] = torch.inf
            for group, part in zip(groups, squared.split(sizes), strict=True):
                torch.minimum(found[group], part.amin(dim=0), out=found[group])
        if is_small:
            return found
        found += norm
        small = (found.amin(dim=0) < _SMALL * (norm + self._largest)).nonzero().squeeze(1)
        if len(small):
            found[:, small] = self.least_squares(points[small], own[small], is_small=True)
        return found


def _recompute(squared: Tensor, members: Tensor, points: Tensor, limit: Tensor) -> None:
    """Compute squared distances (m, n) below the limit (m, n) from differences of members (m, d) and points (n, d)."""
    for pairs in (squared < limit).nonzero().split(max(1, _RECOMPUTED_ELEMENTS // points.shape[1])):
        rows, columns = pairs.unbind(dim=1)
        squared[rows, columns] = (members[rows] - points[columns]).square().sum(dim=1)
