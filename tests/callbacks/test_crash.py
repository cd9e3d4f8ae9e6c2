"""Disks that are full, and trainings that are interrupted."""

import errno
from pathlib import Path

import pytest
import torch
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO
from lightning.pytorch.callbacks import LambdaCallback
from problems import Given, Plain, same, scripted
from problems import fit_again as run_of


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


@pytest.mark.parametrize(
    ("values", "full", "kept"),
    [([0.1, 0.5, 0.9, 0.3], [2], 1), ([0.1, 0.9, 0.5, 0.95], [0, 1], 3)],
    ids=["the best before stays", "there is room again"],
)
def test_a_full_disk_costs_neither_the_run_nor_the_other_bests(tmp_path, values, full, kept):
    def before(epoch):
        if epoch in full:
            raise OSError(errno.ENOSPC, "No space left on device")

    stopping = scripted(values)
    with pytest.warns(UserWarning, match="No space left"):
        module, _ = run_of(tmp_path, stopping, max_epochs=4, plugins=[Disk(before)])
    assert stopping.best_epoch == kept
    assert len(stopping.history) == 4
    saved = torch.load(stopping.best_model_path, weights_only=True)
    assert saved["epoch"] == kept
    assert same(saved["state_dict"], module.state_dict())


def test_ctrl_c_while_the_best_file_is_written_leaves_the_earlier_one(tmp_path):
    def after(epoch, path):
        if epoch == 1:
            path.write_bytes(b"PK")
            raise KeyboardInterrupt

    own, module = scripted((0.1, 0.9, 0.2)), Plain()
    with pytest.raises(SystemExit):  # as Lightning ends after Ctrl-C
        run_of(tmp_path, own, module=module, max_epochs=3, plugins=[Disk(after=after)])
    assert own.best_epoch == 0
    assert same(module.state_dict(), torch.load(own.best_model_path, weights_only=True)["state_dict"])


@pytest.mark.parametrize("has_files", [True, False])
def test_ctrl_c_between_a_check_and_the_saving_of_its_weights_leaves_the_earlier_epoch(tmp_path, has_files):
    def interrupt(made, module):
        if made.current_epoch == 2:
            raise KeyboardInterrupt

    own, behind = scripted((0.1, 0.2, 0.3)), LambdaCallback(on_train_epoch_end=interrupt)
    with pytest.raises(SystemExit):
        run_of(tmp_path, own, behind, max_epochs=4, enable_checkpointing=has_files)
    assert len(own.history) == 3
    assert own.best_epoch == own.summary["kept_epoch"] == (1 if has_files else 2)  # in memory it is kept at once
    assert not has_files or torch.load(own.best_model_path, weights_only=True)["epoch"] == 1


def test_an_error_of_a_rule_is_told_and_its_check_does_not_count(tmp_path):
    class Broken(Given):
        def score(self, values):
            if self.place == 2:
                raise ZeroDivisionError("of the rule")
            return super().score(values)

    stopping = scripted(rule=Broken((1, 2)))
    with pytest.raises(ZeroDivisionError, match="of the rule"):
        run_of(tmp_path, stopping, max_epochs=4)
    assert [entry["given"] for entry in stopping.history] == [1, 2]
    assert (stopping.best_epoch, stopping.summary["score"]) == (1, 2)
