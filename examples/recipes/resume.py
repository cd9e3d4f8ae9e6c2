"""Resuming: a run that was cut short goes on with its history, its patience and its best epoch.

Run `python examples/recipes/resume.py`.
"""

import tempfile
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
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


def loader() -> DataLoader:
    """400 samples of two moons, a tenth of their labels flipped."""
    inputs, labels = make_moons(400, noise=0.25, random_state=0)
    labels[torch.rand(400, generator=torch.Generator().manual_seed(0)).numpy() < 0.1] ^= 1
    samples = TensorDataset(torch.tensor(inputs, dtype=torch.float32), torch.tensor(labels))
    return DataLoader(samples, batch_size=50, shuffle=True)


def main(epochs: int = 30) -> tuple[BoundaryUncertaintyStopping, BoundaryUncertaintyStopping]:
    with tempfile.TemporaryDirectory() as folder:
        quiet: dict[str, Any] = {
            "accelerator": "cpu",
            "logger": False,
            "enable_progress_bar": False,
            "enable_model_summary": False,
        }
        first = BoundaryUncertaintyStopping()
        last = ModelCheckpoint(save_last=True)
        trainer = L.Trainer(max_epochs=epochs // 2, default_root_dir=folder, callbacks=[first, last], **quiet)
        trainer.fit(Classifier(), loader())

        second = BoundaryUncertaintyStopping()
        callbacks = [second, ModelCheckpoint(save_last=True)]
        trainer = L.Trainer(max_epochs=epochs, default_root_dir=folder, callbacks=callbacks, **quiet)
        trainer.fit(Classifier(), loader(), ckpt_path=last.last_model_path)
    print(f"first run: {len(first.history)} checks, best epoch {first.best_epoch}")
    print(f"resumed:   {len(second.history)} checks, best epoch {second.best_epoch}; {second.stopping_reason}")
    return first, second


if __name__ == "__main__":
    main()
