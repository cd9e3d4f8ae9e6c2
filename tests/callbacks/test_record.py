"""The record beside the checkpoints."""

import json
import math
from pathlib import Path

import pytest
import torch
from lightning.pytorch.callbacks import LambdaCallback, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from problems import Classifier, Made, blobs, cut, fit, loader, trainer
from torch.utils.data import DataLoader, Subset, TensorDataset, WeightedRandomSampler, default_collate

from bu_torch import BoundaryUncertaintyMonitor, BoundaryUncertaintyStopping
from bu_torch.report import read_record


def lines(callback):
    return [json.loads(line) for line in Path(callback.record_path).read_text().splitlines()]


def test_each_check_has_its_line_as_soon_as_it_is_measured(tmp_path):
    stopping, lengths = BoundaryUncertaintyStopping(n_neighbors=20, n_draws=2, min_delta=0.1), []
    look = LambdaCallback(on_train_epoch_end=lambda t, m: lengths.append(len(lines(stopping))))
    fit(tmp_path, stopping, look)
    header, *checks, end = lines(stopping)
    assert lengths == [2, 3, 4]
    assert Path(stopping.record_path) == Path(stopping.best_model_path).parent / "boundary_uncertainty.jsonl"
    assert (header["kind"], header["format"], header["classes"]) == ("header", 4, None)
    settings = {"rule": "accuracy_uncertainty_trust", "averaging": 0.7, "min_delta": 0.1, "n_draws": 2}
    assert header["settings"].items() >= (settings | {"reference": None}).items()
    data = {"n_samples": 120, "n_draws": 2, "n_training": 120, "n_classes": 3, "n_present": 3, "shape": [4]}
    data |= {"smallest_class_share": 0.3333, "largest_class_share": 0.3333, "sampling": "uniform"}
    assert header["data"] == data | {"space": "inputs", "perturbation": "random"}
    assert {"python", "torch", "bu-torch"} <= set(header["versions"])
    for line, entry in zip(checks, stopping.history, strict=True):
        assert {name: line[name] for name in entry} == entry
        assert len(line["doubtful"]) == 50
        assert [len(part) for part in line["crossing"].values()] == [20, 20]
        assert line["check_seconds"] < line["seconds"]
    assert [check["step"] for check in checks] == [4, 8, 12]
    assert (checks[-1]["kept_epoch"], checks[-1]["kept_step"]) == (stopping.best_epoch, stopping.best_step)
    assert checks[-1]["check_seconds"] <= stopping.check_seconds  # which has the time of the loggers, too
    assert (end["kind"], end["kept_epoch"]) == ("end", stopping.best_epoch)
    assert (end["best_model_path"], end["reason"]) == (stopping.best_model_path, stopping.stopping_reason)


def test_the_header_tells_of_samplers_weights_of_classes_and_the_reference(tmp_path):
    features, labels = blobs()
    sampler = WeightedRandomSampler(torch.tensor([6.0, 3.0, 1.0])[labels], 120)
    data = DataLoader(TensorDataset(features, labels), batch_size=30, sampler=sampler)
    first, second = (BoundaryUncertaintyMonitor(class_weight={0: 0.5}, reference=one) for one in (None, blobs()))
    for monitor in (first, second):
        fit(tmp_path, monitor, data=data, max_epochs=1)
    told = {"smallest_class_share": 0.1, "largest_class_share": 0.6, "sampling": "weighted"}
    assert lines(first)[0]["data"].items() >= told.items()
    assert lines(second)[0]["settings"].items() >= {"class_weight": "{0: 0.5}", "reference": "tuple"}.items()


class Failing(Classifier):
    def training_step(self, batch, batch_idx):
        if self.current_epoch == 1:
            raise RuntimeError("no more")
        return super().training_step(batch, batch_idx)

    def forward(self, x):
        return super().forward(x) * (1 if self.training else torch.nan)


def test_the_record_ends_with_why_training_did_and_has_null_where_a_number_is_not_finite(tmp_path):
    failed = BoundaryUncertaintyMonitor(n_neighbors=20)
    with pytest.raises(RuntimeError, match="no more"):
        fit(tmp_path, failed, module=Failing())
    _, check, end = lines(failed)
    assert (check["kind"], check["boundary_uncertainty"], end["kind"]) == ("check", None, "end")
    assert math.isnan(failed.history[0]["boundary_uncertainty"])
    assert "no more" in end["reason"]


@pytest.mark.filterwarnings("ignore:The loader's batches hold")
def test_doubtful_samples_are_told_by_their_place_in_the_dataset(tmp_path):
    class Named(TensorDataset):
        classes = ("low", "<b>middle</b>", "high")

    features, labels = blobs(n=400)
    features = torch.nn.functional.one_hot(labels, 3) * 30.0 + 0.1 * features[:, :3]
    labels[333] = (labels[333] + 1) % 3
    data = DataLoader(Subset(Named(features, labels), list(range(100, 400))), batch_size=50)
    monitor = BoundaryUncertaintyMonitor(n_neighbors=20, max_samples=290)
    fit(tmp_path, monitor, module=Classifier(d=3), data=data, max_epochs=1)
    header, check, _ = lines(monitor)
    assert header["classes"] == ["low", "<b>middle</b>", "high"]
    index, label, _, nearest, _ = check["doubtful"][0]
    assert (index, label) == (233, int(labels[333]))  # of the dataset that was given, which is a subset
    assert nearest != label
    dropping = DataLoader(Made(), batch_size=30, collate_fn=lambda samples: default_collate(samples[1:]))
    fit(tmp_path, monitor := BoundaryUncertaintyMonitor(n_neighbors=20), data=dropping, max_epochs=1)
    assert lines(monitor)[1]["doubtful"] == []  # nobody knows which samples are left


def test_an_earlier_file_stays_and_a_resumed_run_has_all_checks_in_its_own(tmp_path):
    first, second = BoundaryUncertaintyMonitor(), BoundaryUncertaintyMonitor()
    path = cut(tmp_path, first)
    before = Path(first.record_path).read_bytes()
    fit(tmp_path, second, ModelCheckpoint(tmp_path / "user"), ckpt_path=path, max_epochs=4)
    assert Path(first.record_path).read_bytes() == before
    assert Path(second.record_path) == tmp_path / "user" / "boundary_uncertainty-v1.jsonl"
    record = read_record(second.record_path)
    assert record.values("trust_score") == [entry["trust_score"] for entry in second.history]
    assert [math.isnan(value) for value in record.values("seconds")] == [True, True, False, False]


def test_where_there_are_no_checkpoints_it_lies_beside_the_logs_and_where_nothing_is_kept_nowhere(tmp_path):
    logger, monitor = CSVLogger(tmp_path, name="runs"), BoundaryUncertaintyMonitor()
    fit(tmp_path, monitor, logger=logger, enable_checkpointing=False)
    assert Path(monitor.record_path) == Path(logger.log_dir) / "boundary_uncertainty.jsonl"
    for options in ({"enable_checkpointing": False}, {"fast_dev_run": True}):
        fit(tmp_path / "nowhere", monitor := BoundaryUncertaintyMonitor(), **options)
        assert monitor.record_path == ""
    assert not list((tmp_path / "nowhere").rglob("*.jsonl"))


def test_a_file_that_cannot_be_written_does_not_stop_the_training(tmp_path):
    (tmp_path / "user").write_text("in the way")
    with pytest.warns(UserWarning, match="cannot be written"):
        fit(tmp_path, monitor := BoundaryUncertaintyMonitor(), ModelCheckpoint(tmp_path / "user", save_top_k=0))
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
        ("train_loss", {"on_epoch": True}, {"every_n_train_steps": 5}, [4.0, 9.0]),
        *((name, {}, {}, LAST) for name in ("training_loss", "train/loss", "loss/train", "loss")),
        ("accuracy", {}, {}, [math.nan] * 3),
    ],
)
def test_the_training_loss_is_the_epoch_s_if_it_is_logged_or_the_last_batch_s(tmp_path, name, how, settings, expected):
    monitor, data = BoundaryUncertaintyMonitor(n_neighbors=20, **settings), loader(*blobs())
    trainer(tmp_path, monitor).fit(Logging(name, **how), data, data)
    assert read_record(tmp_path).values("train_loss") == pytest.approx(expected, nan_ok=True)
