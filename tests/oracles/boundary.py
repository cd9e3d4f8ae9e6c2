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


def boundary_uncertainty(logits, probabilities, weights=None, half_width=0.3):
    """A row of logits or one logit, and a row of probabilities, for each sample."""
    rows = [[0.0, row] if isinstance(row, float) else [0.0, *row] if len(row) == 1 else row for row in logits]
    weights = [1.0] * len(rows) if weights is None else weights
    gaps = [gap(row) for row in rows]
    near = [max(0.0, 1 - rank / half_width) for rank in ranks(gaps, weights)]
    if not any(near):  # more than 60 % are equally near
        near = [float(one == min(gaps)) for one in gaps]
    mass = [k * w for k, w in zip(near, weights, strict=True)]
    return sum(m * (1 - gap(row)) for m, row in zip(mass, probabilities, strict=True)) / sum(mass)
