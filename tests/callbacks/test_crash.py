"""A run that is killed, and goes on; disks that are full, files that are torn."""

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO
from lightning.pytorch.callbacks import LambdaCallback, ModelCheckpoint
from problems import Augmented, Classifier, blobs, same, state_of, trainer
from scripted import Scripted
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from bu_torch import BoundaryUncertaintyStopper, BoundaryUncertaintyStopping, Signals
from bu_torch.ranking.rank import fit_signals
from bu_torch.report import read_record
from bu_torch.report.verdict import RunVerdict


class Plain(Classifier):
    """Without dropout, so that a resumed run is the uninterrupted one."""

    def __init__(self):
        super().__init__(lr=0.3)
        torch.manual_seed(1)
        self.net = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 3))


def data(shift=0.0):
    features, labels = blobs(n=120)
    return DataLoader(TensorDataset(features + shift, labels), batch_size=30)


def run(folder, where="", epoch=-1, ckpt_path=None):
    """Train until it stops, or is killed at this place of this epoch; what the callback says in the end."""

    def kill(trainer, place):
        if where == place and trainer.current_epoch == epoch:
            os.kill(os.getpid(), signal.SIGKILL)

    killer = LambdaCallback(
        on_train_batch_start=lambda t, m, batch, batch_idx: kill(t, f"batch {batch_idx}"),
        on_train_epoch_end=lambda t, m: kill(t, "before the checkpoints"),
        on_train_epoch_start=lambda t, m: kill(t, "after the checkpoints"),
    )

    class Torn(TorchCheckpointIO):
        def save_checkpoint(self, checkpoint, path, storage_options=None):
            is_ours = "boundary-epoch" in str(path)
            if where == "saving ours" and is_ours and checkpoint["epoch"] >= epoch:
                os.kill(os.getpid(), signal.SIGKILL)
            if where == "saving theirs" and not is_ours and checkpoint["epoch"] == epoch:
                os.kill(os.getpid(), signal.SIGKILL)
            super().save_checkpoint(checkpoint, path, storage_options)

    stopping = BoundaryUncertaintyStopping(patience=4, n_neighbors=20, n_draws=4)
    theirs = ModelCheckpoint(folder / "user", save_last=True, filename="user")
    made = trainer(folder, stopping, killer, theirs, max_epochs=60, plugins=[Torn()])
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as in the process that is killed, so that numbers are the same to the bit
    made.fit(Plain(), data(), ckpt_path=ckpt_path)
    torch.set_num_threads(threads)
    best = (stopping.best_epoch, stopping.stopped_epoch, stopping.stopping_reason)
    return (stopping.history, *best), stopping.best_model_path


def run_and_kill(folder, where, epoch):
    paths = [str(Path(__file__).parent), str(Path(__file__).parents[1])]
    script = (
        f"import sys; sys.path[:0] = {paths!r}; from pathlib import Path; from test_crash import run;"
        f" run(Path({str(folder)!r}), {where!r}, {epoch})"
    )
    found = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert found.returncode == -signal.SIGKILL, found.stderr


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    return run(tmp_path_factory.mktemp("whole"))


@pytest.mark.parametrize(
    ("where", "epoch"),
    [
        ("batch 2", 3),
        pytest.param("saving ours", 4, marks=pytest.mark.slow),
        pytest.param("before the checkpoints", 2, marks=pytest.mark.slow),
        pytest.param("saving theirs", 5, marks=pytest.mark.slow),
        pytest.param("after the checkpoints", 6, marks=pytest.mark.slow),
    ],
)
def test_a_killed_run_goes_on_as_if_it_had_not_been(tmp_path, uninterrupted, where, epoch):
    run_and_kill(tmp_path, where, epoch)
    resumed, path = run(tmp_path, ckpt_path=tmp_path / "user" / "last.ckpt")
    assert resumed == uninterrupted[0]
    _, best_epoch, stopped_epoch, _ = resumed
    assert stopped_epoch is not None
    assert torch.load(path, weights_only=True)["epoch"] == best_epoch
    kept = list((tmp_path / "user").glob("boundary-*.ckpt")) + list((tmp_path / "checkpoints").glob("boundary-*.ckpt"))
    assert Path(path) in kept


def cut(tmp_path, loader=None, max_epochs=4):
    """The file of a run that ended early, to resume from."""
    last = ModelCheckpoint(tmp_path / "user", save_last=True)
    made = trainer(tmp_path, BoundaryUncertaintyStopping(n_neighbors=20), last, max_epochs=max_epochs)
    made.fit(Plain(), loader or data())
    return tmp_path / "user" / "last.ckpt"


def test_other_samples_are_not_compared_with_those_before(tmp_path):
    path = cut(tmp_path)
    stopping = BoundaryUncertaintyStopping(n_neighbors=20, patience=50)
    with pytest.warns(UserWarning, match="different training samples"), pytest.warns(UserWarning, match="start anew"):
        trainer(tmp_path, stopping, max_epochs=8).fit(Plain(), data(shift=1.0), ckpt_path=path)
    assert [entry["epoch"] for entry in stopping.history] == list(range(8))
    assert stopping.history[4]["prediction_changes"] == 1
    assert stopping.best_epoch >= 4
    assert torch.load(stopping.best_model_path, weights_only=True)["epoch"] == stopping.best_epoch
    record = read_record(stopping.record_path)
    assert record.n_not_compared == 4
    assert RunVerdict.of(record).by_rule["expected_accuracy"]["epoch"] == stopping.best_epoch


def test_the_same_samples_are_not_warned_of_though_they_are_augmented_at_random(tmp_path, recwarn):
    loader = DataLoader(Augmented(), batch_size=30)
    path = cut(tmp_path, loader, max_epochs=2)
    torch.rand(7)  # the random state is another one
    again = BoundaryUncertaintyStopping(n_neighbors=20)
    trainer(tmp_path, again, max_epochs=4).fit(Plain(), loader, ckpt_path=path)
    assert len(again.history) == 4
    assert not [warning for warning in recwarn if "other training samples" in str(warning.message)]


class Disk:
    """Stands for `trainer.save_checkpoint` of a disk that is full, or that tears files, in some epochs."""

    def __init__(self, trainer, *, full=(), torn=()):
        self.trainer, self.save, self.full, self.torn = trainer, trainer.save_checkpoint, full, torn
        trainer.save_checkpoint = self

    def __call__(self, path, *arguments, **kwargs):
        if "boundary" in str(path) and self.trainer.current_epoch in self.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.save(path, *arguments, **kwargs)
        if "boundary" in str(path) and self.trainer.current_epoch in self.torn:
            whole = Path(path).read_bytes()
            Path(path).write_bytes(whole[: len(whole) // 2])


def scripted(tmp_path, values, callbacks=(), **disk):
    stopping = Scripted(values, rule="trust_score", n_neighbors=20)
    made = trainer(tmp_path, stopping, *callbacks, max_epochs=len(values))
    Disk(made, **disk)
    module = Plain()
    made.fit(module, data())
    return stopping, module


@pytest.mark.parametrize(
    ("values", "full", "kept", "said"),
    [
        ([0.1, 0.5, 0.9, 0.3], [2], 1, "checkpoint of epoch 2 cannot be written: .*No space left.* stays: .*epoch=1"),
        ([0.1, 0.9, 0.5, 0.95], [0, 1], 3, "cannot be written"),
    ],
    ids=["the best before stays", "there is room again"],
)
def test_a_full_disk_costs_neither_the_run_nor_the_other_bests(tmp_path, values, full, kept, said):
    with pytest.warns(UserWarning, match=said):
        stopping, module = scripted(tmp_path, values, full=full)
    assert stopping.best_epoch == kept
    assert len(stopping.history) == 4
    saved = torch.load(stopping.best_model_path, weights_only=True)
    assert saved["epoch"] == kept
    assert same(saved["state_dict"], module.state_dict())


@pytest.mark.parametrize("torn", [[2], [3]])
def test_a_torn_file_falls_back_to_the_best_before(tmp_path, torn):
    values = [0.1, 0.5, 0.9, 0.3] if torn == [2] else [0.1, 0.5, 0.3, 0.9]
    with pytest.warns(UserWarning, match="is damaged: the best earlier one is kept"):
        stopping, _ = scripted(tmp_path, values, torn=torn)
    assert stopping.best_epoch == 1
    assert torch.load(stopping.best_model_path, weights_only=True)["epoch"] == 1


def test_a_torn_best_is_not_resumed_on(tmp_path):
    path = cut(tmp_path)
    best = Path(state_of(torch.load(path, weights_only=True), "Keeper")["best_model_path"])
    best.write_bytes(best.read_bytes()[:100])
    stopping = BoundaryUncertaintyStopping(n_neighbors=20)
    with pytest.warns(UserWarning, match="missing or damaged"):
        trainer(tmp_path, stopping, max_epochs=7).fit(Plain(), data(), ckpt_path=path)
    assert stopping.best_model_path != str(best)


def no_such_folder(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("no folder")
    return tmp_path / "file" / "cache.npz", "Not a directory|File exists"


def full_disk(tmp_path, monkeypatch):
    def save(*arguments, **arrays):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("numpy.savez", save)
    return tmp_path / "cache.npz", "No space left on device"


@pytest.mark.parametrize("spoil", [no_such_folder, full_disk])
def test_a_cache_that_cannot_be_written_costs_nothing_but_a_warning(tmp_path, monkeypatch, spoil):
    cache, reason = spoil(tmp_path, monkeypatch)
    stopping = BoundaryUncertaintyStopping(n_neighbors=20, cache=cache)
    with pytest.warns(UserWarning, match=f"cache {cache} cannot be written: .*({reason})"):
        trainer(tmp_path, stopping, max_epochs=2).fit(Plain(), data())
    assert len(stopping.history) == 2
    stopper = BoundaryUncertaintyStopper(*blobs(), n_neighbors=20, cache=cache)
    with pytest.warns(UserWarning, match="cannot be written"):
        stopper.check(Plain())
    with pytest.warns(UserWarning, match=f"cache {cache} cannot be written: .*({reason})"):
        fit_signals(signals := Signals(20), blobs(), cache)
    assert signals.is_fitted
    assert not list(tmp_path.glob("cache*"))


def test_a_file_of_one_s_own_kind_is_not_called_damaged(tmp_path):
    class Legacy(TorchCheckpointIO):
        def save_checkpoint(self, checkpoint, path, storage_options=None):
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            torch.save(checkpoint, path, _use_new_zipfile_serialization=False)

    stopping = BoundaryUncertaintyStopping(n_neighbors=20)
    trainer(tmp_path, stopping, max_epochs=4, plugins=[Legacy()]).fit(Plain(), data())
    assert torch.load(stopping.best_model_path, weights_only=True)["epoch"] == stopping.best_epoch


def test_sharded_weights_are_left_and_the_file_is_named(tmp_path):
    class FSDPStrategy(type(trainer(tmp_path).strategy)):
        """Sharded by its name; the real one needs GPUs."""

    stopping = BoundaryUncertaintyStopping(n_neighbors=20)
    made = trainer(tmp_path, stopping, max_epochs=3, strategy=FSDPStrategy(device=torch.device("cpu")))
    with pytest.warns(UserWarning, match="FSDPStrategy shards the weights, .* they are in .*boundary-epoch"):
        made.fit(Plain(), data())
    assert Path(stopping.best_model_path).exists()
