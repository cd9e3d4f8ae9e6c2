"""Class probabilities: made of raw predictions, scored against labels, and mixed."""

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from bu_torch.functional.weights import mean_of, relative_weights


def as_probabilities(predictions: Tensor) -> Tensor:
    """Class probabilities of predictions of one-hot labels (N, J): negative values become 0, rows sum to 1.

    Example:
        >>> as_probabilities(torch.tensor([[-0.5, 1.5], [0.5, 1.5]]))
        tensor([[0.0000, 1.0000],
                [0.2500, 0.7500]])
    """
    positive = predictions.clamp(min=0)
    return positive / positive.sum(dim=1, keepdim=True)


def brier_score(probabilities: Tensor, labels: Tensor, *, weights: Tensor | None = None) -> Tensor:
    """Mean squared distance of class probabilities (N, J) from the one-hot labels (Brier 1950). Smaller is better.

    It is in [0, 2], float64; 0 if every label has probability 1.

    Example:
        >>> brier_score(torch.tensor([[1.0, 0.0], [0.5, 0.5]]), torch.tensor([0, 0]))
        tensor(0.2500, dtype=torch.float64)
    """
    of_label = probabilities.gather(1, labels.long().unsqueeze(1)).double()
    distances = probabilities.double().square().sum(dim=1, keepdim=True) - 2 * of_label + 1
    weights = relative_weights(weights, (probabilities.shape[0],), probabilities.device)
    return mean_of(distances, None if weights is None else weights.unsqueeze(1))


def mixing_weight(first: Tensor, second: Tensor, labels: Tensor, *, weights: Tensor | None = None) -> Tensor:
    """Weight w in [0, 1] for which the mixture (1 - w) first + w second has the least Brier score.

    Both are class probabilities (N, J), made without the samples' own labels. The weight is 0 if both are the same.

    Example:
        >>> probabilities = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
        >>> mixing_weight(probabilities, probabilities.flip(0), torch.tensor([0, 1]))
        tensor(0.)
    """
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


def best_candidate(
    candidates: Iterable[tuple[float, Tensor]], labels: Tensor, weights: Tensor | None
) -> tuple[float, float, Tensor]:
    """Least Brier score among (parameter, left-out probabilities), with its parameter and float32 probabilities."""
    scored = (
        (float(brier_score(left_out, labels, weights=weights)), parameter, left_out.float())
        for parameter, left_out in candidates
    )
    return min(scored, key=lambda candidate: candidate[0])


def shares_of(labels: Tensor, weights: Tensor | None) -> Tensor:
    """Share of each class (J,), float64."""
    counts = torch.zeros(int(labels.max()) + 1, dtype=torch.float64, device=labels.device)
    counts.index_add_(0, labels, torch.ones_like(labels, dtype=torch.float64) if weights is None else weights)
    return counts / counts.sum()


def skill(brier_score: float, shares: Tensor, n_drawn: float = math.inf) -> float:
    """Brier skill score: 1 is certain, 0 is chance; 0 also if there is a single class.

    The probabilities of chance are the shares of the classes (J,), or the mean of `n_drawn` labels drawn at random.
    """
    by_chance = float(1 - shares.square().sum()) * (1 + 1 / n_drawn)
    return 1 - brier_score / by_chance if by_chance else 0.0
