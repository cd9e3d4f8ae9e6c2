"""Expected accuracy, and the score of a check: shares of the most that it, uncertainty and trust can reach."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from bu_torch.functional import boundary
from bu_torch.functional.checks import check_not_negative, check_tensor
from bu_torch.functional.trust import mean_trust_score, trust_score
from bu_torch.functional.weights import mean_of, relative_weights

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


def cost_of_memorising(probabilities: Tensor, weights: Tensor | None = None) -> Tensor:
    """Mean of the largest class probability less the mean of the others: what predicting a wrong label costs."""
    largest = probabilities.amax(dim=1).double()
    return mean_of(largest - (1 - largest) / max(1, probabilities.shape[1] - 1), weights)


class Attainable(NamedTuple):
    """Most that any classifier reaches at given points: scalars, float64."""

    accuracy: Tensor  # expected accuracy of the most probable classes, in (0, 1]
    uncertainty: Tensor  # boundary uncertainty of a boundary through the most uncertain labels, in [0, 1]
    trust: Tensor  # trust score of the nearest classes, >= 1


def accuracy_uncertainty_trust(
    accuracy: Tensor, uncertainty: Tensor, trust: Tensor, attainable: Attainable, skill: float = 1.0
) -> Tensor:
    """Mean of three shares: of the expected accuracy, boundary uncertainty and log trust that can be reached.

    The value is 1 if every prediction is both the most probable and the nearest class, and the boundary runs where the
    labels are most uncertain, between the classes that are likely there. The first two shares have weight 1, and trust
    the skill of predicting left-out labels, at most 1: the nearest class misleads if many labels are wrong. The share
    of trust is negative if the predicted classes are farther away than others, and 0 if all are equally near. This
    score is our own, for tables: on images and texts a check takes the share of expected accuracy alone.

    Args:
        accuracy: Expected accuracy of the predictions (`expected_accuracy`), in [0, 1].
        uncertainty: Boundary uncertainty (`boundary_uncertainty`), in [0, 1].
        trust: Trust score of the predictions (`mean_trust_score`), > 0.
        attainable: Most that each of them reaches (`attainable`).
        skill: Weight of the share of trust, >= 0.

    Returns:
        Scalar, at most 1 up to rounding, float64. All tensors are floating-point scalars on one device.

    Raises:
        TypeError, ValueError: If `skill` is not a number >= 0.
    """
    check_not_negative("skill", skill)
    of_accuracy = accuracy.double() / attainable.accuracy.double()
    most = attainable.uncertainty.double()
    of_uncertainty = torch.where(most > _LEAST_UNCERTAINTY, uncertainty.double() / most, torch.ones_like(most))
    reachable = attainable.trust.double().log()
    of_trust = torch.where(reachable > _LEAST_LOG, trust.double().log() / reachable, torch.zeros_like(reachable))
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
