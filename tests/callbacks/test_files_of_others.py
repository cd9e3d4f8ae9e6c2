"""Checkpoints of others: nothing in them runs, nothing of theirs is deleted, training goes on, and a line says why."""

import os
import re
from pathlib import Path

import pytest
import torch
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO
from lightning.pytorch.plugins.io import AsyncCheckpointIO
from problems import Bomb, Classifier, Weights, cut, fit, same, scripted


def resume(tmp_path, script, best=None):
    """Train two epochs, and two more from their checkpoint, which may name another best file; both callbacks."""
    first, again, look, module = scripted((0.1, 0.5)), scripted(script), Weights(), Classifier()
    path = cut(tmp_path, first, look)
    if best is not None:
        checkpoint = torch.load(path, weights_only=True)
        checkpoint["callbacks"]["FileKeeper"]["best_model_path"] = best
        torch.save(checkpoint, path)
    fit(tmp_path, again, look, module=module, max_epochs=4, ckpt_path=path)
    assert same(module.state_dict(), look.of_epoch[again.best_epoch])
    return first, again


def pipe(folder):
    os.mkfifo(folder / "pipe")
    return str(folder / "pipe")


def url_with_a_folder_of_its_name(folder):
    """Which Lightning would download from, and unpickle in `trainer.test(ckpt_path="best")`."""
    (folder / "http:" / "127.0.0.1:9" / "best.ckpt").mkdir(parents=True)
    return "http://127.0.0.1:9/best.ckpt"


def bomb(folder):
    torch.save({"state_dict": Bomb(folder / "mark")}, folder / "bomb.ckpt")
    return str(folder / "bomb.ckpt")


NAMED = {
    "a bomb": bomb,
    "url": url_with_a_folder_of_its_name,
    "pipe": pipe,
    "pipe as a url": lambda folder: f"file://{pipe(folder)}",
    "chain": lambda folder: f"simplecache::{folder}/user/last.ckpt",
    "device": lambda folder: "/dev/zero",
    "null byte": lambda folder: f"{folder}/user/last.ckpt\0",
    "nothing": lambda folder: f"{folder}/none.ckpt",
}


@pytest.mark.parametrize("name", NAMED)
def test_a_best_file_from_others_is_named_if_it_is_there_and_never_read(tmp_path, monkeypatch, recwarn, name):
    monkeypatch.chdir(tmp_path)
    best = NAMED[name](tmp_path)
    _, stopping = resume(tmp_path, (0.1, 0.5, 0.2), best)
    assert not (tmp_path / "mark").exists()
    assert (stopping.best_epoch, stopping.best_model_path) == (1, best if name == "a bomb" else "")
    assert not [one for one in recwarn if "kept epoch" in str(one.message)]


def test_the_best_of_an_earlier_process_is_left_where_it_is_and_named(tmp_path, log):
    first, again = resume(tmp_path, (0.1, 0.5, 0.9))
    assert again.best_epoch == 2  # a better one came
    assert first.best_model_path in log.text
    assert {*map(str, tmp_path.rglob("boundary-*.ckpt"))} == {first.best_model_path, again.best_model_path}


@pytest.mark.parametrize("plugins", [[], [AsyncCheckpointIO()]], ids=["now", "later"])
def test_two_runs_in_one_folder_keep_and_restore_a_file_each(tmp_path, monkeypatch, plugins):
    """The other begins when the first has named its file and not written it."""

    def save(self, checkpoint, path, storage_options=None):
        if not others:
            others.append(scripted(**named_alike))
            fit(tmp_path, others[0], max_epochs=2)
        write(self, checkpoint, path, storage_options)

    named_alike = {"script": (0.9, 0.1), "dirpath": tmp_path, "filename": "best"}
    others, write, module, look = [], TorchCheckpointIO.save_checkpoint, Classifier(), Weights()
    monkeypatch.setattr(TorchCheckpointIO, "save_checkpoint", save)
    fit(tmp_path, stopping := scripted(**named_alike), look, module=module, max_epochs=2, plugins=plugins)
    paths = [Path(one.best_model_path) for one in (stopping, *others)]
    assert all(re.fullmatch(r"best-[0-9a-f]{6}\.ckpt", path.name) for path in paths)
    assert same(module.state_dict(), look.of_epoch[0])
    assert not same(module.state_dict(), torch.load(paths[1], weights_only=True)["state_dict"])


@pytest.mark.parametrize("store", ["{}", "memory:/{}"])
def test_the_best_file_may_lie_in_a_store_and_below_the_folder_of_the_run(tmp_path, store):
    folder = store.format(tmp_path)
    first, again = (
        scripted((0.1, 0.9, 0.2, 0.3), dirpath=folder, filename="best/{epoch}", averaging=0.5) for _ in range(2)
    )
    fit(tmp_path, again, module=Classifier(), max_epochs=4, ckpt_path=cut(tmp_path, first))
    assert (again.best_epoch, again.best_model_path) == (1, first.best_model_path)
    assert first.best_model_path.startswith(f"{folder}/best/epoch=1-")
