"""Kernel regression: the kernel of a wide network, and leave-one-out predictions in closed form."""

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

_BLOCK_ELEMENTS = 2**20  # copied at once
_LEAST_EIGENVALUE = 1e-10  # relative to the largest; smaller ones are rounding errors


def tangent_kernel(first: Tensor, second: Tensor) -> Tensor:
    """Neural tangent kernel (N, P) of an infinitely wide ReLU network with one hidden layer (Jacot et al. 2018).

    Regression with it is what such a network learns by gradient descent on the squared error. The formula is that of
    Arora et al. (2019, section 3.1), the bias of the first layer being a further feature of 1.

    Example:
        >>> tangent_kernel(torch.tensor([[1.0], [-1.0]]), torch.tensor([[1.0]]))
        tensor([[2.0000],
                [0.3183]])
    """
    width = first.shape[1] + 1
    covariance = (first @ second.T + 1) / width
    norms = [(points.square().sum(dim=1) + 1).div(width).sqrt() for points in (first, second)]
    scale = norms[0].unsqueeze(1) * norms[1]
    cosine = (covariance / scale).clamp(-1, 1)
    angle = cosine.arccos()
    hidden = scale * ((1 - cosine.square()).clamp(min=0).sqrt() + (math.pi - angle) * cosine) / math.pi
    return hidden + covariance * (math.pi - angle) / math.pi


def landmark_projection(kernel: Tensor) -> tuple[Tensor, Tensor]:
    """Coordinates whose products are the kernel in units of its mean diagonal, without checks (Nystroem).

    Of the kernel of the landmarks (L, L), gives eigenvalues e (R,) and the projection P (L, R): a point with kernel
    values k (L,) has the coordinates k P. Those of the landmarks, B (L, R), have B'B = diag(e).
    """
    unit = kernel.diagonal().mean()
    eigenvalues, eigenvectors = torch.linalg.eigh(kernel / unit)
    is_kept = eigenvalues > _LEAST_EIGENVALUE * eigenvalues.max()
    return eigenvalues[is_kept], eigenvectors[:, is_kept] / eigenvalues[is_kept].sqrt() / unit


def left_out_predictions(
    basis: Tensor, eigenvalues: Tensor, targets: Tensor, penalties: Sequence[float]
) -> Iterator[Tensor]:
    """Leave-one-out predictions of ridge regression, (N, J) for each penalty, without fitting N times.

    With the hat matrix H = B diag(1 / (e + penalty)) B' the prediction is y_i - (y_i - (H y)_i) / (1 - H_ii), as in
    PRESS (Allen 1974). The basis B (N, R) holds the features rotated so that B'B = diag(e); H must leave each sample
    some residual.

    Example:
        >>> basis = torch.tensor([[1.0], [1.0]])
        >>> next(left_out_predictions(basis, torch.tensor([2.0]), torch.tensor([[3.0], [5.0]]), [1.0]))
        tensor([[2.5000],
                [1.5000]])
    """
    shrinkage = 1 / (eigenvalues.unsqueeze(1) + eigenvalues.new_tensor(penalties))  # (R, P)
    moments = basis.T @ targets
    blocks = basis.split(max(1, _BLOCK_ELEMENTS // max(1, basis.shape[1])))
    leverages = torch.cat([block.square() @ shrinkage for block in blocks])  # (N, P)
    for shrunk, leverage in zip(shrinkage.T, leverages.T, strict=True):
        residuals = targets - basis @ (shrunk.unsqueeze(1) * moments)
        yield targets - residuals / (1 - leverage).unsqueeze(1)
