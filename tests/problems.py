"""Small data, modules and trainers for tests that train for real."""

import math
import os
import random
from unittest import mock

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from bu_torch import BoundaryUncertaintyStopping, Rule


def data_parallel(network):
    """Wrap a network on the CPU, also where there is a GPU, to which the wrapper would move it."""
    with mock.patch("torch.nn.parallel.data_parallel._get_available_device_type", return_value=None):
        return nn.DataParallel(network)


def blobs(n=120, d=4, n_classes=3, seed=0):
    g, labels = torch.Generator().manual_seed(seed), torch.arange(n) % n_classes
    centres = 2 * torch.randn(n_classes, d, generator=g)
    return centres[labels] + torch.randn(n, d, generator=g), labels


def weights_at_random(n=120):
    """Positive, some of them several times as large as others, (n,) float64."""
    return (torch.randn(n, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 0.8).exp()


def loader(*tensors, batch_size=30, **kwargs):
    return DataLoader(TensorDataset(*tensors), batch_size=batch_size, shuffle=True, **kwargs)


def in_order(*tensors):
    """Batches of 30, of blobs or of these, in the same order in each epoch."""
    return DataLoader(TensorDataset(*(tensors or blobs())), batch_size=30)


class Made(Dataset):
    """Samples from a function of the index; blobs without one."""

    def __init__(self, item=None, length=120):
        self.item, self.length = item or list(zip(*blobs(), strict=True)).__getitem__, length

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
        first, last = nn.Linear(d, 16), nn.Linear(16, n_outputs)
        self.net = nn.Sequential(first, nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), last)
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
    defaults = {"accelerator": "cpu", "default_root_dir": folder, "max_epochs": 3, "logger": False}
    if not kwargs.get("barebones"):
        defaults |= {"enable_progress_bar": False, "enable_model_summary": False}
    return pl.Trainer(**{**defaults, "callbacks": list(callbacks), **kwargs})


class Plain(Classifier):
    """Without dropout, whose random numbers no checkpoint holds: a run that resumes is the run in one piece."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.net[3] = nn.Identity()


class Weights(Callback):
    """The weights at the end of each epoch, after each step, and at the end of training before any are put back."""

    def __init__(self):
        self.of_epoch, self.of_step, self.at_end = {}, {}, None

    def on_train_batch_end(self, trainer, pl_module, *_):
        self.of_step.setdefault(trainer.global_step, weights_of(pl_module))

    def on_train_epoch_end(self, trainer, pl_module):
        self.of_epoch[trainer.current_epoch] = weights_of(pl_module)

    def on_train_end(self, trainer, pl_module):
        self.at_end = weights_of(pl_module)


def fit(folder, *callbacks, module=None, data=None, ckpt_path=None, weights_only=None, **options):
    """Train a classifier of blobs for three epochs; the trainer."""
    made = trainer(folder, *callbacks, **options)
    module, data = Classifier() if module is None else module, loader(*blobs()) if data is None else data
    made.fit(module, data, ckpt_path=ckpt_path, weights_only=weights_only)
    return made


def fit_again(folder, *callbacks, module=None, data=None, **options):
    """Train on samples in a fixed order from fixed weights of a module, or of what makes it; module and trainer."""
    pl.seed_everything(3, verbose=False)
    module = module or Plain(lr=0.1)
    module = module if isinstance(module, nn.Module) else module()
    data = in_order() if data is None else data
    return module, fit(folder, *callbacks, module=module, data=data, **{"max_epochs": 6, **options})


def cut(folder, *callbacks, again=False, max_epochs=2, **options):
    """Train for a while, as `fit` or `fit_again` does; the checkpoint to resume from."""
    last = ModelCheckpoint(folder / "user", save_last=True)
    (fit_again if again else fit)(folder, *callbacks, last, max_epochs=max_epochs, **options)
    return folder / "user" / "last.ckpt"


def weights_of(module):
    """A copy of all weights and buffers, also of those that a module's own `state_dict` leaves out."""
    return {name: value.clone() for name, value in nn.Module.state_dict(module).items()}


def same(one, other):
    """Whether two sets of weights are equal to the bit."""
    return one.keys() == other.keys() and all(torch.equal(value, other[name]) for name, value in one.items())


def assert_same_checks(found, expected, abs=1e-6, **options):
    """Two histories are equal but for rounding."""
    assert len(found) == len(expected) > 0
    for one, other in zip(found, expected, strict=True):
        assert one == pytest.approx(other, abs=abs, nan_ok=True, **options)


def wide(value):
    return value.to(torch.complex128 if value.is_complex() else torch.float64)


def averages_of(states, past, n_before=0):
    """Of each check there is what it brings, times what all later ones leave of it; whole numbers are the last."""
    left = [0.0, *(min(past, n / (n + 10)) for n in range(n_before + 1, n_before + len(states)))]
    shares = [(1 - left[n]) * math.prod(left[n + 1 :]) for n in range(len(states))]
    assert math.isclose(sum(shares), 1)
    return {
        name: sum(share * wide(state[name]) for share, state in zip(shares, states, strict=True))
        if value.is_floating_point() or value.is_complex()
        else value
        for name, value in states[-1].items()
    }


def close(found, expected):
    """Whether two sets of weights are equal but for rounding."""
    return found.keys() == expected.keys() and all(
        torch.allclose(wide(value), wide(expected[name]), atol=2e-2 if value.dtype == torch.bfloat16 else 1e-6)
        for name, value in found.items()
    )


class Bomb:
    """Makes a folder where it is unpickled."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


class Product(Rule):
    """Of two signals."""

    name = "product"
    signals = ("trust_score", "expected_accuracy")

    def score(self, values):
        return values["trust_score"] * values["expected_accuracy"]


class Given(Rule):
    """Scores the checks as written; after the end of the script by its last value."""

    signals = ("trust_score",)

    def __init__(self, scores, name="given"):
        self.scores, self.name, self.place = scores, name, 0

    def score(self, values):
        self.place += 1
        return self.scores[min(self.place, len(self.scores)) - 1]

    def reset(self):
        self.place = 0

    def state_dict(self):
        return {"place": self.place}

    def load_state_dict(self, state_dict):
        self.place = state_dict["place"]


def scripted(script=(0.1, 0.9, 0.5), name="given", **settings):
    """A callback that stops and keeps by these scores, and keeps weights as they are in training."""
    settings = {"n_neighbors": 20, "n_draws": 1, "averaging": None, "rule": Given(script, name), **settings}
    return BoundaryUncertaintyStopping(**settings)
