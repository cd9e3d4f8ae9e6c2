"""Kernel regression of labels: the kernel of a wide network, leave-one-out in closed form, a mixture of two guesses."""

import math

import torch
from torch import Tensor

from bu_torch.functional._checks import check_floating, check_index, check_integer, check_not_negative, check_range

_BLOCK_ELEMENTS = 2**20  # of a copy of the basis at once


def tangent_kernel(first: Tensor, second: Tensor, n_hidden_layers: int = 1) -> Tensor:
    """Neural tangent kernel of an infinitely wide fully connected ReLU network (Jacot et al. 2018).

    Regression with it is what such a network learns by gradient descent on the squared error. The recursion over the
    layers is that of Arora et al. (2019, section 3.1), the bias of the first layer being a further feature
    of 1; unlike a Gaussian kernel it has no width to choose.

    Args:
        first: Points, shape (N, d), floating point.
        second: Points, shape (P, d), dtype and device of `first`.
        n_hidden_layers: >= 1.

    Returns:
        Shape (N, P), dtype and device of `first`; symmetric and positive semidefinite where both are the same points.

    Raises:
        TypeError: If an argument has the wrong dtype.
        ValueError: If a shape does not fit.

    Example:
        >>> tangent_kernel(torch.tensor([[1.0], [-1.0]]), torch.tensor([[1.0]]))
        tensor([[2.0000],
                [0.3183]])
    """
    check_floating("first", first, ("N", "d"))
    check_floating("second", second, ("P", first.shape[1]))
    check_integer("n_hidden_layers", n_hidden_layers, 1)
    width = first.shape[1] + 1
    covariance = (first @ second.T + 1) / width
    norms = [(points.square().sum(dim=1) + 1).div(width).sqrt() for points in (first, second)]
    scale = norms[0].unsqueeze(1) * norms[1]
    kernel = covariance
    for _ in range(n_hidden_layers):
        cosine = (covariance / scale).clamp(-1, 1)
        angle = cosine.arccos()
        covariance = scale * ((1 - cosine.square()).clamp(min=0).sqrt() + (math.pi - angle) * cosine) / math.pi
        kernel = covariance + kernel * (math.pi - angle) / math.pi
    return kernel


def left_out_predictions(basis: Tensor, eigenvalues: Tensor, targets: Tensor, penalty: float) -> Tensor:
    """What ridge regression predicts of each sample when fitted to all the others, without fitting N times.

    With the hat matrix H = B diag(1 / (e + penalty)) B' the prediction is y_i - (y_i - (H y)_i) / (1 - H_ii), as in
    PRESS (Allen 1974).

    Args:
        basis: The features rotated so that B'B = diag(e), shape (N, R), floating point.
        eigenvalues: e, shape (R,), >= 0.
        targets: Shape (N, J), dtype and device of `basis`.
        penalty: >= 0; with 0, the hat matrix must leave each sample some residual.

    Returns:
        Shape (N, J), dtype and device of `basis`.

    Raises:
        TypeError: If an argument has the wrong dtype.
        ValueError: If a shape does not fit or the penalty is negative.

    Example:
        >>> basis = torch.tensor([[1.0], [1.0]])
        >>> left_out_predictions(basis, torch.tensor([2.0]), torch.tensor([[3.0], [5.0]]), penalty=1.0)
        tensor([[2.5000],
                [1.5000]])
    """
    check_floating("basis", basis, ("N", "R"))
    check_floating("eigenvalues", eigenvalues, (basis.shape[1],))
    check_floating("targets", targets, (basis.shape[0], "J"))
    check_not_negative("penalty", penalty)
    shrinkage = 1 / (eigenvalues + penalty).unsqueeze(1)
    residuals = targets - basis @ (shrinkage * (basis.T @ targets))
    blocks = basis.split(max(1, _BLOCK_ELEMENTS // max(1, basis.shape[1])))
    return targets - residuals / (1 - torch.cat([block.square() @ shrinkage for block in blocks]))


def as_probabilities(predictions: Tensor) -> Tensor:
    """Predictions of one-hot labels as class probabilities: negative ones are 0, and each row is divided by its sum.

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


def mixing_weight(first: Tensor, second: Tensor, labels: Tensor) -> Tensor:
    """The weight w in [0, 1] whose mixture (1 - w) first + w second of class probabilities has the least Brier score.

    Args:
        first: Class probabilities of samples whose own label they do not know, shape (N, J), floating point.
        second: Likewise, shape, dtype and device of `first`.
        labels: Classes, shape (N,), integer, in [0, J), on the same device.

    Returns:
        Scalar, dtype and device of `first`; 0 where the two are the same.

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
    check_index("labels", labels, (first.shape[0],), first.device)
    if labels.numel() == 0:
        raise ValueError("`first` must have shape (N, J) with N >= 1, got no row.")
    check_range("labels", labels, first.shape[1], "classes")
    apart = second - first
    missing = -first
    missing.scatter_add_(1, labels.long().unsqueeze(1), torch.ones_like(first[:, :1]))
    length = apart.square().sum()
    return torch.where(length > 0, (missing * apart).sum() / length, torch.zeros_like(length)).clamp(0, 1)
