"""Skill of class probabilities, by their Brier score, and the best of several candidates."""

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from bu_torch.functional.probabilities import brier_score


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
