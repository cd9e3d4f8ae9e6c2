"""Kernel regression: the kernel of a wide network, and leave-one-out predictions in closed form."""

import math

import torch
from torch import Tensor

from bu_torch.functional.checks import check_floating, check_integer, check_not_negative

_BLOCK_ELEMENTS = 2**20  # of a copy of the basis at once
_GRAM_COLUMNS = 250
_LEAST_EIGENVALUE = 1e-10  # relative to the largest; smaller ones are rounding errors


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


def landmark_projection(kernel: Tensor) -> tuple[Tensor, Tensor]:
    """Coordinates whose products are the kernel in units of its mean diagonal, without checks (Nystroem).

    Takes the kernel of the landmarks (L, L). Returns its eigenvalues e (R,) and the projection P (L, R): a point with
    kernel values k (L,) to the landmarks has the coordinates k P. Those of the landmarks, B (L, R), have B'B = diag(e).
    """
    unit = kernel.diagonal().mean()
    eigenvalues, eigenvectors = torch.linalg.eigh(kernel / unit)
    is_kept = eigenvalues > _LEAST_EIGENVALUE * eigenvalues.max()
    return eigenvalues[is_kept], eigenvectors[:, is_kept] / eigenvalues[is_kept].sqrt() / unit


def landmark_factor(kernel: Tensor) -> Tensor:
    """The factor C (L, L), lower, with C C' the kernel of the landmarks in units of its mean diagonal, without checks.

    For coordinates as `landmark_projection` gives them, but for a rotation: those of a point with kernel values k (L,),
    in the same units, are the solution b of C b = k. Copies among the landmarks are told apart by rounding's size.
    """
    kernel = kernel / kernel.diagonal().mean()
    kernel.diagonal().add_(_LEAST_EIGENVALUE * len(kernel))
    return torch.linalg.cholesky(kernel)


def gram_matrix(basis: Tensor) -> Tensor:
    """B'B of B (N, R): a block of columns with itself and those after it, for the rest is the same mirrored."""
    gram = basis.new_empty(basis.shape[1], basis.shape[1])
    for start in range(0, len(gram), _GRAM_COLUMNS):
        stop = start + _GRAM_COLUMNS
        gram[start:stop, start:] = basis[:, start:stop].T @ basis[:, start:]
        gram[stop:, start:stop] = gram[start:stop, stop:].T
    return gram


def left_out_predictions(basis: Tensor, eigenvalues: Tensor, targets: Tensor, penalty: float) -> Tensor:
    """Leave-one-out predictions of ridge regression: of each sample by a fit to all others, without fitting N times.

    With the hat matrix H = B diag(1 / (e + penalty)) B' the prediction is y_i - (y_i - (H y)_i) / (1 - H_ii), as in
    PRESS (Allen 1974).

    Args:
        basis: B, the features rotated so that B'B = diag(e), shape (N, R), floating point.
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


def solve_by_gram(gram: Tensor, moments: Tensor, penalty: float) -> tuple[Tensor, Tensor]:
    """Ridge regression by its normal equations, without checks: coefficients (R, J), and the Cholesky factor (R, R).

    Takes G = B'B (R, R) and B'y (R, J). One factorisation, which no other penalty can use, costs a tenth of the
    eigenvalues that all could.
    """
    ridge = gram.clone()
    ridge.diagonal().add_(penalty)
    factor = torch.linalg.cholesky(ridge)
    return torch.cholesky_solve(moments, factor), factor


def left_out_by_factor(coefficients: Tensor, factor: Tensor, basis: Tensor, targets: Tensor) -> Tensor:
    """`left_out_predictions` of some of the samples (T, J), without checks: of those with B (T, R) and y (T, J).

    Takes what `solve_by_gram` gave for all samples.
    """
    blocks = basis.split(max(1, _BLOCK_ELEMENTS // max(1, basis.shape[1])))
    solved = (torch.linalg.solve_triangular(factor, block.T, upper=False) for block in blocks)
    leverage = torch.cat([one.square().sum(dim=0) for one in solved]).unsqueeze(1)
    return targets - (targets - basis @ coefficients) / (1 - leverage)
