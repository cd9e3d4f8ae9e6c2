"""One run, two loggers of Lightning: CSV, and TensorBoard with a tab of its own.

Run `python examples/recipes/loggers.py`, then `tensorboard --logdir runs/loggers`.
"""

import csv
from pathlib import Path

import lightning as L
import torch
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from sklearn.datasets import make_moons
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from bu_torch import BoundaryUncertaintyStopping

RUNS = Path("runs", "loggers")


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
        loss = nn.functional.cross_entropy(self(batch[0]), batch[1])
        self.log("train_loss", loss, on_step=False, on_epoch=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=self.lr)


def loader() -> DataLoader:
    """400 samples of two moons, a tenth of their labels flipped."""
    inputs, labels = make_moons(400, noise=0.25, random_state=0)
    labels[torch.rand(400, generator=torch.Generator().manual_seed(0)).numpy() < 0.1] ^= 1
    samples = TensorDataset(torch.tensor(inputs, dtype=torch.float32), torch.tensor(labels))
    return DataLoader(samples, batch_size=50, shuffle=True)


def main(folder: Path = RUNS, epochs: int = 30) -> tuple[list[dict[str, str]], Path]:
    loggers = [CSVLogger(folder, name="csv"), TensorBoardLogger(folder, name="tensorboard")]
    stopping = BoundaryUncertaintyStopping()
    trainer = L.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        default_root_dir=folder,
        callbacks=[stopping],
        logger=loggers,
        log_every_n_steps=1,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Classifier(), loader())
    with Path(loggers[0].log_dir, "metrics.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["boundary_uncertainty"]]
    print(f"columns: {', '.join(sorted(rows[0]))}")
    print(f"{len(rows)} epochs; the record of the checks: {stopping.record_path}")
    return rows, Path(loggers[1].log_dir)


if __name__ == "__main__":
    main()
