"""Omission: the part of the Bayes boundary that the decision boundary leaves out."""

import torch
from torch import Tensor

from bu_torch.functional.checks import check_draws, check_floating, check_index, check_not_negative, check_range
from bu_torch.functional.weights import mean_of, relative_weights


def omission(
    shares: Tensor, predictions: Tensor, neighbors: Tensor, *, significance: float = 2.0, weights: Tensor | None = None
) -> Tensor:
    """Share of samples in regions that the decision boundary should have cut off but does not reach.

    A decision boundary that covers only a part of the Bayes boundary still has a high boundary uncertainty (Ha 2019,
    section 4.6.8; Ha et al. 2021, section 6.9). The sources give no check for the missing part; this is this project's.

    A sample is away from the boundary if its whole cluster is predicted as one class. It counts as omitted if the
    labels of the cluster contradict that class beyond chance: with n_p members labelled as predicted and n_c of the
    commonest other class, n_c - n_p > z sqrt(n_c + n_p), a sign test at z = `significance` standard deviations.

    A displaced boundary leaves such a region beside it too, but has a low boundary uncertainty. A part of the boundary
    is missing if boundary uncertainty is high and omission is well above 0.

    Args:
        shares: Share of each class among the labels of each cluster, shape (N, J) with J >= 2, floating point
            (`label_votes` with decay 0 and the same weights).
        predictions: Predicted classes at D * N points, draw after draw of all N samples, shape (D * N,), integer, >= 0.
            A class >= J has no labels.
        neighbors: Clusters, shape (N, M), integer, values in [0, N) (`NeighborGraph.neighbors`).
        significance: z, 0 <= z < sqrt(M): with a larger z no cluster can count.
        weights: Relative frequency of each sample in training, shape (N,), > 0, floating point; None for equal ones.
            The size of a cluster is then Kish's effective sample size.

    Returns:
        Scalar in [0, 1], float64: the mean over the draws; 0 is best.

    Raises:
        TypeError, ValueError: If an argument has the wrong dtype, shape, device or range.

    Example:
        >>> shares = torch.tensor([[0.1, 0.9]]).repeat(20, 1)
        >>> neighbors = torch.arange(20).repeat(20, 1)
        >>> omission(shares, torch.zeros(20, dtype=torch.int64), neighbors)
        tensor(1., dtype=torch.float64)
    """
    check_floating("shares", shares, ("N", "J"))
    if shares.shape[1] < 2:
        raise ValueError(f"`shares` must have shape (N, J) with J >= 2, got {tuple(shares.shape)}.")
    if not bool(shares.isfinite().all()):
        raise ValueError("`shares` must be finite, got NaN or infinity.")
    n_samples = shares.shape[0]
    check_index("neighbors", neighbors, (n_samples, "M"), shares.device)
    check_draws(predictions, n_samples, shares.device)
    check_range("neighbors", neighbors, n_samples, "sample indices")
    size = neighbors.shape[1]
    check_not_negative("significance", significance)
    if not significance < size**0.5:
        raise ValueError(f"`significance` must satisfy 0 <= z < sqrt(M) with M = {size}, got {significance}.")
    weights = relative_weights(weights, (n_samples,), shares.device)
    counts = cluster_counts(shares, neighbors, weights)
    return omission_of_counts(counts, predictions, neighbors, significance, weights)


def cluster_counts(shares: Tensor, neighbors: Tensor, weights: Tensor | None) -> Tensor:
    """Labels of each class in each cluster (N, J), unchecked; with weights they add up to its effective size.

    Kish (1965): (sum of w)^2 / (sum of w^2) members of equal weight give a mean of the same precision.
    """
    if weights is None:
        return (shares * neighbors.shape[1]).round()
    members = weights[neighbors.long()]
    relative = members / members.amax(dim=1, keepdim=True)  # scaled, so that squares do not underflow
    sizes = relative.sum(dim=1).square() / relative.square().sum(dim=1)
    return shares * sizes.to(shares.dtype).unsqueeze(1)


def omission_of_counts(
    counts: Tensor, predictions: Tensor, neighbors: Tensor, significance: float = 2.0, weights: Tensor | None = None
) -> Tensor:
    """Compute `omission` from the result of `cluster_counts`, unchecked; weights have a mean of 1."""
    n_samples, n_classes = counts.shape
    most, commonest = counts.topk(2, dim=1)
    members, omitted = neighbors.long(), []
    for draw in predictions.long().split(n_samples):
        own = counts.gather(1, draw.clamp(max=n_classes - 1).unsqueeze(1)).squeeze(1) * (draw < n_classes)
        other = torch.where(commonest[:, 0] == draw, most[:, 1], most[:, 0])
        is_wrong = other - own > significance * (other + own).sqrt()
        predicted = draw[members]
        is_uniform = (predicted == predicted[:, :1]).all(dim=1)
        omitted.append(mean_of((is_uniform & is_wrong).double(), weights))
    return torch.stack(omitted).mean()
