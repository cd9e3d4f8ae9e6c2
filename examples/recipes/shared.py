"""What all recipes share: two moons with some labels flipped, and a small network."""

from typing import Any

import torch
from sklearn.datasets import make_moons
from torch import Tensor, nn


def moons(n_samples: int = 400, flipped: float = 0.1, seed: int = 0) -> tuple[Tensor, Tensor]:
    inputs, labels = make_moons(n_samples, noise=0.25, random_state=seed)
    inputs, labels = torch.tensor(inputs, dtype=torch.float32), torch.tensor(labels)
    is_flipped = torch.rand(n_samples, generator=torch.Generator().manual_seed(seed)) < flipped
    return inputs, torch.where(is_flipped, 1 - labels, labels)


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))


def test_error(model: Any) -> float:
    inputs, labels = moons(2000, flipped=0, seed=1)
    with torch.no_grad():
        return (model(inputs).argmax(dim=1) != labels).float().mean().item()
