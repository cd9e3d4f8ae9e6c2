"""What the recipes share: two moons with some labels flipped, and a small classifier."""

from typing import Any

import lightning as L
import torch
from sklearn.datasets import make_moons
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset


def moons(n_samples: int = 400, flipped: float = 0.1, seed: int = 0) -> tuple[Tensor, Tensor]:
    inputs, labels = make_moons(n_samples, noise=0.25, random_state=seed)
    inputs, labels = torch.tensor(inputs, dtype=torch.float32), torch.tensor(labels)
    is_flipped = torch.rand(n_samples, generator=torch.Generator().manual_seed(seed)) < flipped
    return inputs, torch.where(is_flipped, 1 - labels, labels)


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))


def test_error(model: Any) -> float:
    inputs, labels = moons(2000, flipped=0, seed=1)
    with torch.no_grad():
        return (model(inputs).argmax(dim=1) != labels).float().mean().item()


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
