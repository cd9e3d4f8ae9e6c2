"""A plain PyTorch loop: three lines of it are bu-torch's.

Run `python examples/recipes/plain_loop.py`.
"""

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from bu_torch import BoundaryUncertaintyStopper


def digits() -> tuple[Tensor, ...]:
    """600 digits, a fifth of them with random labels, to train on, and 1197 with the right ones to test on."""
    inputs, labels = (torch.tensor(array) for array in load_digits(return_X_y=True))
    inputs, generator = inputs.float() / 16, torch.Generator().manual_seed(0)
    is_random = torch.rand(600, generator=generator) < 0.2
    noisy = torch.where(is_random, torch.randint(10, (600,), generator=generator), labels[:600])
    return inputs[:600], noisy, inputs[600:], labels[600:]


def error(model: nn.Module, inputs: Tensor, labels: Tensor) -> float:
    with torch.no_grad():
        return (model(inputs).argmax(dim=1) != labels).float().mean().item()


def main(epochs: int = 200) -> BoundaryUncertaintyStopper:
    inputs, labels, *test = digits()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    stopper = BoundaryUncertaintyStopper(inputs, labels, patience=20)
    for _ in range(epochs):
        for rows in torch.randperm(len(inputs)).split(50):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs[rows]), labels[rows]).backward()
            optimizer.step()
        if stopper.check(model):
            break
    print(f"test error of the last epoch: {error(model, *test):.3f}")
    stopper.restore(model)
    print(f"test error of the kept epoch: {error(model, *test):.3f} (epoch {stopper.best_epoch})")
    print(stopper.stopping_reason)
    return stopper


if __name__ == "__main__":
    main()
