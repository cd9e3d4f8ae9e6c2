"""Odd samples and odd ends, by every way in that needs no other framework than Lightning."""

import functools
import re
import signal
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path

import lightning.pytorch as pl
import numpy as np
import odd
import pytest
import torch
from lightning.pytorch.callbacks import Timer
from odd import FEW, Network, Rows
from problems import Weights, same, trainer, weights_of
from torch import nn
from torch.utils.data import DataLoader

from bu_torch import (
    BoundaryUncertaintyMonitor,
    BoundaryUncertaintyStopper,
    BoundaryUncertaintyStopping,
    Signals,
    rank_checkpoints,
)


class Module(pl.LightningModule):
    """Trains by its inputs alone, so that labels of all kinds come so far."""

    def __init__(self, output=odd.unchanged, happen=lambda layers, epoch: None):
        super().__init__()
        self.network, self.happen = Network(output), happen

    def forward(self, x):
        return self.network(x)

    def training_step(self, batch, batch_idx):
        return self.network.layers(batch[0]).square().mean()

    def on_train_epoch_start(self):
        self.happen(self.network.layers, self.current_epoch)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


def trained(callback, folder, x=odd.X, y=odd.Y, output=odd.unchanged, max_epochs=1):
    trainer(folder, callback, max_epochs=max_epochs).fit(Module(output), DataLoader(Rows(x, y), batch_size=30))
    return callback.history


def numbers(values):
    return [float(value) for value in values.values()]


def by_stopping(folder, *samples):
    return numbers(trained(BoundaryUncertaintyStopping(**FEW), folder, *samples)[-1])


def by_monitor(folder, *samples):
    return numbers(trained(BoundaryUncertaintyMonitor(**FEW), folder, *samples)[-1])


def by_stopper(folder, x, y, output):
    stopper = BoundaryUncertaintyStopper(x, y, **FEW)
    stopper.check(Network(output))
    return numbers(stopper.history[-1])


def by_signals(folder, x, y, output):
    signals = Signals(10, 1).fit(x, y)
    return numbers(signals.measure(Network(output)(signals.perturbed_inputs)).values)


def by_files(folder, x, y, output):
    torch.save(Network().state_dict(), folder / "one.pt")
    return numbers(rank_checkpoints(folder, Network(output), Rows(x, y), signals=Signals(10, 1)).best.signals)


ways = pytest.mark.parametrize("way", [by_stopping, by_monitor, by_stopper, by_signals, by_files])


@pytest.mark.parametrize("what", odd.REFUSED)
@ways
def test_samples_that_cannot_be_measured_are_refused(tmp_path, way, what):
    message, *samples = odd.REFUSED[what]
    if what == "no samples" and way in (by_stopping, by_monitor):  # Lightning then trains nothing
        assert trained(callback := BoundaryUncertaintyStopping(**FEW), tmp_path, *samples) == []
        assert callback.stopping_reason == "There was no training batch."
        return
    with pytest.raises((TypeError, ValueError, pl.utilities.exceptions.MisconfigurationException), match=message):
        way(tmp_path, *samples)


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return functools.cache(lambda way: way(tmp_path_factory.mktemp("plain"), odd.X, odd.Y, odd.unchanged))


@pytest.mark.parametrize("kind", odd.LABELS)
@ways
def test_labels_of_any_kind_are_the_same(tmp_path, way, kind, plain):
    assert np.isfinite(plain(way)).all()
    assert way(tmp_path, odd.X, odd.LABELS[kind], odd.unchanged) == plain(way)


@pytest.mark.parametrize("logits", odd.NOT_FINITE)
@ways
def test_logits_that_are_not_finite_have_no_score(tmp_path, way, logits):
    said = pytest.warns(UserWarning, match="No candidate has a finite score") if way is by_files else nullcontext()
    with said:
        assert np.isnan(way(tmp_path, odd.X, odd.Y, odd.NOT_FINITE[logits])).any()


def heard(caplog, ending, one):
    """The line of what was kept, if it and the reason are as the ending wants them."""
    (line,) = [line for line in caplog.messages if "bu-torch kept" in line]
    assert re.search(ending.kept, line)
    assert re.search(ending.reason, one.stopping_reason)
    assert any(one.stopping_reason in said for said in caplog.messages)
    assert one.best_epoch == ending.best_epoch
    return line


LIGHTNINGS = {
    "no room": odd.Ending("kept no epoch: no weights could be", "written.*no epoch is kept yet", "`max_epochs=9`"),
    "max_steps": odd.Ending(odd.KEPT, "", "Training ran until `max_steps=16`"),
    "max_time": odd.Ending(odd.KEPT, "", "Training ran until `max_time`"),
    "another callback": odd.Ending(odd.KEPT, "", "Other code stopped training"),
}


RESTORED = {"by itself", "patience", "Ctrl-C", "max_steps", "max_time", "another callback"}


@pytest.mark.parametrize("restores", [True, False])
@pytest.mark.parametrize("end", odd.ENDS | odd.FAILURES | LIGHTNINGS)
def test_lightning_s_ends_restore_or_name_the_file(tmp_path, log, recwarn, end, restores):
    def happening(batch, batch_idx):
        if module.current_epoch == 3:
            module.trainer.should_stop |= end == "another callback"
            timer._duration = 0.0 if end == "max_time" else timer._duration

    ending, weights, timer = (odd.ENDS | odd.FAILURES | LIGHTNINGS)[end], Weights(), Timer(timedelta(days=1))
    stopping = BoundaryUncertaintyStopping(restore_best_weights=restores, **ending.options())
    module, handler = Module(happen=ending.happen), signal.getsignal(signal.SIGINT)
    if end == "no room":
        (tmp_path / "file").touch()
        stopping.dirpath = tmp_path / "file"
    module.on_train_batch_start = happening
    length = {"max_epochs": 9 if end in LIGHTNINGS else 4, "max_steps": 16 if end == "max_steps" else -1}
    is_failure = end in odd.FAILURES
    try:
        with pytest.raises((SystemExit, ValueError, OSError)) if is_failure else nullcontext():
            trainer(tmp_path, stopping, weights, timer, **length).fit(module, DataLoader(Rows(odd.X, odd.Y), 30))
    finally:
        signal.signal(signal.SIGINT, handler)
    words = ending.kept if restores else re.sub(r"(not |\(not\|partly\) )?in the", "not in the", ending.kept)
    line = heard(log, ending._replace(kept=words), stopping)
    is_back = ending.best_epoch == 1 and same(weights_of(module), weights.of_epoch[1])
    assert is_back == ("weights are in the model" in line) == (restores and end in RESTORED)
    assert not (restores and ending.warned) or any(re.search(ending.warned, str(one.message)) for one in recwarn)
    assert ending.best_epoch is None or (Path(stopping.best_model_path).exists() and stopping.best_model_path in line)


@pytest.mark.parametrize("end", odd.ENDS | odd.FAILURES)
def test_a_loop_s_ends_are_said(caplog, end):
    caplog.set_level("INFO", logger="bu_torch")
    ending, network, error = (odd.ENDS | odd.FAILURES)[end], Network(), None
    try:
        with BoundaryUncertaintyStopper(odd.X, odd.Y, **ending.options()) as stopper:
            for epoch in range(4):
                ending.happen(network.layers, epoch)
                nn.init.constant_(network.layers[-1].bias, epoch)
                if stopper.check(network):
                    break
            before = weights_of(network)
            stopper.restore(network)
    except (KeyboardInterrupt, ValueError, OSError, RuntimeError) as raised:
        error = raised
    heard(caplog, ending, stopper)
    if end in odd.ENDS:
        is_back = end in RESTORED
        assert same(weights_of(network), before) == (not is_back)
        assert is_back == (error is None)
        assert is_back or re.search(ending.warned or ending.kept.removeprefix(odd.NONE_KEPT), str(error))
