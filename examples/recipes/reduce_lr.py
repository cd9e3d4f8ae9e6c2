"""`ReduceLROnPlateau` on boundary uncertainty: the learning rate falls when the boundary gets no better.

Run `python examples/recipes/reduce_lr.py`.
"""

import tempfile
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import LearningRateMonitor
from lightning.pytorch.loggers import CSVLogger
from sklearn.datasets import make_moons
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from bu_torch import BoundaryUncertaintyMonitor


class Scheduled(L.LightningModule):
    """A small network, with a scheduler that reads what the callback logs."""

    def __init__(self, lr: float = 0.01) -> None:
        super().__init__()
        self.lr = lr
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.net(inputs)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        return nn.functional.cross_entropy(self(batch[0]), batch[1])

    def configure_optimizers(self) -> dict[str, Any]:
        optimizer = torch.optim.Adam(self.parameters(), lr=self.lr)
        scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, mode="max", factor=0.5, patience=3)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "monitor": "boundary_uncertainty"}}


def loader() -> DataLoader:
    """400 samples of two moons, a tenth of their labels flipped."""
    inputs, labels = make_moons(400, noise=0.25, random_state=0)
    labels[torch.rand(400, generator=torch.Generator().manual_seed(0)).numpy() < 0.1] ^= 1
    samples = TensorDataset(torch.tensor(inputs, dtype=torch.float32), torch.tensor(labels))
    return DataLoader(samples, batch_size=50, shuffle=True)


def main(epochs: int = 40) -> tuple[BoundaryUncertaintyMonitor, Scheduled]:
    monitor, module = BoundaryUncertaintyMonitor(), Scheduled()
    with tempfile.TemporaryDirectory() as folder:
        callbacks = [monitor, LearningRateMonitor("epoch")]
        trainer = L.Trainer(
            max_epochs=epochs,
            accelerator="cpu",
            default_root_dir=folder,
            callbacks=callbacks,
            logger=CSVLogger(folder),
            log_every_n_steps=1,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(module, loader())
    scheduler = module.lr_schedulers()
    largest = max(monitor.history, key=lambda check: check["boundary_uncertainty"])
    print(f"largest U {largest['boundary_uncertainty']:.3f} in epoch {largest['epoch']}")
    print(f"learning rate {module.lr} -> {scheduler.get_last_lr()[0]}; the scheduler's best: {scheduler.best:.3f}")
    return monitor, module


if __name__ == "__main__":
    main()
