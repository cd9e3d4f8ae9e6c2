"""Expected accuracy, trust, and the score of a check: shares of the most that these and uncertainty can reach."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from bu_torch.functional import boundary
from bu_torch.functional.checks import check_not_negative, check_tensor, mean_of, relative_weights

_LEAST_LOG = 1e-6  # if the logarithm of the highest trust is smaller, distances differ by rounding alone
_LEAST_UNCERTAINTY = 1e-6  # if the highest is smaller, all labels are certain


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
    likely = boundary.predicted_probabilities(probabilities, predictions.view(-1, n_points).T)
    return mean_of(likely, None if weights is None else weights.unsqueeze(1))


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

    Args:
        probabilities: Class probabilities at the points, shape (N, J), floating point, rows sum to 1.
        class_distances: Distance from each point to each class, shape (N, J), >= 0, floating point.
        weights: Relative weight of each point, shape (N,), > 0, floating point; None for equal weights.

    Returns:
        Expected accuracy of the most probable classes; boundary uncertainty of a boundary that ranks the points by the
        uncertainty of their two likeliest classes, and runs between these; trust score of the nearest classes.

    Raises:
        TypeError, ValueError: If an argument has the wrong dtype, shape, device or values.
    """
    accuracy = expected_accuracy(probabilities, probabilities.argmax(dim=1), weights=weights)
    local = boundary.largest_uncertainty(probabilities)
    kernel = boundary.boundary_weights(-local, relative_weights(weights, (len(local),), local.device))
    trust = mean_trust_score(trust_score(class_distances, class_distances.argmin(dim=1)), weights)
    return Attainable(accuracy, boundary.uncertainty_along_boundary(probabilities, local, kernel), trust)


def cost_of_memorising(probabilities: Tensor, weights: Tensor | None = None) -> Tensor:
    """Mean of the largest class probability less the mean of the others: what predicting a wrong label costs."""
    largest = probabilities.amax(dim=1).double()
    return mean_of(largest - (1 - largest) / max(1, probabilities.shape[1] - 1), weights)
