"""Details behind the numbers of a check: by pair of classes, by sample, and as histograms."""

from typing import NamedTuple

import torch
from torch import Tensor

from bu_torch.functional.weights import mean_of
from bu_torch.signals.catalogue import SignalInputs

_MOST_PAIRS = 400


class Histogram(NamedTuple):
    """Counts (n,) between edges (n + 1,); values beyond the edges are counted in the first and the last bin."""

    edges: list[float]
    counts: list[int]


class Pair(NamedTuple):
    """Boundary uncertainty of two classes, mean over the draws."""

    first: int
    second: int
    share: float  # share of the samples
    weight: float  # kernel weights of the neighbours near the boundary, summed over the samples
    uncertainty: float


class Doubtful(NamedTuple):
    """A sample whose label or prediction the neighbours contradict."""

    row: int  # among the samples given to `fit`
    label: int
    prediction: int
    nearest_class: int
    trust: float  # ratio of distances, the sample itself left out


class Details(NamedTuple):
    """Details of a check, by `Measurement.details`."""

    agreeing_pairs: float  # share of the perturbed samples whose two likeliest classes are the likely Bayes pair
    pairs: list[Pair]  # sorted by weight, largest first, at most 400
    n_pairs_left_out: int
    near_boundary: Histogram  # |F| / h at the perturbed samples: kernel widths from the boundary
    local_uncertainty: Histogram  # u at the perturbed samples; 0 if another pair is predicted
    log_trust: Histogram  # natural logarithm of the predictions' trust, without the sample itself
    doubtful: list[Doubtful]  # sorted by trust in label or prediction, least first, at each sample's lowest draw


def describe(reading: SignalInputs, n_doubtful: int) -> Details:
    """Compute the details of a check."""
    terms = reading.terms
    weights, values, shares = (
        torch.stack([getattr(part, name) for part in terms]).mean(dim=0) for name in ("weights", "values", "shares")
    )
    shown = weights.argsort(descending=True, stable=True)[:_MOST_PAIRS]
    nearness = torch.cat([part.nearness for part in terms]).double()
    agrees = torch.stack([part.agrees for part in terms]).double()
    distance = (-2 * nearness.log()).clamp(min=0).sqrt()  # NaN where a logit is not finite
    local = torch.cat([part.local for part in terms]).double()
    columns = (reading.pairs[shown], shares[shown], weights[shown], values[shown])
    return Details(
        agreeing_pairs=float(mean_of(agrees, reading.weights)),
        pairs=[Pair(k, j, *rest) for (k, j), *rest in zip(*(column.tolist() for column in columns), strict=True)],
        n_pairs_left_out=len(reading.pairs) - len(shown),
        near_boundary=_histogram(distance, 0.0, 5.0, 25),
        local_uncertainty=_histogram(local, 0.0, 1.0, 20),
        log_trust=_histogram(reading.trust.double().log(), -7.0, 7.0, 28),
        doubtful=_doubtful(reading, n_doubtful),
    )


def _doubtful(reading: SignalInputs, n_doubtful: int) -> list[Doubtful]:
    n_samples = len(reading.labels)
    lower = torch.minimum(reading.trust, reading.label_trust).view(-1, n_samples)
    lowest, draws = lower.min(dim=0)
    rows = lowest.sort(stable=True).indices[:n_doubtful]
    places = draws[rows] * n_samples + rows
    classes = (reading.labels[rows], reading.predictions[places], reading.nearest_class[places])
    columns = (column.tolist() for column in (rows, *classes, lowest[rows].double()))
    return [Doubtful(*row) for row in zip(*columns, strict=True)]


def _histogram(values: Tensor, low: float, high: float, n_bins: int) -> Histogram:
    """Count values in bins, NaN in none; integer sums are the same on every device and in every order."""
    width = (high - low) / n_bins
    place = ((values - low) / width).floor().clamp(0, n_bins - 1)
    counted = torch.where(values.isnan(), n_bins, place.nan_to_num(nan=0.0)).long()
    counts = torch.zeros(n_bins + 1, dtype=torch.int64, device=values.device)
    counts.index_add_(0, counted, torch.ones_like(counted))
    return Histogram([low + width * i for i in range(n_bins + 1)], counts[:n_bins].tolist())
