"""The two earlier estimators as Ha (2019) writes them, in NumPy float64 with loops; misprints put right."""

import math

import numpy as np


def phi(x):
    return math.exp(-x * x / 2) / math.sqrt(2 * math.pi)


def cvml_widths(z, floor=1e-3, eta=0.5, k_max=3, l_max=10, epsilon=1e-3):
    """Algorithms 7 and 8 with Eq. 4.6, 4.7, 4.10, 4.11, 4.18 to 4.20: h w_n of each value."""
    z = [float(v) for v in z]
    n = len(z)
    lowest = floor * (max(z) - min(z))
    if lowest == 0:
        return [0.0] * n
    nearest = [min((m for m in range(n) if m != i), key=lambda m: abs(z[i] - z[m])) for i in range(n)]

    def first_width(w):
        return max(math.sqrt(sum(((z[i] - z[nearest[i]]) / w[nearest[i]]) ** 2 for i in range(n)) / n), lowest)

    def window(i, m, h, w):
        return phi((z[i] - z[m]) / (h * w[m])) / (h * w[m])

    def log_sum(i, h, w):
        """Logarithm of the windows of the others at z_i, also where all underflow."""
        logs = [-(((z[i] - z[m]) / (h * w[m])) ** 2) / 2 - math.log(h * w[m]) for m in range(n) if m != i]
        return max(logs) + math.log(sum(math.exp(v - max(logs)) for v in logs))

    def share(i, m, h, w):
        log_window = -(((z[i] - z[m]) / (h * w[m])) ** 2) / 2 - math.log(h * w[m])
        return math.exp(log_window - log_sum(i, h, w))

    def likeliest(w):
        h = first_width(w)
        before = sum(log_sum(i, h, w) for i in range(n))
        for _ in range(l_max + 1):
            spread = sum(share(i, m, h, w) * ((z[i] - z[m]) / w[m]) ** 2 for i in range(n) for m in range(n) if m != i)
            h = max(math.sqrt(spread / n), lowest)
            now = sum(log_sum(i, h, w) for i in range(n))
            if abs(now - before) / n < epsilon:
                break
            before = now
        return h

    w = [1.0] * n
    h = first_width(w)
    for _ in range(k_max):
        density = [sum(window(i, m, h, w) for m in range(n)) / n for i in range(n)]
        mean = math.exp(sum(math.log(p) for p in density) / n)
        w = [(p / mean) ** -eta for p in density]
        h = likeliest(w)
    return [h * v for v in w]


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


def anchor_uncertainty(logits, labels, neighbors, measure="triangle", gap="own"):
    """Section 4.5, one anchor at a time; i and j are the most represented classes, samples of j mirrored (Fig. 4.5).

    Of classes that are equally many the one that occurs first.
    """
    values = []
    for members in neighbors:
        given = [labels[m] for m in members]
        i, j = sorted(range(len(logits[0])), key=lambda c: (-given.count(c), [*given, c].index(c), c))[:2]
        axis = [near_boundary_ness(logits[m], labels[m]) * (-1 if labels[m] == j else 1) for m in members]
        if gap == "pair":
            axis = [logits[m][j] - logits[m][i] for m in members]
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
        votes = [sum(first[n] == k for n in c) for k in range(n_classes)]
        seconds = [sum(second[n] == k for n in c) for k in range(n_classes)]
        pair = sorted(range(n_classes), key=lambda k: (-votes[k], -seconds[k], k))[:2]
        counts = [sum(labels[n] == k for n in c) for k in range(n_classes)]
        total += len(c) * class_uncertainty(counts, pair, measure, priors)
    return total / sum(len(c) for c in kept)


def wanted(logits, labels, n_classes):
    """Section 4.4.1: how many samples of each class are in the bin of the histogram that holds zero."""
    counts = []
    for c in range(n_classes):
        values = []
        for g, label in zip(logits, labels, strict=True):
            if label == c:
                values.append(near_boundary_ness(g, label))
        edges = np.histogram_bin_edges(values, bins="auto")
        last = len(edges) - 2

        def holds(k, v, edges=edges, last=last):
            return edges[k] <= v < edges[k + 1] or (k == last and v == edges[-1])

        at_zero = [k for k in range(last + 1) if holds(k, 0)]
        counts.append(sum(holds(at_zero[0], v) for v in values) if at_zero else 0)
    return counts


def omission(labels, predictions, neighbors, significance, weights=None):
    """Share of samples whose cluster is predicted as one class while its labels contradict that, one at a time.

    With weights, a cluster counts as many members as Kish's effective sample size says.
    """
    n = len(labels)
    w = [1.0] * n if weights is None else weights
    omitted = 0.0
    for start in range(0, len(predictions), n):
        draw = predictions[start : start + n]
        for i, members in enumerate(neighbors):
            size = sum(w[m] for m in members) ** 2 / sum(w[m] ** 2 for m in members)
            classes = {draw[i], *(labels[m] for m in members), -1}
            given = {c: sum(w[m] for m in members if labels[m] == c) for c in classes}
            own, *others = (given[c] * size / sum(given.values()) for c in (draw[i], *(classes - {draw[i]})))
            is_one = len({draw[m] for m in members}) == 1
            omitted += w[i] * (is_one and max(others) - own > significance * math.sqrt(max(others) + own))
    return omitted / (sum(w) * len(predictions) / n)
