"""Random subsets in which each class keeps its share."""

import torch
from torch import Tensor


def stratified_rows(n_samples: int, n_chosen: int, seed: int, labels: Tensor | None = None) -> Tensor:
    """Ascending rows (min(n_chosen, n_samples),) of a random subset, on the CPU.

    With labels (n_samples,), integers, each class keeps its share, and at least one sample if there is room for all.
    """
    n_chosen = min(n_chosen, n_samples)
    order = torch.randperm(n_samples, generator=torch.Generator().manual_seed(seed))
    if labels is not None:
        order = order[labels.cpu()[order].argsort(stable=True)]
        is_first = torch.nn.functional.pad(labels.cpu()[order].diff() != 0, (1, 0), value=True)
        if int(is_first.sum()) > n_chosen:
            is_first[:] = False
        first, rest = order[is_first], order[~is_first]
        n_rest = n_chosen - len(first)
        # Evenly spaced among the samples in order of their classes: each class gets its share, rounded.
        places = (torch.arange(n_rest, dtype=torch.float64) + 0.5) * (len(rest) / max(n_rest, 1))
        order = torch.cat((first, rest[places.long()]))
    return order[:n_chosen].sort().values
