"""Random subsets in which each class keeps its share."""

import torch
from torch import Tensor


def stratified_rows(n_samples: int, n_chosen: int, seed: int, labels: Tensor | None = None) -> Tensor:
    """Rows of a random subset, in ascending order; with labels, each class keeps its share.

    Each class has at least one sample in the subset if there is room for all classes.

    Args:
        n_samples: Samples to choose from.
        n_chosen: Samples to choose; all if there are no more.
        seed: Seed of the choice, 0 <= seed < 2**64.
        labels: Classes, shape (n_samples,), integers, any device. None draws without regard to classes.

    Returns:
        Rows, shape (min(n_chosen, n_samples),), int64, on the CPU.
    """
    n_chosen = min(n_chosen, n_samples)
    order = torch.randperm(n_samples, generator=torch.Generator().manual_seed(seed))
    if labels is not None:
        order = order[labels.cpu()[order].argsort(stable=True)]
        of_class = labels.cpu()[order]
        is_first = torch.ones_like(of_class, dtype=torch.bool)
        is_first[1:] = of_class[1:] != of_class[:-1]
        if int(is_first.sum()) > n_chosen:
            is_first[:] = False
        first, rest = order[is_first], order[~is_first]
        n_rest = n_chosen - len(first)
        # Evenly spaced among the samples in order of their classes: each class gets its share, rounded.
        places = (torch.arange(n_rest, dtype=torch.float64) + 0.5) * (len(rest) / max(n_rest, 1))
        order = torch.cat((first, rest[places.long()]))
    return order[:n_chosen].sort().values
