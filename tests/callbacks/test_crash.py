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
from problems import Augmented, Plain, blobs, cut, fit, in_order, same, scripted, state_of, trainer
from problems import fit_again as run_of
from torch.utils.data import DataLoader

from bu_torch import BoundaryUncertaintyStopper, BoundaryUncertaintyStopping, Signals
from bu_torch.ranking.rank import fit_signals
from bu_torch.report import read_record
from bu_torch.report.verdict import RunVerdict


def ours(**settings):
    return BoundaryUncertaintyStopping(n_neighbors=20, **settings)


class Disk(TorchCheckpointIO):
    """Writes our checkpoints, or those of others, as these say that are called before and after."""

    def __init__(self, before=lambda *_: None, after=lambda *_: None):
        super().__init__()
        self.before, self.after = before, after

    def save_checkpoint(self, checkpoint, path, storage_options=None):
        is_ours = "boundary-epoch" in str(path)
        self.before(is_ours, checkpoint["epoch"])
        super().save_checkpoint(checkpoint, path, storage_options)
        self.after(is_ours, checkpoint["epoch"], Path(path))


def run(folder, where="", epoch=-1, ckpt_path=None):
    """Train until it stops, or is killed at this place of this epoch; what the callback says in the end."""

    def kill(place, is_now):
        if where == place and is_now:
            os.kill(os.getpid(), signal.SIGKILL)

    def before(is_ours, found):
        kill("saving ours", is_ours and found >= epoch)
        kill("saving theirs", not is_ours and found == epoch)

    killer = LambdaCallback(
        on_train_batch_start=lambda t, m, batch, batch_idx: kill(f"batch {batch_idx}", t.current_epoch == epoch),
        on_train_epoch_end=lambda t, m: kill("before the checkpoints", t.current_epoch == epoch),
        on_train_epoch_start=lambda t, m: kill("after the checkpoints", t.current_epoch == epoch),
    )
    stopping = ours(patience=4, n_draws=4)
    theirs = ModelCheckpoint(folder / "user", save_last=True, filename="user")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as in the process that is killed, so that numbers are the same to the bit
    run_of(folder, stopping, killer, theirs, max_epochs=60, plugins=[Disk(before)], ckpt_path=ckpt_path)
    torch.set_num_threads(threads)
    best = (stopping.best_epoch, stopping.stopped_epoch, stopping.stopping_reason)
    return (stopping.history, *best), stopping.best_model_path


def run_and_kill(folder, where, epoch):
    paths = [str(Path(__file__).parent), str(Path(__file__).parents[1])]
    script = (
        f"import sys; sys.path[:0] = {paths!r}; from pathlib import Path; from test_crash import run;"
        f" run(Path({str(folder)!r}), {where!r}, {epoch})"
    )
    command, environment = [sys.executable, "-W", "ignore", "-c", script], os.environ | {"OMP_NUM_THREADS": "1"}
    found = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert found.returncode == -signal.SIGKILL, found.stderr


def slow(*values):
    return pytest.param(*values, marks=pytest.mark.slow)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    return run(tmp_path_factory.mktemp("whole"))


@pytest.mark.parametrize(
    ("where", "epoch"),
    [
        ("batch 2", 3),
        slow("saving ours", 4),
        slow("before the checkpoints", 2),
        slow("saving theirs", 5),
        slow("after the checkpoints", 6),
    ],
)
def test_a_killed_run_goes_on_as_if_it_had_not_been(tmp_path, uninterrupted, where, epoch):
    run_and_kill(tmp_path, where, epoch)
    resumed, path = run(tmp_path, ckpt_path=tmp_path / "user" / "last.ckpt")
    assert resumed == uninterrupted[0]
    _, best_epoch, stopped_epoch, _ = resumed
    assert stopped_epoch is not None
    assert torch.load(path, weights_only=True)["epoch"] == best_epoch
    kept = Path(path)
    assert kept.parent in (tmp_path / "user", tmp_path / "checkpoints")
    assert kept.match("boundary-*.ckpt")


def test_other_samples_are_not_compared_with_those_before(tmp_path):
    path, (features, labels) = cut(tmp_path, ours(), again=True, max_epochs=4), blobs()
    stopping, data = ours(patience=50), in_order(features + 1, labels)
    with pytest.warns(UserWarning, match="different training samples"), pytest.warns(UserWarning, match="start anew"):
        run_of(tmp_path, stopping, data=data, max_epochs=8, ckpt_path=path)
    assert [entry["epoch"] for entry in stopping.history] == list(range(8))
    assert stopping.history[4]["prediction_changes"] == 1
    assert stopping.best_epoch >= 4
    assert torch.load(stopping.best_model_path, weights_only=True)["epoch"] == stopping.best_epoch
    record = read_record(stopping.record_path)
    assert record.n_not_compared == 4
    assert RunVerdict.of(record).by_rule["expected_accuracy"]["epoch"] == stopping.best_epoch


def test_the_same_samples_are_not_warned_of_though_they_are_augmented_at_random(tmp_path, recwarn):
    loader = DataLoader(Augmented(), batch_size=30)
    path = cut(tmp_path, ours(), module=Plain(), data=loader)
    torch.rand(7)  # the random state is another one
    again = ours()
    fit(tmp_path, again, module=Plain(), data=loader, max_epochs=4, ckpt_path=path)
    assert len(again.history) == 4
    assert not [warning for warning in recwarn if "other training samples" in str(warning.message)]


def no_space(*arguments, **arrays):
    raise OSError(errno.ENOSPC, "No space left on device")


def run_with_disk(tmp_path, values, full=(), torn=()):
    """Train with a disk that is full in some epochs, and tears files in others."""

    def before(is_ours, epoch):
        if is_ours and epoch in full:
            no_space()

    def after(is_ours, epoch, path):
        if is_ours and epoch in torn:
            whole = path.read_bytes()
            path.write_bytes(whole[: len(whole) // 2])

    stopping = scripted(values)
    module, _ = run_of(tmp_path, stopping, max_epochs=len(values), plugins=[Disk(before, after)])
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
        stopping, module = run_with_disk(tmp_path, values, full=full)
    assert stopping.best_epoch == kept
    assert len(stopping.history) == 4
    saved = torch.load(stopping.best_model_path, weights_only=True)
    assert saved["epoch"] == kept
    assert same(saved["state_dict"], module.state_dict())


@pytest.mark.parametrize(("values", "torn"), [([0.1, 0.5, 0.9, 0.3], [2]), ([0.1, 0.5, 0.3, 0.9], [3])])
def test_a_torn_file_falls_back_to_the_best_before(tmp_path, values, torn):
    with pytest.warns(UserWarning, match="is damaged: the best earlier one is kept"):
        stopping, _ = run_with_disk(tmp_path, values, torn=torn)
    assert stopping.best_epoch == 1
    assert torch.load(stopping.best_model_path, weights_only=True)["epoch"] == 1


def test_a_torn_best_is_not_resumed_on(tmp_path):
    path = cut(tmp_path, ours(), again=True, max_epochs=4)
    best = Path(state_of(torch.load(path, weights_only=True), "FileKeeper")["best_model_path"])
    best.write_bytes(best.read_bytes()[:100])
    stopping = ours()
    with pytest.warns(UserWarning, match="missing, damaged"):
        run_of(tmp_path, stopping, max_epochs=7, ckpt_path=path)
    assert stopping.best_model_path != str(best)


def no_such_folder(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("no folder")
    return tmp_path / "file" / "cache.npz", "Not a directory|File exists"


def full_disk(tmp_path, monkeypatch):
    monkeypatch.setattr("numpy.savez", no_space)
    return tmp_path / "cache.npz", "No space left on device"


@pytest.mark.parametrize("spoil", [no_such_folder, full_disk])
def test_a_cache_that_cannot_be_written_costs_nothing_but_a_warning(tmp_path, monkeypatch, spoil):
    cache, reason = spoil(tmp_path, monkeypatch)
    stopping = ours(cache=cache)
    with pytest.warns(UserWarning, match=f"cache {cache} cannot be written: .*({reason})"):
        run_of(tmp_path, stopping, max_epochs=2)
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

    stopping = ours()
    run_of(tmp_path, stopping, max_epochs=4, plugins=[Legacy()])
    assert torch.load(stopping.best_model_path, weights_only=True)["epoch"] == stopping.best_epoch


def test_sharded_weights_are_left_and_the_file_is_named(tmp_path):
    class FSDPStrategy(type(trainer(tmp_path).strategy)):
        """Sharded by its name; the real one needs GPUs."""

    stopping = ours()
    with pytest.warns(UserWarning, match="FSDPStrategy shards the weights, .* they are in .*boundary-epoch"):
        fit(tmp_path, stopping, strategy=FSDPStrategy(device=torch.device("cpu")))
    assert Path(stopping.best_model_path).exists()
