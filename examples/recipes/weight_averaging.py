"""`EMAWeightAveraging`: the average is what is measured, what is saved and what is put back.

Run `python examples/recipes/weight_averaging.py`.
"""

import tempfile

import lightning as L
import torch
from lightning.pytorch.callbacks import EMAWeightAveraging
from sklearn.datasets import make_moons
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from bu_torch import BoundaryUncertaintyStopping


class Classifier(L.LightningModule):
    """A small network; nothing in it knows of bu-torch."""

    def __init__(self, lr: float = 0.01) -> None:
        super().__init__()
        self.lr = lr
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.net(inputs)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        return nn.functional.cross_entropy(self(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=self.lr)


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


def main(epochs: int = 100) -> tuple[BoundaryUncertaintyStopping, Classifier, dict[str, torch.Tensor]]:
    stopping, module = BoundaryUncertaintyStopping(patience=20), Classifier()
    with tempfile.TemporaryDirectory() as folder:
        callbacks = [stopping, EMAWeightAveraging(decay=0.95)]
        trainer = L.Trainer(
            max_epochs=epochs,
            accelerator="cpu",
            default_root_dir=folder,
            callbacks=callbacks,
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(module, DataLoader(TensorDataset(*moons()), batch_size=50, shuffle=True))
        saved = torch.load(stopping.best_model_path, weights_only=True)["state_dict"]
    print(stopping.stopping_reason)
    print(f"test error of the kept average: {test_error(module):.3f} (epoch {stopping.best_epoch})")
    return stopping, module, saved


if __name__ == "__main__":
    main()
