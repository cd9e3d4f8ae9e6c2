"""Votes of the nearby labels."""

import torch
from torch import Tensor

from bu_torch.functional.checks import check_index, check_integer, check_not_negative, check_range
from bu_torch.functional.weights import relative_weights


def label_votes(
    labels: Tensor,
    neighbors: Tensor,
    decay: float,
    n_classes: int | None = None,
    *,
    leave_one_out: bool = False,
    weights: Tensor | None = None,
) -> Tensor:
    """Share of each class in the votes of a sample's neighbourhood, where the m-th nearest weighs m^-decay.

    A weighted nearest-neighbour estimate of the class probabilities at each sample. With a large decay the sample's own
    label decides alone; with decay 0 all members of the cluster weigh the same.

    Args:
        labels: Classes, shape (N,), integer, >= 0.
        neighbors: Clusters, the sample itself first, shape (N, M) with M >= 2, integer (`NeighborGraph.neighbors`).
        decay: Exponent of the rank, >= 0.
        n_classes: J; None for the largest label + 1.
        leave_one_out: Leave the sample's own vote out; its nearest other sample then ranks first.
        weights: Frequency of each sample in training, by which its vote counts, shape (N,), > 0; None if all are alike.

    Returns:
        Shape (N, J), in [0, 1], rows sum to 1, float32.

    Raises:
        TypeError, ValueError: If an argument has the wrong dtype, shape, device or values.

    Example:
        >>> label_votes(torch.tensor([0, 1, 1]), torch.tensor([[0, 1, 2], [1, 2, 0], [2, 1, 0]]), decay=0.0)
        tensor([[0.3333, 0.6667],
                [0.3333, 0.6667],
                [0.3333, 0.6667]])
    """
    check_index("labels", labels, ("N",), labels.device if isinstance(labels, Tensor) else torch.device("cpu"))
    check_index("neighbors", neighbors, (labels.shape[0], "M"), labels.device)
    if labels.numel() == 0 or neighbors.shape[1] < 2:
        raise ValueError(f"`neighbors` must have shape (N, M) with N >= 1, M >= 2, got {tuple(neighbors.shape)}.")
    check_not_negative("decay", decay)
    n_classes = int(labels.max()) + 1 if n_classes is None else n_classes
    check_integer("n_classes", n_classes, 1)
    check_range("labels", labels, n_classes, "classes")
    check_range("neighbors", neighbors, labels.shape[0], "rows of `labels`")
    weights = relative_weights(weights, (labels.shape[0],), labels.device)
    voters = (neighbors[:, 1:] if leave_one_out else neighbors).long()  # uint8 would count as a mask
    return count_votes(labels, voters, decay, n_classes, weights)


def count_votes(labels: Tensor, voters: Tensor, decay: float, n_classes: int, weights: Tensor | None) -> Tensor:
    """The votes of `label_votes`, of some samples, whose voters (n, M) are given; nothing is checked."""
    of_rank = torch.arange(1, voters.shape[1] + 1, dtype=torch.float64, device=labels.device).pow(-decay)
    of_rank /= of_rank.sum()
    columns = labels[voters].long()
    shares = of_rank.float().expand(columns.shape) if weights is None else of_rank * weights[voters]
    votes = shares.new_zeros(len(voters), n_classes)
    if votes.device.type == "cpu":
        votes.scatter_add_(1, columns, shares)
    else:  # one rank at a time, because an accelerator adds in any order
        for column, share in zip(columns.split(1, dim=1), shares.split(1, dim=1), strict=True):
            votes.scatter_(1, column, votes.gather(1, column) + share)
    return votes if weights is None else (votes / votes.sum(dim=1, keepdim=True)).float()
