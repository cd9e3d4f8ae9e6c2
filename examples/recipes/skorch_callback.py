"""skorch without a validation split.

Run `python examples/recipes/skorch_callback.py`. It needs `pip install skorch`.
"""

import torch
from sklearn.datasets import make_moons
from skorch import NeuralNetClassifier
from torch import Tensor, nn

from bu_torch.integrations.skorch import BoundaryUncertaintyEarlyStopping


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


def main(epochs: int = 200) -> NeuralNetClassifier:
    inputs, labels = moons()
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
    net = NeuralNetClassifier(
        network,
        criterion=torch.nn.CrossEntropyLoss,
        optimizer=torch.optim.Adam,
        lr=0.01,
        batch_size=50,
        max_epochs=epochs,
        train_split=None,  # every sample is for training
        callbacks=[("boundary", BoundaryUncertaintyEarlyStopping(patience=20))],
        verbose=0,
    )
    net.fit(inputs.numpy(), labels.numpy())
    stopper = dict(net.callbacks_)["boundary"].stopper_
    print(stopper.stopping_reason)
    print(f"test error of the kept epoch: {test_error(net.module_):.3f} (epoch {stopper.best_epoch})")
    return net


if __name__ == "__main__":
    main()
