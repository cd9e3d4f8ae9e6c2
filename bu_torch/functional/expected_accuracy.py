"""The accuracy that class probabilities let one expect of predictions."""

import torch
from torch import Tensor

from bu_torch.functional.checks import check_draws, check_floating
from bu_torch.functional.weights import mean_of, relative_weights


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
    gains = (found - before).view(n_draws, -1).mean(dim=0)
    deviations = gains - mean_of(gains, weights)
    if weights is not None:
        deviations = deviations * weights
    return deviations.square().sum().sqrt() / len(gains)


def _of_predicted(probabilities: Tensor, predictions: Tensor) -> Tensor:
    """Probabilities (N, J) of predictions (N, D), float64; classes from J on have probability 0."""
    n_classes = probabilities.shape[1]
    columns = predictions.long()
    of_predicted = probabilities.gather(1, columns.clamp(max=n_classes - 1))
    return torch.where(columns < n_classes, of_predicted, torch.zeros_like(of_predicted)).double()
