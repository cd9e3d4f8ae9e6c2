"""Samples that are there more than once."""

from collections.abc import Iterator

import torch
from torch import Tensor

_BLOCK_ELEMENTS = 2**22  # compared at once


def copies(features: Tensor, neighbors: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Rows (R,) of samples (N, ...) that have exact copies among the nearest, and of one copy each; then the next.

    `neighbors` (N, M) are those of `NeighborGraph`. Each yield holds only rows that the one before held, R >= 1.
    """
    rows = torch.arange(len(features), device=features.device)
    for others in neighbors[:, 1:].unbind(dim=1):
        blocks = rows.split(max(1, _BLOCK_ELEMENTS // features[0].numel()))
        rows = torch.cat([part[(features[others[part]] == features[part]).flatten(1).all(dim=1)] for part in blocks])
        if not len(rows):
            return
        yield rows, others[rows].long()
