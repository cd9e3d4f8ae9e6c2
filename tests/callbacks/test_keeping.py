"""What is saved of the kept epoch, under which name, and what is put back of it."""

from contextlib import nullcontext

import pytest
import torch
from lightning.pytorch.callbacks import LambdaCallback, ModelCheckpoint
from problems import Classifier, blobs, loader, trainer
from torch import nn

from bu_torch import BoundaryUncertaintyStopping
from bu_torch.callbacks import _companions
from bu_torch.callbacks._left_out import changed_by_training, listed
from bu_torch.callbacks._own_files import OwnFiles


class Stopping(BoundaryUncertaintyStopping):
    """Measures what the script says, by epoch; after its end the last value."""

    def __init__(self, script=(0.1, 0.9, 0.5), **kwargs):
        super().__init__(**{"n_draws": 1, "rule": "boundary_uncertainty", **kwargs})
        self.script = script

    def _prepare_here(self, trainer, pl_module):
        return torch.zeros(1, 1), None, "the same"

    def _try(self, trainer, pl_module):
        """There is nothing to read."""

    def _measure(self, trainer, pl_module):
        value = self.script[min(trainer.current_epoch, len(self.script) - 1)]
        return {"boundary_uncertainty": value, "trust_score": 2 * value, "expected_accuracy": value}


def weights_of(module):
    """All weights, also those that a module's own `state_dict` leaves out."""
    return {name: value.clone() for name, value in nn.Module.state_dict(module).items()}


def same(weights, others):
    return weights.keys() == others.keys() and all(torch.equal(value, others[name]) for name, value in weights.items())


def fit(folder, own, *callbacks, module=None, ckpt_path=None, **kwargs):
    """Train; the trainer, and the weights at the end of each epoch."""
    of_epoch, module = {}, module or Classifier()
    look = LambdaCallback(on_train_epoch_end=lambda t, m: of_epoch.update({t.current_epoch: weights_of(m)}))
    made = trainer(folder, own, look, *callbacks, **kwargs)
    made.fit(module, loader(*blobs()), ckpt_path=ckpt_path)
    return made, of_epoch


class LeavingOut(Classifier):
    """With a frozen backbone; its checkpoints leave out what begins with `left_out`."""

    def __init__(self, left_out="backbone", strict=True):
        super().__init__()
        self.backbone = nn.Linear(4, 4).requires_grad_(False)
        self.left_out = left_out
        if not strict:
            self.strict_loading = False

    def forward(self, x):
        return super().forward(self.backbone(x))

    def on_save_checkpoint(self, checkpoint):
        for name in [name for name in checkpoint["state_dict"] if name.startswith(self.left_out)]:
            del checkpoint["state_dict"][name]


class Hiding(LeavingOut):
    """Leaves them out of `state_dict` already."""

    def state_dict(self, *args, **kwargs):
        state = super().state_dict(*args, **kwargs)
        return {name: value for name, value in state.items() if not name.startswith(self.left_out)}


class TestWeightsLeftOut:
    @pytest.mark.parametrize("strict", [True, False])
    @pytest.mark.parametrize("checkpoints", [True, False])
    def test_frozen_ones_stay_and_all_others_are_put_back(self, tmp_path, caplog, strict, checkpoints):
        module, own = (LeavingOut if checkpoints else Hiding)(strict=strict), Stopping()
        with caplog.at_level("INFO", logger="lightning.pytorch"):
            _, weights = fit(tmp_path, own, module=module, enable_checkpointing=checkpoints)
        assert same(weights_of(module), weights[1])
        said = [one.getMessage() for one in caplog.records if "leave out" in one.getMessage()]
        assert len(said) == 1
        assert "2 that training does not change, which stay as they are" in said[0]
        assert said[0].endswith("backbone.weight, backbone.bias.")
        assert "its weights are in the model" in caplog.text

    @pytest.mark.parametrize("strict", [True, False])
    def test_one_that_training_changes_is_warned_of_by_name(self, tmp_path, caplog, strict):
        module, own = LeavingOut("net.4", strict=strict), Stopping()
        with (
            caplog.at_level("INFO", logger="lightning.pytorch"),
            pytest.warns(UserWarning, match=r"leave out 2 that training changes: net\.4\.weight, net\.4\.bias") as said,
        ):
            _, weights = fit(tmp_path, own, module=module)
        assert any(own.best_model_path in str(one.message) for one in said)
        for name, value in weights_of(module).items():
            assert torch.equal(value, weights[2 if name.startswith("net.4") else 1][name]), name
        assert "its weights are partly in the model" in caplog.text

    def test_so_are_statistics_that_training_changes(self, tmp_path):
        with pytest.warns(UserWarning, match=r"2 that training changes: net\.1\.running_mean, net\.1\.running_var"):
            fit(tmp_path, Stopping(), module=LeavingOut(("net.1.running", "net.1.num")))

    def test_names_that_the_module_does_not_know_are_said(self, tmp_path):
        class Adding(Classifier):
            def on_save_checkpoint(self, checkpoint):
                checkpoint["state_dict"]["extra"] = torch.zeros(1)

        module = Adding()
        with pytest.warns(UserWarning, match="no place for saved weights of the kept epoch: extra"):
            _, weights = fit(tmp_path, Stopping(), module=module)
        assert same(weights_of(module), weights[1])

    @pytest.mark.parametrize(("left_out", "is_put_back"), [("backbone", True), ("net.4", False)])
    def test_a_file_of_an_earlier_process_is_put_back_if_only_frozen_ones_are_missing(
        self, tmp_path, monkeypatch, left_out, is_put_back
    ):
        first = Stopping((0.9, 0.1), restore_best_weights=False)
        last = ModelCheckpoint(tmp_path / "user", save_last=True)
        module = LeavingOut(left_out, strict=False)
        backbone = weights_of(module.backbone)
        _, weights = fit(tmp_path, first, last, module=module, max_epochs=2)
        monkeypatch.setattr(_companions, "_OWN_FILES", OwnFiles())
        module = LeavingOut(left_out, strict=False)
        module.backbone.load_state_dict(backbone)
        module.on_train_start = lambda: setattr(module, "strict_loading", True)
        resumed, path = Stopping((0.9, 0.1)), tmp_path / "user" / "last.ckpt"
        with nullcontext() if is_put_back else pytest.warns(UserWarning, match=r"lacks weights.*net\.4\.weight"):
            _, after = fit(tmp_path, resumed, module=module, ckpt_path=path, max_epochs=4)
        assert resumed.best_epoch == 0
        assert same(weights_of(module), weights[0] if is_put_back else after[3])

    def test_a_parameter_of_two_names_counts_once_and_lists_are_short(self):
        module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
        module[1].weight = module[0].weight
        assert changed_by_training(module, ["1.weight", "1.bias"]) == ["1.bias"]
        assert changed_by_training(module, ["0.weight", "1.weight"]) == ["0.weight", "1.weight"]
        assert listed(list("abcdefg")) == "a, b, c, d, e and 2 more"


class TestCheckpointsOfOthersInTheMiddleOfAnEpoch:
    """They name the best file of their moment, and a run may resume from the newest of them."""

    SCRIPT = (0.1, 0.5, 0.9, 0.4, 0.3)

    def files(self, folder):
        return sorted(path.name for path in (folder / "checkpoints").glob("boundary-*.ckpt"))

    def every_step(self, folder):
        return ModelCheckpoint(folder / "user", save_last=True, every_n_train_steps=1, save_top_k=0)

    def test_a_run_that_max_steps_has_ended_resumes_with_its_best(self, tmp_path, recwarn):
        first = Stopping(self.SCRIPT)
        fit(tmp_path, first, self.every_step(tmp_path), max_epochs=-1, max_steps=10)
        assert first.best_epoch == 2
        assert self.files(tmp_path) == ["boundary-epoch=1-step=8.ckpt", "boundary-epoch=2-step=10.ckpt"]
        resumed, module = Stopping((0.1, 0.5, 0.45, 0.4)), Classifier()
        last = tmp_path / "user" / "last.ckpt"
        fit(tmp_path, resumed, module=module, ckpt_path=last, max_epochs=6)
        assert not [one for one in recwarn if "gone or damaged" in str(one.message)]
        assert (resumed.best_epoch, resumed.best_score) == (1, 0.5)
        kept = torch.load(tmp_path / "checkpoints" / "boundary-epoch=1-step=8.ckpt", weights_only=True)
        assert same(weights_of(module), kept["state_dict"])

    def test_the_file_before_goes_once_a_newer_one_is_named(self, tmp_path):
        seen = []
        look = LambdaCallback(on_train_batch_end=lambda *_: seen.append(len(self.files(tmp_path))))
        fit(tmp_path, Stopping((0.1, 0.2, 0.3, 0.4)), look, self.every_step(tmp_path), max_epochs=4)
        assert max(seen) == 2
        assert len(self.files(tmp_path)) == 2  # the last step's checkpoint names the one before

    def test_beside_checkpoints_at_the_end_of_an_epoch_one_file_is_left(self, tmp_path):
        fit(tmp_path, Stopping((0.1, 0.2, 0.3)), ModelCheckpoint(tmp_path / "user", save_last=True))
        assert self.files(tmp_path) == ["boundary-epoch=2-step=12.ckpt"]
