"""Anchors found by bisection between samples of different predictions."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from bu_torch.functional.anchors import MEASURES, Measure, class_uncertainty
from bu_torch.functional.checks import check_choice
from bu_torch.functional.pairs import top_pairs
from bu_torch.internal.inputs import check_fitted, check_flag, check_integer, check_seed
from bu_torch.neighbors.clusters import divisive_clusters
from bu_torch.neighbors.search import nearest
from bu_torch.papers.anchors import AnchorEstimator, Anchors
from bu_torch.space.features import standardize


class BisectionAnchorUncertainty(AnchorEstimator):
    """Boundary uncertainty (Proposal 1): label mixtures in small clusters of the samples nearest to the boundary.

    Ha (2019), chapter 2, and Ha et al. (2021), section 3. Segments between samples that are predicted differently are
    bisected down to anchors on the boundary; the sample nearest to each is near the boundary (Algorithms 2, 4, 5); the
    near-boundary samples are divided into clusters (Algorithm 3), whose local uncertainties are averaged with their
    sizes as weights. `BoundaryUncertainty` came later, is steadier, and costs one forward pass, not hundreds.

    What the sources leave open, and departures:

    - A round takes each sample once as the first end of a segment, the other end at random from its list: those of the
      mirrored pair of top classes A_ji, else those of any other class with i second (Algorithm 5), else, if that is
      empty too, all that are predicted differently. A pair of classes stops when a round brings it no new sample.
    - The sample nearest to an anchor is looked for among all samples, also those predicted as a third class.
    - As in Eq. 2.7 the clusters of all repeats make one weighted mean; Eq. 10 and 11 of the paper average the means of
      the repeats, but a repeat whose clusters are all too small has none.
    - A cluster's pair of classes are the two that most of its samples are predicted as; if one class is alone, the
      other is that which is most often their second. Corrected posteriors are renormalised over the pair.

    A boundary has few nearest samples if there is only one feature. No cluster then fills up, and the value is 0: two
    features or more are needed.

    Args:
        measure: Local uncertainty, `"entropy"` (scaled to [0, 1]) as in the sources, or `"triangle"`.
        prior_correction: Divide posteriors by the shares of the classes, as both sources do (thesis, section 2.4.4; Ha
            et al. 2021, section 4.4.4).
        max_anchors: Generate no more anchors than so many, >= 1.
        n_halvings: Bisections of a segment, >= 1.
        min_size: N_m, smaller clusters are left out, >= 1.
        max_size: N_M, larger clusters are divided, >= min_size.
        n_repeats: R, independent clusterings, >= 1.
        seed: Seed of segments and clusterings, 0 <= seed < 2**64. Global random numbers are neither used nor changed.

    Attributes:
        inputs: The samples, (N, ...).
        labels: (N,) int64.
        mean_, scale_: Mean and scale of the standardisation, (d,) float64; a constant feature has scale 1.

    Example:
        >>> generator = torch.Generator().manual_seed(0)
        >>> labels = torch.arange(400) % 2
        >>> features = torch.randn(400, 2, generator=generator) + 2 * labels.unsqueeze(1)
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
        self.measure = check_choice("measure", measure, MEASURES)
        self.prior_correction = check_flag("prior_correction", prior_correction)
        self.max_anchors = check_integer("max_anchors", max_anchors, 1)
        self.n_halvings = check_integer("n_halvings", n_halvings, 1)
        self.min_size = check_integer("min_size", min_size, 1)
        self.max_size = check_integer("max_size", max_size, self.min_size)
        self.n_repeats = check_integer("n_repeats", n_repeats, 1)
        self.seed = check_seed(seed)

    def score(self, model: Callable[[Tensor], Any]) -> Tensor:
        """Boundary uncertainty of a classifier, any callable that `BoundaryUncertainty.score` takes.

        Probabilities do as well as logits. A scalar in [0, 1], on the device of the samples, float64 for float64 logits
        and float32 for all others; 0, the worst, if all samples are predicted alike or no cluster is large enough.

        Raises:
            RuntimeError, TypeError, ValueError: As `BoundaryUncertainty.score`.
        """
        logits, first, second = self._predict(model)
        samples = self._anchors(model, first, second, logits.shape[1]).samples.unique()
        if len(samples) < self.min_size:
            return logits.new_zeros(())
        points = self._standardized[samples]
        clusters = divisive_clusters(points, self.max_size, self.n_repeats, self.seed)
        n_clusters = int(clusters.max()) + 1
        size = torch.bincount(clusters.flatten(), minlength=n_clusters)

        def count(classes: Tensor) -> Tensor:
            code = clusters * logits.shape[1] + classes[samples]
            return torch.bincount(code.flatten(), minlength=n_clusters * logits.shape[1]).view(n_clusters, -1)

        # Second choices decide between classes that equally many samples are predicted as.
        pairs = top_pairs(count(first) * (self.max_size + len(samples)) + count(second))
        shares = torch.bincount(self.labels, minlength=logits.shape[1]) / len(self.labels)
        priors = shares if self.prior_correction else None
        local = class_uncertainty(count(self.labels).double(), pairs, priors=priors, measure=self.measure)
        weight = torch.where(size >= self.min_size, size, 0).double()
        return ((weight * local).sum() / weight.sum().clamp(min=1)).clamp(max=1).to(logits.dtype)

    def anchors(self, model: Callable[[Tensor], Any]) -> Anchors:
        """Anchors on the boundary of a classifier, and the sample nearest to each (Algorithms 2, 4 and 5).

        None if all samples are predicted alike; their distinct `samples` are the near-boundary set. Takes and raises
        the same as `score`.
        """
        logits, first, second = self._predict(model)
        return self._anchors(model, first, second, logits.shape[1])

    def _predict(self, model: Callable[[Tensor], Any]) -> tuple[Tensor, Tensor, Tensor]:
        """Logits (N, J), the class predicted of each sample and its second choice (N,)."""
        check_fitted(self, "inputs")
        logits = self._read(model, self.inputs.flatten(1))
        first = logits.argmax(dim=1)
        return logits, first, top_pairs(logits).sum(dim=1) - first

    def _anchors(self, model: Callable[[Tensor], Any], first: Tensor, second: Tensor, n_classes: int) -> Anchors:
        flat = self.inputs.flatten(1)
        found = [Anchors(flat[:0], first.new_zeros(0, 2), first[:0])]
        code = first * n_classes + second
        is_active = torch.ones(n_classes**2, dtype=torch.bool, device=code.device)
        is_near = torch.zeros_like(first, dtype=torch.bool)
        generator = torch.Generator().manual_seed(self.seed)
        left = self.max_anchors if int(first.min()) < int(first.max()) else 0
        partners = _Partners(first, second, n_classes)
        while left and bool(is_active[code].any()):
            order = torch.randperm(len(flat), generator=generator).to(code.device)
            starts = order[is_active[code[order]]][:left]
            ends = partners.draw(starts, torch.rand(len(starts), dtype=torch.float64, generator=generator))
            points, pairs = self._bisect(model, flat[starts], flat[ends])
            queries = standardize(points, self.mean_, self.scale_)
            samples = nearest(self._standardized, queries, 1, exact=None).rows[:, 0]
            found.append(Anchors(points, pairs, samples))
            is_active = torch.zeros_like(is_active)
            is_active[code[starts[~is_near[samples]]]] = True
            is_near[samples] = True
            left -= len(starts)
        points, pairs, samples = (torch.cat(parts) for parts in zip(*found, strict=True))
        return Anchors(points.view(-1, *self.inputs.shape[1:]), pairs, samples)


class _Partners:
    """The samples that the other end of a segment is drawn from: lists as ranges of sorted rows (Algorithm 5)."""

    def __init__(self, first: Tensor, second: Tensor, n_classes: int) -> None:
        self.first, self.second, self.n_classes = first, second, n_classes
        self.by_pair, self.pair_start, self.pair_size = _ranges(first * n_classes + second, n_classes**2)
        self.by_second, self.second_start, self.second_size = _ranges(second, n_classes)
        self.by_first, self.first_start, self.first_size = _ranges(first, n_classes)

    def draw(self, starts: Tensor, chance: Tensor) -> Tensor:
        """One partner for each row of `starts` (n,), by numbers in [0, 1)."""
        own, chance = self.first[starts], chance.to(starts.device)
        mirrored = self.second[starts] * self.n_classes + own
        n_mirrored, n_second = self.pair_size[mirrored], self.second_size[own]
        n_other = len(self.first) - self.first_size[own]
        other = _pick(n_other, chance)
        other = other + torch.where(other >= self.first_start[own], self.first_size[own], 0)
        from_pair = self.by_pair[(self.pair_start[mirrored] + _pick(n_mirrored, chance)).clamp(max=len(self.first) - 1)]
        from_second = self.by_second[(self.second_start[own] + _pick(n_second, chance)).clamp(max=len(self.first) - 1)]
        rest = torch.where(n_second > 0, from_second, self.by_first[other])
        return torch.where(n_mirrored > 0, from_pair, rest)


def _ranges(code: Tensor, n_codes: int) -> tuple[Tensor, Tensor, Tensor]:
    """Rows sorted by code (N,), and where the range of each code starts and how long it is (n_codes,)."""
    size = torch.bincount(code, minlength=n_codes)
    return code.argsort(stable=True), size.cumsum(0) - size, size


def _pick(size: Tensor, chance: Tensor) -> Tensor:
    return (chance * size).long().clamp(max=(size - 1).clamp(min=0))
