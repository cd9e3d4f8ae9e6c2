"""Boundary uncertainty, expected accuracy, trust, and the score of a check: shares of the most that these can reach."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from bu_torch.functional.checks import as_logits, check_not_negative, check_tensor, mean_of, relative_weights, sum_below

HALF_WIDTH = 0.3  # share of the samples that count as near the boundary
_LEAST_LOG = 1e-6  # if the logarithm of the highest trust is smaller, distances differ by rounding alone
_LEAST_UNCERTAINTY = 1e-6  # if the highest is smaller, all labels are certain


def boundary_uncertainty(logits: Tensor, probabilities: Tensor, *, weights: Tensor | None = None) -> Tensor:
    """Boundary uncertainty U of a classifier: how uncertain the labels are along its decision boundary.

    The local uncertainty of Ha et al. (2021), Eq. 37 and 38, is u = 1 - |2p - 1|, for the share p of one of two classes
    that meet. Here p is a label probability in place of a ratio of Parzen counts: u = 2 min(P_i, P_j) for the network's
    own pair {i, j}, its two largest logits. For several classes it is low where the wrong ones meet, as Eq. 18 asks.
    U is the mean of u with weights of nearness to the boundary, a triangular kernel over the rank of F (Eq. 12), the
    difference of the two largest logits, which ends at 30 % of the samples. Samples with equal F share their mean rank.
    `parzen_uncertainty` is the paper's own estimate, by pairs of classes and clusters.

    Args:
        logits: Classifier outputs at the perturbed samples, shape (N, J), floating point, of any scale. Shape (N, 1) or
            (N,) counts as the two classes [0, z].
        probabilities: Probabilities of the labels there, shape (N, C) with 2 <= C <= J, floating point, rows sum to 1;
            a class beyond these has probability 0.
        weights: Relative frequency of each sample in training, shape (N,), > 0, floating point; None for equal ones.

    Returns:
        Scalar in [0, 1], float64; NaN if any logit is not finite.

    Raises:
        TypeError, ValueError: If an argument has the wrong dtype, shape, device or values.

    Example:
        >>> probabilities = torch.tensor([[0.5, 0.5], [0.75, 0.25], [0.0, 1.0], [1.0, 0.0]])
        >>> boundary_uncertainty(torch.tensor([[0.1, 0.0], [1.0, 0.0], [0.0, 2.0], [3.0, 0.0]]), probabilities)
        tensor(1., dtype=torch.float64)
    """
    logits = as_logits(logits)
    check_tensor("probabilities", probabilities, (len(logits), "C"), logits.device)
    if not 2 <= probabilities.shape[1] <= logits.shape[1]:
        raise ValueError(f"`probabilities` must have 2 to {logits.shape[1]} columns, got {probabilities.shape[1]}.")
    low, high = (float(end) for end in torch.aminmax(probabilities))
    if not (low >= 0 and high <= 1 + 1e-3):
        raise ValueError(f"`probabilities` must lie in [0, 1], got values from {low} to {high}.")
    weights = relative_weights(weights, (len(logits),), logits.device)
    classes = top_two(logits)
    local = uncertainty_between(probabilities, classes)
    return uncertainty_along_boundary(logits, local, boundary_weights(half_gap(logits, classes), weights))


def predicted_probabilities(probabilities: Tensor, predictions: Tensor) -> Tensor:
    """Probability of each prediction (N,) or (N, D) by probabilities (N, J), float64; 0 for classes >= J."""
    n_points, n_classes = probabilities.shape
    columns = predictions.long().reshape(n_points, -1)
    known = probabilities.gather(1, columns.clamp(max=n_classes - 1))
    return torch.where(columns < n_classes, known, 0.0).double().view(predictions.shape)


def uncertainty_between(probabilities: Tensor, classes: Tensor) -> Tensor:
    """Local uncertainty u = 2 min(P_i, P_j) (N,), float64, of the classes (N, 2) by probabilities (N, C)."""
    return 2 * predicted_probabilities(probabilities, classes).amin(dim=1)


def top_two(scores: Tensor) -> Tensor:
    """The two classes (N, 2) of largest score (N, J), J >= 2, largest first; ties go to the lower class."""
    first = scores.max(dim=1, keepdim=True).indices  # on a CPU twice as fast as `argmax` or `topk`
    if scores.shape[1] == 2:
        return torch.cat((first, 1 - first), dim=1)
    lowest = -torch.inf if scores.is_floating_point() else torch.iinfo(scores.dtype).min
    second = scores.scatter(1, first, lowest).max(dim=1, keepdim=True).indices
    # If all other scores equal the fill value, the second is the lowest index that is not the first.
    return torch.cat((first, torch.where(second == first, (first == 0).long(), second)), dim=1)


def half_gap(logits: Tensor, classes: Tensor) -> Tensor:
    """Half of the difference of the logits (N, J) of two classes (N, 2), (N,) float64; the whole may overflow."""
    first, second = (logits.gather(1, classes).double() / 2).unbind(dim=1)
    return first - second


def boundary_weights(gap: Tensor, weights: Tensor | None = None) -> Tensor:
    """Nearness of samples to the boundary times their weights, (N,) float64, from the gaps of their logits.

    The nearness is 1 on the boundary, 0 from the nearest 30 % on. Samples with equal gaps share the midpoint of their
    ranks. If those on the boundary are more, they alone count.
    """
    drawn = torch.ones_like(gap) if weights is None else weights
    order, below, until = sum_below(gap, drawn)
    rank = (below + until) / (2 * until[-1])
    nearness = (1 - rank / HALF_WIDTH).clamp(min=0)
    nearness = torch.where(nearness[0] > 0, nearness, (below == 0).double())
    return torch.empty_like(nearness).scatter_(0, order, nearness * drawn[order])


def uncertainty_along_boundary(logits: Tensor, local: Tensor, nearness: Tensor) -> Tensor:
    """Mean of `local` (N,), float64, weighted by the `boundary_weights` (N,) of logits (N, J)."""
    mean = torch.dot(nearness, local) / nearness.sum()
    is_finite = torch.stack(torch.aminmax(logits)).isfinite().all()  # NaN passes through
    return torch.where(is_finite, mean.clamp(0, 1), torch.nan)


def expected_accuracy(probabilities: Tensor, predictions: Tensor, *, weights: Tensor | None = None) -> Tensor:
    """Mean probability of the predicted class: the accuracy to expect if the probabilities are right.

    It needs no labels, so it can score points without labels, such as perturbed samples. This score is our own.

    Args:
        probabilities: Class probabilities at the points, shape (N, J), floating point, rows sum to 1.
        predictions: Predicted classes at the points, shape (N,), or (D * N,) for D copies of the points, integer, >= 0;
            a class >= J has probability 0.
        weights: Relative weight of each point, shape (N,), > 0, floating point; None for equal weights.

    Returns:
        Scalar in [0, 1], float64.

    Raises:
        TypeError, ValueError: If an argument has the wrong dtype, shape, device or values, or there are no points.
    """
    check_tensor("probabilities", probabilities, ("N", "J"))
    if probabilities.numel() == 0:
        raise ValueError(f"`probabilities` must have shape (N, J) with N, J >= 1, got {tuple(probabilities.shape)}.")
    check_tensor("predictions", predictions, ("D * N",), probabilities.device, below=math.inf)
    n_points = len(probabilities)
    if predictions.numel() == 0 or len(predictions) % n_points:
        raise ValueError(f"`predictions` must hold a multiple of the {n_points} points, got {len(predictions)}.")
    weights = relative_weights(weights, (n_points,), probabilities.device)
    of_predicted = predicted_probabilities(probabilities, predictions.view(-1, n_points).T)
    return mean_of(of_predicted, None if weights is None else weights.unsqueeze(1))


def trust_score(class_distances: Tensor, predictions: Tensor) -> Tensor:
    """Trust score of each prediction: distance to the nearest other class over distance to the predicted class.

    Jiang et al. (2018), Algorithm 2, looked up in `TrustScore.class_distances`, which do not depend on the classifier.
    0 / 0 is 1. A class without samples is infinitely far, and predicting it scores 0.

    Args:
        class_distances: Distances from points to classes, shape (N, J), floating point, >= 0, inf for an empty class.
        predictions: Predicted classes, shape (N,), integer, values in [0, J).

    Returns:
        The scores, shape (N,), in [0, inf]; above 1 if the predicted class is the nearest.

    Raises:
        TypeError, ValueError: If an argument has the wrong dtype, shape, device or values; distances below 0 pass.

    Example:
        >>> trust_score(torch.tensor([[1.0, 2.0, 4.0], [1.0, 2.0, 4.0]]), torch.tensor([0, 2]))
        tensor([2.0000, 0.2500])
    """
    check_tensor("class_distances", class_distances, ("N", "J"))
    shape, device = class_distances.shape, class_distances.device
    check_tensor("predictions", predictions, (shape[0],), device, below=shape[1])
    column = predictions.long().unsqueeze(1)
    own = class_distances.gather(1, column).squeeze(1)
    other = class_distances.clone().scatter_(1, column, torch.inf).amin(dim=1)  # a clone keeps the memory layout
    score = torch.where((own == 0) & (other == 0), 1.0, other / own)
    return torch.where(own.isinf(), 0.0, score)


def mean_trust_score(scores: Tensor, weights: Tensor | None = None) -> Tensor:
    """Geometric mean of trust scores in float64, each clipped to [1e-3, 1e3], so that duplicates do not decide alone.

    Args:
        scores: Trust scores, floating point, any shape with at least one entry, in [0, inf].
        weights: Relative weight of each score, of the shape of `scores`, > 0, floating point; None for equal weights.

    Returns:
        Scalar in [1e-3, 1e3], float64.

    Raises:
        TypeError, ValueError: If `scores` is empty, or an argument has the wrong dtype, shape or values.
    """
    check_tensor("scores", scores)
    if scores.numel() == 0:
        raise ValueError("`scores` must hold at least one trust score, got none.")
    weights = relative_weights(weights, tuple(scores.shape), scores.device)
    return mean_of(scores.double().clamp(1e-3, 1e3).log(), weights).exp()


class Attainable(NamedTuple):
    """Most that any classifier reaches at given points: scalars, float64."""

    accuracy: Tensor  # expected accuracy of the most probable classes, in (0, 1]
    uncertainty: Tensor  # boundary uncertainty of a boundary through the most uncertain labels, in [0, 1]
    trust: Tensor  # trust score of the nearest classes, >= 1


def accuracy_uncertainty_trust(
    accuracy: Tensor, uncertainty: Tensor, trust: Tensor, attainable: Attainable, skill: float = 1.0
) -> Tensor:
    """Mean of three shares: of the expected accuracy, boundary uncertainty and log trust that can be reached.

    It is 1 if every prediction is both the most probable and the nearest class, and the boundary runs where the labels
    are most uncertain, between the classes that are likely there. The first two shares have weight 1, and trust the
    skill: the nearest class misleads if many labels are wrong. The share of trust is negative if the predicted classes
    are farther away than others, and 0 if all are equally near. This score is our own, for tables: on images and texts
    a check takes the share of expected accuracy alone.

    Args:
        accuracy: Expected accuracy of the predictions (`expected_accuracy`), in [0, 1].
        uncertainty: Boundary uncertainty (`boundary_uncertainty`), in [0, 1].
        trust: Trust score of the predictions (`mean_trust_score`), > 0.
        attainable: Most that each of them reaches (`attainable`).
        skill: Skill of predicting left-out labels, the weight of trust, >= 0.

    Returns:
        Scalar, at most 1 up to rounding, float64. All tensors are floating-point scalars on one device.

    Raises:
        TypeError, ValueError: If `skill` is not a number >= 0.
    """
    check_not_negative("skill", skill)
    of_accuracy = accuracy.double() / attainable.accuracy.double()
    most = attainable.uncertainty.double()
    of_uncertainty = torch.where(most > _LEAST_UNCERTAINTY, uncertainty.double() / most, 1.0)
    reachable = attainable.trust.double().log()
    of_trust = torch.where(reachable > _LEAST_LOG, trust.double().log() / reachable, 0.0)
    return (of_accuracy + of_uncertainty + skill * of_trust) / (2 + skill)


def attainable(probabilities: Tensor, class_distances: Tensor, weights: Tensor | None = None) -> Attainable:
    """Most that expected accuracy, boundary uncertainty and trust reach at points, whatever the classifier.

    Arguments and errors are those of `expected_accuracy` and `trust_score`, at the same points and without predictions.
    Returns the expected accuracy of the most probable classes; the boundary uncertainty of a boundary that ranks the
    points by the uncertainty of their two likeliest classes, and runs between these; the trust of the nearest classes.
    """
    accuracy = expected_accuracy(probabilities, probabilities.argmax(dim=1), weights=weights)
    local = uncertainty_between(probabilities, top_two(probabilities))
    nearness = boundary_weights(-local, relative_weights(weights, (len(local),), local.device))
    trust = mean_trust_score(trust_score(class_distances, class_distances.argmin(dim=1)), weights)
    return Attainable(accuracy, uncertainty_along_boundary(probabilities, local, nearness), trust)


def cost_of_memorising(probabilities: Tensor, weights: Tensor | None = None) -> Tensor:
    """Mean of the largest class probability less the mean of the others: what predicting a wrong label costs."""
    largest = probabilities.amax(dim=1).double()
    return mean_of(largest - (1 - largest) / max(1, probabilities.shape[1] - 1), weights)
