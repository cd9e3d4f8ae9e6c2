"""Laber and Murphy (2008) by enumeration, and the .632 estimate by loops, in NumPy float64; targets are -1 and 1."""

import itertools
import math

import numpy as np
from scipy.linalg import null_space
from scipy.optimize import linprog


def supremum_by_patterns(x, y, counts):
    """Every pattern of sides; the least loss on a cell by trying every set of samples that may lie on its boundary."""
    n_features = x.shape[1]
    fit = np.linalg.lstsq(x, y, rcond=None)[0]
    root = np.sqrt(counts)
    used = [i for i in range(len(y)) if counts[i] != 1 and x[i].any()]
    constant = sum((counts[i] - 1) * (y[i] < 0) for i in range(len(y)) if not x[i].any())
    best = 0.0
    for pattern in itertools.product((1.0, -1.0), repeat=len(used)):
        cone = np.array(pattern)[:, None] * x[used]
        inside = {"A_ub": -cone, "b_ub": -np.ones(len(cone)), "bounds": (None, None)}
        if used and not linprog(np.zeros(n_features), **inside).success:  # no beta has every row strictly positive
            continue
        errors = sum((counts[i] - 1) * (side != y[i]) for side, i in zip(pattern, used, strict=True))
        least = math.inf
        for size in range(min(n_features, len(used)) + 1):
            for active in itertools.combinations(range(len(used)), size):
                free = null_space(cone[list(active)], rcond=1e-10) if active else np.eye(n_features)
                design = np.round(root[:, None] * x @ free, 12)  # rounding errors are no directions
                beta = free @ np.linalg.lstsq(design, root * y, rcond=1e-10)[0]
                if (cone @ beta >= -1e-9).all():
                    least = min(least, np.sum(counts * (y - x @ beta) ** 2))
        gap = np.sum(counts * (y - x @ fit) ** 2) - least
        best = max(best, abs(constant + errors) * min(max(gap + 1, 0), 1))
    return best / len(y)


def estimate_632(x, y, n_draws, rng):
    """0.368 of the training error and 0.632 of the error on what bootstrap draws leave out."""

    def wrong(rows):
        beta = np.linalg.lstsq(x[rows], y[rows], rcond=None)[0]
        return [(score >= -1e-12) != (target > 0) for score, target in zip(x @ beta, y, strict=True)]

    n = len(y)
    left_out = []
    for _ in range(n_draws):
        rows = rng.integers(n, size=n)
        errors = wrong(rows)
        left_out += [errors[i] for i in range(n) if i not in rows]
    return 0.368 * np.mean(wrong(np.arange(n))) + 0.632 * np.mean(left_out)
