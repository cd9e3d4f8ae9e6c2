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
    if weights is None:
        return [1.0] * n_samples
    return [w * n_samples / math.fsum(weights) for w in weights]


def local_uncertainty(logits, labels, neighbors, bayes_pairs, weights=None, at_samples=None):
    """Eq. 12, 27, 28, 32, 36 to 38: lists of u and k, in which members count by their weights.

    The pair i, j of Eq. 27 is read from the logits `at_samples`, as the paper does, or from `logits` without them.
    """
    at_samples = logits if at_samples is None else at_samples
    weights = relative(weights, len(logits))
    uncertainties, counts = [], []
    for n in range(len(logits)):
        i, j = two_largest(at_samples[n])
        members = neighbors[n]
        gaps = [logits[m][i] - logits[m][j] for m in members]
        h = bandwidth(gaps)
        k_i = k_j = 0.0
        if h > 0:
            for gap, m in zip(gaps, members, strict=True):
                kernel = math.exp(-((gap / h) ** 2) / 2)
                k_i += weights[m] * kernel * (labels[m] == i)
                k_j += weights[m] * kernel * (labels[m] == j)
        k = k_i + k_j
        u = 1 - abs(2 * k_i / k - 1) if k > 0 else 0.0
        uncertainties.append(u if tuple(bayes_pairs[n]) == (i, j) else 0.0)
        counts.append(k)
    return uncertainties, counts


def parzen_uncertainty(logits, labels, neighbors, bayes_pairs, min_weight=1e-6, weights=None, at_samples=None):
    """Eq. 29, 34, 39, 40, in which samples count by their weights; `at_samples` as in `local_uncertainty`."""
    logits = np.asarray(logits, dtype=np.float64)
    labels, neighbors = np.asarray(labels), np.asarray(neighbors)
    pairs = [tuple(int(c) for c in pair) for pair in bayes_pairs]
    uncertainties, counts = local_uncertainty(logits, labels, neighbors, pairs, weights, at_samples)
    weights = relative(weights, len(labels))
    counts = [k * w for k, w in zip(counts, weights, strict=True)]
    total = 0.0
    for pair in sorted(set(pairs)):
        samples = [n for n in range(len(labels)) if pairs[n] == pair]
        weight = math.fsum(counts[n] for n in samples)
        if weight < min_weight:
            value = float(all(np.argmax(logits[n]) == labels[n] for n in samples))
        else:
            value = math.fsum(counts[n] * uncertainties[n] for n in samples) / weight
        total += math.fsum(weights[n] for n in samples) / len(labels) * value
    return total


def trust_score(class_distances, prediction):
    """Jiang et al. (2018), Algorithm 2, for one point."""
    own = class_distances[prediction]
    other = min((d for c, d in enumerate(class_distances) if c != prediction), default=math.inf)
    if own == math.inf:
        return 0.0
    if own == 0:
        return 1.0 if other == 0 else math.inf
    return other / own
