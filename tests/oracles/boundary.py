"""Boundary uncertainty from label probabilities, sample by sample."""


def gap(row):
    first, second = sorted(row, reverse=True)[:2]
    return first - second


def ranks(values, weights):
    """Share of the weight before each value, with half of the weight of values that are equal to it."""
    total = sum(weights)
    return [
        sum(w for v, w in zip(values, weights, strict=True) if v < value) / total
        + sum(w for v, w in zip(values, weights, strict=True) if v == value) / (2 * total)
        for value in values
    ]


def two_largest(row):
    """Places of the two largest numbers, the lower place first among equal ones."""
    return sorted(range(len(row)), key=lambda place: (-row[place], place))[:2]


def mean_along(gaps, local, weights, half_width=0.3):
    """Mean of local uncertainties, by nearness to the boundary: from 1 at rank 0 to 0 at `half_width`."""
    near = [max(0.0, 1 - rank / half_width) for rank in ranks(gaps, weights)]
    if not any(near):  # more than 60 % are equally near
        near = [float(one == min(gaps)) for one in gaps]
    mass = [k * w for k, w in zip(near, weights, strict=True)]
    return sum(m * u for m, u in zip(mass, local, strict=True)) / sum(mass)


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
