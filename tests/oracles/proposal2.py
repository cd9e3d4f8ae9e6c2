"""Boundary uncertainty as Ha et al. (2021) write it, in NumPy float64 with loops."""

import math

import numpy as np
from scipy.stats import iqr

from oracles import boundary


def two_largest(row):
    """Indices of the two largest values, the lower index first where they are equal, then ascending."""
    return tuple(sorted(boundary.two_largest(row)))


def bandwidth(values):
    values = np.asarray(values, dtype=np.float64)
    return 0.9 * min(values.std(ddof=1), iqr(values) / 1.34) * len(values) ** (-1 / 5)


def relative(weights, n_samples):
    """Weights with mean 1; 1 for all where there are none."""
    return np.ones(n_samples) if weights is None else np.asarray(weights) / np.mean(weights)


def local_uncertainty(logits, labels, neighbors, bayes_pairs, weights=None, at_samples=None):
    """Eq. 12, 27, 28, 32, 36 to 38: lists of u and k, in which members count by their weights.

    The pair i, j of Eq. 27 is read from the logits `at_samples`, as the paper does, or from `logits` without them.
    """
    pairs = map(two_largest, logits if at_samples is None else at_samples)
    logits, labels, weights = np.array(logits), np.array(labels), relative(weights, len(logits))
    uncertainties, counts = [], []
    for (i, j), members, bayes_pair in zip(pairs, neighbors, bayes_pairs, strict=True):
        gaps = logits[members, i] - logits[members, j]
        h = bandwidth(gaps)
        kernel = weights[members] * (np.exp(-((gaps / h) ** 2) / 2) if h > 0 else 0.0)
        k_i, k_j = (math.fsum(kernel[labels[members] == label]) for label in (i, j))
        k = k_i + k_j
        u = 1 - abs(2 * k_i / k - 1) if k > 0 else 0.0
        uncertainties.append(u if tuple(bayes_pair) == (i, j) else 0.0)
        counts.append(k)
    return uncertainties, counts


def parzen_uncertainty(logits, labels, neighbors, bayes_pairs, min_weight=1e-6, weights=None, at_samples=None):
    """Eq. 29, 34, 39, 40, in which samples count by their weights; `at_samples` as in `local_uncertainty`."""
    u, counts = map(np.array, local_uncertainty(logits, labels, neighbors, bayes_pairs, weights, at_samples))
    is_right, weights = np.argmax(logits, axis=1) == labels, relative(weights, len(labels))
    counts, total = counts * weights, 0.0
    for pair in np.unique(bayes_pairs, axis=0):
        rows = (np.equal(bayes_pairs, pair)).all(axis=1)
        is_small = counts[rows].sum() < min_weight
        value = is_right[rows].all() if is_small else np.average(u[rows], weights=counts[rows])
        total += weights[rows].sum() / len(labels) * value
    return total


def trust_score(class_distances, prediction):
    """Jiang et al. (2018), Algorithm 2, for one point."""
    own = class_distances[prediction]
    other = min(class_distances[:prediction] + class_distances[prediction + 1 :], default=math.inf)
    if own == math.inf:
        return 0.0
    return other / own if own > 0 else math.inf if other > 0 else 1.0
