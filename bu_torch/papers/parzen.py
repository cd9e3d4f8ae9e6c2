"""Boundary uncertainty by Proposal 2, from Parzen counts of the labels near the boundary, and the omitted boundary.

Equation numbers are those of Ha, Katagiri, Watanabe and Ohsaki (2021), "An improved boundary uncertainty-based
estimation for classifier evaluation", Journal of Signal Processing Systems, doi:10.1007/s11265-021-01671-1.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from bu_torch.functional.checks import (
    as_logits,
    check_not_negative,
    check_tensor,
    mean_of,
    relative_weights,
    sum_by_group,
)
from bu_torch.functional.score import top_two
from bu_torch.papers.bandwidth import Bandwidth, boundary_kernel


class Clusters(NamedTuple):
    """Samples as the functions below take them once they are checked."""

    labels: Tensor  # (N,)
    neighbors: Tensor  # (N, M)
    weights: Tensor | None  # (N,) of mean 1
    pairs: Tensor  # distinct likely Bayes pairs, (P, 2) int64, ascending
    pair_index: Tensor  # the pair of each sample among them, (N,)


def parzen_uncertainty(
    logits: Tensor,
    labels: Tensor,
    neighbors: Tensor,
    bayes_pairs: Tensor,
    *,
    predicted_pairs: Tensor | None = None,
    min_weight: float = 1e-6,
    bandwidth: Bandwidth = "silverman",
    weights: Tensor | None = None,
) -> Tensor:
    """Boundary uncertainty U of a classifier: 1 if its decision boundary is the Bayes boundary, 0 at worst.

    Eq. 40, with Eq. 39 for separable classes. Departures from the paper: the kernel width is Silverman's rule as
    Silverman states it (`silverman_bandwidth`). A pair of classes counts as separable if fewer than `min_weight`
    effective samples lie near its boundary; in the paper, if there are none. Eq. 36 as printed is always true; the
    condition here is that of Eq. 18. Sample weights are this project's own.

    Args:
        logits: Classifier outputs at the perturbed samples (Algorithm 1), shape (N, J), floating point, of any scale.
            Shape (N, 1) or (N,) counts as the two classes [0, z].
        labels: Given classes, shape (N,), integer, values in [0, J).
        neighbors: Clusters, the sample itself first (`NeighborGraph.neighbors`), shape (N, M), integer, in [0, N).
        bayes_pairs: Likely Bayes pairs (`PrototypeClassifier.top_pairs`), shape (N, 2), integer, ascending in each row.
        predicted_pairs: Classes i and j of each sample (Eq. 27), shape (N, 2), integer, ascending in each row: the two
            largest logits at the unperturbed sample, as in the paper. None takes the two largest of `logits`.
        min_weight: A pair is separable if the effective number of samples near its boundary is below this, >= 0.
        bandwidth: `"silverman"` as in the paper (`silverman_bandwidth`) or `"cvml"` (`cvml_bandwidth`).
        weights: Relative frequency of each sample in training, shape (N,), > 0, floating point; None for equal ones.
            They weight cluster members in k, and samples in sums of u and k; the width h depends on the logits alone.

    Returns:
        Scalar in [0, 1], float64 for float64 logits and float32 for all others; NaN if any logit is not finite. The
        order of the samples does not change it.

    Raises:
        TypeError, ValueError: If an argument has the wrong dtype, shape, device or values.

    Note: U stays below 1 even at the Bayes boundary, about 0.8 at M = 40: the smaller of two counts is biased down.

    Example:
        >>> logits = torch.tensor([[0.1, 0.0], [0.2, 0.0], [0.0, 0.3], [0.0, 0.1]])
        >>> neighbors = torch.tensor([[0, 1, 3], [1, 0, 3], [2, 3, 0], [3, 2, 0]])
        >>> parzen_uncertainty(logits, torch.tensor([0, 0, 1, 1]), neighbors, torch.tensor([[0, 1]] * 4))
        tensor(0.9705)
    """
    logits, clusters = _checked(logits, labels, neighbors, bayes_pairs, predicted_pairs, weights)
    check_not_negative("min_weight", min_weight)
    return mean_of_pairs(logits, clusters, predicted_pairs, bandwidth, min_weight).to(logits.dtype)


def local_uncertainty(
    logits: Tensor,
    labels: Tensor,
    neighbors: Tensor,
    bayes_pairs: Tensor,
    *,
    predicted_pairs: Tensor | None = None,
    bandwidth: Bandwidth = "silverman",
    weights: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Local uncertainty u of each sample, and the effective number k of its cluster's members near the boundary.

    Eq. 27, 28, 32 and 36 to 38: u is 1 if both classes of the predicted pair are equally common near the boundary. It
    is 0 if one of them is absent there, if k = 0, or if the predicted pair is not the sample's likely Bayes pair.

    Arguments and errors are those of `parzen_uncertainty`. Returns u (N,) in [0, 1], and k (N,), a sum of weights of
    mean 1, in [0, M] without them; in the precision of the logits. k is NaN for a cluster with a non-finite logit.
    """
    logits, clusters = _checked(logits, labels, neighbors, bayes_pairs, predicted_pairs, weights)
    return _local_uncertainty(logits, clusters, predicted_pairs, bandwidth)


def top_pairs(scores: Tensor) -> Tensor:
    """The two classes of largest score in each row (N, J), J >= 2, ascending (N, 2); ties go to the lower class."""
    return top_two(scores).sort(dim=1).values


def mean_of_pairs(
    logits: Tensor, clusters: Clusters, predicted_pairs: Tensor | None, bandwidth: Bandwidth, min_weight: float = 1e-6
) -> Tensor:
    """`parzen_uncertainty`, unchecked, float64."""
    labels, _, weights, pairs, pair_index = clusters
    local, counts = _local_uncertainty(logits, clusters, predicted_pairs, bandwidth)
    drawn = torch.ones_like(counts) if weights is None else weights
    is_wrong = logits.max(dim=1).indices != labels
    parts = (drawn, drawn * counts, drawn * counts * local, is_wrong)
    size, weight, uncertain, wrong = (sum_by_group(part, pair_index, len(pairs)) for part in parts)
    is_separable = (weight < min_weight) | (weight == 0)
    mixed = uncertain / torch.where(is_separable, 1.0, weight)
    values = torch.where(is_separable, (wrong == 0).double(), mixed.clamp(max=1.0))  # U_kl, (P,)
    is_finite = torch.stack(torch.aminmax(logits)).isfinite().all()  # NaN passes through
    return torch.where(is_finite, (values * (size / len(labels))).sum(), torch.nan)


def _local_uncertainty(
    logits: Tensor, clusters: Clusters, predicted_pairs: Tensor | None, bandwidth: Bandwidth
) -> tuple[Tensor, Tensor]:
    """`local_uncertainty`, unchecked."""
    top = top_pairs(logits) if predicted_pairs is None else predicted_pairs.long()  # i and j of Eq. 27
    # Halving keeps differences of huge logits in range and is exact, except for the smallest numbers. The result does
    # not depend on the scale.
    low, high = torch.aminmax(logits)
    scaled = logits * torch.where(torch.maximum(-low, high) < 1, 1.0, 0.5)
    scaled += (logits * 0).sum(dim=1, keepdim=True)  # NaN if a logit of the row is not finite
    members = clusters.neighbors.long()
    gap = scaled[members, top[:, :1]] - scaled[members, top[:, 1:]]  # F of Eq. 12, (N, M)
    kernel = boundary_kernel(gap, bandwidth)
    if clusters.weights is not None:
        kernel = kernel * clusters.weights.to(kernel)[members]
    given = clusters.labels[members]
    count_i, count_j = ((kernel * (given == of_pair)).sum(dim=1) for of_pair in top.split(1, dim=1))  # Eq. 27
    counts = count_i + count_j
    # 1 - |2 k_i / k - 1| = 2 min(k_i, k_j) / k, which loses no digits near 0.
    local = 2 * torch.minimum(count_i, count_j) / torch.where(counts == 0, 1.0, counts)
    agrees = (top == clusters.pairs[clusters.pair_index]).all(dim=1)
    return torch.where(agrees & (counts != 0), local, 0.0), counts


def _checked(
    logits: Tensor,
    labels: Tensor,
    neighbors: Tensor,
    bayes_pairs: Tensor,
    predicted_pairs: Tensor | None,
    weights: Tensor | None,
) -> tuple[Tensor, Clusters]:
    """Logits in float32 or float64 and what is known of the samples, after checks of all arguments."""
    logits = as_logits(logits)
    n_samples, n_classes = logits.shape
    check_tensor("labels", labels, (n_samples,), logits.device, below=n_classes)
    check_tensor("neighbors", neighbors, (n_samples, "M"), logits.device, below=n_samples)
    if neighbors.shape[1] < 2:
        raise ValueError(f"`neighbors` must have shape (N, M) with M >= 2, got {tuple(neighbors.shape)}.")
    for name, pairs in (("bayes_pairs", bayes_pairs), ("predicted_pairs", predicted_pairs)):
        if pairs is not None:
            check_tensor(name, pairs, (n_samples, 2), logits.device, below=n_classes)
            if not bool((pairs[:, 0] < pairs[:, 1]).all()):
                raise ValueError(f"`{name}` must hold two classes in ascending order in each row.")
    weights = relative_weights(weights, (n_samples,), logits.device)
    distinct = torch.unique(bayes_pairs.long(), dim=0, return_inverse=True)
    return logits, Clusters(labels, neighbors, weights, *distinct)


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
    check_tensor("shares", shares, ("N", "J"))
    if shares.shape[1] < 2 or not bool(shares.isfinite().all()):
        raise ValueError(f"`shares` must be finite, (N, J) with J >= 2, got {tuple(shares.shape)}.")
    n_samples = shares.shape[0]
    check_tensor("neighbors", neighbors, (n_samples, "M"), shares.device, below=n_samples)
    check_tensor("predictions", predictions, ("D * N",), shares.device, below=math.inf)
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
        return (shares * neighbors.shape[1]).round().to(torch.promote_types(shares.dtype, torch.float32))
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
