"""Class probabilities: made of raw predictions, scored against labels, and mixed."""

import torch
from torch import Tensor

from bu_torch.functional.checks import check_floating, check_index, check_range
from bu_torch.functional.weights import mean_of, relative_weights


def as_probabilities(predictions: Tensor) -> Tensor:
    """Turn predictions of one-hot labels into class probabilities.

    Negative values become 0, and each row is divided by its sum.

    Args:
        predictions: Shape (N, J), floating point, with a positive value in each row.

    Returns:
        Shape (N, J), in [0, 1], rows sum to 1, dtype and device of `predictions`.

    Raises:
        TypeError: If `predictions` is not a floating-point tensor.
        ValueError: If it is not of shape (N, J).

    Example:
        >>> as_probabilities(torch.tensor([[-0.5, 1.5], [0.5, 1.5]]))
        tensor([[0.0000, 1.0000],
                [0.2500, 0.7500]])
    """
    check_floating("predictions", predictions, ("N", "J"))
    positive = predictions.clamp(min=0)
    return positive / positive.sum(dim=1, keepdim=True)


def brier_score(probabilities: Tensor, labels: Tensor, *, weights: Tensor | None = None) -> Tensor:
    """Mean squared distance of class probabilities from the one-hot labels (Brier 1950). Smaller is better.

    Args:
        probabilities: Class probabilities, shape (N, J), floating point.
        labels: Classes, shape (N,), integer, in [0, J), on the same device.
        weights: How often each sample counts, relative to the others, shape (N,), > 0, floating point, on the same
            device; None where all count alike.

    Returns:
        Scalar in [0, 2], float64, device of the probabilities; 0 if every label has probability 1.

    Raises:
        TypeError: If an argument has the wrong dtype.
        ValueError: If a shape or a value does not fit.

    Example:
        >>> brier_score(torch.tensor([[1.0, 0.0], [0.5, 0.5]]), torch.tensor([0, 0]))
        tensor(0.2500, dtype=torch.float64)
    """
    _check_probabilities_of_labels("probabilities", probabilities, labels)
    of_label = probabilities.gather(1, labels.long().unsqueeze(1)).double()
    distances = probabilities.double().square().sum(dim=1, keepdim=True) - 2 * of_label + 1
    weights = relative_weights(weights, (probabilities.shape[0],), probabilities.device)
    return mean_of(distances, None if weights is None else weights.unsqueeze(1))


def mixing_weight(first: Tensor, second: Tensor, labels: Tensor, *, weights: Tensor | None = None) -> Tensor:
    """Weight w in [0, 1] for which the mixture (1 - w) first + w second has the least Brier score.

    The Brier score is quadratic in w, so the minimum has a closed form.

    Args:
        first: Class probabilities of samples, made without their own labels, shape (N, J), floating point.
        second: Others of the same samples, also without their own labels; shape, dtype and device of `first`.
        labels: Classes, shape (N,), integer, in [0, J), on the same device.
        weights: As for `brier_score`.

    Returns:
        Scalar, dtype and device of `first`; 0 if both are the same.

    Raises:
        TypeError: If an argument has the wrong dtype.
        ValueError: If a shape or a value does not fit.

    Example:
        >>> probabilities = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
        >>> mixing_weight(probabilities, probabilities.flip(0), torch.tensor([0, 1]))
        tensor(0.)
    """
    check_floating("first", first, ("N", "J"))
    check_floating("second", second, tuple(first.shape))
    _check_probabilities_of_labels("first", first, labels)
    weights = relative_weights(weights, (first.shape[0],), first.device)
    difference = second - first
    residual = -first  # becomes one-hot labels minus `first`
    residual.scatter_add_(1, labels.long().unsqueeze(1), torch.ones_like(first[:, :1]))
    if weights is not None:
        root = weights.sqrt().to(first.dtype).unsqueeze(1)
        difference, residual = difference * root, residual * root
    squared_length = difference.square().sum()
    best = (residual * difference).sum() / squared_length
    return torch.where(squared_length > 0, best, torch.zeros_like(best)).clamp(0, 1)


def _check_probabilities_of_labels(name: str, probabilities: Tensor, labels: Tensor) -> None:
    check_floating(name, probabilities, ("N", "J"))
    check_index("labels", labels, (probabilities.shape[0],), probabilities.device)
    if labels.numel() == 0:
        raise ValueError(f"`{name}` must have shape (N, J) with N >= 1, got no row.")
    check_range("labels", labels, probabilities.shape[1], "classes")
