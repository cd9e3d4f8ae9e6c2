"""Samples that are there more than once."""

from collections.abc import Iterator

from torch import Tensor, arange


def copies(features: Tensor, neighbors: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Samples that have exact copies among the nearest, with one copy each; again with the second, and so on.

    Args:
        features: Shape (N, ...).
        neighbors: Clusters, shape (N, M), the sample itself first, then nearest first (`NeighborGraph.neighbors`).

    Yields:
        Rows (R,) int64 and the rows of their copies (R,), R >= 1; each time of those alone that were there before.
    """
    rows = arange(len(features), device=features.device)
    for others in neighbors[:, 1:].unbind(dim=1):
        rows = rows[(features[others[rows]] == features[rows]).flatten(1).all(dim=1)]
        if not len(rows):
            return
        yield rows, others[rows].long()
