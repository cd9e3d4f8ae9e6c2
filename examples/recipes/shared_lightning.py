"""What the recipes with Lightning share: a module, its data and a quiet trainer."""

from typing import Any

import lightning as L
import torch
from shared import moons, network
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset


class Classifier(L.LightningModule):
    """A small network; nothing in it knows of bu-torch."""

    def __init__(self, lr: float = 0.01) -> None:
        super().__init__()
        self.lr = lr
        self.net = network()

    def forward(self, inputs: Tensor) -> Tensor:
        return self.net(inputs)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        inputs, labels = batch
        loss = nn.functional.cross_entropy(self(inputs), labels)
        self.log("train_loss", loss, on_step=False, on_epoch=True)
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), lr=self.lr)


def loader() -> DataLoader:
    return DataLoader(TensorDataset(*moons()), batch_size=50, shuffle=True)


def trainer(folder: str, epochs: int, **options: Any) -> L.Trainer:
    """A quiet trainer on the CPU that keeps its files in one folder."""
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "log_every_n_steps": 1}
    return L.Trainer(max_epochs=epochs, accelerator="cpu", default_root_dir=folder, **{**quiet, **options})
