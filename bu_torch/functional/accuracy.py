"""Accuracy to expect of predictions, given class probabilities: alone, and combined with trust."""

import torch
from torch import Tensor

from bu_torch.functional.checks import check_draws, check_floating, check_not_negative
from bu_torch.functional.trust import mean_trust_score, trust_score
from bu_torch.functional.weights import mean_and_error, mean_of, relative_weights

_LEAST_LOG = 1e-6  # if the logarithm of the highest trust is smaller, distances differ by rounding alone


def expected_accuracy(
    probabilities: Tensor, predictions: Tensor, *, weights: Tensor | None = None, validate_args: bool = True
) -> Tensor:
    """Mean probability of the predicted class: the accuracy to expect if the probabilities are right.

    It needs no labels, so it can score points without labels, such as perturbed samples. This score is our own.

    Args:
        probabilities: Class probabilities at the points, shape (N, J), floating point, rows sum to 1.
        predictions: Predicted classes at the same points, shape (N,), integer, >= 0; a class >= J has probability 0.
            For D copies of the points the shape is (D * N,), copy after copy.
        weights: Relative weight of each point, shape (N,), > 0, floating point; None for equal weights. Larger weights
            for rare classes give a balanced accuracy.
        validate_args: Check the values of `predictions` and scale the weights to a mean of 1, which waits for the
            device. If False, the weights must have this mean.

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
    found = _predicted_probabilities(probabilities, predictions.view(-1, n_points).T)
    return mean_of(found, None if weights is None else weights.unsqueeze(1))


def standard_error_of_gain(
    probabilities: Tensor, predictions: Tensor, others: Tensor, n_draws: int, weights: Tensor | None = None
) -> Tensor:
    """Standard error of the difference between the expected accuracies of two sets of predictions (D * N,), unchecked.

    The differences are paired, so the error is 0 for two networks that predict alike. The D perturbed copies of a
    sample are not independent, so they are averaged first. Weights (N,) have mean 1.
    """
    found, before = (_predicted_probabilities(probabilities, some.unsqueeze(1)) for some in (predictions, others))
    return mean_and_error((found - before).view(n_draws, -1).mean(dim=0), weights)[1]


def _predicted_probabilities(probabilities: Tensor, predictions: Tensor) -> Tensor:
    """Probability of each prediction (N, D) by probabilities (N, J), float64; classes >= J have probability 0."""
    n_classes = probabilities.shape[1]
    columns = predictions.long()
    found = probabilities.gather(1, columns.clamp(max=n_classes - 1))
    return torch.where(columns < n_classes, found, torch.zeros_like(found)).double()


def accuracy_and_trust(
    accuracy: Tensor, trust: Tensor, best_accuracy: Tensor, best_trust: Tensor, skill: float = 1.0
) -> Tensor:
    """Mean of two ratios: expected accuracy, and the logarithm of trust, each to the best that predictions can reach.

    The value is 1 if every prediction is both the most probable and the nearest class. The ratio of trust is negative
    if the predicted classes are farther away than others, and 0 if all classes are equally near. Its weight is the
    skill of predicting left-out labels: the nearest class misleads if many labels are wrong. This score is our own.

    Args:
        accuracy: Expected accuracy of the predictions (`expected_accuracy`), in [0, 1].
        trust: Their trust score (`mean_trust_score`), > 0.
        best_accuracy: Expected accuracy of the most probable classes, in (0, 1] (`best_accuracy_and_trust`).
        best_trust: Trust score of the nearest classes, >= 1.
        skill: Weight of the ratio of trust, >= 0; the ratio of accuracy has weight 1.

    Returns:
        Scalar, at most 1 up to rounding, float64. All tensors are floating-point scalars on one device.

    Raises:
        TypeError, ValueError: If `skill` is not a number >= 0.

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
    """Highest expected accuracy and highest trust that any predictions reach.

    Args:
        probabilities: Class probabilities at the points, shape (N, J), floating point, rows sum to 1.
        class_distances: Distance from each point to each class, shape (N, J), >= 0, floating point.
        weights: Relative weight of each point, shape (N,), > 0, floating point; None for equal weights.

    Returns:
        Expected accuracy of the most probable classes, and trust score of the nearest classes: scalars, float64.

    Raises:
        TypeError, ValueError: If an argument has the wrong dtype, shape, device or values.
    """
    trust = trust_score(class_distances, class_distances.argmin(dim=1))
    accuracy = expected_accuracy(probabilities, probabilities.argmax(dim=1), weights=weights)
    return accuracy, mean_trust_score(trust, weights)
