"""Accuracy to expect of predictions, given class probabilities."""

import math

import torch
from torch import Tensor

from bu_torch.functional.checks import check_tensor
from bu_torch.functional.weights import mean_of, relative_weights


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

    Example:
        >>> probabilities = torch.tensor([[0.75, 0.25], [0.5, 0.5], [0.5, 0.5]])
        >>> expected_accuracy(probabilities, torch.tensor([0, 1, 2]))
        tensor(0.4167, dtype=torch.float64)
    """
    check_tensor("probabilities", probabilities, ("N", "J"))
    if probabilities.numel() == 0:
        raise ValueError(f"`probabilities` must have shape (N, J) with N, J >= 1, got {tuple(probabilities.shape)}.")
    check_tensor("predictions", predictions, ("D * N",), probabilities.device, below=math.inf)
    n_points = len(probabilities)
    if predictions.numel() == 0 or len(predictions) % n_points:
        raise ValueError(f"`predictions` must hold a multiple of the {n_points} points, got {len(predictions)}.")
    weights = relative_weights(weights, (n_points,), probabilities.device)
    likely = predicted_probabilities(probabilities, predictions.view(-1, n_points).T)
    return mean_of(likely, None if weights is None else weights.unsqueeze(1))


def cost_of_memorising(probabilities: Tensor, weights: Tensor | None = None) -> Tensor:
    """Mean of the largest class probability less the mean of the others: what predicting a wrong label costs."""
    largest = probabilities.amax(dim=1).double()
    return mean_of(largest - (1 - largest) / max(1, probabilities.shape[1] - 1), weights)


def predicted_probabilities(probabilities: Tensor, predictions: Tensor) -> Tensor:
    """Probability of each prediction (N,) or (N, D) by probabilities (N, J), float64; 0 for classes >= J."""
    n_points, n_classes = probabilities.shape
    columns = predictions.long().reshape(n_points, -1)
    likely = probabilities.gather(1, columns.clamp(max=n_classes - 1))
    return torch.where(columns < n_classes, likely, 0.0).double().view(predictions.shape)
