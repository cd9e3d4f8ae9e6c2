"""Boundary uncertainty from label probabilities, sample by sample."""

import numpy as np


def gap(row):
    first, second = sorted(row, reverse=True)[:2]
    return first - second


def ranks(values, weights):
    """Share of the weight before each value, with half of the weight of values that are equal to it."""
    steps = np.subtract.outer(values, values)
    return ((steps > 0) + (steps == 0) / 2) @ np.array(weights) / sum(weights)


def two_largest(row):
    """Places of the two largest numbers, the lower place first among equal ones."""
    return sorted(range(len(row)), key=lambda place: (-row[place], place))[:2]


def mean_along(gaps, local, weights, half_width=0.3):
    """Mean of local uncertainties, by nearness to the boundary: from 1 at rank 0 to 0 at `half_width`."""
    near = np.clip(1 - ranks(gaps, weights) / half_width, 0, None)
    if not near.any():  # more than 60 % are equally near
        near = np.equal(gaps, min(gaps))
    return np.average(local, weights=near * weights)


def local_uncertainty(logits, probabilities):
    """Twice the probability of the less likely of the two classes with the largest logits."""
    pairs = [(two_largest(row), likely) for row, likely in zip(logits, probabilities, strict=True)]
    return [2 * min(likely[place] if place < len(likely) else 0.0 for place in pair) for pair, likely in pairs]


def boundary_uncertainty(logits, probabilities, weights=None):
    """Eq. 37 and 38 of the network's pair; each sample has a row of logits and a row of probabilities."""
    weights = [1.0] * len(logits) if weights is None else weights
    return mean_along([gap(row) for row in logits], local_uncertainty(logits, probabilities), weights)


def largest_boundary_uncertainty(probabilities, weights):
    """The same where each sample is ranked by the uncertainty of its two likeliest classes, which meet there."""
    local = local_uncertainty(probabilities, probabilities)
    return mean_along([-u for u in local], local, weights)
