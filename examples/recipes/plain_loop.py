"""A plain PyTorch loop: three lines of it are bu-torch's.

Run `python examples/recipes/plain_loop.py`.
"""

import torch
from shared import moons, network, test_error
from torch import nn

from bu_torch import BoundaryUncertaintyStopper


def main(epochs: int = 200) -> BoundaryUncertaintyStopper:
    inputs, labels = moons()
    model = network()
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
