"""Samples that are there more than once."""

from collections.abc import Iterator

from torch import Tensor, arange


def copies(features: Tensor, neighbors: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Rows (R,) of samples (N, ...) that have exact copies among the nearest, and of one copy each; then the next.

    `neighbors` (N, M) are those of `NeighborGraph`. Each yield holds only rows that the one before held, R >= 1.
    """
    rows = arange(len(features), device=features.device)
    for others in neighbors[:, 1:].unbind(dim=1):
        rows = rows[(features[others[rows]] == features[rows]).flatten(1).all(dim=1)]
        if not len(rows):
            return
        yield rows, others[rows].long()
