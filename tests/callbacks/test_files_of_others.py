"""Checkpoints to resume from that others have crafted: nothing in them runs, and nothing is deleted."""

import io
import os
import shutil
import time
import zipfile
from pathlib import Path

import pytest
import torch
from apart import run_apart
from fsspec.implementations.memory import MemoryFileSystem
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO
from lightning.pytorch.callbacks import LambdaCallback, ModelCheckpoint
from lightning.pytorch.plugins.io import AsyncCheckpointIO
from problems import Bomb, Classifier, Given, Weights, cut, fit, same, state_of

from bu_torch import BoundaryUncertaintyStopping
from bu_torch.internal.files import claim

PLACE, WEIGHTS = {"epoch": 1, "global_step": 8}, {"state_dict": Classifier().state_dict()}  # of the second epoch


def run(tmp_path):
    """Two epochs; the file to resume from, and that of the best."""
    stopping = BoundaryUncertaintyStopping(n_neighbors=20)
    return cut(tmp_path, stopping), Path(stopping.best_model_path)


def craft(path, best, score):
    """Name another file as the best so far, that of the last check."""
    content = torch.load(path, weights_only=True)
    state, own = state_of(content, "FileKeeper"), state_of(content, "BoundaryUncertaintyStopping")
    value = torch.tensor(score, dtype=torch.float64)
    state.update(best_model_path=best, kth_best_model_path=best, best_model_score=value, kth_value=value)
    state["best_k_models"] = {best: value}
    (table,) = own["history"]
    values = dict(zip(table["names"], table["values"].T, strict=True))
    values["accuracy_uncertainty_trust"][slice(None) if score < 0 else slice(-1, None)] = score
    state.update(best_epoch=int(values["epoch"][-1]), best_step=int(values["step"][-1]))
    torch.save(content, path)


def resume(tmp_path, path, *callbacks):
    stopping, module = BoundaryUncertaintyStopping(n_neighbors=20), Classifier()
    fit(tmp_path, stopping, *callbacks, module=module, max_epochs=4, ckpt_path=path, weights_only=True)
    return stopping, module


def with_a_bomb(path, mark):
    torch.save(PLACE | WEIGHTS | {"hyper_parameters": Bomb(mark)}, path)


CRAFTED = {
    "a bomb": with_a_bomb,
    "other shapes": lambda path, mark: torch.save(PLACE | {"state_dict": Classifier(n_outputs=7).state_dict()}, path),
    "no weights": lambda path, mark: torch.save(PLACE, path),
    "another epoch": lambda path, mark: torch.save(PLACE | WEIGHTS | {"epoch": 0}, path),
    "garbage": lambda path, mark: path.write_bytes(b"\x80\x02garbage"),
}


@pytest.mark.parametrize("write", list(CRAFTED.values()), ids=list(CRAFTED))
def test_a_best_file_from_others_is_read_as_plain_data_or_not_at_all(tmp_path, write):
    last, best = run(tmp_path)
    crafted, mark, look = best.parent / "crafted.ckpt", tmp_path / "mark", Weights()
    write(crafted, mark)
    craft(last, str(crafted), 1e9)
    with pytest.warns(UserWarning, match="crafted.ckpt, was not written by this process.*weights_only=False") as said:
        _, module = resume(tmp_path, last, look)
    assert not mark.exists()
    assert same(module.state_dict(), look.at_end)
    assert len([one for one in said if "crafted" in str(one.message)]) == 1


def with_a_pipe(path, mark):
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize(("swap", "said"), [(with_a_bomb, "has written over"), (with_a_pipe, "is missing")])
def test_what_takes_the_place_of_our_own_file_is_neither_run_nor_waited_for(tmp_path, swap, said):
    stopping, mark = BoundaryUncertaintyStopping(n_neighbors=20), tmp_path / "mark"
    look = LambdaCallback(on_train_end=lambda *_: swap(Path(stopping.best_model_path), mark))
    with pytest.warns(UserWarning, match=said):
        fit(tmp_path, stopping, look, max_epochs=2)
    assert stopping.best_model_path
    assert not mark.exists()


def url_with_a_folder_of_its_name(folder):
    """Which Lightning would download from, and unpickle in `trainer.test(ckpt_path="best")`."""
    (folder / "http:" / "127.0.0.1:9" / "best.ckpt").mkdir(parents=True)
    return "http://127.0.0.1:9/best.ckpt"


def pipe(folder, spelling="{}"):
    os.mkfifo(folder / "pipe")
    return spelling.format(folder / "pipe")


def copied(folder, path):
    """The best file, once more."""
    path.parent.mkdir(exist_ok=True)
    (best,) = (folder / "checkpoints").glob("boundary-*.ckpt")
    return str(shutil.copy(best, path))


def linked(folder, target):
    (folder / "checkpoints" / "best.ckpt").symlink_to(target)
    return str(folder / "checkpoints" / "best.ckpt")


ADDRESSES = {
    "url": url_with_a_folder_of_its_name,
    "pipe": pipe,
    "pipe as a url": lambda folder: pipe(folder, "file://{}"),
    "chain": lambda folder: f"simplecache::{folder}/user/last.ckpt",
    "device": lambda folder: "/dev/zero",
    "null byte": lambda folder: f"{folder}/user/last.ckpt\0",
    "elsewhere": lambda folder: copied(folder, folder / "elsewhere" / "best.ckpt"),
    "above": lambda folder: copied(folder, folder / "best.ckpt") and f"{folder}/checkpoints/../best.ckpt",
    "link": lambda folder: linked(folder, copied(folder, folder / "elsewhere" / "best.ckpt")),
}


@pytest.mark.parametrize("address", list(ADDRESSES.values()), ids=list(ADDRESSES))
def test_only_a_file_in_the_folder_of_the_run_may_be_named_as_the_best(tmp_path, monkeypatch, address):
    last, _ = run(tmp_path)
    monkeypatch.chdir(tmp_path)
    craft(last, address(tmp_path), 1e9)
    with pytest.warns(UserWarning, match="best epoch so far is missing, damaged, or outside the run's folder"):
        stopping, _ = resume(tmp_path, last)
    assert stopping.best_epoch in (2, 3)


@pytest.mark.parametrize("weights", [{}, {"net.0.weight": torch.zeros(2)}, {"net.0.weight": 1}])
def test_weights_in_a_state_that_do_not_fit_leave_the_module_as_it_is(tmp_path, weights):
    made = fit(tmp_path, BoundaryUncertaintyStopping(n_neighbors=20), max_epochs=2, enable_checkpointing=False)
    made.save_checkpoint(tmp_path / "last.ckpt")
    content = torch.load(tmp_path / "last.ckpt", weights_only=True)
    state_of(content, "MemoryKeeper").update(best_epoch=1, best_step=made.global_step, best_weights=weights)
    (table,) = state_of(content, "BoundaryUncertaintyStopping")["history"]
    table["values"][-1, table["names"].index("accuracy_uncertainty_trust")] = 1e9
    torch.save(content, tmp_path / "last.ckpt")
    stopping, module, look = BoundaryUncertaintyStopping(n_neighbors=20), Classifier(), Weights()
    options = {"enable_checkpointing": False, "ckpt_path": tmp_path / "last.ckpt", "weights_only": True}
    with pytest.warns(UserWarning, match="do not fit: .*The weights stay as training left them"):
        fit(tmp_path, stopping, look, module=module, max_epochs=4, **options)
    assert stopping.best_epoch == 1
    assert same(module.state_dict(), look.at_end)


LEFT = {
    "the best of before": lambda best: best,
    "a file of another name": lambda best: best.rename(best.with_name("thesis.ckpt")),
    "a folder": lambda best: best.with_name("shards.ckpt").mkdir() or best.with_name("shards.ckpt"),
}


@pytest.mark.parametrize("name", list(LEFT))
def test_the_best_of_an_earlier_process_is_left_where_it_is_and_named(tmp_path, log, name):
    last, best = run(tmp_path)
    named = LEFT[name](best)
    craft(last, str(named), -1e9)
    with pytest.warns(UserWarning, match="epoch 0, the best so far, are not in the state. That of epoch 1 is kept"):
        stopping, _ = resume(tmp_path, last)
    assert stopping.best_epoch in (2, 3)  # a better one came
    assert named.exists()
    assert f"leaves the best checkpoint of an earlier run where it is: {named}" in log.text
    files = {path.name for path in best.parent.glob("boundary-*.ckpt")} - {named.name, best.name}
    assert files == {Path(stopping.best_model_path).name}


RUN = """
from problems import Classifier, Given, fit
from bu_torch import BoundaryUncertaintyStopping
settings = dict(dirpath={folder!r}, filename="best", n_neighbors=20, n_draws=1)
stopping = BoundaryUncertaintyStopping(rule=Given([0.9, 0.1]), **settings)
fit({folder!r}, stopping, module=Classifier(), max_epochs=2)
print(stopping.best_model_path)
"""


@pytest.mark.parametrize("plugins", [[], [AsyncCheckpointIO()]], ids=["now", "later"])
def test_two_runs_in_one_folder_keep_and_restore_a_file_each(tmp_path, monkeypatch, plugins):
    """The other, in another process or in this one, begins when the first has named its file and not written it."""

    def run_beside():
        script = tmp_path / "script.py"
        script.write_text(RUN.format(folder=str(tmp_path)))
        return run_apart(script)[1].split()[-1]

    def run_within():
        other = BoundaryUncertaintyStopping(n_neighbors=20, n_draws=1, **settings | {"rule": Given([0.9, 0.1])})
        fit(tmp_path, other, max_epochs=2)
        return other.best_model_path

    def save(self, checkpoint, path, storage_options=None):
        if not paths:
            paths.append("")
            paths[0] = run_beside() if plugins else run_within()
        write(self, checkpoint, path, storage_options)

    paths, write, module, look = [], TorchCheckpointIO.save_checkpoint, Classifier(), Weights()
    monkeypatch.setattr(TorchCheckpointIO, "save_checkpoint", save)
    settings = {"rule": Given([0.9, 0.1]), "dirpath": tmp_path, "filename": "best"}
    stopping = BoundaryUncertaintyStopping(n_neighbors=20, n_draws=1, averaging=None, **settings)
    fit(tmp_path, stopping, look, module=module, max_epochs=2, plugins=plugins)
    assert [Path(path).name for path in (stopping.best_model_path, *paths)] == ["best.ckpt", "best-v1.ckpt"]
    assert same(module.state_dict(), look.of_epoch[0])
    assert not same(module.state_dict(), torch.load(paths[0], weights_only=True)["state_dict"])


class Elsewhere(TorchCheckpointIO):
    """Writes to a store of its own, as to S3: there is no file under the path."""

    def __init__(self):
        super().__init__()
        self.store, self.removed = {}, []

    def save_checkpoint(self, checkpoint, path, storage_options=None):
        torch.save(checkpoint, file := io.BytesIO())
        assert path not in self.store
        self.store[path] = file.getvalue()

    def load_checkpoint(self, path, map_location=None, weights_only=None):
        return torch.load(io.BytesIO(self.store[path]), weights_only=weights_only)

    def remove_checkpoint(self, path):
        self.removed.append(path)
        del self.store[path]


def named_alike(**options):
    return BoundaryUncertaintyStopping(
        rule=Given((0.5, 0.9, 0.1)), filename="best", n_neighbors=20, n_draws=1, averaging=None, **options
    )


def files_in(folder):
    store = MemoryFileSystem()
    return sorted(str(path).rpartition("/")[2] for path in store.ls(folder, detail=False))


class TestOtherStores:
    def test_a_plugin_of_one_s_own_gets_a_new_name_for_each_file(self, tmp_path, log, recwarn):
        stopping, plugin, module, look = named_alike(), Elsewhere(), Classifier(), Weights()
        fit(tmp_path, stopping, look, module=module, plugins=[plugin])
        assert "not reserved, because Elsewhere writes them" in log.text
        assert [Path(path).name for path in plugin.removed if "best" in path] == ["best.ckpt"]
        assert Path(stopping.best_model_path).name == "best-v1.ckpt"
        assert same(module.state_dict(), look.of_epoch[1])

    @pytest.mark.parametrize("plugins", [[], [AsyncCheckpointIO()]], ids=["now", "later"])
    def test_names_are_reserved_in_a_remote_folder(self, tmp_path, monkeypatch, log, plugins):
        def save(self, checkpoint, path, storage_options=None):
            taken.append(not claim(path, MemoryFileSystem()))
            write(self, checkpoint, path, storage_options)

        taken, write, module, look = [], TorchCheckpointIO.save_checkpoint, Classifier(), Weights()
        monkeypatch.setattr(TorchCheckpointIO, "save_checkpoint", save)
        folder = f"memory://{tmp_path.name}-{len(plugins)}"
        stopping = named_alike(dirpath=folder)
        fit(tmp_path, stopping, look, module=module, plugins=plugins, enable_checkpointing=None)
        assert taken[0]
        assert "not reserved" not in log.text
        assert stopping.best_model_path == f"{folder}/best-v1.ckpt"
        assert "best-v1.ckpt" in files_in(folder)
        assert same(module.state_dict(), look.of_epoch[1])

    def test_a_remote_file_that_another_program_writes_over_is_not_restored(self, tmp_path):
        def write_over(*_):
            with MemoryFileSystem().open(stopping.best_model_path, "wb") as file:
                torch.save(PLACE | WEIGHTS, file)

        stopping, module, look = named_alike(dirpath=f"memory://{tmp_path.name}"), Classifier(), Weights()
        with pytest.warns(UserWarning, match="has written over the checkpoint"):
            fit(tmp_path, stopping, look, LambdaCallback(on_train_end=write_over), module=module)
        assert same(module.state_dict(), look.at_end)

    def test_a_file_that_a_thread_has_written_is_told_from_one_in_its_place(self, tmp_path):
        def look_at(made, module):
            path = Path(stopping.best_model_path)
            while made.current_epoch == 2 and not (path.is_file() and zipfile.is_zipfile(path)):
                time.sleep(0.01)
            if made.current_epoch == 3:
                with_a_bomb(path, tmp_path / "mark")

        stopping, look = named_alike(), LambdaCallback(on_train_epoch_start=look_at)
        with pytest.warns(UserWarning, match="has written over the checkpoint"):
            fit(tmp_path, look, stopping, max_epochs=4, plugins=[AsyncCheckpointIO()])
        assert not (tmp_path / "mark").exists()


def test_the_best_file_may_lie_in_a_folder_below_that_of_the_run(tmp_path):
    def fit_to(folder, scores, **options):
        stopping = BoundaryUncertaintyStopping(rule=Given(scores), filename="best/{epoch}", n_neighbors=20, n_draws=1)
        last = ModelCheckpoint(dirpath=tmp_path / "user", save_last=True)
        fit(tmp_path, stopping, last, module=Classifier(), max_epochs=len(scores), **options)
        return stopping

    first = fit_to(tmp_path, [0.9, 0.1])
    again = fit_to(tmp_path, [0.9, 0.1, 0.2, 0.3], ckpt_path=tmp_path / "user" / "last.ckpt")
    assert (again.best_epoch, again.best_model_path) == (0, first.best_model_path)
    assert Path(first.best_model_path).parent.name == "best"


def test_a_best_epoch_in_a_file_is_named_if_the_resumed_run_writes_none(tmp_path):
    last, _ = run(tmp_path)
    stopping = BoundaryUncertaintyStopping(n_neighbors=20)
    options = {"enable_checkpointing": False, "ckpt_path": last, "weights_only": True}
    with pytest.warns(UserWarning, match=r"epoch \d, .* not in the state. The best of the coming epochs"):
        fit(tmp_path, stopping, module=Classifier(), max_epochs=4, **options)
    assert stopping.best_epoch in (2, 3)
