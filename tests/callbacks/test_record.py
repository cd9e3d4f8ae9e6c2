"""The table of checks beside the checkpoints."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from lightning.pytorch.callbacks import LambdaCallback, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from problems import Classifier, blobs, loader, trainer

from bu_torch.callbacks import BoundaryUncertaintyMonitor, BoundaryUncertaintyStopping


def fit(folder, callback, *others, ckpt_path=None, **kwargs):
    trainer(folder, callback, *others, **kwargs).fit(Classifier(), loader(*blobs()), ckpt_path=ckpt_path)
    return callback


def agree(table, history):
    assert len(table) == len(history)
    for (_, row), entry in zip(table.iterrows(), history, strict=True):
        for name, value in entry.items():
            assert row[name] == pytest.approx(value, rel=1e-12, nan_ok=True), name


def test_each_check_has_its_row_as_soon_as_it_is_measured(tmp_path):
    stopping = BoundaryUncertaintyStopping(smoothing=0.5)
    lengths = []
    look = LambdaCallback(on_train_epoch_end=lambda t, m: lengths.append(len(pd.read_csv(stopping.record_path))))
    fit(tmp_path, stopping, look)
    assert lengths == [1, 2, 3]
    path = Path(stopping.record_path)
    assert path == Path(stopping.best_model_path).parent / "boundary_uncertainty.csv"
    table = pd.read_csv(path)
    agree(table, stopping.history)
    assert table.step.tolist() == [4, 8, 12]
    assert (table.seconds.diff()[1:] > 0).all()
    assert (table.check_seconds < table.seconds).all()
    assert table.check_seconds.iloc[-1] == stopping.check_seconds


def test_a_killed_run_keeps_all_rows(tmp_path):
    script = f"""
import os, signal, sys
sys.path.insert(0, {str(Path(__file__).parents[1])!r})
from lightning.pytorch.callbacks import LambdaCallback
from problems import *
from bu_torch.callbacks import BoundaryUncertaintyMonitor
def kill(trainer, module, batch, index):
    if trainer.current_epoch == 2:
        os.kill(os.getpid(), signal.SIGKILL)
monitor = BoundaryUncertaintyMonitor()
trainer({str(tmp_path)!r}, monitor, LambdaCallback(on_train_batch_start=kill)).fit(Classifier(), loader(*blobs()))
"""
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, env=os.environ, timeout=300)
    assert found.returncode == -signal.SIGKILL, found.stderr
    table = pd.read_csv(tmp_path / "checkpoints" / "boundary_uncertainty.csv")
    assert table.epoch.tolist() == [0, 1]
    assert table.notna().all(axis=None)


def test_an_earlier_file_stays_and_a_resumed_run_has_all_checks_in_its_own(tmp_path):
    first = fit(
        tmp_path, BoundaryUncertaintyMonitor(), ModelCheckpoint(tmp_path / "user", save_last=True), max_epochs=2
    )
    before = Path(first.record_path).read_bytes()
    last = tmp_path / "user" / "last.ckpt"
    second = fit(
        tmp_path, BoundaryUncertaintyMonitor(), ModelCheckpoint(tmp_path / "user"), ckpt_path=last, max_epochs=4
    )
    assert Path(first.record_path).read_bytes() == before
    assert Path(second.record_path) == tmp_path / "user" / "boundary_uncertainty-v1.csv"
    table = pd.read_csv(second.record_path)
    agree(table, second.history)
    assert table.epoch.tolist() == [0, 1, 2, 3]
    assert table.seconds.notna().tolist() == [False, False, True, True]


def test_where_there_are_no_checkpoints_it_lies_beside_the_logs(tmp_path):
    logger = CSVLogger(tmp_path, name="runs")
    monitor = fit(tmp_path, BoundaryUncertaintyMonitor(), logger=logger, enable_checkpointing=False)
    assert Path(monitor.record_path) == Path(logger.log_dir) / "boundary_uncertainty.csv"


@pytest.mark.parametrize("kwargs", [{"enable_checkpointing": False}, {"fast_dev_run": True}])
def test_nothing_is_written_where_the_run_keeps_nothing(tmp_path, kwargs):
    monitor = fit(tmp_path, BoundaryUncertaintyMonitor(), **kwargs)
    assert monitor.record_path == ""
    assert not list(tmp_path.rglob("*.csv"))


def test_a_file_that_cannot_be_written_does_not_stop_the_training(tmp_path):
    (tmp_path / "user").write_text("in the way")
    save_nothing = ModelCheckpoint(tmp_path / "user", save_top_k=0)
    with pytest.warns(UserWarning, match="record of the checks cannot be written"):
        monitor = fit(tmp_path, BoundaryUncertaintyMonitor(), save_nothing)
    assert len(monitor.history) == 3
    assert monitor.record_path == ""
