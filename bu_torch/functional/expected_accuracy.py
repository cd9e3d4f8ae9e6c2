"""The accuracy that class probabilities let one expect of predictions."""

import torch
from torch import Tensor

from bu_torch.functional.checks import check_floating, check_index


def expected_accuracy(probabilities: Tensor, predictions: Tensor, *, validate_args: bool = True) -> Tensor:
    """Mean probability of the predicted class: the accuracy to expect if the probabilities are right.

    Points without a label can be scored in this way, such as the perturbed samples: the probabilities stand in for
    their labels. The score is this project's own.

    Args:
        probabilities: Class probabilities at the points, shape (P, J), floating point, rows sum to 1.
        predictions: Predicted classes at the same points, shape (P,), integer, >= 0, on the same device. A class from J
            on has probability 0.
        validate_args: Check the values of `predictions`, which waits for the device; shapes and dtypes are always
            checked.

    Returns:
        Scalar in [0, 1], float64, device of the probabilities.

    Raises:
        TypeError: If an argument has the wrong dtype.
        ValueError: If a shape does not fit, there are no points, a prediction is negative, or the devices differ.

    Example:
        >>> probabilities = torch.tensor([[0.75, 0.25], [0.5, 0.5], [0.5, 0.5]])
        >>> expected_accuracy(probabilities, torch.tensor([0, 1, 2]))
        tensor(0.4167, dtype=torch.float64)
    """
    check_floating("probabilities", probabilities, ("P", "J"))
    check_index("predictions", predictions, (probabilities.shape[0],), probabilities.device)
    if probabilities.numel() == 0:
        raise ValueError(f"`probabilities` must have shape (P, J) with P, J >= 1, got {tuple(probabilities.shape)}.")
    return mean_probability(probabilities, predictions.unsqueeze(1), validate_args)


def mean_probability(probabilities: Tensor, predictions: Tensor, validate_args: bool) -> Tensor:
    """Mean over (N, D) of the probabilities (N, J) of predictions (N, D); classes from J on have probability 0."""
    if validate_args and int(predictions.min()) < 0:
        raise ValueError(f"`predictions` must hold classes 0, 1, ..., got {int(predictions.min())}.")
    n_classes = probabilities.shape[1]
    columns = predictions.long()
    of_predicted = probabilities.gather(1, columns.clamp(max=n_classes - 1))
    return torch.where(columns < n_classes, of_predicted, torch.zeros_like(of_predicted)).double().mean()
