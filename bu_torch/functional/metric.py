"""Metric learnt from labels: the average gradient outer product of a regression on them."""

import torch
from torch import Tensor

from bu_torch.functional.probabilities import left_out_predictions

_JITTER = 1e-3  # added to the diagonal of the landmarks' kernel, because tables repeat their rows
_BLOCK_ELEMENTS = 2**20  # gradients at once take 4 MB


def laplace_kernel(distances: Tensor, width: float) -> Tensor:
    """Laplace kernel exp(-distance / width) of distances of any shape."""
    return torch.exp(distances / -width)


def kernel_ridge(
    kernel: Tensor, own: Tensor, targets: Tensor, penalties: list[float], weights: Tensor | None = None
) -> Tensor:
    """Coefficients (L, J) of L landmarks: ridge regression with the penalty that predicts left-out targets best.

    The function at a point with the kernel values k (L,) is k @ coefficients (Nystroem). Left-out predictions are those
    of `left_out_predictions`, and their squared error decides.

    Takes the kernel of N points and the landmarks (N, L), 1 at distance 0; the landmarks' `own` (L, L); targets (N, J),
    centred; and weights of the squared errors, (N,) with mean 1. All are of one dtype but the weights.
    """
    identity = torch.eye(len(own), dtype=torch.float64, device=own.device)
    factor = torch.linalg.cholesky(own.double() + _JITTER * identity)
    projection = torch.linalg.solve_triangular(factor, identity, upper=False).T.to(kernel)
    basis = kernel @ projection
    if weights is not None:
        root = weights.to(kernel).sqrt().unsqueeze(1)
        basis, targets = basis * root, targets * root
    eigenvalues, rotation = torch.linalg.eigh((basis.T @ basis).double())
    eigenvalues, rotation = eigenvalues.clamp(min=0).to(kernel), rotation.to(kernel)
    basis = basis @ rotation
    errors = [
        float((targets - left_out).square().sum())
        for left_out in left_out_predictions(basis, eigenvalues, targets, penalties)
    ]
    penalty = penalties[errors.index(min(errors))]
    return projection @ (rotation @ ((basis.T @ targets) / (eigenvalues + penalty).unsqueeze(1)))


def average_gradient_outer_product(
    points: Tensor, landmarks: Tensor, coefficients: Tensor, width: float, *, weights: Tensor | None = None
) -> Tensor:
    """Mean outer product of the gradients of a function, at the points and summed over its J outputs.

    The function is f(x) = sum over landmarks z of exp(-|x - z| / width) times the coefficients of z. Its gradient is
    known in closed form; a landmark adds nothing at its own place, where it has none. The matrix is large in the
    directions in which the function changes, and gives the metric of recursive feature machines (Radhakrishnan,
    Beaglehole, Pandit, Belkin, Science 2024, Eq. 5).

    Takes points (N, d), landmarks (L, d), coefficients (L, J) and weights of the points, (N,) with mean 1; gives a
    symmetric, positive semi-definite matrix (d, d).
    """
    n_features = points.shape[1]
    total = points.new_zeros(n_features, n_features)
    root = None if weights is None else weights.to(points).sqrt().view(-1, 1, 1)
    for of_outputs in coefficients.split(max(1, _BLOCK_ELEMENTS // (len(landmarks) * n_features)), dim=1):
        # The gradient is the sum over landmarks of slope * coefficient * (z - x), for each output.
        directions = (of_outputs.unsqueeze(2) * landmarks.unsqueeze(1)).flatten(1)  # (L, J * d)
        n_rows = max(1, _BLOCK_ELEMENTS // max(directions.shape))
        for rows in torch.arange(len(points), device=points.device).split(n_rows):
            block = points[rows]
            distances = torch.cdist(block, landmarks)
            slopes = laplace_kernel(distances, width) / (width * distances)
            slopes = torch.where(distances > 0, slopes, torch.zeros_like(slopes))
            gradients = (slopes @ directions).view(len(rows), -1, n_features)
            gradients -= (slopes @ of_outputs).unsqueeze(2) * block.unsqueeze(1)
            gradients = gradients if root is None else gradients * root[rows]
            gradients = gradients.flatten(0, 1)
            total += gradients.T @ gradients
    return total / len(points)


def metric_root(matrix: Tensor) -> Tensor:
    """Root M^(1/2) (d, d), symmetric, of a metric that is scaled to the trace d first; the identity if it is 0.

    Distances in the metric are Euclidean distances of points times the root.
    """
    trace = float(matrix.diagonal().sum())
    if not trace > 0:
        return torch.eye(len(matrix)).to(matrix)
    eigenvalues, axes = torch.linalg.eigh(matrix.double() * (len(matrix) / trace))
    return (axes * eigenvalues.clamp(min=0).sqrt() @ axes.T).to(matrix)
