"""The best weights so far, in memory."""

import math
from typing import Any

import torch
from torch import Tensor, nn


class BestWeights:
    """Keeps a copy of the weights of the module with the largest score, or standing (`SelectionRule.standings`).

    Attributes:
        score: The largest score, None before the first.
        weights: A `state_dict` on the CPU; empty before the first, and where the best model was no module.
    """

    def __init__(self) -> None:
        self.score: float | None = None
        self.weights: dict[str, Any] = {}

    def would_keep(self, score: float | None) -> bool:
        """Whether a score is finite and the largest so far."""
        return score is not None and math.isfinite(score) and (self.score is None or score > self.score)

    def offer(self, score: float | None, model: object) -> None:
        """Keep the weights of `model`, if it has some, where its score is finite and the largest so far."""
        if not self.would_keep(score):
            return
        self.score = score
        state = model.state_dict() if isinstance(model, nn.Module) else {}
        self.weights = {
            name: value.detach().cpu().clone() if isinstance(value, Tensor) else value for name, value in state.items()
        }

    def state_dict(self) -> dict[str, Any]:
        """Score and weights, as Lightning's checkpoints name them."""
        score = None if self.score is None else torch.tensor(self.score, dtype=torch.float64)
        return {"best_model_score": score, "best_weights": self.weights}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken."""
        score = state_dict["best_model_score"]
        self.score = None if score is None else float(score)
        self.weights = state_dict["best_weights"]
