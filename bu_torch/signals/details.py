"""Details behind the numbers of a check: by pair of classes, by sample, and as histograms."""

from typing import NamedTuple

import torch
from torch import Tensor

from bu_torch.functional.boundary import uncertainty_ceiling
from bu_torch.functional.pairs import sum_by_pair
from bu_torch.functional.weights import cluster_sizes, mean_of
from bu_torch.signals.catalogue import Reading

_MOST_PAIRS = 400  # those with most samples near their boundary


class Histogram(NamedTuple):
    """Counts (n,) between edges (n + 1,); values beyond the edges are counted in the first and the last bin."""

    edges: list[float]
    counts: list[int]


class Pair(NamedTuple):
    """Boundary uncertainty of two classes, mean over the draws."""

    first: int
    second: int
    share: float  # of the samples
    weight: float  # effective number of samples near the boundary
    uncertainty: float


class Doubtful(NamedTuple):
    """A sample whose label or prediction the neighbours contradict."""

    row: int  # among the samples given to `fit`
    label: int
    prediction: int
    nearest_class: int
    trust: float  # ratio of distances, the sample itself left out


class Details(NamedTuple):
    """Details of a check, by `Measurement.details`.

    Attributes:
        ceiling: Expected maximum of U: its mean if both classes are equally likely, with as many effective
            neighbours as now (`bu_torch.functional.boundary.uncertainty_ceiling`).
        agreeing_pairs: Share of the perturbed samples at which the network's two likeliest classes are the likely Bayes
            pair. Elsewhere u is 0.
        pairs: Pairs of classes, those with most samples near their boundary first, at most 400.
        n_pairs_left_out: Number of further pairs.
        near_boundary: |F| / h at the perturbed samples: how many kernel widths from the boundary, 0 on it.
        local_uncertainty: u at the perturbed samples.
        log_trust: Natural logarithm of the trust scores of the predictions, the sample that was perturbed left out.
        doubtful: Least trusted samples, the worst first: by the trust score of the label or of the prediction,
            whichever is lower, in the draw where that is lowest.
    """

    ceiling: float
    agreeing_pairs: float
    pairs: list[Pair]
    n_pairs_left_out: int
    near_boundary: Histogram
    local_uncertainty: Histogram
    log_trust: Histogram
    doubtful: list[Doubtful]


def describe(reading: Reading, *, label_trust: Tensor, nearest_class: Tensor, n_doubtful: int) -> Details:
    """Details of what a check has read."""
    weights, values, shares, ceiling = _by_pair(reading)
    shown = weights.argsort(descending=True, stable=True)[:_MOST_PAIRS]
    nearness = torch.cat([terms.nearness for terms in reading.terms]).double()
    agrees = torch.stack([terms.agrees for terms in reading.terms])
    distance = (-2 * nearness.log()).clamp(min=0).sqrt()  # NaN where a logit is not finite
    local = torch.cat([terms.local for terms in reading.terms]).double()
    columns = (reading.pairs[shown], shares[shown], weights[shown], values[shown])
    return Details(
        ceiling=float(ceiling),
        agreeing_pairs=float(mean_of(agrees.double(), reading.weights)),
        pairs=[Pair(k, j, *rest) for (k, j), *rest in zip(*(column.tolist() for column in columns), strict=True)],
        n_pairs_left_out=len(reading.pairs) - len(shown),
        near_boundary=_histogram(distance, 0.0, 5.0, 25),
        local_uncertainty=_histogram(local, 0.0, 1.0, 20),
        log_trust=_histogram(reading.left_out_trust.double().log(), -7.0, 7.0, 28),
        doubtful=_doubtful(reading, label_trust, nearest_class, n_doubtful),
    )


def _by_pair(reading: Reading) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Weight, U and share of each pair, (P,), and the ceiling of U, a scalar: means over the draws, float64."""
    terms = reading.terms
    weights, values, shares = (
        torch.stack([getattr(part, name) for part in terms]).mean(dim=0) for name in ("weights", "values", "shares")
    )
    evenness: Tensor | float = 1.0  # members of equal weight for a unit of count
    if reading.weights is not None:
        total, sizes = cluster_sizes(reading.members[: len(reading.labels)], reading.weights)
        evenness = sizes / total
    ceilings = []
    for part in terms:
        counts = part.counts.double().nan_to_num(nan=0.0)
        best = counts * uncertainty_ceiling(counts * evenness, reading.members.shape[1])
        best = best if reading.weights is None else best * reading.weights
        of_pair = sum_by_pair(best, reading.pair_index, len(part.weights))
        is_separable = part.weights < 1e-6
        reachable = of_pair / torch.where(is_separable, torch.ones_like(part.weights), part.weights)
        ceilings.append((torch.where(is_separable, torch.ones_like(reachable), reachable) * part.shares).sum())
    return weights, values, shares, torch.stack(ceilings).mean()


def _doubtful(reading: Reading, label_trust: Tensor, nearest_class: Tensor, n_doubtful: int) -> list[Doubtful]:
    """The samples with the least trust in label or prediction, each in the draw where it is lowest, the worst first."""
    n_samples = len(reading.labels)
    lower = torch.minimum(reading.left_out_trust, label_trust).view(-1, n_samples)
    lowest, draws = lower.min(dim=0)
    rows = lowest.sort(stable=True).indices[:n_doubtful]
    places = draws[rows] * n_samples + rows
    columns = (rows, reading.labels[rows], reading.predictions[places], nearest_class[places], lowest[rows].double())
    return [Doubtful(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]


def _histogram(values: Tensor, low: float, high: float, n_bins: int) -> Histogram:
    """NaN is counted nowhere. Integer sums, the same on every device and in every order."""
    width = (high - low) / n_bins
    place = ((values - low) / width).floor().clamp(0, n_bins - 1)
    counted = torch.where(values.isnan(), n_bins, place.nan_to_num(nan=0.0)).long()
    counts = torch.zeros(n_bins + 1, dtype=torch.int64, device=values.device)
    counts.index_add_(0, counted, torch.ones_like(counted))
    return Histogram([low + width * i for i in range(n_bins + 1)], counts[:n_bins].tolist())
