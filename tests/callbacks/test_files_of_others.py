"""Checkpoints to resume from that others have crafted: nothing in them runs, and nothing is deleted."""

import math
import os
from pathlib import Path

import pytest
import torch
from lightning.pytorch.callbacks import LambdaCallback
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from problems import Classifier, Weights, cut, fit, same, state_of

from bu_torch import BoundaryUncertaintyMonitor, BoundaryUncertaintyStopping
from bu_torch.callbacks import keeper


class Bomb:
    """Runs `os.mkdir(path)` where it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def run(tmp_path):
    """Two epochs; the file to resume from, and that of the best."""
    stopping = BoundaryUncertaintyStopping(n_neighbors=20)
    return cut(tmp_path, stopping), Path(stopping.best_model_path)


def craft(path, best, score):
    """Name another file as the best so far, that of the last check."""
    content = torch.load(path, weights_only=True)
    state, own = state_of(content, "Keeper"), state_of(content, "BoundaryUncertaintyStopping")
    value = torch.tensor(score, dtype=torch.float64)
    state.update(best_model_path=best, kth_best_model_path=best, best_model_score=value, kth_value=value)
    state["best_k_models"] = {best: value}
    (table,) = own["history"]
    values = dict(zip(table["names"], table["values"].T, strict=True))
    values["expected_accuracy"][slice(None) if score < 0 else slice(-1, None)] = score
    state.update(best_epoch=int(values["epoch"][-1]), best_step=int(values["step"][-1]))
    torch.save(content, path)


def resume(tmp_path, path, *callbacks):
    stopping, module = BoundaryUncertaintyStopping(n_neighbors=20), Classifier()
    fit(tmp_path, stopping, *callbacks, module=module, max_epochs=4, ckpt_path=path, weights_only=True)
    return stopping, module


def with_a_bomb(path, mark):
    torch.save({"state_dict": Classifier().state_dict(), "hyper_parameters": Bomb(mark)}, path)


CRAFTED = {
    "a bomb": with_a_bomb,
    "other shapes": lambda path, mark: torch.save({"state_dict": Classifier(n_outputs=7).state_dict()}, path),
    "no weights": lambda path, mark: torch.save({"epoch": 1}, path),
    "garbage": lambda path, mark: path.write_bytes(b"\x80\x02garbage"),
}


@pytest.mark.parametrize("write", list(CRAFTED.values()), ids=list(CRAFTED))
def test_a_best_file_from_others_is_read_as_plain_data_or_not_at_all(tmp_path, write):
    last, _ = run(tmp_path)
    crafted, mark, look = tmp_path / "crafted.ckpt", tmp_path / "mark", Weights()
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


@pytest.mark.parametrize(
    ("swap", "said"), [(with_a_bomb, "was not written by this process"), (with_a_pipe, "kept epoch is missing")]
)
def test_what_takes_the_place_of_our_own_file_is_neither_run_nor_waited_for(tmp_path, swap, said):
    stopping, mark = BoundaryUncertaintyStopping(n_neighbors=20), tmp_path / "mark"
    look = LambdaCallback(on_train_end=lambda *_: swap(Path(stopping.best_model_path), mark))
    with pytest.warns(UserWarning, match=said):
        fit(tmp_path, stopping, look, max_epochs=2)
    assert stopping.best_model_path
    assert not mark.exists()


def test_a_best_file_of_plain_data_from_an_earlier_process_is_restored(tmp_path, new_process):
    last, best = run(tmp_path)
    craft(last, str(best), 1e9)
    new_process()
    _, module = resume(tmp_path, last)
    assert same(module.state_dict(), torch.load(best, weights_only=True)["state_dict"])


def url_with_a_folder_of_its_name(folder):
    """Which Lightning would download from, and unpickle in `trainer.test(ckpt_path="best")`."""
    (folder / "http:" / "127.0.0.1:9" / "best.ckpt").mkdir(parents=True)
    return "http://127.0.0.1:9/best.ckpt"


def pipe(folder, spelling="{}"):
    os.mkfifo(folder / "pipe")
    return spelling.format(folder / "pipe")


ADDRESSES = {
    "url": url_with_a_folder_of_its_name,
    "pipe": pipe,
    "pipe as a url": lambda folder: pipe(folder, "file://{}"),
    "pipe of fsspec": lambda folder: pipe(folder, "local://{}"),
    "chain": lambda folder: f"simplecache::{folder}/user/last.ckpt",
    "relative": lambda folder: "user/last.ckpt",
    "home": lambda folder: "~/last.ckpt",
    "device": lambda folder: "/dev/zero",
    "null byte": lambda folder: f"{folder}/user/last.ckpt\0",
    "number": lambda folder: 7,
}


@pytest.mark.parametrize("address", list(ADDRESSES.values()), ids=list(ADDRESSES))
def test_only_a_local_file_may_be_named_as_the_best(tmp_path, monkeypatch, address):
    last, _ = run(tmp_path)
    monkeypatch.chdir(tmp_path)
    craft(last, address(tmp_path), 1e9)
    with pytest.warns(UserWarning, match="best epoch so far is missing or damaged"):
        stopping, _ = resume(tmp_path, last)
    assert stopping.best_epoch in (2, 3)


def test_a_file_of_the_same_size_and_time_is_another_s(tmp_path, monkeypatch):
    path = tmp_path / "best.ckpt"
    path.write_bytes(b"ours")
    monkeypatch.setattr(keeper, "_OWN_FILES", {str(path): keeper.identity(str(path))})
    assert keeper.is_own(str(path))
    found = path.stat()
    path.write_bytes(b"evil")
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))
    assert not keeper.is_own(str(path))


def test_a_name_with_escapes_is_logged_without(tmp_path, log):
    last, best = run(tmp_path)
    hostile = tmp_path / "a\x1b]0;OWNED\x07\nWARNING: all fine.ckpt"
    hostile.write_bytes(best.read_bytes())
    craft(last, str(hostile), 1e9)
    resume(tmp_path, last)
    said = [record.getMessage() for record in log.records if "all fine" in record.getMessage()]
    assert said
    assert not [line for line in said if not line.isprintable()]


def table(names, values):
    return {"history": [{"names": names, "values": torch.as_tensor(values, dtype=torch.float64)}]}


EVIL = {
    "history of words": {"history": "x"},
    "a history of numbers": {"history": [1.0]},
    "checks without an epoch": table(["step"], [[1.0]]),
    "an epoch and a half": table(["epoch"], [[1.5]]),
    "an infinite epoch": table(["epoch"], [[math.inf]]),
    "epochs that fall": table(["epoch"], [[3.0], [1.0]]),
    "a number without a name": table(["epoch"], [[0.0, 1.0]]),
    "far more numbers than the file": table(["epoch"], torch.zeros(1, 1).double().expand(10**9, 1)),
    "text in place of numbers": {"history": [{"names": ["epoch"], "values": "A" * 100_000}]},
    "names with escapes": table(["epoch", "\x1b]0;x\x07"], [[0.0, 1.0]]),
    "names that are lists": table([["epoch"]], [[0.0]]),
    "more than there is": {"n_not_compared": 10**30},
    "less than nothing": {"n_not_compared": -1},
    "many draws": {"plan": (120, 20_000)},
    "a plan of three": {"plan": (1, 2, 3)},
    "a plan below zero": {"plan": (-5, -5)},
    "predictions far larger than the file": {"predictions": torch.zeros(1, dtype=torch.int8).expand(2 * 10**8)},
    "predictions of floats": {"predictions": torch.zeros(3)},
    "predictions that are none": {"predictions": "x"},
    "settings of text": {"settings": "x"},
}


@pytest.mark.parametrize("evil", list(EVIL.values()), ids=list(EVIL))
@pytest.mark.parametrize("kind", [BoundaryUncertaintyStopping, BoundaryUncertaintyMonitor])
def test_a_state_that_is_none_is_refused_before_training(kind, evil):
    state = kind(n_neighbors=20).state_dict() | evil
    with pytest.raises(MisconfigurationException, match="no state that this package wrote: expected"):
        kind(n_neighbors=20).load_state_dict(state)


@pytest.mark.parametrize("weights", [{}, "x", {"net.0.weight": torch.zeros(2)}, {"net.0.weight": 1}])
def test_weights_in_a_state_that_do_not_fit_leave_the_module_as_it_is(tmp_path, weights):
    made = fit(tmp_path, BoundaryUncertaintyStopping(n_neighbors=20), max_epochs=2, enable_checkpointing=False)
    made.save_checkpoint(tmp_path / "last.ckpt")
    content = torch.load(tmp_path / "last.ckpt", weights_only=True)
    state_of(content, "MemoryKeeper").update(best_epoch=1, best_step=made.global_step, best_weights=weights)
    (table,) = state_of(content, "BoundaryUncertaintyStopping")["history"]
    table["values"][-1, table["names"].index("expected_accuracy")] = 1e9
    torch.save(content, tmp_path / "last.ckpt")
    stopping, module, look = BoundaryUncertaintyStopping(n_neighbors=20), Classifier(), Weights()
    options = {"enable_checkpointing": False, "ckpt_path": tmp_path / "last.ckpt", "weights_only": True}
    with pytest.warns(UserWarning, match="do not fit: .*The weights stay as training left them"):
        fit(tmp_path, stopping, look, module=module, max_epochs=4, **options)
    assert stopping.best_epoch == 1
    assert same(module.state_dict(), look.at_end)


OURS = "boundary-epoch=7-step=9.ckpt"


def planted(path, plant=lambda path: path.write_text("precious")):
    path.parent.mkdir(exist_ok=True)
    plant(path)
    return path


PLANTS = {
    "a folder above": lambda folder, outside: planted(outside / "inside") and f"{folder}/../outside",
    "a folder named as ours": lambda folder, outside: planted(folder / OURS, Path.mkdir),
    "a link named as ours": lambda folder, outside: planted(
        folder / OURS, lambda path: path.symlink_to(planted(outside / "target"))
    ),
    "a file of another name": lambda folder, outside: planted(folder / "thesis.ckpt"),
    "a file in a folder beneath": lambda folder, outside: planted(folder / "beneath" / OURS),
    "a file elsewhere": lambda folder, outside: planted(outside / OURS) and f"{folder}/../outside/{OURS}",
}


@pytest.mark.parametrize("plant", list(PLANTS.values()), ids=list(PLANTS))
def test_what_a_resumed_state_names_is_not_deleted(tmp_path, new_process, caplog, plant):
    (last, best), outside = run(tmp_path), tmp_path / "outside"
    named = plant(best.parent, outside)
    before = {path: path.is_symlink() for path in (*best.parent.rglob("*"), *outside.rglob("*"))}
    craft(last, str(named), -1e9)
    new_process()
    stopping, _ = resume(tmp_path, last)
    assert stopping.best_epoch in (2, 3)  # a better one came
    assert {path: path.is_symlink() for path in before if os.path.lexists(path)} == before
    assert f"does not delete the earlier best checkpoint, which may not be this run's: {named}" in caplog.text


@pytest.mark.parametrize("resumes_from_it", [False, True])
def test_the_best_of_before_is_deleted_once_a_better_one_is_saved_unless_the_run_resumes_from_it(
    tmp_path, new_process, resumes_from_it
):
    last, best = run(tmp_path)
    path = best if resumes_from_it else last
    craft(path, str(best), -1e9)
    new_process()
    stopping, _ = resume(tmp_path, path)
    assert stopping.best_epoch in (2, 3)
    assert stopping.best_model_path != str(best)
    kept = {Path(stopping.best_model_path), *([best] if resumes_from_it else [])}
    assert set(best.parent.glob("boundary-epoch*")) == kept
