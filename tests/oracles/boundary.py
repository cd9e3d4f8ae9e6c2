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


def boundary_uncertainty(logits, probabilities, weights=None):
    """Eq. 37 and 38 of the network's pair; each sample has a row of logits, or one, and a row of probabilities."""
    rows = [[0.0, row] if isinstance(row, float) else [0.0, *row] if len(row) == 1 else row for row in logits]
    weights = [1.0] * len(rows) if weights is None else weights
    local = []
    for row, likely in zip(rows, probabilities, strict=True):
        padded = [*likely, *[0.0] * (len(row) - len(likely))]
        local.append(2 * min(padded[place] for place in two_largest(row)))
    return mean_along([gap(row) for row in rows], local, weights)


def largest_boundary_uncertainty(probabilities, weights=None):
    """The same where each sample is ranked by the uncertainty of its two likeliest classes, which meet there."""
    local = [2 * sorted(row)[-2] for row in probabilities]
    return mean_along([-u for u in local], local, [1.0] * len(local) if weights is None else weights)
