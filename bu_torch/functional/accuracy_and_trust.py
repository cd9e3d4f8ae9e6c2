"""Expected accuracy and trust in one number: how much of each is reached of what can be reached."""

import torch
from torch import Tensor

from bu_torch.functional.checks import check_not_negative
from bu_torch.functional.expected_accuracy import expected_accuracy
from bu_torch.functional.trust import mean_trust_score, trust_score

_LEAST_LOG = 1e-6  # below this logarithm of the highest trust, distances differ by rounding


def accuracy_and_trust(
    accuracy: Tensor, trust: Tensor, best_accuracy: Tensor, best_trust: Tensor, skill: float = 1.0
) -> Tensor:
    """Mean of two shares: expected accuracy, and the logarithm of trust, each of the most that any predictions reach.

    1 if every prediction is the most probable class and the nearest one. The share of trust is negative if the
    predicted classes are farther away than others; it is 0 if no class is nearer than another, so that nothing can be
    reached. It counts by the skill of predicting left-out labels: under much noise the nearest class misleads. The
    score is this project's own.

    Args:
        accuracy: Expected accuracy of the predictions (`expected_accuracy`), in [0, 1].
        trust: Their trust score (`mean_trust_score`), > 0.
        best_accuracy: Expected accuracy of the most probable classes, in (0, 1] (`best_accuracy_and_trust`).
        best_trust: Trust score of the nearest classes, >= 1.
        skill: Weight of the share of trust beside 1 for that of accuracy, >= 0.

    Returns:
        Scalar, at most 1 but for rounding, float64. All arguments are floating-point scalars of one device.

    Raises:
        TypeError, ValueError: If `skill` is no number >= 0.

    Example:
        >>> half = torch.tensor(0.5)
        >>> accuracy_and_trust(half, torch.tensor(2.0), half, torch.tensor(4.0))
        tensor(0.7500, dtype=torch.float64)
    """
    check_not_negative("skill", skill)
    reachable = best_trust.double().log()
    share = torch.where(reachable > _LEAST_LOG, trust.double().log() / reachable, torch.zeros_like(reachable))
    return (accuracy.double() / best_accuracy.double() + skill * share) / (1 + skill)


def best_accuracy_and_trust(
    probabilities: Tensor, class_distances: Tensor, weights: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Most that expected accuracy and trust reach, whatever is predicted.

    Args:
        probabilities: Class probabilities at the points, shape (N, J), floating point, rows sum to 1.
        class_distances: Distance from each point to each class, shape (N, J), >= 0, floating point.
        weights: Relative weight of each point, shape (N,), > 0, floating point; None if all count alike.

    Returns:
        Expected accuracy of the most probable classes, and trust score of the nearest: scalars, float64.

    Raises:
        TypeError, ValueError: If an argument has the wrong dtype, shape, device or values.
    """
    trust = trust_score(class_distances, class_distances.argmin(dim=1))
    accuracy = expected_accuracy(probabilities, probabilities.argmax(dim=1), weights=weights)
    return accuracy, mean_trust_score(trust, weights)
