"""Disks that are full, and files that are torn."""

import errno
from pathlib import Path
from threading import Event

import pytest
import torch
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO
from lightning.pytorch.callbacks import LambdaCallback
from lightning.pytorch.plugins.io import AsyncCheckpointIO
from problems import Plain, fit, same, scripted, trainer
from problems import fit_again as run_of

from bu_torch import BoundaryUncertaintyStopping


def ours(**settings):
    return BoundaryUncertaintyStopping(n_neighbors=20, **settings)


class Disk(TorchCheckpointIO):
    """Writes our checkpoints as these say that are called before and after."""

    def __init__(self, before=lambda *_: None, after=lambda *_: None):
        super().__init__()
        self.before, self.after = before, after

    def save_checkpoint(self, checkpoint, path, storage_options=None):
        is_ours = "boundary-epoch" in str(path)
        if is_ours:
            self.before(checkpoint["epoch"])
        super().save_checkpoint(checkpoint, path, storage_options)
        if is_ours:
            self.after(checkpoint["epoch"], Path(path))


def no_space(*arguments, **arrays):
    raise OSError(errno.ENOSPC, "No space left on device")


def run_with_disk(tmp_path, values, full=(), torn=()):
    """Train with a disk that is full in some epochs, and tears files in others."""

    def before(epoch):
        if epoch in full:
            no_space()

    def after(epoch, path):
        if epoch in torn:
            whole = path.read_bytes()
            path.write_bytes(whole[: len(whole) // 2])

    stopping = scripted(values)
    module, _ = run_of(tmp_path, stopping, max_epochs=len(values), plugins=[Disk(before, after)])
    return stopping, module


@pytest.mark.parametrize(
    ("values", "full", "kept", "said"),
    [
        ([0.1, 0.5, 0.9, 0.3], [2], 1, "epoch 2 cannot be written: .*No space left.* stays: .*epoch=1"),
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


def test_a_file_of_one_s_own_kind_is_not_called_damaged(tmp_path):
    class Legacy(TorchCheckpointIO):
        def save_checkpoint(self, checkpoint, path, storage_options=None):
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            torch.save(checkpoint, path, _use_new_zipfile_serialization=False)

    stopping = ours()
    run_of(tmp_path, stopping, max_epochs=4, plugins=[Legacy()])
    assert torch.load(stopping.best_model_path, weights_only=True)["epoch"] == stopping.best_epoch


def test_a_file_that_another_thread_still_writes_is_not_called_damaged(tmp_path, recwarn):
    def before(epoch):
        if epoch == 0:
            Path(stopping.best_model_path).parent.mkdir(exist_ok=True)
            Path(stopping.best_model_path).write_bytes(b"PK and half of the rest")
            has_begun.set()
            assert may_end.wait(60)

    has_begun, may_end, stopping = Event(), Event(), scripted((0.9, 0.1))
    look = LambdaCallback(
        on_train_epoch_start=lambda made, _: made.current_epoch == 1 and has_begun.wait(60),
        on_train_epoch_end=lambda made, _: made.current_epoch == 1 and may_end.set(),
    )
    fit(tmp_path, look, stopping, plugins=[AsyncCheckpointIO(Disk(before))])
    assert stopping.best_epoch == torch.load(stopping.best_model_path, weights_only=True)["epoch"] == 0
    assert not [one for one in recwarn if "checkpoint" in str(one.message) and "damaged" in str(one.message)]


def test_ctrl_c_while_the_best_file_is_written_leaves_the_earlier_one(tmp_path, log):
    def after(epoch, path):
        if epoch == 1:
            path.write_bytes(b"PK")
            raise KeyboardInterrupt

    own, module = scripted((0.1, 0.9, 0.2)), Plain()
    with pytest.raises(SystemExit):  # as Lightning ends after Ctrl-C
        run_of(tmp_path, own, module=module, max_epochs=3, plugins=[Disk(after=after)])
    assert own.best_epoch == 0
    assert same(module.state_dict(), torch.load(own.best_model_path, weights_only=True)["state_dict"])
    assert "kept epoch 0" in log.text


@pytest.mark.parametrize("kind", [KeyboardInterrupt, RuntimeError])
@pytest.mark.parametrize("has_files", [True, False])
def test_an_exception_between_a_check_and_the_saving_of_its_weights_leaves_the_earlier_epoch(tmp_path, kind, has_files):
    def interrupt(made, module):
        if made.current_epoch == 2:
            raise kind

    own, behind = scripted((0.1, 0.2, 0.3)), LambdaCallback(on_train_epoch_end=interrupt)
    with pytest.raises((SystemExit, RuntimeError)):
        run_of(tmp_path, own, behind, max_epochs=4, enable_checkpointing=has_files)
    assert len(own.history) == 3
    assert own.best_epoch == own.summary["kept_epoch"] == 1
    assert not has_files or torch.load(own.best_model_path, weights_only=True)["epoch"] == 1


def test_sharded_weights_are_left_and_the_file_is_named(tmp_path):
    class FSDPStrategy(type(trainer(tmp_path).strategy)):
        """Sharded by its name; the real one needs GPUs."""

    stopping = ours()
    with pytest.warns(UserWarning, match="FSDPStrategy shards the weights, .* they are in .*boundary-epoch"):
        fit(tmp_path, stopping, strategy=FSDPStrategy(device=torch.device("cpu")))
    assert Path(stopping.best_model_path).exists()
