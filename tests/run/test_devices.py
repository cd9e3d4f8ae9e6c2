"""On a GPU, or an emulated one, the same is measured as on the CPU."""

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


VECTORS = blobs(n=160)  # so many that a metric is tried
FEW, MANY = blobs(n=120), blobs(n=600)  # without a metric, and with landmarks that K-means places
IMAGES = blobs(n=150, d=36)[0].view(-1, 1, 6, 6), VECTORS[1][:150]


@pytest.mark.parametrize(
    ("samples", "settings"),
    [
        (VECTORS, {}),
        (FEW, {"class_weight": "balanced"}),
        (FEW, {"perturbation": "neighbors"}),
        (MANY, {}),
        (IMAGES, {}),
        (tokens(120), {"perturbation": "tokens"}),
    ],
    ids=["vectors", "weighted", "neighbors", "many", "images", "tokens"],
)
def test_signals_agree(samples, settings, accelerator, generator):
    inputs, labels = samples
    on_cpu, on_gpu = (
        Signals(n_neighbors=20, n_draws=2, **settings).fit(inputs.to(device), labels.to(device))
        for device in ("cpu", accelerator)
    )
    assert torch.allclose(on_gpu.perturbed_inputs.cpu(), on_cpu.perturbed_inputs, atol=1e-6)
    before = None, None
    for _ in range(2):
        weights = torch.randn(inputs[0].numel(), 3, generator=generator)
        logits = on_cpu.perturbed_inputs.flatten(1).float() @ weights
        on_each = on_cpu.measure(logits, before[0]), on_gpu.measure(logits.to(accelerator), before[1])
        (one, other), before = zip(*on_each, strict=True)
        assert {value.device.type for value in other.values()} == {accelerator.type}
        assert {n: float(v) for n, v in other.items()} == pytest.approx({n: float(v) for n, v in one.items()}, abs=1e-5)


@pytest.mark.parametrize(
    ("shape", "settings", "is_there"),
    [
        ((4,), {"max_samples": 100, "class_weight": "balanced"}, True),
        ((4,), {"max_samples": 100, "class_weight": "balanced"}, False),
        ((4,), {"feature_extractor": "metric", "class_weight": [1.0, 2.0, 3.0]}, True),
        ((1, 2, 2), {}, False),
    ],
    ids=["subset", "subset, on the CPU", "metric", "images, on the CPU"],
)
def test_a_default_device_changes_nothing(shape, settings, is_there, accelerator):
    """What `torch.set_default_device` says is where new tensors of no device are, and generators are on the CPU."""
    samples = VECTORS[0].view(-1, *shape), VECTORS[1]
    network = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))

    def checked(*samples):
        first, again = (BoundaryUncertaintyStopper(*samples, n_neighbors=20, **settings) for _ in range(2))
        first.check(network)
        again.load_state_dict(first.state_dict())
        again.check(network)
        again.restore(network)
        return again.history

    expected = checked(*samples)
    network.to(accelerator)
    with torch.device(accelerator):
        found = checked(*(one.to(accelerator) for one in samples) if is_there else samples)
    assert_same_checks(found, expected, abs=1e-5)
