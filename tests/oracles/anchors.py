"""The two earlier estimators as Ha (2019) writes them, in NumPy float64; misprints put right."""

import math

import numpy as np
from scipy.special import logsumexp, softmax
from scipy.stats import norm


def cvml_widths(z, floor=1e-3, eta=0.5, k_max=3, l_max=10, epsilon=1e-3):
    """Algorithms 7 and 8 with Eq. 4.6, 4.7, 4.10, 4.11, 4.18 to 4.20: h w_n of each value."""
    z = np.asarray(z, dtype=np.float64)
    lowest = floor * np.ptp(z)
    if lowest == 0:
        return np.zeros(len(z))
    gaps = np.subtract.outer(z, z)
    own = np.where(np.eye(len(z)), -np.inf, 0)
    nearest = (abs(gaps) - own).argmin(axis=1)
    w = np.ones(len(z))
    h = max(np.sqrt(np.mean((z - z[nearest]) ** 2)), lowest)
    for _ in range(k_max):
        log_density = logsumexp(norm.logpdf(gaps, scale=h * w), axis=1)
        w = np.exp(-eta * (log_density - log_density.mean()))
        h = max(np.sqrt(np.mean(((z - z[nearest]) / w[nearest]) ** 2)), lowest)
        of_others = norm.logpdf(gaps, scale=h * w) + own
        for _ in range(l_max + 1):
            spread = softmax(of_others, axis=1) * (gaps / w) ** 2
            h = max(np.sqrt(spread.sum(axis=1).mean()), lowest)
            before, of_others = of_others, norm.logpdf(gaps, scale=h * w) + own
            if abs(np.mean(logsumexp(of_others, axis=1) - logsumexp(before, axis=1))) < epsilon:
                break
    return h * w


def measured(p, measure):
    if measure == "triangle":
        return 1 - abs(2 * p - 1)
    return -sum(q * math.log(q) for q in (p, 1 - p) if q > 0) / math.log(2)


def class_uncertainty(counts, pair, measure, priors=None):
    """Section 2.3.5, and 2.4.4 in Eq. 2.4 alone; a class as frequent as the pair's does not break the pair."""
    i, j = pair
    if counts[i] + counts[j] == 0 or any(c > min(counts[i], counts[j]) for k, c in enumerate(counts) if k not in pair):
        return 0.0
    p, q = (counts[k] / (priors[k] if priors is not None and counts[k] else 1) for k in pair)
    return measured(p / (p + q), measure)


def near_boundary_ness(g, label):
    """Section 4.3: eps (g_D1 - g_D2), eps = -1 for a sample classified as labelled."""
    d1, d2 = sorted(range(len(g)), key=lambda c: -g[c])[:2]
    return (-1 if d1 == label else 1) * (g[d1] - g[d2])


def anchor_uncertainty(logits, labels, neighbors, measure):
    """Section 4.5, one anchor at a time; i and j are the most represented classes, samples of j mirrored (Fig. 4.5).

    Of classes that are equally many the one that occurs first.
    """
    values = []
    for members in neighbors:
        given = [labels[m] for m in members]
        i, j = sorted(range(len(logits[0])), key=lambda c: (-given.count(c), [*given, c].index(c), c))[:2]
        axis = [near_boundary_ness(logits[m], labels[m]) * (-1 if labels[m] == j else 1) for m in members]
        k = {i: 0.0, j: 0.0}
        for z, width, label in zip(axis, cvml_widths(axis), given, strict=True):
            if label in k and width:
                k[label] += math.exp(-((z / width) ** 2) / 2)
        values.append(measured(k[i] / (k[i] + k[j]), measure) if k[i] + k[j] else 0.0)
    return values


def cluster_mean(clusters, labels, first, second, n_classes, measure, min_size=8, priors=None):
    """Eq. 2.7 over the clusters of all repeats: a list of repeats, each a list of lists of samples."""
    kept = [c for repeat in clusters for c in repeat if len(c) >= min_size]
    total = 0.0
    for c in kept:
        votes, seconds, counts = (np.bincount(np.take(of, c), minlength=n_classes) for of in (first, second, labels))
        pair = sorted(range(n_classes), key=lambda k: (-votes[k], -seconds[k], k))[:2]
        total += len(c) * class_uncertainty(counts, pair, measure, priors)
    return total / sum(len(c) for c in kept)


def wanted(logits, labels, n_classes):
    """Section 4.4.1: how many samples of each class are in the bin of the histogram that holds zero."""
    found = []
    for c in range(n_classes):
        values = [near_boundary_ness(g, label) for g, label in zip(logits, labels, strict=True) if label == c]
        counts, edges = np.histogram(values, bins="auto")
        place = min(np.searchsorted(edges, 0, side="right"), len(counts)) - 1
        found.append(counts[place] if edges[0] <= 0 <= edges[-1] else 0)
    return found


def omission(labels, predictions, neighbors, significance, weights=None):
    """Share of samples whose cluster is predicted as one class while its labels contradict that, one at a time.

    With weights, a cluster counts as many members as Kish's effective sample size says.
    """
    labels, w = np.array(labels), np.ones(len(labels)) if weights is None else np.array(weights)
    omitted, n_classes = [], 2 + max(*labels, *predictions)
    for draw in np.reshape(predictions, (-1, len(labels))):
        for own, members in zip(draw, neighbors, strict=True):
            given = np.bincount(labels[members], w[members], minlength=n_classes)
            given *= w[members].sum() / (w[members] ** 2).sum()
            other = np.delete(given, own).max()
            is_one = (draw[members] == own).all()
            omitted.append(is_one and other - given[own] > significance * math.sqrt(other + given[own]))
    return np.average(omitted, weights=np.tile(w, len(predictions) // len(labels)))
