"""What a check saw behind its numbers: by pair of classes, by sample, and as histograms."""

from typing import NamedTuple

import torch
from torch import Tensor

from bu_torch import functional
from bu_torch.boundary import BoundaryUncertainty
from bu_torch.functional.boundary import PairTerms, sum_by_pair

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
    """What `Signals.details` tells of a check.

    Attributes:
        ceiling: U that a boundary would reach on average where both classes are equally likely, with as many effective
            neighbours as now (`bu_torch.functional.uncertainty_ceiling`).
        pairs: Pairs of classes, those with most samples near their boundary first, at most 400.
        n_pairs_left_out: How many more there are.
        near_boundary: |F| / h at the moved samples: how many kernel widths from the boundary, 0 on it.
        local_uncertainty: u at the moved samples.
        log_trust: Natural logarithm of the trust scores of the predictions, the sample that was moved left out.
        doubtful: Least trusted samples, the worst first: by the trust score of the label or of the prediction,
            whichever is lower, in the draw where that is lowest.
    """

    ceiling: float
    pairs: list[Pair]
    n_pairs_left_out: int
    near_boundary: Histogram
    local_uncertainty: Histogram
    log_trust: Histogram
    doubtful: list[Doubtful]


def describe(
    boundary: BoundaryUncertainty,
    predictions: Tensor,
    trust: Tensor,
    label_trust: Tensor,
    class_distances: Tensor,
    n_doubtful: int,
) -> Details:
    """Details of the logits that `boundary` scored last.

    Args:
        boundary: Has scored logits.
        predictions: Of these logits, (D * N,).
        trust: Their trust scores, (D * N,), by `class_distances`.
        label_trust: Those of the labels, likewise.
        class_distances: Distance from each moved sample to each class, that sample left out, (D * N, J).
        n_doubtful: So many of the least trusted samples are told.
    """
    terms = boundary._terms
    pairs, pair_index = boundary._pairs, boundary._pair_index
    weights, values, shares, ceiling = _by_pair(terms, pair_index, boundary.n_neighbors)
    order = weights.argsort(descending=True, stable=True)[:_MOST_PAIRS]
    nearness = torch.cat([part.nearness for part in terms]).double()
    distance = (-2 * nearness.log()).clamp(min=0).sqrt()  # NaN where a logit is not finite
    lower = torch.minimum(trust, label_trust)
    doubt = _doubtful(boundary.labels, predictions, lower, class_distances, n_doubtful)
    histograms = (
        _histogram(distance, 0.0, 5.0, 25),
        _histogram(torch.cat([part.local for part in terms]).double(), 0.0, 1.0, 20),
        _histogram(trust.double().log(), -7.0, 7.0, 28),
    )
    # The only wait for the device.
    columns = [ceiling.view(1), *(part[order] for part in (shares, weights, values)), *(pairs[order].double().T,)]
    columns += [torch.stack(doubt).double(), *(counts.double() for _, counts in histograms)]
    sizes = [column.shape for column in columns]
    flat = torch.cat([column.reshape(-1) for column in columns]).cpu().split([size.numel() for size in sizes])
    first, share, weight, value, names, doubted, *counted = (
        part.reshape(size).tolist() for part, size in zip(flat, sizes, strict=True)
    )
    return Details(
        ceiling=first[0],
        pairs=[Pair(int(k), int(j), *rest) for k, j, *rest in zip(*names, share, weight, value, strict=True)],
        n_pairs_left_out=len(pairs) - len(order),
        near_boundary=Histogram(histograms[0][0], [int(count) for count in counted[0]]),
        local_uncertainty=Histogram(histograms[1][0], [int(count) for count in counted[1]]),
        log_trust=Histogram(histograms[2][0], [int(count) for count in counted[2]]),
        doubtful=[Doubtful(int(n), int(y), int(p), int(k), t) for n, y, p, k, t in zip(*doubted, strict=True)],
    )


def _by_pair(terms: list[PairTerms], pair_index: Tensor, n_neighbors: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Weight, U and share of each pair (P,), and the ceiling of U; means over the draws, float64."""
    weights, values, shares = (
        torch.stack([getattr(part, name) for part in terms]).mean(dim=0) for name in ("weights", "values", "shares")
    )
    ceilings = []
    for part in terms:
        counts = part.counts.double().nan_to_num(nan=0.0)
        best = counts * functional.uncertainty_ceiling(counts, n_neighbors)
        of_pair = sum_by_pair(best, pair_index, len(part.weights))
        is_separable = part.weights < 1e-6
        reachable = of_pair / torch.where(is_separable, torch.ones_like(part.weights), part.weights)
        ceilings.append((torch.where(is_separable, torch.ones_like(reachable), reachable) * part.shares).sum())
    return weights, values, shares, torch.stack(ceilings).mean()


def _doubtful(
    labels: Tensor, predictions: Tensor, lower: Tensor, class_distances: Tensor, n_doubtful: int
) -> tuple[Tensor, ...]:
    """Row, label, prediction, nearest class and trust of the least trusted samples, the worst first."""
    n_samples = labels.shape[0]
    worst = lower.view(-1, n_samples).min(dim=0)
    count = min(n_doubtful, n_samples)
    rows = worst.values.sort(stable=True).indices[:count]
    places = worst.indices[rows] * n_samples + rows
    return rows, labels[rows], predictions[places], class_distances[places].argmin(dim=1), worst.values[rows]


def _histogram(values: Tensor, low: float, high: float, n_bins: int) -> tuple[list[float], Tensor]:
    """Edges and counts; NaN is counted nowhere. Integer sums, the same on every device and in every order."""
    width = (high - low) / n_bins
    place = ((values - low) / width).floor().clamp(0, n_bins - 1)
    counted = torch.where(values.isnan(), n_bins, place.nan_to_num(nan=0.0)).long()
    counts = torch.zeros(n_bins + 1, dtype=torch.int64, device=values.device)
    counts.index_add_(0, counted, torch.ones_like(counted))
    return [low + width * i for i in range(n_bins + 1)], counts[:n_bins]
