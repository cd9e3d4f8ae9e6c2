"""At how many samples a check looks, and at how many draws of each, as the record says."""

import sys

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from problems import Classifier, blobs, fit, loader
from readable import Endless
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from bu_torch import BoundaryUncertaintyMonitor, BoundaryUncertaintyStopper
from bu_torch.report import read_record
from bu_torch.run.prepare import plan_check
from bu_torch.run.reader import NetworkReader
from bu_torch.run.settings import Settings
from bu_torch.samples.samples import samples_of, whole_samples

pytestmark = pytest.mark.filterwarnings("ignore:::bu_torch")


def planned(path):
    data = read_record(path).data
    return data["n_samples"], data["n_draws"]


def heavy(module, n_weights=2 * 10**6):
    """The module, whose passes cost so much more."""
    module.register_parameter("heavy", nn.Parameter(torch.zeros(n_weights)))
    return module


@pytest.mark.parametrize(
    ("n_training", "n_operations", "settings", "expected"),
    [
        (686, 20, {}, (686, 4)),
        (2500, 20, {}, (2500, 2)),
        (2500, 260_000, {}, (2000, 1)),
        (2500, 4_000_000, {}, (500, 1)),
        (4000, 4_000_000, {}, (600, 1)),
        (200, 4_000_000, {}, (200, 2)),
        (2500, 20, {"n_draws": 1000}, (20, 1000)),
        (2500, 20, {"max_samples": 300}, (300, 4)),
        (2500, 20, {"max_samples": 300, "n_draws": 5}, (300, 5)),
        (1500, 20, {"rule": "parzen_uncertainty"}, (1500, 3)),
        (3500, 20, {"rule": "parzen_uncertainty"}, (3000, 1)),
    ],
)
def test_the_price_of_a_pass_and_the_data_set_the_plan(n_training, n_operations, settings, expected):
    settings = Settings(n_neighbors=20, **settings)
    samples = samples_of(torch.zeros(1, 2), torch.zeros(1))._replace(n_training=n_training)
    assert plan_check(settings, samples, n_operations) == expected


@pytest.mark.parametrize(
    ("settings", "options", "expected"),
    [
        # A training on all of them pays for 600.
        ({"n_neighbors": 20}, {"data": loader(*blobs(4000)), "limit_train_batches": 2}, (500, 1)),
        ({"reference": blobs(600)}, {}, (600, 1)),
        ({"reference": blobs(600), "max_samples": 50}, {}, (50, 4)),
        ({"reference": TensorDataset(*blobs(600))}, {}, (500, 1)),
        ({"reference": Endless(), "n_draws": 1, "max_samples": 300}, {}, (300, 1)),
    ],
    ids=["what an epoch visits", "a pair, whole", "or as told", "a dataset within the budget", "a stream, cut off"],
)
def test_the_price_is_that_of_the_samples_that_are_visited_or_given(tmp_path, settings, options, expected):
    monitor = BoundaryUncertaintyMonitor(**settings)
    fit(tmp_path, monitor, module=heavy(Classifier()), max_epochs=1, **options)
    assert planned(monitor.record_path) == expected


def test_an_endless_stream_is_cut_off_and_steps_on_it_are_warned_of(tmp_path):
    monitor, stream = BoundaryUncertaintyMonitor(n_draws=1, max_samples=300), DataLoader(Endless(), batch_size=32)
    with pytest.warns(UserWarning, match="max_steps=8"):
        fit(tmp_path, monitor, data=stream, max_epochs=-1, max_steps=8)
    assert planned(monitor.record_path) == (300, 1)
    assert len(monitor.history) == 1


class Recurrent(nn.LSTM):
    """Gives its outputs alone."""

    def forward(self, x):
        return super().forward(x)[0]


PICTURES, SEQUENCES = torch.rand(3, 1, 28, 28), torch.rand(3, 200, 16)
CONVOLUTIONS = nn.Sequential(*(nn.Conv2d(n, 8, 3, padding=1) for n in (1, 8, 8)), nn.AvgPool2d(28))
RECURRENT = Recurrent(16, 16, num_layers=2, batch_first=True)
TRANSFORMER = nn.TransformerEncoderLayer(16, 2, dim_feedforward=32, batch_first=True)


@pytest.mark.parametrize(
    ("layer", "inputs", "n_outputs", "n_products"),
    [
        (CONVOLUTIONS, PICTURES, 8, 28**2 * 9 * 8 * (1 + 8 + 8)),
        (RECURRENT, SEQUENCES, 3200, 200 * 2 * 4 * 16 * (16 + 16 + 2)),
        (TRANSFORMER, SEQUENCES, 3200, 200 * 16 * (4 * 16 + 2 * 32)),
        (nn.Identity(), PICTURES, 784, 784 * 3),
        (nn.EmbeddingBag(30_000, 64), torch.randint(60, (3, 12)), 64, 64 * 3),
    ],
    ids=["convolutions", "recurrent", "transformer", "linear", "a table of words"],
)
def test_operations_count_not_weights(layer, inputs, n_outputs, n_products):
    module = nn.Sequential(layer, nn.Flatten(), nn.Linear(n_outputs, 3))
    settings = Settings(perturbation=None if inputs.is_floating_point() else "tokens")
    samples = whole_samples(inputs, torch.arange(3), keep_integers=True)
    found = NetworkReader(settings, None).operations_of(module, samples)
    assert found == pytest.approx(2 * n_products, rel=0.1)
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in module.modules())


def test_a_resumed_run_keeps_its_plan_unless_asked_for_another(tmp_path):
    def run(n_samples, *, max_epochs=2, ckpt_path=tmp_path / "kept.ckpt", **kwargs):
        monitor, last = BoundaryUncertaintyMonitor(**kwargs), ModelCheckpoint(tmp_path, save_last=True)
        fit(tmp_path, monitor, last, data=loader(*blobs(n_samples)), max_epochs=max_epochs, ckpt_path=ckpt_path)
        return planned(monitor.record_path)

    assert run(120, max_epochs=1, ckpt_path=None) == (120, 4)
    (tmp_path / "last.ckpt").rename(tmp_path / "kept.ckpt")
    with pytest.warns(UserWarning, match="different training samples"):
        assert run(300) == (120, 4)
    with pytest.warns(UserWarning, match="n_draws=2"):
        assert run(300, n_draws=2) == (300, 2)


@pytest.mark.parametrize(
    ("bound", "settings", "expected"), [(1, {}, 20), (1, {"max_samples": 70}, 70), (60 * 784 * 4 + 9, {}, 60)]
)
def test_samples_that_are_held_are_bounded_unless_more_are_asked_for(tmp_path, monkeypatch, bound, settings, expected):
    for module in [module for name, module in sys.modules.items() if name.startswith("bu_torch")]:
        if "MAX_BYTES" in vars(module):
            monkeypatch.setattr(module, "MAX_BYTES", bound)
    stopper = BoundaryUncertaintyStopper(*blobs(300, 784), n_neighbors=20, folder=tmp_path, **settings)
    stopper.check(nn.Linear(784, 3))
    assert planned(stopper.record_path)[0] == expected


def test_a_network_gets_few_large_inputs_at_a_time():
    n_rows, large = [], torch.zeros(()).expand(40, 3, 320, 320)
    NetworkReader(Settings(), None).logits_at(lambda inputs: n_rows.append(len(inputs)) or inputs[:, 0, 0, :2], large)
    assert max(n_rows) <= 32
