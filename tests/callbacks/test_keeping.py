"""What is saved of the kept epoch, under which name, and what is put back of it."""

import copy
from pathlib import Path

import pytest
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import CSVLogger
from problems import Classifier, Weights, blobs, cut, in_order, loader, same, scripted, trainer, weights_of
from problems import fit as trained
from torch import nn

from bu_torch import BoundaryUncertaintyStopping


def fit(folder, own, *callbacks, **options):
    """Train; the trainer, and the weights at the end of each epoch."""
    look = Weights()
    return trained(folder, own, look, *callbacks, **options), look.of_epoch


class LeavingOut(Classifier):
    """With a frozen backbone; its checkpoints leave out what begins with `left_out`."""

    def __init__(self, left_out, strict):
        super().__init__()
        self.backbone = nn.Linear(4, 4).requires_grad_(False)
        self.left_out, self.strict_loading = left_out, strict

    def forward(self, x):
        return super().forward(self.backbone(x))

    def without(self, state):
        return {name: value for name, value in state.items() if not name.startswith(self.left_out)}

    def on_save_checkpoint(self, checkpoint):
        checkpoint["state_dict"] = self.without(checkpoint["state_dict"])


class Hiding(LeavingOut):
    """Leaves them out of `state_dict` already."""

    def state_dict(self, *args, **kwargs):
        return self.without(super().state_dict(*args, **kwargs))


@pytest.mark.parametrize("kind", [LeavingOut, Hiding])
@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("left_out", ["backbone", "net.4"])
def test_what_a_file_leaves_out_is_put_back_unless_the_module_hides_what_it_trains(
    tmp_path, recwarn, kind, strict, left_out
):
    module, own, is_hidden = kind(left_out, strict), scripted(), (kind, left_out) == (Hiding, "net.4")
    _, weights = fit(tmp_path, own, module=module)
    lines = [str(one.message) for one in recwarn if "net.4.weight, net.4.bias" in str(one.message)]
    assert [own.best_model_path in line for line in lines] == [True] * is_hidden
    assert same(weights_of(module), weights[2 if is_hidden else 1])


def test_folder_and_template_are_model_checkpoint_s(tmp_path):
    mine = tmp_path / "mine"
    own = scripted(dirpath=str(mine), filename="{epoch:02d}-{given:.2f}-{train_loss:.0f}")
    fit(tmp_path, own)
    (path,) = mine.glob("*.ckpt")
    assert path.name[:-12] == "epoch=01-given=0.90-train_loss=0"  # less the token
    assert own.best_model_path == str(path)
    assert own.record_path.startswith(str(mine))


def test_each_best_is_saved_once_with_all_that_resumes_and_loggers_are_told(tmp_path):
    class Listening(CSVLogger):
        """Sees what a logger that uploads checkpoints would see."""

        def after_save_checkpoint(self, one):
            path = one.best_model_path
            assert one.best_k_models == {path: one.current_score}
            assert (one.last_model_path, one.save_top_k, one.mode) == ("", 1, "max")
            saved.append((torch.load(path, weights_only=True)["epoch"], float(one.current_score)))

    class Stepped(Classifier):
        def configure_optimizers(self):
            optimizer = super().configure_optimizers()
            return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=2.0)]

    saved, own = [], scripted([0.5, 0.9, 0.2, 0.95, 0.1])
    fit(tmp_path, own, module=Stepped(), max_epochs=5, logger=Listening(tmp_path))
    assert saved == [(0, 0.5), (1, 0.9), (3, 0.95)]
    assert [*tmp_path.rglob("*.ckpt")] == [Path(own.best_model_path)]
    assert Path(own.best_model_path).name.startswith("boundary-epoch=3-step=16-")
    content = torch.load(own.best_model_path, weights_only=True)
    (scheduler,) = content["lr_schedulers"]
    assert scheduler["_last_lr"] == [pytest.approx(0.05 * 2**4)]
    assert content["optimizer_states"][0]["param_groups"][0]["lr"] == scheduler["_last_lr"][0]


@pytest.mark.parametrize("is_of_weights_alone", [False, True])
def test_the_file_loads_as_any_other_and_holds_the_weights_of_training_unless_told_otherwise(
    tmp_path, is_of_weights_alone
):
    own = scripted(averaging=0.6, save_weights_only=is_of_weights_alone, metric="f1")
    module, (features, labels) = Classifier(n_outputs=2), blobs(n_classes=2)
    made, weights = fit(tmp_path, own, module=module, data=loader(features, labels))
    saved = torch.load(own.best_model_path, weights_only=True)
    assert saved["threshold"] == own.history[1]["threshold"]
    raw = saved.get("raw_state_dict", {})
    assert same(saved["state_dict"] | raw, weights[1]) != is_of_weights_alone
    assert is_of_weights_alone != bool({"callbacks", "optimizer_states", "lr_schedulers"} & saved.keys())
    assert same(Classifier.load_from_checkpoint(own.best_model_path, n_outputs=2).state_dict(), saved["state_dict"])
    for one, path in ((trainer(tmp_path, scripted()), own.best_model_path), (made, "best")):
        (tested,) = one.test(module, in_order(features, labels), ckpt_path=path, verbose=False)
        assert abs(tested["test_loss"] - nn.functional.cross_entropy(module.eval()(features), labels)) < 1e-5


def test_weights_out_of_reach_are_said_to_be_in_the_file():
    engine = scripted().engine
    engine.processes.weights_are_hidden, engine.summary = True, {"best_model_path": "best.ckpt"}
    with pytest.warns(UserWarning, match=r"best\.ckpt"):
        assert not engine.put_back(nn.Linear(1, 1))


class Wrong(Classifier):
    """Unlearns: each step leads away from the labels."""

    def training_step(self, batch, batch_idx):
        return -super().training_step(batch, batch_idx)


@pytest.mark.parametrize("checkpoints", [True, False])
@pytest.mark.filterwarnings("ignore:::bu_torch")
def test_where_one_class_alone_is_better_than_each_check_the_weights_of_training_stay(tmp_path, log, checkpoints):
    module, own = Wrong(), BoundaryUncertaintyStopping(n_neighbors=20)
    _, weights = fit(tmp_path, own, module=module, max_epochs=4, enable_checkpointing=checkpoints)
    assert own.best_epoch < 3
    assert own.summary["word"] == "blind"
    assert bool(own.best_model_path) == checkpoints
    assert same(weights_of(module), weights[3])
    assert "not in the model" in log.text


@pytest.mark.parametrize("odd", [torch.eye(3).to_sparse(), torch.eye(3).to(torch.float8_e4m3fn)])
def test_a_run_with_buffers_that_are_sparse_or_of_8_bits_resumes(tmp_path, odd):
    first, again, look = scripted((0.9, 0.1)), scripted((0.9, 0.1, 0.2)), Weights()
    module, twin = Classifier(), Classifier()
    for one in (module, twin):
        one.register_buffer("odd", odd.clone())
    path = cut(tmp_path, first, look, module=twin)
    trained(tmp_path, again, module=module, ckpt_path=path)
    assert again.best_epoch == 0
    assert torch.equal(module.net[0].weight, look.of_epoch[0]["net.0.weight"])


class Own(Callback):
    """Saves an average of its own in place of the weights, as that of other packages do."""

    def on_save_checkpoint(self, trainer, pl_module, checkpoint):
        average = {name: torch.zeros_like(value) for name, value in checkpoint["state_dict"].items()}
        checkpoint |= {"of training": checkpoint["state_dict"], "state_dict": average}

    def on_load_checkpoint(self, trainer, pl_module, checkpoint):
        pl_module.load_state_dict(checkpoint["of training"])


@pytest.mark.parametrize("place", ["last", "kept"])
def test_the_best_weights_are_in_a_checkpoint_in_which_a_later_callback_exchanges_the_weights(tmp_path, place):
    first, again, look, module = scripted((0.1, 0.9)), scripted((0.1, 0.9, 0.2)), Weights(), Classifier()
    path = cut(tmp_path, first, Own(), look)
    trained(tmp_path, again, Own(), module=module, ckpt_path=path if place == "last" else first.best_model_path)
    assert again.best_epoch == 1
    assert same(weights_of(module), look.of_epoch[1])


@pytest.mark.parametrize(("had_files", "has_files"), [(False, False), (False, True), (True, False), (True, True)])
def test_any_checkpoint_holds_the_best_weights_and_none_twice(tmp_path, had_files, has_files):
    """Whether a best file is written, then or later, and even if it is gone."""
    first, again = (scripted((0.9, 0.1, 0.2, 0.3), averaging=0.5) for _ in range(2))
    module = LeavingOut("backbone", False)
    twin = copy.deepcopy(module)
    made, weights = fit(tmp_path, first, module=twin, max_epochs=2, enable_checkpointing=had_files)
    made.save_checkpoint(path := tmp_path / "user.ckpt")
    state = torch.load(path, weights_only=True)["callbacks"]["BoundaryUncertaintyStopping"]
    assert state["weights"]["backbone.weight"] is None
    for best in tmp_path.rglob("boundary-*.ckpt"):
        (state,) = [state for state in torch.load(best)["callbacks"].values() if "weights" in state]
        assert {*state["weights"].values(), *state["average"]["weights"].values()} == {None}
        best.unlink()
    fit(tmp_path, again, module=module, max_epochs=4, ckpt_path=path, enable_checkpointing=has_files)
    assert (again.best_epoch, again.best_model_path) == (0, "")
    assert same(weights_of(module), weights[0])
