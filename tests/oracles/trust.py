"""What Jiang et al. (2018) do with a trust score, by loops and sorting."""

import itertools
import math
import random


def precision(scores, is_hit, percentile, n_orders=None):
    """Share of hits above a percentile: the mean over all orders (or random ones) of equal scores."""
    n_kept = len(scores) - math.floor(percentile * len(scores) / 100 + 1e-9)
    rng = random.Random(0)
    samples = list(range(len(scores)))
    if n_orders is None:
        orders = list(itertools.permutations(samples))
    else:
        orders = [rng.sample(samples, len(samples)) for _ in range(n_orders)]
    kept = [sorted(order, key=lambda n: -scores[n])[:n_kept] for order in orders]
    return sum(sum(is_hit[n] for n in rows) / n_kept for rows in kept) / len(kept)
