"""Anchors found by bisection between samples of different predictions."""

from collections.abc import Callable
from typing import Any, get_args

import torch
from torch import Tensor

from bu_torch.functional.checks import check_choice
from bu_torch.functional.score import top_two
from bu_torch.internal.inputs import check_fitted, check_flag, check_integer, check_seed
from bu_torch.neighbors.graph import nearest
from bu_torch.papers.anchors import AnchorEstimator, Anchors, Measure, class_uncertainty
from bu_torch.papers.parzen import top_pairs
from bu_torch.space.features import standardize

_STEPS_OF_TWO = 20  # i_K of Ha et al. (2021), section 6.10


class BisectionAnchorUncertainty(AnchorEstimator):
    """Boundary uncertainty (Proposal 1): label mixtures in small clusters of the samples nearest to the boundary.

    Ha (2019), chapter 2, and Ha et al. (2021), section 3. Segments between samples that are predicted differently are
    bisected down to anchors on the boundary. The samples nearest to the anchors (Algorithms 2, 4, 5) are divided into
    clusters (Algorithm 3), whose local uncertainties are averaged with their sizes as weights. With a single feature no
    cluster is large enough: the value is 0. `BoundaryUncertainty` varies less and needs one forward pass, not hundreds.

    Choices where the sources are silent, and departures:

    - Each sample is the first end of a segment once in a round. The other end is drawn from its list: samples with the
      mirrored pair of top classes A_ji, else with i as the second choice (Algorithm 5), else all that are predicted
      differently. A pair of classes stops when a round finds no new sample for it.
    - The sample nearest to an anchor may be predicted as a third class.
    - The clusters of all repeats enter one weighted mean (Eq. 2.7). The paper (Eq. 10 and 11) averages the means of the
      repeats, but a repeat has no mean if all its clusters are too small.
    - The pair of a cluster is the two classes most often predicted in it; if all samples are predicted alike, that
      class and the commonest second choice. Corrected posteriors are renormalised over the pair.

    Args:
        measure: Local uncertainty, `"entropy"` (scaled to [0, 1]) as in the sources, or `"triangle"`.
        prior_correction: Divide posteriors by the shares of the classes (thesis, section 2.4.4; paper, 4.4.4).
        max_anchors: Largest number of anchors, >= 1.
        n_halvings: Bisections of a segment, >= 1.
        min_size: N_m, smaller clusters are left out, >= 1.
        max_size: N_M, larger clusters are divided, >= min_size.
        n_repeats: R, independent clusterings, >= 1.
        seed: Seed of segments and clusterings, 0 <= seed < 2**64; the global random state is not touched.

    Attributes:
        inputs: The samples, (N, ...).
        labels: (N,) int64.
        mean_, scale_: Mean and scale of the standardisation, (d,) float64; a constant feature has scale 1.

    Example:
        >>> labels = torch.arange(400) % 2
        >>> features = torch.randn(400, 2, generator=torch.Generator().manual_seed(0)) + 2 * labels.unsqueeze(1)
        >>> uncertainty = BisectionAnchorUncertainty().fit(features, labels)
        >>> bool(uncertainty.score(lambda x: x.sum(1) - 2) > uncertainty.score(lambda x: x.sum(1) - 4))
        True
    """

    def __init__(
        self,
        measure: Measure = "entropy",
        prior_correction: bool = True,
        *,
        max_anchors: int = 10_000,
        n_halvings: int = 30,
        min_size: int = 8,
        max_size: int = 12,
        n_repeats: int = 10,
        seed: int = 0,
    ) -> None:
        self.measure = check_choice("measure", measure, get_args(Measure))
        self.prior_correction = check_flag("prior_correction", prior_correction)
        self.max_anchors = check_integer("max_anchors", max_anchors, 1)
        self.n_halvings = check_integer("n_halvings", n_halvings, 1)
        self.min_size = check_integer("min_size", min_size, 1)
        self.max_size = check_integer("max_size", max_size, self.min_size)
        self.n_repeats = check_integer("n_repeats", n_repeats, 1)
        self.seed = check_seed(seed)

    def score(self, model: Callable[[Tensor], Any]) -> Tensor:
        """Boundary uncertainty of a classifier; takes models as `BoundaryUncertainty.score` does, and probabilities.

        A scalar in [0, 1], on the device of the samples, float64 for float64 logits and float32 for all others. It is
        0, the worst, if all samples are predicted alike or no cluster is large enough.
        """
        logits, found = self._find_anchors(model)
        first, second = top_two(logits).unbind(dim=1)
        samples = found.samples.unique()
        if len(samples) < self.min_size:
            return logits.new_zeros(())
        clusters = divisive_clusters(self._standardized[samples], self.max_size, self.n_repeats, self.seed)
        n_clusters = int(clusters.max()) + 1
        size = torch.bincount(clusters.flatten(), minlength=n_clusters)

        def count(classes: Tensor) -> Tensor:
            code = clusters * logits.shape[1] + classes[samples]
            return torch.bincount(code.flatten(), minlength=n_clusters * logits.shape[1]).view(n_clusters, -1)

        # Second choices break ties between equally common predictions.
        pairs = top_pairs(count(first) * (self.max_size + len(samples)) + count(second))
        shares = torch.bincount(self.labels, minlength=logits.shape[1]) / len(self.labels)
        priors = shares if self.prior_correction else None
        local = class_uncertainty(count(self.labels).double(), pairs, priors=priors, measure=self.measure)
        weight = torch.where(size >= self.min_size, size, 0).double()
        return ((weight * local).sum() / weight.sum().clamp(min=1)).clamp(max=1).to(logits.dtype)

    def _find_anchors(self, model: Callable[[Tensor], Any]) -> tuple[Tensor, Anchors]:
        """Logits at the samples (N, J), and the anchors (Algorithms 2, 4, 5)."""
        check_fitted(self, "inputs")
        flat = self.inputs.flatten(1)
        logits = self._read(model, flat)
        first, second = top_two(logits).unbind(dim=1)
        found = [Anchors(flat[:0], first.new_zeros(0, 2), first[:0])]
        active = code = first * logits.shape[1] + second
        is_near = torch.zeros_like(first, dtype=torch.bool)
        generator = torch.Generator().manual_seed(self.seed)
        left = self.max_anchors if int(first.min()) < int(first.max()) else 0
        while left and len(active):
            order = torch.randperm(len(flat), generator=generator, device="cpu").to(code.device)
            starts = order[torch.isin(code[order], active)][:left]
            chance = torch.rand(len(starts), dtype=torch.float64, generator=generator, device="cpu")
            ends = _partners(first, second, starts, chance)
            points, pairs = self._bisect(model, flat[starts], flat[ends])
            samples = nearest(self._standardized, standardize(points, self.mean_, self.scale_), 1)[1].squeeze(1)
            found.append(Anchors(points, pairs, samples))
            active = code[starts[~is_near[samples]]]
            is_near[samples] = True
            left -= len(starts)
        points, pairs, samples = (torch.cat(parts) for parts in zip(*found, strict=True))
        return logits, Anchors(points.view(-1, *self.inputs.shape[1:]), pairs, samples)


def _partners(first: Tensor, second: Tensor, starts: Tensor, chance: Tensor) -> Tensor:
    """Other ends of segments from rows `starts` (n,), drawn from their lists (Algorithm 5) by `chance` in [0, 1)."""
    partners, by_class = torch.empty_like(starts), first.argsort(stable=True)
    chance = chance.to(starts.device)
    for i, j in torch.stack((first[starts], second[starts]), dim=1).unique(dim=0).tolist():
        of_pair = (first[starts] == i) & (second[starts] == j)
        mirrored, with_second = (first == j) & (second == i), second == i
        rows = (mirrored if bool(mirrored.any()) else with_second).nonzero().squeeze(1)
        if not len(rows):
            rows = by_class[first[by_class] != i]
        partners[of_pair] = rows[(chance[of_pair] * len(rows)).long().clamp(max=len(rows) - 1)]
    return partners


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
    is_final = torch.zeros(n_repeats, dtype=torch.bool, device=points.device)  # clusters that cannot be split
    while True:
        is_open = (torch.bincount(cluster, minlength=len(is_final)) > max_size) & ~is_final
        rows = is_open[cluster].nonzero().squeeze(1)
        if not len(rows):
            return cluster.view(n_repeats, n_points)
        group = (is_open.cumsum(0) - 1)[cluster[rows]]  # place of the cluster among the open ones
        n_groups = int(is_open.sum())
        draws = torch.rand(2, len(rows), dtype=torch.float64, generator=generator, device="cpu").to(points.device)
        is_second = _split_in_two(points[which[rows]], group, n_groups, draws)
        n_second = torch.bincount(group[is_second], minlength=n_groups)
        is_split = (n_second > 0) & (n_second < torch.bincount(group, minlength=n_groups))
        is_final[is_open.nonzero().squeeze(1)[~is_split]] = True
        new = len(is_final) + is_split.cumsum(0) - 1
        moves = is_second & is_split[group]
        cluster[rows[moves]] = new[group[moves]]
        is_final = torch.cat((is_final, is_final.new_zeros(int(is_split.sum()))))


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
