"""Small data, modules and trainers for tests that train for real."""

import lightning.pytorch as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def blobs(n=120, d=4, n_classes=3, seed=0):
    g = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % n_classes
    centres = 2 * torch.randn(n_classes, d, generator=g)
    return centres[labels] + torch.randn(n, d, generator=g), labels


def loader(features, labels, batch_size=30, **kwargs):
    return DataLoader(TensorDataset(features, labels), batch_size=batch_size, shuffle=True, **kwargs)


class Classifier(pl.LightningModule):
    """A module as a user writes it, with dropout and batch norm that a check must not disturb."""

    def __init__(self, d=4, n_outputs=3, lr=0.05):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(d, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, n_outputs)
        )
        self.lr = lr

    def forward(self, x):
        return self.net(x.flatten(1))

    def training_step(self, batch, batch_idx):
        x, y = batch
        return nn.functional.cross_entropy(self(x), y)

    def test_step(self, batch, batch_idx):
        x, y = batch
        self.log("test_loss", nn.functional.cross_entropy(self(x), y))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.lr)


def trainer(folder, *callbacks, **kwargs):
    defaults = {"max_epochs": 3, "logger": False}
    if not kwargs.get("barebones"):
        defaults |= {"enable_progress_bar": False, "enable_model_summary": False}
    return pl.Trainer(
        **{**defaults, "accelerator": "cpu", "default_root_dir": folder, "callbacks": list(callbacks), **kwargs}
    )
