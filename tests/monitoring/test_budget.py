import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from problems import Classifier, blobs, loader, trainer
from torch.utils.data import TensorDataset

from bu_torch.callbacks import BoundaryUncertaintyMonitor
from bu_torch.monitoring.budget import Plan, count_weights, plan

ASKED = {"budget": "auto", "n_draws": None, "max_samples": None, "n_neighbors": 40}


@pytest.mark.parametrize(
    ("n_training", "n_weights", "asked", "expected"),
    [
        (120, 1000, {}, Plan(120, 12)),
        (500, 1000, {}, Plan(500, 12)),
        (686, 1000, {}, Plan(686, 8)),
        (2500, 1000, {}, Plan(2500, 2)),
        (5000, 1000, {}, Plan(5000, 1)),
        (10000, 1000, {}, Plan(6000, 1)),
        (60000, 1000, {}, Plan(9000, 1)),
        (60000, 10**9, {}, Plan(9000, 1)),
        (2500, 100_000, {}, Plan(2000, 1)),
        (2500, 10**9, {}, Plan(1000, 1)),
        (300, 10**9, {}, Plan(300, 3)),
        (20000, 1000, {"budget": None}, Plan(20000, 4)),
        (100, 1000, {"budget": None}, Plan(100, 12)),
        (20000, 1000, {"budget": 1.0}, Plan(20000, 1)),
        (20000, 1000, {"budget": 2.5}, Plan(20000, 2)),
        (2500, 1000, {"budget": 0.05}, Plan(125, 1)),
        (2500, 10**9, {"budget": 0.3}, Plan(750, 1)),
        (200, 1000, {"budget": 0.05}, Plan(40, 1)),
        (20000, 1000, {"n_draws": 4}, Plan(1500, 4)),
        (20000, 1000, {"n_draws": 1000}, Plan(40, 1000)),
        (20000, 1000, {"max_samples": 3000}, Plan(3000, 2)),
        (20000, 1000, {"max_samples": 3000, "n_draws": 5}, Plan(3000, 5)),
        (20000, 1000, {"budget": None, "n_draws": 2, "max_samples": 30000}, Plan(20000, 2)),
    ],
)
def test_plan(n_training, n_weights, asked, expected):
    assert plan(n_training, n_training, n_weights, **{**ASKED, **asked}) == expected


@pytest.mark.parametrize("n_training", [40, 333, 1000, 4999, 6001, 30_000, 1_000_000])
@pytest.mark.parametrize("n_weights", [0, 50_000, 10**8])
def test_the_price_is_bounded(n_training, n_weights):
    made = plan(n_training, n_training, n_weights, **ASKED)
    floor = {0: 6000, 50_000: 4000, 10**8: 1000}[n_weights]
    assert 40 <= made.n_samples <= n_training
    assert 1 <= made.n_draws <= 12
    assert made.n_samples * made.n_draws <= max(0.15 * n_training, floor)
    bound = plan(n_training, n_training, n_weights, **ASKED | {"budget": 0.3})
    assert bound.n_samples * bound.n_draws <= max(0.3 * n_training, 40)


def test_what_an_epoch_visits_sets_the_price():
    assert plan(100_000, 50_000, 1000, **ASKED) == Plan(7500, 1)
    assert plan(100_000, 60, 1000, **ASKED) == Plan(6000, 1)


def test_limited_batches_are_counted(tmp_path, monkeypatch):
    monkeypatch.setattr("bu_torch.monitoring.budget._LEAST_FLOOR", 220)
    monitor = BoundaryUncertaintyMonitor()
    data = loader(*blobs(900), batch_size=30)  # all batches would pay for 270
    module = Classifier()
    module.register_parameter("heavy", torch.nn.Parameter(torch.zeros(10**6)))
    trainer(tmp_path, monitor, max_epochs=1, limit_train_batches=2).fit(module, data)
    assert monitor.tracker.plan == Plan(220, 1)


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
    monkeypatch.setattr("bu_torch.monitoring.budget._MOST_FLOOR", 200)
    monitor = BoundaryUncertaintyMonitor(reference=reference, **asked)
    trainer(tmp_path, monitor, max_epochs=1).fit(Classifier(), loader(*blobs()))
    assert monitor.tracker.plan == expected


def test_weights_of_lazy_layers_are_not_counted():
    assert count_weights(torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.LazyLinear(5))) == 8


def test_a_resumed_run_keeps_its_plan_unless_asked_for_another(tmp_path):
    def fit(n_samples, ckpt_path=None, **kwargs):
        monitor = BoundaryUncertaintyMonitor(**kwargs)
        last = ModelCheckpoint(tmp_path / "user", save_last=True)
        trainer(tmp_path, monitor, last, max_epochs=1 if ckpt_path is None else 2).fit(
            Classifier(), loader(*blobs(n_samples)), ckpt_path=ckpt_path
        )
        return monitor.tracker.plan

    path = tmp_path / "user" / "last.ckpt"
    assert fit(120) == Plan(120, 12)
    saved = torch.load(path, weights_only=True)["callbacks"]
    assert [state["plan"] for name, state in saved.items() if "BoundaryUncertaintyMonitor" in name] == [(120, 12)]
    path.rename(tmp_path / "kept.ckpt")
    with pytest.warns(UserWarning, match="resumes with other training samples"):
        assert fit(300, tmp_path / "kept.ckpt") == Plan(120, 12)
    assert fit(300, tmp_path / "kept.ckpt", n_draws=2) == Plan(300, 2)


def test_a_cache_is_written_once_and_taken_from_then_on(tmp_path, monkeypatch, caplog):
    def fit(features, labels, **kwargs):
        monitor = BoundaryUncertaintyMonitor(cache=tmp_path / "cache.npz", **kwargs)
        torch.manual_seed(0)
        trainer(tmp_path, monitor, max_epochs=2).fit(Classifier(), loader(features, labels))
        return monitor.history

    monitor = BoundaryUncertaintyMonitor(cache=tmp_path / "cache.npz")
    trainer(tmp_path, monitor, fast_dev_run=True).fit(Classifier(), loader(*blobs()))
    assert not (tmp_path / "cache.npz").exists()
    first = fit(*blobs())
    monkeypatch.setattr("bu_torch.monitoring.signals.BoundaryUncertainty.fit", lambda *a: pytest.fail("computed again"))
    with caplog.at_level("INFO", logger="lightning.pytorch"):
        assert fit(*blobs()) == first
    assert f"Loading neighbours and perturbed inputs from {tmp_path / 'cache.npz'}" in caplog.text
    with pytest.raises(MisconfigurationException, match="was made of other samples or settings"):
        fit(*blobs(), seed=1)
    with pytest.raises(MisconfigurationException, match="was made of other samples or settings"):
        fit(*blobs(150))
