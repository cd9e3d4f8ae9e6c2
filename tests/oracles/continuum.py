"""Mevik (2003) from its definitions: one sample at a time, expectations by quadrature, SciPy float64."""

import itertools
import math

from scipy.integrate import quad


def intervals(edges):
    ends = [-math.inf, *edges, math.inf]
    return list(itertools.pairwise(ends))


def density(value, centre, sigma):
    return math.exp(-(((value - centre) / sigma) ** 2) / 2) / (sigma * math.sqrt(2 * math.pi))


def class_of(value, edges):
    (found,) = [j for j, (low, high) in enumerate(intervals(edges)) if low <= value < high]
    return found


def penalty(j, value, edges):
    """Eq. 8."""
    low, high = intervals(edges)[j]
    if value < low:
        return (value - low) ** 2
    return 0.0 if value < high else (value - high) ** 2


def probability(j, centre, edges, sigma):
    """That centre + error falls into class j."""
    low, high = intervals(edges)[j]
    if sigma == 0:
        return float(low <= centre < high)
    return quad(density, *clipped(low, high, centre, sigma), args=(centre, sigma), epsabs=1e-14, epsrel=1e-12)[0]


def expected_penalty(j, centre, edges, sigma):
    """Eq. 10, by quadrature."""
    if sigma == 0:
        return penalty(j, centre, edges)

    def integrand(value):
        return penalty(j, value, edges) * density(value, centre, sigma)

    pieces = (clipped(low, high, centre, sigma) for low, high in intervals(edges))
    return sum(quad(integrand, *piece, epsabs=1e-14, epsrel=1e-12)[0] for piece in pieces)


def clipped(low, high, centre, sigma):
    """The part of an interval within 12 standard deviations, where all of the mass is."""
    least, most = centre - 12 * sigma, centre + 12 * sigma
    return min(max(low, least), most), min(max(high, least), most)


def mean(values):
    values = list(values)
    return math.fsum(values) / len(values)


def n_classes(edges):
    return len(edges) + 1


def data_error_rate(z, edges, sigma):
    return mean(1 - probability(class_of(v, edges), v, edges, sigma) for v in z)


def data_squared_error_rate(z, edges, sigma):
    """Eq. 20: the label's penalty at y times the label's probability."""
    return mean(sum(penalty(j, v, edges) * probability(j, v, edges, sigma) for j in range(n_classes(edges))) for v in z)


def error_count(predictions, z, edges):
    return mean(p != class_of(v, edges) for p, v in zip(predictions, z, strict=True))


def adjusted_error_count(predictions, z, edges, sigma):
    weights = [probability(class_of(v, edges), v, edges, sigma) for v in z]
    wrong = [w for w, p, v in zip(weights, predictions, z, strict=True) if p != class_of(v, edges)]
    return math.fsum(wrong) / math.fsum(weights)


def error_rate(predictions, z, edges, sigma):
    return mean(1 - probability(p, v, edges, sigma) for p, v in zip(predictions, z, strict=True))


def minimal_error_rate(z, edges, sigma):
    return mean(min(1 - probability(j, v, edges, sigma) for j in range(n_classes(edges))) for v in z)


def squared_error_count(predictions, z, edges):
    return mean(penalty(p, v, edges) for p, v in zip(predictions, z, strict=True))


def adjusted_squared_error_count(predictions, z, edges, sigma):
    """Eq. 29, first line."""
    total = []
    for p, v in zip(predictions, z, strict=True):
        low, high = intervals(edges)[p]
        total.append(((low - v) ** 2 - sigma**2) if v < low else ((high - v) ** 2 - sigma**2) if v >= high else 0.0)
    return mean(total)


def squared_error_rate(predictions, z, edges, sigma):
    return mean(expected_penalty(p, v, edges, sigma) for p, v in zip(predictions, z, strict=True))


def minimal_squared_error_rate(z, edges, sigma):
    return mean(min(expected_penalty(j, v, edges, sigma) for j in range(n_classes(edges))) for v in z)
