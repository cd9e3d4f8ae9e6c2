"""Weights & Biases, offline: `wandb sync` sends the run later, if ever.

Run `python examples/recipes/wandb_offline.py`. It needs `pip install wandb`.
"""

import tempfile

import lightning as L
import torch
from lightning.pytorch.loggers import WandbLogger
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


def main(epochs: int = 10) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        logger = WandbLogger(project="moons", save_dir=folder, offline=True)
        stopping = BoundaryUncertaintyStopping()
        trainer = L.Trainer(
            max_epochs=epochs,
            accelerator="cpu",
            default_root_dir=folder,
            callbacks=[stopping],
            logger=logger,
            log_every_n_steps=1,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(Classifier(), loader())
        shown = {name: value for name, value in dict(logger.experiment.summary).items() if isinstance(value, float)}
        shown = {name: value for name, value in shown.items() if not name.startswith("_")}
        logger.experiment.finish()
    print({name: round(value, 4) for name, value in sorted(shown.items())})
    return shown


if __name__ == "__main__":
    main()
