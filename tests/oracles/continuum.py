"""Mevik (2003) from its definitions: one sample at a time, in SciPy's float64."""

import itertools
import math

import numpy as np
from scipy.integrate import quad
from scipy.special import ndtr


def interval(j, edges):
    return list(itertools.pairwise([-math.inf, *edges, math.inf]))[j]


def wrong(j, value, edges):
    low, high = interval(j, edges)
    return float(not low <= value < high)


def penalty(j, value, edges):
    """Eq. 8."""
    low, high = interval(j, edges)
    return max(low - value, 0.0, value - high) ** 2


def probability(j, centre, edges, sigma):
    """That centre + error falls into class j."""
    if sigma == 0:
        return 1 - wrong(j, centre, edges)
    low, high = interval(j, edges)
    return ndtr((high - centre) / sigma) - ndtr((low - centre) / sigma)


def expected(loss, j, centre, edges, sigma):
    """Mean of `wrong` or `penalty` at centre + error; Eq. 10 by quadrature."""
    if sigma == 0:
        return loss(j, centre, edges)
    if loss is wrong:
        return 1 - probability(j, centre, edges, sigma)

    def integrand(value):
        return penalty(j, value, edges) * math.exp(-(((value - centre) / sigma) ** 2) / 2)

    ends = centre - 12 * sigma, centre + 12 * sigma  # where all of the mass is
    total = quad(integrand, *ends, points=edges, epsabs=1e-14, epsrel=1e-12)[0]
    return total / (sigma * math.sqrt(2 * math.pi))


def rate(name, predictions, z, edges, sigma):
    """The estimate of this name."""
    loss, classes = penalty if "squared" in name else wrong, range(len(edges) + 1)
    pairs = list(zip(predictions, z, strict=True))
    if name.startswith("data_"):  # Eq. 18 and 20: the label's loss times the label's probability
        return np.mean([sum(loss(j, v, edges) * probability(j, v, edges, sigma) for j in classes) for v in z])
    if name.startswith("minimal_"):
        return np.mean([min(expected(loss, j, v, edges, sigma) for j in classes) for v in z])
    if name == "adjusted_error_count":
        (own,) = np.array([[probability(j, v, edges, sigma) for j in classes if not wrong(j, v, edges)] for v in z]).T
        return np.average([wrong(p, v, edges) for p, v in pairs], weights=own)
    if name == "adjusted_squared_error_count":  # Eq. 29, first line
        return np.mean([penalty(p, v, edges) - sigma**2 * wrong(p, v, edges) for p, v in pairs])
    return np.mean([expected(loss, p, v, edges, 0 if name.endswith("_count") else sigma) for p, v in pairs])
