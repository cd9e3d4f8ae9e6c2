"""What the network gets in training is what is measured: batch hooks, samplers, units, odd outputs and labels."""

from functools import cache, partial

import lightning.pytorch as pl
import pytest
import torch
from problems import Classifier, Made, assert_same_checks, blobs, fit_again, loader
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

from bu_torch.callbacks import BoundaryUncertaintyMonitor
from bu_torch.run.prepare import class_weights_of
from bu_torch.run.settings import Settings

X, Y = blobs()
BYTES = (X * 25 + 128).clamp(0, 255).byte()
SCALED = BYTES.float() / 255


def monitored(folder, module, data, max_epochs=1, **settings):
    monitor = BoundaryUncertaintyMonitor(n_neighbors=10, n_draws=1, **settings)
    return monitor, fit_again(folder, monitor, module=module, data=data, max_epochs=max_epochs)[0]


# Hooks that transform batches.


def scaled_by(batch):
    return batch[0].float() / 255, batch[1]


def after(self, batch, dataloader_idx):
    return scaled_by(batch) if self.trainer.training else batch


HOOKS = {
    "on_before_batch_transfer": lambda self, batch, dataloader_idx: scaled_by(batch),
    "on_after_batch_transfer": after,
    "transfer_batch_to_device": lambda self, batch, device, dataloader_idx: scaled_by(batch),
}


class DataModule(pl.LightningDataModule):
    on_after_batch_transfer = after

    def train_dataloader(self):
        return loader(BYTES, Y)


def hooked(name):
    """A module with a hook of this name."""
    return type("Hooked", (Classifier,), {name: HOOKS[name]})


@pytest.fixture(scope="module")
def scaled(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scaled")
    return cache(lambda **settings: monitored(folder, Classifier, loader(SCALED, Y), max_epochs=2, **settings)[0])


REFERENCES = ({"reference": (SCALED, Y)}, {"reference": TensorDataset(BYTES, Y)})  # hooks change the dataset's alone


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        *((name, {}) for name in HOOKS),
        ("of a datamodule", {"max_samples": 50}),
        *(("on_after_batch_transfer", reference) for reference in REFERENCES),
    ],
)
def test_hooks_that_scale_are_as_data_that_is_scaled(tmp_path, scaled, name, settings):
    given = (hooked(name), loader(BYTES, Y)) if name in HOOKS else (Classifier, DataModule())
    found, _ = monitored(tmp_path, *given, max_epochs=2, **settings)
    expected = scaled(**({} if settings in REFERENCES else settings))
    assert_same_checks(found.history, expected.history, abs=1e-5)


# What the network gets.


class Stepped(Classifier):
    """Prepares its inputs in `training_step`."""

    def __init__(self, prepare, calls_itself=True):
        super().__init__()
        self.prepare, self.called = prepare, [self if calls_itself else self.net]

    def training_step(self, batch, batch_idx):
        logits = self.called[0](self.prepare(batch[0].clone()))
        return nn.functional.cross_entropy(logits, batch[1])


PREPARED = {  # what `training_step` does with its inputs, and whether a warning says so
    "nothing": (lambda x: x, False),
    "noise": (lambda x: x + 0.3 * torch.randn_like(x), False),
    "mixup": (lambda x: 0.7 * x + 0.3 * x.flip(0), False),
    "divides": (lambda x: x / 255, True),
    "shifts": (lambda x: x + 300, True),
    "stretches": (lambda x: (x - x.mean()) * 3 + x.mean(), True),
}


def warnings_in(caught):
    return [str(one.message) for one in caught if "the network gets" in str(one.message)]


@pytest.mark.parametrize(("does", "calls_itself"), [*((does, True) for does in PREPARED), ("divides", False)])
def test_other_inputs_in_training_are_warned_of_once(tmp_path, recwarn, does, calls_itself):
    prepare, is_warned = PREPARED[does]
    monitor, module = monitored(tmp_path, partial(Stepped, prepare, calls_itself), loader(X * 20 + 100, Y))
    assert ["values of mean" in line for line in warnings_in(recwarn)] == [True] * is_warned
    assert (len(monitor.history), any(part._forward_pre_hooks for part in module.modules())) == (1, False)


def test_rows_of_a_small_or_sorted_batch_or_of_a_sampler_are_no_others(tmp_path, recwarn):
    inputs = (X[Y.argsort()] * torch.tensor([1.0, 10.0, 100.0, 1000.0])).exp().clamp(max=1e6)
    monitored(tmp_path, Classifier, DataLoader(TensorDataset(inputs, Y.sort().values), 2))
    monitored(tmp_path, Classifier, DataLoader(Made(lambda i: (X[i] + i // 60 * 9 + torch.rand(4), Y[i]), 120), 2))
    drawn = WeightedRandomSampler([1.0 + 18 * (i % 20 == 0) for i in range(120)], 120)
    odd = Made(lambda i: (X[i] + 60 * (i % 20 == 0) + torch.rand(4), Y[i]), 120)
    monitored(tmp_path, Classifier, DataLoader(odd, 32, sampler=drawn))
    assert not warnings_in(recwarn)


# Rare classes, and losses that weigh classes.


@pytest.mark.parametrize(("class_weight", "is_said"), [(None, True), ("balanced", False), ({0: 0.1}, False)])
def test_a_rare_class_is_worth_a_word(tmp_path, log, class_weight, is_said):
    labels = (torch.arange(120) % 25 == 0).long()
    data = loader(X + 10 * labels.unsqueeze(1), labels)
    monitored(tmp_path, lambda: Classifier(n_outputs=2), data, class_weight=class_weight)
    assert ["Class 1 makes up 4.2%" in line for line in log.messages if "training draws" in line] == [True] * is_said


W, CE, NLL, BCE = torch.tensor([1.0, 4.0, 2.0]), nn.CrossEntropyLoss, nn.NLLLoss, nn.BCEWithLogitsLoss
LOSSES = {  # their number of classes, and their weights
    "two that agree": ([CE(W), NLL(W)], 3, W.tolist()),
    "of one logit": ([BCE(pos_weight=torch.tensor([3.0]))], 2, [1.0, 3.0]),
    "two that do not": ([CE(W), CE(W.flip(0))], 3, None),
    "one without": ([CE(W), CE()], 3, None),
    "too few": ([CE(W[:2])], 3, None),
    "of many labels": ([BCE(pos_weight=W)], 3, None),
    "a class that does not count": ([CE(W - 1)], 3, None),
}


@pytest.mark.parametrize("losses", LOSSES)
def test_weights_of_loss_modules_count_if_they_agree(losses):
    modules, n_classes, expected = LOSSES[losses]
    lines, labels = [], torch.arange(n_classes)
    assert class_weights_of(nn.ModuleList(modules), labels, Settings(), lines.append) == expected
    assert "`class_weight=" in lines.pop()
    assert class_weights_of(nn.ModuleList([CE(), BCE(), NLL(W / W)]), labels, Settings(), lines.append) is None
    assert not lines
