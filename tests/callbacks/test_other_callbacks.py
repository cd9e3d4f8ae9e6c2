"""Beside callbacks that a user has too: what each sees, in which order, and whose names are whose."""

import csv
from pathlib import Path

import pytest
import torch
from lightning.pytorch.callbacks import EarlyStopping, LambdaCallback, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from problems import Classifier, blobs, fit, loader, scripted, trainer

from bu_torch import BoundaryUncertaintyMonitor, BoundaryUncertaintyStopping

HIGHEST = {"monitor": "given", "mode": "max"}


@pytest.mark.parametrize("ours_first", [True, False])
@pytest.mark.parametrize(("patience", "stops"), [(2, True), (9, False)])
def test_whichever_stops_first_ends_each_training(tmp_path, ours_first, patience, stops):
    class Bringing(Classifier):
        def configure_callbacks(self):
            self.theirs = EarlyStopping(**HIGHEST, patience=4, strict=False)
            return [self.theirs]

    own, module, others = scripted([0.9, 0.1], patience=patience), Bringing(), [LambdaCallback()]
    made = trainer(tmp_path, *([own, *others] if ours_first else [*others, own]), max_epochs=10)
    for _ in range(3):
        made.should_stop = False
        made.fit_loop.epoch_progress.reset()
        made.fit(module, loader(*blobs()))
        assert made.current_epoch == (3 if stops else 5)
        assert (own.best_epoch, own.stopped_epoch) == (0, 2 if stops else None)
        assert module.theirs.stopped_epoch == (0 if stops else 4)
        assert ("should_stop" in own.stopping_reason) != stops


@pytest.mark.parametrize(
    ("place", "expected"), [("before", [None, 0.1, 0.9]), ("after", [0.1, 0.9, 0.5]), ("module", [0.1, 0.9, 0.5])]
)
def test_who_comes_after_sees_the_value_of_this_epoch_as_the_docs_say(tmp_path, place, expected):
    def look(*_):
        value = made.callback_metrics.get("given")
        seen.append(None if value is None else round(float(value), 3))

    seen, own, module, users = [], scripted(), Classifier(), LambdaCallback(on_train_epoch_end=look)
    made = trainer(tmp_path, *{"before": [users, own], "after": [own, users], "module": [own]}[place])
    if place == "module":
        module.on_train_epoch_end = look
    made.fit(module, loader(*blobs()))
    assert seen == expected


def test_by_steps_the_values_are_there_until_the_next_step(tmp_path):
    """Also what follows at the end of an epoch, and no weights are filed under a score of others."""
    users = ModelCheckpoint(tmp_path / "user", every_n_train_steps=3, filename="{step}", **HIGHEST)
    ends = ModelCheckpoint(tmp_path / "ends", filename="{step}", **HIGHEST)
    stopper, seen, bars = EarlyStopping(patience=2, **HIGHEST), [], []
    look = LambdaCallback(
        on_train_batch_end=lambda t, *_: seen.append(float(t.callback_metrics.get("given", -1))),
        on_train_epoch_start=lambda t, m: bars.append(set(t.progress_bar_metrics)),
    )
    own, logger = scripted([0.5, 0.7, 0.3, 0.2], every_n_train_steps=2), CSVLogger(tmp_path)
    made = fit(tmp_path, own, users, ends, stopper, look, logger=logger, max_epochs=9)
    assert seen[:8] == pytest.approx([-1, 0.5, -1, 0.7, -1, 0.3, -1, 0.2])
    assert bars[1] >= {"boundary_uncertainty", "trust_score"}
    assert (stopper.stopped_epoch, made.global_step) == (2, 12)
    assert Path(users.best_model_path).name == "step=6.ckpt"  # the first that has a check of its own
    assert Path(ends.best_model_path).name == "step=4.ckpt"
    with Path(logger.experiment.metrics_file_path).open() as file:
        rows = [row for row in csv.DictReader(file) if row["given"]]
    assert [(int(row["step"]), int(row["epoch"])) for row in rows] == [(2 * n + 1, n // 2) for n in range(6)]
    assert [float(row["given"]) for row in rows] == pytest.approx([0.5, 0.7, 0.3, 0.2, 0.2, 0.2])


@pytest.mark.parametrize("second", [BoundaryUncertaintyMonitor, BoundaryUncertaintyStopping])
def test_a_second_callback_in_one_trainer_is_refused(tmp_path, second):
    with pytest.raises((MisconfigurationException, RuntimeError)):  # Lightning itself refuses two of one type
        fit(tmp_path, BoundaryUncertaintyStopping(), second())


def test_a_second_is_as_good_as_the_first_though_that_failed(tmp_path):
    own, failing = scripted(), Classifier()
    failing.on_train_epoch_end = lambda: 1 / 0
    made = trainer(tmp_path, own)
    with pytest.raises(ZeroDivisionError):
        made.fit(failing, loader(*blobs()))
    for epochs in ([1, 2], [3]):
        made.fit(Classifier(), loader(*blobs()))
        made.fit_loop.max_epochs += 1
        assert [entry["epoch"] for entry in own.history] == epochs
        assert own.history[0]["given"] == 0.1  # the rule has no memory
        assert torch.load(own.best_model_path, weights_only=True)["epoch"] == own.best_epoch
    made.callbacks.remove(own)
    made.fit(Classifier(), loader(*blobs()))
    assert not any("bu_torch" in type(one).__module__ for one in made.checkpoint_callbacks)


def test_settings_may_be_set_between_fits(tmp_path):
    own = scripted([0.9, 0.1])
    for own.patience in (1, 2):
        assert fit(tmp_path, own, max_epochs=9).current_epoch == own.patience + 1
    own.patience = -1
    with pytest.raises(MisconfigurationException, match="`patience`"):
        fit(tmp_path, own)
