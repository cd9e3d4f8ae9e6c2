import pytest
import torch
from lightning.pytorch.callbacks import EarlyStopping, LambdaCallback, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from problems import fit
from readable import Endless
from torch.utils.data import DataLoader

from bu_torch.callbacks import BoundaryUncertaintyMonitor
from bu_torch.report import read_record


def test_metrics_reach_logger_progress_bar_and_the_user_s_callbacks(tmp_path):
    bars = []
    look = LambdaCallback(on_train_epoch_start=lambda t, m: bars.append(set(t.progress_bar_metrics)))
    stopper = EarlyStopping(monitor="boundary_uncertainty", mode="max", patience=50)
    keeper = ModelCheckpoint(tmp_path / "mine", monitor="boundary_uncertainty", mode="max", filename="best")
    monitor = BoundaryUncertaintyMonitor()
    fit(tmp_path, stopper, keeper, look, monitor, logger=CSVLogger(tmp_path), log_every_n_steps=1)
    values = [entry["boundary_uncertainty"] for entry in monitor.history]
    assert bars[1] >= {"boundary_uncertainty", "trust_score"}
    assert float(stopper.best_score) == pytest.approx(max(values), abs=1e-6)
    assert torch.load(keeper.best_model_path, weights_only=True)["epoch"] == values.index(max(values))
    lines = (tmp_path / "lightning_logs" / "version_0" / "metrics.csv").read_text().splitlines()
    assert {"boundary_uncertainty", "trust_score", "epoch"} <= set(lines[0].split(","))
    assert len(lines) == 4


@pytest.mark.parametrize("is_reference", [True, False])
def test_an_endless_stream_is_cut_off_and_steps_on_it_are_warned_of(tmp_path, recwarn, is_reference):
    monitor = BoundaryUncertaintyMonitor(reference=Endless() if is_reference else None, n_draws=1, max_samples=300)
    data = None if is_reference else DataLoader(Endless(), batch_size=32)
    fit(tmp_path, monitor, data=data, max_epochs=1 if is_reference else -1, max_steps=8)
    assert read_record(monitor.record_path).data["n_samples"] == 300
    assert len(monitor.history) == 1
    assert any("max_steps=8" in str(one.message) for one in recwarn) != is_reference
