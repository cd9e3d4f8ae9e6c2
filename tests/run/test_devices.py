"""On a GPU, or an emulated one, the same is measured as on the CPU."""

import copy
from contextlib import nullcontext

import pytest
import torch
from problems import assert_same_checks, blobs
from scenarios import tokens
from torch import nn

from bu_torch import BoundaryUncertaintyStopper, Signals

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def training_rounds_its_products():
    """What Lightning advises on a GPU that can."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    yield
    torch.set_float32_matmul_precision(before)


class Network(nn.Linear):
    def forward(self, x):
        return super().forward(x.flatten(1).to(self.weight))


VECTORS = blobs(n=160)  # so many that a metric is tried
FEW, MANY = blobs(n=120), blobs(n=600)  # without a metric, and with landmarks that K-means places
IMAGES = blobs(n=150, d=36)[0].view(-1, 1, 6, 6), VECTORS[1][:150]
THERE, DEFAULT, HERE = (True, False), (True, True), (False, True)  # where samples are, and whether that is the default
ROWS = {
    "vectors": (VECTORS, {}, THERE),
    "a subset": (VECTORS, {"max_samples": 100, "class_weight": "balanced"}, DEFAULT),
    "a subset, on the CPU": (VECTORS, {"max_samples": 100, "class_weight": "balanced"}, HERE),
    "a metric": (VECTORS, {"feature_extractor": "metric", "class_weight": [1.0, 2.0, 3.0]}, DEFAULT),
    "neighbors": (FEW, {"perturbation": "neighbors"}, THERE),
    "many": (MANY, {}, THERE),
    "images": (IMAGES, {}, THERE),
    "images, on the CPU": (IMAGES, {}, HERE),
    "tokens": (tokens(120), {"perturbation": "tokens"}, THERE),
}


@pytest.mark.parametrize(("samples", "settings", "where"), ROWS.values(), ids=ROWS)
def test_checks_agree_and_a_default_device_changes_nothing(samples, settings, where, accelerator):
    """What `torch.set_default_device` says is where new tensors of no device are, and generators are on the CPU."""
    network, (is_there, is_default) = Network(samples[0][0].numel(), 3).requires_grad_(False), where

    def checked(network, *samples):
        first, again = (BoundaryUncertaintyStopper(*samples, n_neighbors=20, **settings) for _ in range(2))
        first.check(network)
        again.load_state_dict(first.state_dict())
        network.weight.neg_()
        again.check(network)
        again.restore(network)
        return again.history

    expected = checked(copy.deepcopy(network), *samples)
    with torch.device(accelerator) if is_default else nullcontext():
        found = checked(network.to(accelerator), *(one.to(accelerator) for one in samples) if is_there else samples)
    assert_same_checks(found, expected, abs=1e-5)


def test_values_stay_on_the_device(accelerator):
    signals = Signals(20, 1).fit(*(one.to(accelerator) for one in FEW))
    values, predictions = signals.measure(torch.randn(120, 3, device=accelerator))
    assert {one.device.type for one in (*values.values(), predictions)} == {accelerator.type}
