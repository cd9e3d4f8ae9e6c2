"""Kernel regression: the kernel of a wide network, and leave-one-out predictions in closed form."""

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

_BLOCK_ELEMENTS = 2**20  # copied at once
_JITTERS = 1e-7, 1e-5, 1e-3  # relative to the mean diagonal of a kernel
_COSINE_ROUNDING = 8  # epsilons


def tangent_kernel(first: Tensor, second: Tensor) -> Tensor:
    """Neural tangent kernel (N, P) of an infinitely wide ReLU network with one hidden layer (Jacot et al. 2018).

    Regression with it is what such a network learns by gradient descent on the squared error. The formula is that of
    Arora et al. (2019, section 3.1), the bias of the first layer being a further feature of 1.

    Example:
        >>> tangent_kernel(torch.tensor([[1.0], [-1.0]]), torch.tensor([[1.0]]))
        tensor([[2.0000],
                [0.3183]])
    """
    ones = [torch.cat((points, torch.ones_like(points[:, :1])), dim=1) for points in (first, second)]
    norms = [points.norm(dim=1, keepdim=True) for points in ones]
    cosine = (ones[0] / norms[0]) @ (ones[1] / norms[1]).T
    # Rounding must not tell a point from its copy: the angle is the root of the error.
    cosine.clamp_(-1, 1).masked_fill_(cosine > 1 - _COSINE_ROUNDING * torch.finfo(cosine.dtype).eps, 1)
    # In place, because most of the time is that of memory.
    kernel = cosine.arccos().neg_().add_(math.pi).mul_(cosine).mul_(2)
    kernel += cosine.square_().neg_().add_(1).sqrt_()
    return kernel.mul_(norms[0] / (math.pi * ones[0].shape[1])).mul_(norms[1].T)


def landmark_factor(kernel: Tensor) -> Tensor:
    """Triangular factor C (L, L), CC' the kernel of the landmarks (L, L) in units of its mean diagonal (Nystroem).

    A point with kernel values k (L,) in these units has the coordinates k C'^-1, whose products are the kernel. The
    diagonal is raised by 1e-7, because landmarks may fall together, and by more if rounding asks for it.
    """
    unit = kernel.diagonal().mean()
    identity = torch.eye(len(kernel)).to(kernel)
    for jitter in _JITTERS:
        factor, info = torch.linalg.cholesky_ex(kernel / unit + jitter * identity)
        if not bool(info):
            break
    return factor


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
