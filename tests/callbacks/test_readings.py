"""Augmented data: a check reads the network where the dataset does, at further readings of its samples."""

import pytest
import torch
from problems import Classifier, Made, Plain, blobs, fit, in_order
from torch import nn
from torch.utils.data import DataLoader, default_collate

from bu_torch import BoundaryUncertaintyMonitor
from bu_torch.report import read_record

X, Y = blobs()
SEEN = []  # by networks in checks
SAID = "further readings"


class Seeing(Classifier):
    def forward(self, x):
        if not self.training:
            SEEN.append(x.clone())
        return super().forward(x)


def shifted(i):
    """One whole number is added to all of a sample."""
    return X[i] + torch.randint(5, ()), Y[i]


def monitored(folder, data, module, **settings):
    """The record of two epochs of training."""
    SEEN.clear()
    monitor = BoundaryUncertaintyMonitor(n_neighbors=20, **{"n_draws": 2, **settings})
    fit(folder, monitor, module=module, data=data, max_epochs=2)
    assert len(monitor.history) == 2
    return read_record(monitor.record_path)


def are_shifted(seen):
    """True if each row is a sample plus a whole number."""
    steps = (seen.unsqueeze(1) - X).double()
    return bool(((steps - steps.mean(dim=2, keepdim=True).round()).abs().amax(dim=2).amin(dim=1) < 1e-5).all())


@pytest.mark.parametrize("perturbation", [None, "reading", "random"])
def test_a_check_passes_what_the_dataset_gives(tmp_path, perturbation):
    record = monitored(tmp_path, DataLoader(Made(shifted), batch_size=30), Seeing(), perturbation=perturbation)
    assert record.data["perturbation"] == (perturbation or "reading")
    assert are_shifted(torch.cat(SEEN)) == (perturbation != "random")


class Hooked(Seeing):
    """Augments on the device."""

    def on_after_batch_transfer(self, batch, dataloader_idx):
        return batch[0] + torch.randint(5, (len(batch[0]), 1), device=batch[0].device), batch[1]


def test_augmentation_in_a_hook_is_drawn_anew(tmp_path, log):
    monitored(tmp_path, in_order(), Hooked(), n_draws=3)
    assert log.text.count(SAID) == 1
    check = SEEN[-1]
    assert are_shifted(check)
    assert not torch.equal(check[:120], check[120:240])


def test_samples_that_collate_fn_mixes_are_read_before_it(tmp_path, log):
    def mixed(samples):
        x, y = default_collate(samples)
        one_hot, weight = nn.functional.one_hot(y, 3).float(), torch.rand(())
        return weight * x + (1 - weight) * x.flip(0), weight * one_hot + (1 - weight) * one_hot.flip(0)

    data = monitored(tmp_path, DataLoader(Made(shifted), batch_size=30, collate_fn=mixed), Plain()).data
    assert SAID in log.text
    assert (data["n_samples"], data["n_classes"], data["perturbation"]) == (120, 3, "reading")
