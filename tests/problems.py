"""Small data, modules and trainers for tests that train for real."""

import random

import lightning.pytorch as pl
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from bu_torch import Rule


def blobs(n=120, d=4, n_classes=3, seed=0):
    g = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % n_classes
    centres = 2 * torch.randn(n_classes, d, generator=g)
    return centres[labels] + torch.randn(n, d, generator=g), labels


def loader(*tensors, batch_size=30, **kwargs):
    return DataLoader(TensorDataset(*tensors), batch_size=batch_size, shuffle=True, **kwargs)


class Made(Dataset):
    """Samples from a function of the index."""

    def __init__(self, item, length=120):
        self.item, self.length = item, length

    def __len__(self):
        return self.length

    def __getitem__(self, i):
        return self.item(i)


class Augmented(Made):
    """Moves its samples by global random numbers of all three kinds."""

    def __init__(self):
        features, labels = blobs()
        super().__init__(lambda i: ((features[i] + 0.1 * self.noise()).float(), labels[i]))

    @staticmethod
    def noise():
        return torch.randn(4) + random.random() + np.random.rand()


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


def weights_of(module):
    """A copy of all weights and buffers."""
    return {name: value.clone() for name, value in module.state_dict().items()}


def same(one, other):
    """Whether two sets of weights are equal to the bit."""
    return one.keys() == other.keys() and all(torch.equal(value, other[name]) for name, value in one.items())


class Gain(Rule):
    """By how much trust has grown since the check before: a rule that remembers."""

    name = "gain"
    signals = ("trust_score", "boundary_uncertainty")

    def __init__(self):
        self.before = 0.0

    def score(self, values):
        gain, self.before = values["trust_score"] - self.before, values["trust_score"]
        return gain

    def reset(self):
        self.before = 0.0

    def state_dict(self):
        return {"before": self.before}

    def load_state_dict(self, state_dict):
        self.before = state_dict["before"]
