"""Class probabilities from predictions, from votes of nearby labels and from kernel regression; scores and mixtures."""

import math
from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

from bu_torch.functional.checks import check_not_negative, check_tensor, mean_of, relative_weights

_SQUARED_ELEMENTS = 2**18  # entries of one temporary block, which a cache holds
_COLUMNS = 128  # a product with several penalties has as many; fewer take about as long
_COSINE_ROUNDING = 8  # epsilons
_N_SCALINGS = 60
_SHARPEST, _N_SHARPNESSES, _LEAST_PROBABILITY = 6, 26, 1e-6


def as_probabilities(predictions: Tensor) -> Tensor:
    """Class probabilities from regressed one-hot labels (N, J): negative values become 0, rows sum to 1."""
    positive = predictions.clamp(min=0)
    return positive / positive.sum(dim=1, keepdim=True)


def brier_score(probabilities: Tensor, labels: Tensor, weights: Tensor | None = None) -> Tensor:
    """Mean squared distance of class probabilities (N, J) from the one-hot labels (Brier 1950), a scalar, float64.

    It is in [0, 2], and 0, the best, if every label has probability 1. Weights (N,) have mean 1, as in all below.
    """
    of_label = probabilities.gather(1, labels.unsqueeze(1)).squeeze(1).double()
    return mean_of(probabilities.double().square().sum(dim=1) - 2 * of_label + 1, weights)


def skill(probabilities: Tensor, labels: Tensor, weights: Tensor | None = None, n_drawn: float = math.inf) -> float:
    """Brier skill score of class probabilities (N, J): 1 is certain, 0 the shares in `n_drawn` labels at random."""
    by_chance = float(1 - shares_of(labels, weights).square().sum()) * (1 + 1 / n_drawn)
    return 1 - float(brier_score(probabilities, labels, weights)) / by_chance if by_chance else 0.0


def mixing_weight(first: Tensor, second: Tensor, labels: Tensor, weights: Tensor | None = None) -> Tensor:
    """Weight w in [0, 1] for which (1 - w) first + w second, both left-out (N, J), has the least Brier score."""
    difference = second - first
    residual = torch.nn.functional.one_hot(labels, first.shape[1]) - first
    if weights is not None:
        root = weights.sqrt().to(first.dtype).unsqueeze(1)
        difference, residual = difference * root, residual * root
    squared_length = difference.square().sum()
    best = (residual * difference).sum() / squared_length
    return torch.where(squared_length > 0, best, 0.0).clamp(0, 1)


def scale_to_shares(probabilities: Tensor, shares: Tensor, weights: Tensor | None = None) -> Tensor:
    """Class probabilities (N, C) whose means are the `shares` of the classes (C,).

    Each column is multiplied by share / mean, and each row is divided by its sum, sixty times over: iterative
    proportional fitting (Deming and Stephan 1940). A class with no probability anywhere stays so.
    """
    doubles = probabilities.double()
    counted = doubles.new_ones(len(doubles)) if weights is None else weights
    factors = shares = shares.to(doubles)
    for _ in range(_N_SCALINGS):
        means = factors * ((counted / (doubles @ factors)) @ doubles) / counted.sum()
        factors = torch.where(means > 0, factors * shares / means, factors)
        factors = (factors / factors.max()).clamp(min=1e-100)  # no row of certain labels divides by 0
    scaled = doubles * factors
    return (scaled / scaled.sum(dim=1, keepdim=True)).to(probabilities.dtype)


def best_sharpness(probabilities: Tensor, labels: Tensor, weights: Tensor | None) -> float:
    """Exponent in [1, 6] for which left-out probabilities (N, J), to this power, have the least log loss."""
    exponents = torch.linspace(1, _SHARPEST, _N_SHARPNESSES, dtype=torch.float64, device=probabilities.device)
    logs = probabilities.double().clamp(min=_LEAST_PROBABILITY).log()
    of_label = logs.gather(1, labels.long().unsqueeze(1)).squeeze(1)
    losses = [mean_of((exponent * logs).logsumexp(dim=1) - exponent * of_label, weights) for exponent in exponents]
    return float(exponents[torch.stack(losses).argmin()])


def best_candidate(
    candidates: Iterable[tuple[float, Tensor]], labels: Tensor, weights: Tensor | None, *, ends_early: bool = False
) -> tuple[float, Tensor]:
    """The candidate (parameter, left-out probabilities) with the lowest Brier score; probabilities in float32.

    With `ends_early`, none is computed after the first that is no better.
    """
    lowest, best = math.inf, (math.nan, labels.float())
    for parameter, left_out in candidates:
        score = float(brier_score(left_out, labels, weights))
        if score < lowest or math.isinf(lowest):
            lowest, best = score, (parameter, left_out.float())
        elif ends_early:
            break
    return best


def shares_of(labels: Tensor, weights: Tensor | None) -> Tensor:
    """Share of each class (J,), float64."""
    counts = torch.zeros(int(labels.max()) + 1, dtype=torch.float64, device=labels.device)
    counts.index_add_(0, labels, torch.ones_like(labels, dtype=torch.float64) if weights is None else weights)
    return counts / counts.sum()


def label_votes(
    labels: Tensor,
    neighbors: Tensor,
    decay: float,
    n_classes: int | None = None,
    *,
    leave_one_out: bool = False,
    weights: Tensor | None = None,
) -> Tensor:
    """Share of each class in the votes of a sample's cluster, where the vote of the m-th nearest weighs m^-decay.

    A weighted nearest-neighbour estimate of the class probabilities at each sample.

    Args:
        labels: Classes, shape (N,), integer, >= 0.
        neighbors: Clusters, the sample itself first, shape (n, M) with M >= 2, integer, in [0, N)
            (`NeighborGraph.neighbors`).
        decay: Exponent of the rank, >= 0; 0 gives all members equal votes.
        n_classes: J; None for the largest label + 1.
        leave_one_out: Leave the sample's own vote out; its nearest other sample then ranks first.
        weights: Factor of each sample's vote: its frequency in training, shape (N,), > 0; None for equal ones.

    Returns:
        Shape (n, J), in [0, 1], rows sum to 1, float32.

    Raises:
        TypeError, ValueError: If an argument has the wrong dtype, shape, device or values.
    """
    check_tensor("labels", labels, ("N",), below=torch.inf if n_classes is None else n_classes)
    check_tensor("neighbors", neighbors, ("n", "M"), labels.device, below=len(labels))
    if neighbors.shape[1] < 2 or not len(neighbors):
        raise ValueError(f"`neighbors` must have shape (n, M) with n >= 1, M >= 2, got {tuple(neighbors.shape)}.")
    check_not_negative("decay", decay)
    weights = relative_weights(weights, tuple(labels.shape), labels.device)
    voters = (neighbors[:, 1:] if leave_one_out else neighbors).long()  # uint8 would count as a mask
    of_rank = torch.arange(1, voters.shape[1] + 1, dtype=torch.float64, device=labels.device).pow(-decay)
    shares = of_rank.expand(voters.shape) if weights is None else of_rank * weights[voters]
    votes = shares.new_zeros(len(voters), int(labels.max()) + 1 if n_classes is None else n_classes)
    rows = torch.arange(len(voters), device=labels.device)
    for column, share in zip(labels[voters].long().T, shares.T, strict=True):
        votes[rows, column] += share  # one rank at a time: an accelerator adds in any order
    return (votes / votes.sum(dim=1, keepdim=True)).float()


def tangent_kernel(first: Tensor, second: Tensor) -> Tensor:
    """Neural tangent kernel (N, P) of an infinitely wide ReLU network with one hidden layer (Jacot et al. 2018).

    The formula is from Arora et al. (2019, section 3.1); a constant feature of 1 is added for the bias.
    """
    ones = [torch.cat((points, torch.ones_like(points[:, :1])), dim=1) for points in (first, second)]
    norms = [points.norm(dim=1, keepdim=True) for points in ones]
    cosine = (ones[0] / norms[0]) @ (ones[1] / norms[1]).T
    # The angle between a point and its copy must be 0; rounding would make it the root of the error.
    cosine.clamp_(-1, 1).masked_fill_(cosine > 1 - _COSINE_ROUNDING * torch.finfo(cosine.dtype).eps, 1)
    # In place, because memory traffic takes most of the time.
    kernel = cosine.arccos().neg_().add_(math.pi).mul_(cosine).mul_(2)
    kernel += cosine.square_().neg_().add_(1).sqrt_()
    return kernel.mul_(norms[0] / (math.pi * ones[0].shape[1])).mul_(norms[1].T)


def left_out_predictions(
    features: Tensor, products: Tensor, targets: Tensor, penalties: Sequence[float]
) -> Iterator[Tensor]:
    """Leave-one-out predictions of ridge regression, (N, J) for each penalty, without fitting N times.

    Takes coordinates K C'^-1 (N, L) by L landmarks (Nystroem) and their products (L, L), float64. If the landmarks are
    not all samples, their first half predicts, and its eigenvalues take an eighth of the time: with a Cholesky factor C
    of the landmarks' kernel, the first coordinates depend on the first landmarks alone.

    With the hat matrix H = B diag(1 / (e + penalty)) B' the prediction is y_i - (y_i - (H y)_i) / (1 - H_ii), as in
    PRESS (Allen 1974). The basis B (N, R) holds the features rotated so that B'B = diag(e); H_ii must be below 1.
    """
    n_samples, n_landmarks = features.shape
    first = slice(n_landmarks if n_landmarks == n_samples else -(-n_landmarks // 2))
    eigenvalues, rotation = torch.linalg.eigh(products[first, first])
    basis, eigenvalues = features[:, first] @ rotation.to(features), eigenvalues.clamp(min=0).to(features)
    shrinkage = 1 / (eigenvalues.unsqueeze(1) + eigenvalues.new_tensor(penalties))  # (R, P)
    moments = basis.T @ targets
    blocks = basis.split(max(1, _SQUARED_ELEMENTS // max(1, basis.shape[1])))
    leverages = torch.cat([block.square() @ shrinkage for block in blocks])  # (N, P)
    n_outputs = targets.shape[1]
    for some in torch.arange(len(penalties), device="cpu").split(max(1, _COLUMNS // n_outputs)):
        coefficients = shrinkage[:, some].unsqueeze(2) * moments.unsqueeze(1)  # (R, p, J)
        fitted = (basis @ coefficients.flatten(1)).unflatten(1, (-1, n_outputs))
        for predicted, leverage in zip(fitted.unbind(dim=1), leverages[:, some].T, strict=True):
            yield targets - (targets - predicted) / (1 - leverage).unsqueeze(1)
