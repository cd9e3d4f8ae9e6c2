"""Clusters that only the papers need: K-means for one number of centres after another, and repeated 2-means."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from bu_torch.neighbors.graph import lloyd

_CANDIDATES = 16  # for each new centre
_STEPS_OF_TWO = 20  # i_K of Ha et al. (2021), section 6.10


def grown(points: Tensor, numbers: Sequence[int], n_steps: int) -> Iterator[tuple[Tensor, float]]:
    """Centres (k, d) of centred points (N, d), and their error as by `lloyd`, for each of ascending numbers k.

    The first centre is the mean; each number starts from the centres of the one before. A new centre is the candidate
    that lowers the error most, as in greedy k-means++; candidates are spread by error, without random numbers.
    """

    def squares(others: Tensor) -> Tensor:  # (N, k), by a matrix product
        return torch.addmm(others.square().sum(dim=1), points, others.T, alpha=-2).add_(norms).clamp_(min=0)

    norms = points.square().sum(dim=1, keepdim=True)
    centers = points.mean(dim=0, keepdim=True)
    places = (torch.arange(_CANDIDATES, device=points.device) + 0.5) / _CANDIDATES
    for k in numbers:
        squared = squares(centers).amin(dim=1, keepdim=True)
        for _ in range(k - len(centers)):
            shares = squared.squeeze(1).cumsum(dim=0)
            candidates = points[torch.searchsorted(shares, places * shares[-1]).clamp(max=len(points) - 1)]
            with_each = torch.minimum(squared, squares(candidates))
            best = with_each.sum(dim=0).argmin(keepdim=True)
            centers, squared = torch.cat((centers, candidates[best])), with_each[:, best]
        centers, error = lloyd(points, centers, n_steps)
        yield centers, error


def divisive_clusters(points: Tensor, max_size: int, n_repeats: int, seed: int) -> Tensor:
    """Divide points (n, d) by 2-means until no cluster has more than `max_size`, in several independent repeats.

    Ha (2019), Algorithm 3; clusters that are too small are left to the caller. The first centre of a split is a random
    point of the cluster; the second is another point, more likely a far one (k-means++). A cluster of equal points is
    not split. Returns the cluster of each point in each repeat, (n_repeats, n) int64, numbered through all repeats.
    """
    n_points = len(points)
    generator = torch.Generator().manual_seed(seed)
    points = points.double()
    cluster = torch.arange(n_repeats, device=points.device).repeat_interleave(n_points)
    which = torch.arange(n_points, device=points.device).repeat(n_repeats)  # the point of each entry of `cluster`
    is_whole = torch.zeros(n_repeats, dtype=torch.bool, device=points.device)  # clusters that cannot be split
    while True:
        n_clusters = len(is_whole)
        is_large = torch.bincount(cluster, minlength=n_clusters) > max_size
        is_open = is_large & ~is_whole
        rows = is_open[cluster].nonzero().squeeze(1)
        if not len(rows):
            return cluster.view(n_repeats, n_points)
        number = is_open.cumsum(0) - 1  # counts open clusters
        group = number[cluster[rows]]
        n_groups = int(is_open.sum())
        draws = torch.rand(2, len(rows), dtype=torch.float64, generator=generator, device="cpu").to(points.device)
        is_second = _split_in_two(points[which[rows]], group, n_groups, draws)
        size = torch.bincount(group, minlength=n_groups)
        n_second = torch.bincount(group[is_second], minlength=n_groups)
        is_split = (n_second > 0) & (n_second < size)
        is_whole[is_open.nonzero().squeeze(1)[~is_split]] = True
        new = n_clusters + is_split.cumsum(0) - 1
        moves = is_second & is_split[group]
        cluster[rows[moves]] = new[group[moves]]
        is_whole = torch.cat((is_whole, is_whole.new_zeros(int(is_split.sum()))))


def _split_in_two(points: Tensor, group: Tensor, n_groups: int, draws: Tensor) -> Tensor:
    """True for each point (n,) that goes to the second of the two clusters of its group, by Lloyd's algorithm."""
    first = points[_first_of(draws[0], group, n_groups)]
    # A point has the smallest of exponential variables with a probability proportional to its rate.
    rate = (points - first[group]).square().sum(dim=1)
    second = points[_first_of(torch.where(rate > 0, -torch.log1p(-draws[1]) / rate, torch.inf), group, n_groups)]
    is_second = torch.zeros_like(group, dtype=torch.bool)
    for _ in range(_STEPS_OF_TWO):
        nearer = (points - second[group]).square().sum(dim=1) < (points - first[group]).square().sum(dim=1)
        if torch.equal(nearer, is_second):
            break
        is_second = nearer
        first, second = _mean(points, group, ~is_second, first), _mean(points, group, is_second, second)
    return is_second


def _first_of(keys: Tensor, group: Tensor, n_groups: int) -> Tensor:
    """Row of the smallest key in each group."""
    order = keys.argsort(stable=True)
    order = order[group[order].argsort(stable=True)]
    size = torch.bincount(group, minlength=n_groups)
    return order[size.cumsum(0) - size]


def _mean(points: Tensor, group: Tensor, chosen: Tensor, otherwise: Tensor) -> Tensor:
    """Mean of the chosen points of each group, (n_groups, d); the row of `otherwise` if none is chosen."""
    total = torch.zeros_like(otherwise).index_add_(0, group[chosen], points[chosen])
    size = torch.bincount(group[chosen], minlength=len(otherwise)).unsqueeze(1)
    return torch.where(size > 0, total / size.clamp(min=1), otherwise)
