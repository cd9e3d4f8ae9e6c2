"""Disks that are full, and trainings that are interrupted."""

import errno
from pathlib import Path

import pytest
import torch
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO
from lightning.pytorch.callbacks import LambdaCallback
from problems import Given, Plain, Weights, same, scripted
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


def epochs_of(folder):
    """Epochs of the best files in a folder, those that cannot be read as None."""
    return [torch.load(path)["epoch"] if path.stat().st_size > 9 else None for path in folder.rglob("boundary-*.ckpt")]


@pytest.mark.parametrize(
    ("values", "full", "kept", "files"),
    [([0.1, 0.5, 0.9, 0.3], [2], 2, [1]), ([0.1, 0.9, 0.5, 0.95], [0, 1], 3, [3])],
    ids=["to the end", "for a while"],
)
def test_a_full_disk_costs_the_file_alone(tmp_path, values, full, kept, files):
    def before(epoch):
        if epoch in full:
            raise OSError(errno.ENOSPC, "No space left on device")

    stopping, look = scripted(values), Weights()
    with pytest.warns(UserWarning, match="No space left"):
        module, _ = run_of(tmp_path, stopping, look, max_epochs=4, plugins=[Disk(before)])
    assert len(stopping.history) == 4
    assert stopping.best_epoch == kept
    assert same(module.state_dict(), look.of_epoch[kept])
    assert bool(stopping.best_model_path) == (kept in files)
    assert epochs_of(tmp_path) == files


@pytest.mark.parametrize(
    ("when", "left"), [("behind the check", [0]), ("while the file is written", [0, None]), ("without files", [])]
)
def test_ctrl_c_after_a_check_keeps_it_and_leaves_the_file_of_the_best_before(tmp_path, when, left):
    def interrupt():
        module.net[0].weight.data.zero_()
        raise KeyboardInterrupt

    def after(epoch, path):
        if epoch == 1:
            path.write_bytes(b"PK")
            interrupt()

    def behind(made, _):
        if made.current_epoch == 1 and not when.startswith("while"):
            interrupt()

    own, look, module = scripted((0.1, 0.9, 0.2)), Weights(), Plain()
    options = {"plugins": [Disk(after=after)], "enable_checkpointing": when != "without files"}
    with pytest.raises(SystemExit):  # as Lightning ends after Ctrl-C
        run_of(tmp_path, own, look, LambdaCallback(on_train_epoch_end=behind), module=module, **options)
    assert len(own.history) == 2
    assert (own.best_epoch, own.summary["kept_epoch"], own.best_model_path) == (1, 1, "")
    assert same(module.state_dict(), look.of_epoch[1])
    assert sorted(epochs_of(tmp_path), key=str) == left


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
