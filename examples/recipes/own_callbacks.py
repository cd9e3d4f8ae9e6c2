"""Lightning's own callbacks on our key: the monitor measures, `EarlyStopping` and `ModelCheckpoint` decide.

Run `python examples/recipes/own_callbacks.py`.
"""

import tempfile
from pathlib import Path

import lightning as L
import torch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from sklearn.datasets import make_moons
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from bu_torch import BoundaryUncertaintyMonitor


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


def loader() -> DataLoader:
    """400 samples of two moons, a tenth of their labels flipped."""
    inputs, labels = make_moons(400, noise=0.25, random_state=0)
    labels[torch.rand(400, generator=torch.Generator().manual_seed(0)).numpy() < 0.1] ^= 1
    samples = TensorDataset(torch.tensor(inputs, dtype=torch.float32), torch.tensor(labels))
    return DataLoader(samples, batch_size=50, shuffle=True)


def main(epochs: int = 60) -> tuple[BoundaryUncertaintyMonitor, EarlyStopping, ModelCheckpoint]:
    monitor = BoundaryUncertaintyMonitor()
    stopping = EarlyStopping(monitor="boundary_uncertainty", mode="max", patience=10)
    checkpoint = ModelCheckpoint(
        monitor="boundary_uncertainty", mode="max", save_top_k=3, filename="{epoch}-{boundary_uncertainty:.3f}"
    )
    with tempfile.TemporaryDirectory() as folder:
        trainer = L.Trainer(
            max_epochs=epochs,
            accelerator="cpu",
            default_root_dir=folder,
            callbacks=[monitor, stopping, checkpoint],
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(Classifier(), loader())
        kept = sorted(Path(path).name for path in checkpoint.best_k_models)
    print(f"stopped in epoch {stopping.stopped_epoch} after {len(monitor.history)} checks")
    print("kept: " + ", ".join(kept))
    return monitor, stopping, checkpoint


if __name__ == "__main__":
    main()
