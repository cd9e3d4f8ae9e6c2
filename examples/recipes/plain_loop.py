"""A plain PyTorch loop: three lines of it are bu-torch's.

Run `python examples/recipes/plain_loop.py`.
"""

import torch
from sklearn.datasets import make_moons
from torch import Tensor, nn

from bu_torch import BoundaryUncertaintyStopper


def moons(n_samples: int = 400, flipped: float = 0.1, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Two moons, with a share of the labels flipped."""
    inputs, labels = make_moons(n_samples, noise=0.25, random_state=seed)
    is_flipped = torch.rand(n_samples, generator=torch.Generator().manual_seed(seed)) < flipped
    labels = torch.tensor(labels)
    return torch.tensor(inputs, dtype=torch.float32), torch.where(is_flipped, 1 - labels, labels)


def test_error(model: nn.Module) -> float:
    inputs, labels = moons(2000, flipped=0, seed=1)
    with torch.no_grad():
        return (model(inputs).argmax(dim=1) != labels).float().mean().item()


def main(epochs: int = 200) -> BoundaryUncertaintyStopper:
    inputs, labels = moons()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    stopper = BoundaryUncertaintyStopper(inputs, labels, patience=20)
    for _ in range(epochs):
        for rows in torch.randperm(len(inputs)).split(50):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs[rows]), labels[rows]).backward()
            optimizer.step()
        if stopper.check(model):
            break
    print(f"test error of the last epoch: {test_error(model):.3f}")
    stopper.restore(model)
    print(f"test error of the kept epoch: {test_error(model):.3f} (epoch {stopper.best_epoch})")
    print(stopper.stopping_reason)
    return stopper


if __name__ == "__main__":
    main()
