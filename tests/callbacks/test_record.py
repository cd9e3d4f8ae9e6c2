"""The record beside the checkpoints."""

import json
import math
from pathlib import Path

import pandas as pd
import problems
import pytest
import torch
from lightning.pytorch.callbacks import LambdaCallback, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from problems import Classifier, blobs, loader, trainer
from torch.utils.data import DataLoader, Subset, TensorDataset, WeightedRandomSampler

from bu_torch.callbacks import BoundaryUncertaintyMonitor, BoundaryUncertaintyStopping
from bu_torch.report import read_record


def fit(folder, callback, *others, **kwargs):
    problems.fit(folder, callback, *others, **kwargs)
    return callback


def agree(table, history):
    assert len(table) == len(history)
    for (_, row), entry in zip(table.iterrows(), history, strict=True):
        for name, value in entry.items():
            assert row[name] == pytest.approx(value, rel=1e-12, nan_ok=True), name


def table_of(callback):
    return pd.read_json(callback.record_path, lines=True).query("kind == 'check'")


def test_each_check_has_its_line_as_soon_as_it_is_measured(tmp_path):
    stopping, lengths = BoundaryUncertaintyStopping(), []
    look = LambdaCallback(on_train_epoch_end=lambda t, m: lengths.append(len(table_of(stopping))))
    fit(tmp_path, stopping, look)
    assert lengths == [1, 2, 3]
    assert Path(stopping.record_path) == Path(stopping.best_model_path).parent / "boundary_uncertainty.jsonl"
    table = table_of(stopping)
    agree(table, stopping.history)
    assert table.step.tolist() == [4, 8, 12]
    assert (table.seconds.diff()[1:] > 0).all()
    assert (table.check_seconds < table.seconds).all()
    assert table.check_seconds.iloc[-1] == pytest.approx(stopping.check_seconds)


def lines(callback):
    return [json.loads(line) for line in Path(callback.record_path).read_text().splitlines()]


def test_the_record_has_settings_details_and_the_end(tmp_path):
    stopping = fit(tmp_path, BoundaryUncertaintyStopping(n_neighbors=20, n_draws=2, min_delta=0.1))
    header, *checks, end = lines(stopping)
    assert (header["kind"], header["format"], header["classes"]) == ("header", 4, None)
    settings = {"rule": "accuracy_uncertainty_trust", "averaging": 0.7, "min_delta": 0.1, "n_draws": 2}
    assert header["settings"].items() >= (settings | {"reference": None}).items()
    looked_at = {"n_samples": 120, "n_draws": 2, "n_training": 120, "n_classes": 3, "n_present": 3, "shape": [4]}
    drawn = {"smallest_class_share": 0.3333, "largest_class_share": 0.3333, "sampling": "uniform"}
    assert header["data"] == looked_at | drawn | {"space": "inputs", "perturbation": "random"}
    assert {"python", "torch", "bu-torch"} <= set(header["versions"])
    assert header["setup_seconds"] <= stopping.setup_seconds
    assert [(check["epoch"], check["step"]) for check in checks] == [(0, 4), (1, 8), (2, 12)]
    assert (checks[-1]["kept_epoch"], checks[-1]["kept_step"]) == (stopping.best_epoch, stopping.best_step)
    for check in checks:
        assert len(check["doubtful"]) == 50
        assert [len(part) for part in check["crossing"].values()] == [20, 20]
    assert (end["kind"], end["kept_epoch"]) == ("end", stopping.best_epoch)
    assert (end["best_model_path"], end["reason"]) == (stopping.best_model_path, stopping.stopping_reason)


def test_the_header_tells_of_samplers_weights_of_classes_and_the_reference(tmp_path):
    features, labels = blobs()
    sampler = WeightedRandomSampler(torch.tensor([6.0, 3.0, 1.0])[labels], 120)
    data = DataLoader(TensorDataset(features, labels), batch_size=30, sampler=sampler)
    settings = {"n_neighbors": 20, "class_weight": {0: 0.5}}
    header, *_ = lines(fit(tmp_path, BoundaryUncertaintyMonitor(**settings), data=data, max_epochs=1))
    told = {"smallest_class_share": 0.1, "largest_class_share": 0.6, "sampling": "weighted"}
    assert header["data"].items() >= told.items()
    header, *_ = lines(fit(tmp_path, BoundaryUncertaintyMonitor(**settings, reference=blobs()), max_epochs=1))
    assert header["settings"].items() >= {"class_weight": "{0: 0.5}", "reference": "tuple"}.items()


class Failing(Classifier):
    def training_step(self, batch, batch_idx):
        if self.current_epoch == 1:
            raise RuntimeError("no more")
        return super().training_step(batch, batch_idx)


@pytest.mark.parametrize("kind", [BoundaryUncertaintyMonitor, BoundaryUncertaintyStopping])
def test_the_record_ends_with_why_training_did(tmp_path, kind):
    failed = kind(n_neighbors=20)
    with pytest.raises(RuntimeError, match="no more"):
        fit(tmp_path, failed, module=Failing())
    assert [line["kind"] for line in lines(failed)] == ["header", "check", "end"]
    assert "RuntimeError: no more" in lines(failed)[-1]["reason"]


def test_doubtful_samples_are_told_by_their_place_in_the_dataset(tmp_path):
    class Named(TensorDataset):
        classes = ("low", "<b>middle</b>", "high")

    features, labels = blobs(n=400)
    features = torch.nn.functional.one_hot(labels, 3) * 30.0 + 0.1 * features[:, :3]
    labels[333] = (labels[333] + 1) % 3
    data = DataLoader(Subset(Named(features, labels), list(range(100, 400))), batch_size=50)
    monitor = BoundaryUncertaintyMonitor(n_neighbors=20, max_samples=290)
    header, check, _ = lines(fit(tmp_path, monitor, module=Classifier(d=3), data=data, max_epochs=1))
    assert header["classes"] == ["low", "<b>middle</b>", "high"]
    assert header["data"]["n_training"] == 300
    index, label, _, nearest, _ = check["doubtful"][0]
    assert index == 233  # of the dataset that was given, which is a subset
    assert label == int(labels[333])
    assert nearest != label


def test_numbers_that_are_not_finite_are_null(tmp_path):
    class Broken(Classifier):
        def forward(self, x):
            return super().forward(x) * (torch.nan if not self.training else 1)

    monitor = fit(tmp_path, BoundaryUncertaintyMonitor(n_neighbors=20, n_draws=1), module=Broken(), max_epochs=1)
    _, check, _ = lines(monitor)
    assert None not in check["crossing"]["network"]  # of 120 samples each of 20 parts has some
    assert check["boundary_uncertainty"] is None
    assert math.isnan(monitor.history[0]["boundary_uncertainty"])


def test_an_earlier_file_stays_and_a_resumed_run_has_all_checks_in_its_own(tmp_path):
    last, again = (ModelCheckpoint(tmp_path / "user", save_last=is_first) for is_first in (True, False))
    first = fit(tmp_path, BoundaryUncertaintyMonitor(), last, max_epochs=2)
    before = Path(first.record_path).read_bytes()
    second = fit(tmp_path, BoundaryUncertaintyMonitor(), again, ckpt_path=last.last_model_path, max_epochs=4)
    assert Path(first.record_path).read_bytes() == before
    assert Path(second.record_path) == tmp_path / "user" / "boundary_uncertainty-v1.jsonl"
    table = table_of(second)
    agree(table, second.history)
    assert table.seconds.notna().tolist() == [False, False, True, True]


def test_where_there_are_no_checkpoints_it_lies_beside_the_logs_and_where_nothing_is_kept_nowhere(tmp_path):
    logger = CSVLogger(tmp_path, name="runs")
    monitor = fit(tmp_path, BoundaryUncertaintyMonitor(), logger=logger, enable_checkpointing=False)
    assert Path(monitor.record_path) == Path(logger.log_dir) / "boundary_uncertainty.jsonl"
    for kwargs in ({"enable_checkpointing": False}, {"fast_dev_run": True}):
        monitor = fit(tmp_path / "nowhere", BoundaryUncertaintyMonitor(), **kwargs)
        assert monitor.record_path == ""
    assert not list((tmp_path / "nowhere").rglob("*.jsonl"))


def test_a_file_that_cannot_be_written_does_not_stop_the_training(tmp_path):
    (tmp_path / "user").write_text("in the way")
    with pytest.warns(UserWarning, match="record of the checks cannot be written"):
        monitor = fit(tmp_path, BoundaryUncertaintyMonitor(), ModelCheckpoint(tmp_path / "user", save_top_k=0))
    assert (len(monitor.history), monitor.record_path) == (3, "")


class Logging(Classifier):
    """Logs the batch's number as its loss, and as validation loss what is far from it."""

    def __init__(self, name="train_loss", **how):
        super().__init__()
        self.name, self.how = name, how

    def training_step(self, batch, batch_idx):
        self.log(self.name, float(self.global_step), **self.how)
        return super().training_step(batch, batch_idx)

    def validation_step(self, batch, batch_idx):
        self.log("loss", 1000.0)


LAST = [3.0, 7.0, 11.0]  # of the last batch of each of three epochs of four


@pytest.mark.parametrize(
    ("name", "how", "settings", "expected"),
    [
        ("train_loss", {"on_epoch": True}, {}, [1.5, 5.5, 9.5]),
        ("train_loss", {"on_step": False, "on_epoch": True}, {"every_n_epochs": 2}, [5.5]),
        ("train_loss", {}, {}, LAST),
        ("train_loss", {}, {"every_n_train_steps": 5}, [4.0, 9.0]),
        ("train_loss", {"on_epoch": True}, {"every_n_train_steps": 5}, [4.0, 9.0]),
        *((name, {}, {}, LAST) for name in ("training_loss", "train/loss", "loss/train", "loss")),
        ("accuracy", {}, {}, [math.nan] * 3),
    ],
)
def test_the_training_loss_is_the_epoch_s_if_it_is_logged_or_the_last_batch_s(tmp_path, name, how, settings, expected):
    monitor, data = BoundaryUncertaintyMonitor(n_neighbors=20, **settings), loader(*blobs())
    trainer(tmp_path, monitor).fit(Logging(name, **how), data, data)
    assert read_record(tmp_path).values("train_loss") == pytest.approx(expected, nan_ok=True)
