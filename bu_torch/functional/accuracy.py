"""The accuracy that class probabilities let one expect of predictions, alone and beside trust."""

import torch
from torch import Tensor

from bu_torch.functional.checks import check_draws, check_floating, check_not_negative
from bu_torch.functional.trust import mean_trust_score, trust_score
from bu_torch.functional.weights import mean_and_error, mean_of, relative_weights

_LEAST_LOG = 1e-6  # below this logarithm of the highest trust, distances differ by rounding


def expected_accuracy(
    probabilities: Tensor, predictions: Tensor, *, weights: Tensor | None = None, validate_args: bool = True
) -> Tensor:
    """Mean probability of the predicted class: the accuracy to expect if the probabilities are right.

    Points without a label can be scored in this way, such as the perturbed samples: the probabilities stand in for
    their labels. The score is this project's own.

    Args:
        probabilities: Class probabilities at the points, shape (N, J), floating point, rows sum to 1.
        predictions: Predicted classes at the same points, shape (N,), integer, >= 0; a class from J on has probability
            0. Shape (D * N,) holds those of D copies of the points, one copy of all after another.
        weights: Relative weight of each point, shape (N,), > 0, floating point; None if all count alike. Points of rare
            classes that weigh more make it a balanced accuracy.
        validate_args: Check the values of `predictions` and scale the weights to a mean of 1, which waits for the
            device. False takes weights that have this mean.

    Returns:
        Scalar in [0, 1], float64.

    Raises:
        TypeError, ValueError: If an argument has the wrong dtype, shape, device or values, or there are no points.

    Example:
        >>> probabilities = torch.tensor([[0.75, 0.25], [0.5, 0.5], [0.5, 0.5]])
        >>> expected_accuracy(probabilities, torch.tensor([0, 1, 2]))
        tensor(0.4167, dtype=torch.float64)
    """
    check_floating("probabilities", probabilities, ("N", "J"))
    n_points = probabilities.shape[0]
    if probabilities.numel() == 0:
        raise ValueError(f"`probabilities` must have shape (N, J) with N, J >= 1, got {tuple(probabilities.shape)}.")
    check_draws(predictions, n_points, probabilities.device, validate_args)
    if validate_args:
        weights = relative_weights(weights, (n_points,), probabilities.device)
    found = _of_predicted(probabilities, predictions.view(-1, n_points).T)
    return mean_of(found, None if weights is None else weights.unsqueeze(1))


def standard_error_of_gain(
    probabilities: Tensor, predictions: Tensor, others: Tensor, n_draws: int, weights: Tensor | None = None
) -> Tensor:
    """Standard error of the difference between the expected accuracies of two sets of predictions (D * N,), unchecked.

    The differences are paired: two networks that predict alike have none, however unsure their accuracies are. A
    sample is drawn once and perturbed D times, so the draws of a sample are averaged first. Weights (N,) have mean 1.
    """
    found, before = (_of_predicted(probabilities, columns.unsqueeze(1)) for columns in (predictions, others))
    return mean_and_error((found - before).view(n_draws, -1).mean(dim=0), weights)[1]


def _of_predicted(probabilities: Tensor, predictions: Tensor) -> Tensor:
    """Probabilities (N, J) of predictions (N, D), float64; classes from J on have probability 0."""
    n_classes = probabilities.shape[1]
    columns = predictions.long()
    of_predicted = probabilities.gather(1, columns.clamp(max=n_classes - 1))
    return torch.where(columns < n_classes, of_predicted, torch.zeros_like(of_predicted)).double()


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
