import sys
import warnings

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from problems import Classifier, Made, blobs, fit, loader, looked_at, state_of
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from bu_torch.callbacks import BoundaryUncertaintyMonitor
from bu_torch.run.budget import Plan, count_operations, plan
from bu_torch.run.settings import Settings

ASKED = Settings()


@pytest.mark.parametrize(
    ("n_training", "n_operations", "asked", "expected"),
    [
        (686, 1000, {}, Plan(686, 4)),
        (2500, 1000, {}, Plan(2500, 2)),
        (10000, 1000, {}, Plan(6000, 1)),
        (60000, 1000, {}, Plan(9000, 1)),
        (2500, 260_000, {}, Plan(2000, 1)),
        (2500, 10**9, {}, Plan(500, 1)),
        (200, 10**9, {}, Plan(200, 2)),
        (20000, 1000, {"n_draws": 1000}, Plan(40, 1000)),
        (20000, 1000, {"max_samples": 3000}, Plan(3000, 2)),
        (20000, 1000, {"max_samples": 3000, "n_draws": 5}, Plan(3000, 5)),
        (20000, 1000, {"rule": "parzen_uncertainty"}, Plan(3000, 1)),
        (1500, 1000, {"rule": "parzen_uncertainty"}, Plan(1500, 3)),
        (20000, 1000, {"max_samples": sys.maxsize, "n_draws": 1, "rule": "parzen_uncertainty"}, Plan(20000, 1)),
    ],
)
def test_plan(n_training, n_operations, asked, expected):
    assert plan(Settings(**asked), n_training, n_training, n_operations) == expected


@pytest.mark.parametrize("n_training", [40, 333, 1000, 4999, 6001, 30_000, 1_000_000])
@pytest.mark.parametrize("n_operations", [0, 110_000, 10**8])
def test_the_price_is_bounded(n_training, n_operations):
    made = plan(ASKED, n_training, n_training, n_operations)
    floor = {0: 6000, 110_000: 4000, 10**8: 500}[n_operations]
    assert 40 <= made.n_samples <= n_training
    assert 1 <= made.n_draws <= 4
    assert made.n_samples * made.n_draws <= max(0.15 * n_training, floor)


def test_what_an_epoch_visits_sets_the_price():
    assert plan(ASKED, 100_000, 50_000, 1000) == Plan(7500, 1)
    assert plan(ASKED, 100_000, 60, 1000) == Plan(6000, 1)


def test_limited_batches_are_counted(tmp_path, monkeypatch):
    monkeypatch.setattr("bu_torch.run.budget._LEAST_FLOOR", 220)
    monitor = BoundaryUncertaintyMonitor()
    module, data = Classifier(), loader(*blobs(900))  # all batches would pay for 270
    module.register_parameter("heavy", nn.Parameter(torch.zeros(2 * 10**6)))
    fit(tmp_path, monitor, module=module, data=data, max_epochs=1, limit_train_batches=2)
    assert looked_at(monitor) == Plan(220, 1)


@pytest.mark.parametrize(
    ("reference", "asked", "expected"),
    [
        (blobs(210), {}, Plan(210, 1)),
        (blobs(210), {"max_samples": 50}, Plan(50, 4)),
        (TensorDataset(*blobs(210)), {}, Plan(200, 1)),
    ],
    ids=["a pair is used whole", "or as told", "a dataset is read within the budget"],
)
def test_of_a_reference(tmp_path, monkeypatch, reference, asked, expected):
    monkeypatch.setattr("bu_torch.run.budget._MOST_FLOOR", 200)
    monitor = BoundaryUncertaintyMonitor(reference=reference, **asked)
    fit(tmp_path, monitor, max_epochs=1)
    assert looked_at(monitor) == expected


def test_weights_of_lazy_layers_are_not_counted():
    assert count_operations(nn.Sequential(nn.Linear(3, 2), nn.LazyLinear(5))) == 16


def conv_net():
    """20 weights, each of them used in 28 x 28 places, and as many of a last layer for each class."""
    return nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(2 * 28 * 28, 3))


def test_operations_of_a_convolution_are_those_of_all_places():
    network = conv_net()
    n_operations = count_operations(network, lambda: network(torch.zeros(1, 1, 28, 28)))
    assert n_operations == 2 * 28 * 28 * (2 * 9 + 2 * 3)
    assert count_operations(network) == 2 * (2 * 10 + 3 * (2 * 28 * 28 + 1))


@pytest.mark.filterwarnings("error")
def test_what_cannot_be_counted_counts_by_its_weights_and_is_not_warned_of():
    """`torch.compile` warns of the hooks with which torch counts."""

    def refuse():
        warnings.warn("hooks", stacklevel=1)
        raise KeyError("not ready")

    assert count_operations(nn.Linear(3, 2), refuse) == 16


@pytest.mark.parametrize("kind", [nn.GRU, nn.LSTM, nn.RNN])
def test_a_recurrent_layer_uses_its_weights_in_each_step(kind):
    layer, sequence = kind(3, 2, num_layers=2, batch_first=True), torch.zeros(1, 5, 3)
    n_weights = sum(weight.numel() for weight in layer.parameters())
    assert 2 * 5 * n_weights * 0.6 < count_operations(layer, lambda: layer(sequence)) <= 2 * 5 * n_weights
    packed = nn.utils.rnn.pack_padded_sequence(sequence, [5], batch_first=True)
    assert count_operations(layer, lambda: layer(packed)) > 2 * 5 * n_weights * 0.6
    assert not layer._forward_hooks | layer._forward_pre_hooks


def test_a_transformer_is_counted_layer_by_layer():
    layer = nn.TransformerEncoderLayer(8, 2, dim_feedforward=16, batch_first=True)
    network = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    n_multiplied = 2 * (4 * 8 * 8 + 2 * 8 * 16)
    was = torch.backends.mha.get_fastpath_enabled()
    with torch.no_grad():
        assert count_operations(network, lambda: network(torch.zeros(1, 10, 8))) >= 2 * 10 * n_multiplied
    assert torch.backends.mha.get_fastpath_enabled() == was


def test_an_embedding_counts_by_what_is_multiplied_with_it():
    table = nn.Embedding(30_000, 8)
    network = nn.Sequential(table, nn.Flatten(), nn.Linear(5 * 8, 2))
    of_linear = 2 * (5 * 8 + 1) * 2
    assert count_operations(table) == count_operations(nn.EmbeddingBag(30_000, 8)) == 0
    assert count_operations(network) == of_linear
    assert count_operations(network, lambda: network(torch.zeros(1, 5, dtype=torch.long))) == of_linear
    tied = nn.Sequential(table, nn.Linear(8, 30_000, bias=False))
    tied[1].weight = table.weight
    assert count_operations(tied) == 2 * 30_000 * 8


def images(n=1300):
    labels = torch.arange(n) % 3
    return torch.randn(n, 1, 28, 28, generator=torch.Generator().manual_seed(0)) + labels.view(-1, 1, 1, 1), labels


class OfImages(Classifier):
    def __init__(self):
        super().__init__()
        convolutions = (nn.Conv2d(n, 8, 3, padding=1) for n in (1, 8, 8))
        self.net = nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(8 * 28 * 28, 3))

    def forward(self, x):
        return self.net(x)


class Told(Made):
    """Tells no labels before it is read; sample i is i everywhere, and some have no label."""

    def __init__(self, n=1600):
        labels = torch.where(torch.arange(n) < 7, -100, torch.arange(n) % 3)
        super().__init__(lambda i: (torch.full((1, 28, 28), float(i)) + torch.randn(1, 28, 28), labels[i]), n)
        self.known = labels


def save_last(folder):
    return ModelCheckpoint(folder, save_last=True)


@pytest.mark.filterwarnings("ignore:7 samples have the label -100", "ignore:The nearest neighbours predict")
@pytest.mark.parametrize("data", [TensorDataset(*images()), Told()], ids=["labels are known", "labels are read"])
def test_a_resumed_run_looks_at_the_same_samples(tmp_path, data):
    def run(**options):
        monitor = BoundaryUncertaintyMonitor(feature_extractor="inputs")
        batches = DataLoader(data, batch_size=800, shuffle=True)
        fit(tmp_path, monitor, save_last(tmp_path), module=OfImages(), data=batches, **options)
        return monitor

    run(max_epochs=1)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="The run resumes with different")
        resumed = run(max_epochs=2, ckpt_path=tmp_path / "last.ckpt")
    assert looked_at(resumed) == Plan(500, 1)
    assert [check["epoch"] for check in resumed.history] == [0, 1]


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({}, "600 samples, 4 draws each."),
        ({"reference": blobs(150), "n_draws": 2}, "150 samples, 2 draws each."),
    ],
)
def test_one_line_tells_the_plan(tmp_path, log, settings, told):
    fit(tmp_path, BoundaryUncertaintyMonitor(**settings), data=loader(*blobs(600)), max_epochs=2)
    (line,) = (one for one in log.messages if "measures at" in one)
    assert line == f"bu-torch measures at {told}"


def test_a_resumed_run_keeps_its_plan_unless_asked_for_another(tmp_path):
    def plan_of(n_samples, *, max_epochs=2, ckpt_path=tmp_path / "kept.ckpt", **kwargs):
        monitor, data = BoundaryUncertaintyMonitor(**kwargs), loader(*blobs(n_samples))
        fit(tmp_path, monitor, save_last(tmp_path), data=data, max_epochs=max_epochs, ckpt_path=ckpt_path)
        return looked_at(monitor)

    assert plan_of(120, max_epochs=1, ckpt_path=None) == Plan(120, 4)
    path = (tmp_path / "last.ckpt").rename(tmp_path / "kept.ckpt")
    assert state_of(torch.load(path, weights_only=True), "BoundaryUncertaintyMonitor")["plan"] == (120, 4)
    with pytest.warns(UserWarning, match="resumes with different training samples"):
        assert plan_of(300) == Plan(120, 4)
    with pytest.warns(UserWarning, match="resumes with n_draws=2 instead of n_draws=None"):
        assert plan_of(300, n_draws=2) == Plan(300, 2)
