"""Averaged weights in a trainer: what is measured, kept, saved and resumed, while training goes its own way."""

import pytest
import torch
from lightning.pytorch.callbacks import BackboneFinetuning, EMAWeightAveraging, StochasticWeightAveraging
from problems import Plain, Weights, averages_of, blobs, close, cut, in_order, same, scripted, state_of
from problems import fit_again as fit
from torch import nn

from bu_torch import BoundaryUncertaintyMonitor, BoundaryUncertaintyStopping
from bu_torch.callbacks.trainer import RAW_WEIGHTS
from bu_torch.report import read_record

PAST = 0.6


def averaged(weights, last):
    """The average of the weights of training in the checks up to the last."""
    return averages_of([weights.of_epoch[epoch] for epoch in range(last + 1)], PAST)


def stopping(**kwargs):
    return BoundaryUncertaintyStopping(**{"n_neighbors": 20, "n_draws": 2, "averaging": PAST, "cache": None, **kwargs})


@pytest.mark.parametrize("checkpoints", [True, False])
def test_the_average_is_measured_kept_and_restored(tmp_path, checkpoints):
    own, weights = stopping(), Weights()
    module, _ = fit(tmp_path, own, weights, enable_checkpointing=checkpoints)
    assert own.tracker.average.state_dict()["weights"] == {}  # it is freed
    assert close(module.state_dict(), averaged(weights, own.best_epoch))
    assert not close(module.state_dict(), weights.of_epoch[own.best_epoch])


@pytest.mark.parametrize("is_of_weights_alone", [False, True])
def test_the_file_holds_the_average_and_loads_as_any_other(tmp_path, is_of_weights_alone):
    own, weights = stopping(save_weights_only=is_of_weights_alone), Weights()
    module, made = fit(tmp_path, own, weights)
    saved = torch.load(own.best_model_path, weights_only=True)
    assert close(saved["state_dict"], averaged(weights, own.best_epoch))
    assert not close(saved["state_dict"], weights.of_epoch[own.best_epoch])
    assert (RAW_WEIGHTS in saved) != is_of_weights_alone
    raw = saved.get(RAW_WEIGHTS, {})
    assert close(raw, {name: weights.of_epoch[own.best_epoch][name] for name in raw})
    assert is_of_weights_alone or raw.keys() == {n for n, v in saved["state_dict"].items() if v.is_floating_point()}
    assert same(Plain.load_from_checkpoint(own.best_model_path).state_dict(), saved["state_dict"])
    (tested,) = made.test(module, in_order(), ckpt_path="best", verbose=False)
    logits = module.eval()(blobs()[0])
    assert tested["test_loss"] == pytest.approx(float(nn.functional.cross_entropy(logits, blobs()[1])), abs=1e-5)


def test_a_checkpoint_of_the_users_holds_the_weights_of_training_and_grows_by_one_copy(tmp_path):
    sizes = []
    for averaging in (PAST, None):
        own, weights = stopping(averaging=averaging, restore_best_weights=False), Weights()
        path = cut(tmp_path / str(averaging), own, weights, again=True, max_epochs=6)
        content = torch.load(path, weights_only=True)
        assert same(content["state_dict"], weights.of_epoch[5])
        assert RAW_WEIGHTS not in content
        state = state_of(content, "BoundaryUncertaintyStopping")
        sizes.append(sum(one.numel() for one in state.get("average", {}).get("weights", {}).values()))
    assert sizes == [sum(v.numel() for v in content["state_dict"].values() if v.is_floating_point()), 0]


@pytest.mark.filterwarnings("ignore:The run resumes with averaging=None", "ignore:Patience and the best epoch")
@pytest.mark.parametrize("resumed_by", [BoundaryUncertaintyMonitor(n_neighbors=20), stopping(averaging=None)])
def test_without_averaging_a_kept_file_still_resumes_from_the_weights_of_training(tmp_path, resumed_by):
    whole, first, weights = Weights(), stopping(), Weights()
    fit(tmp_path / "whole", stopping(restore_best_weights=False), whole)
    fit(tmp_path, first, max_epochs=3)
    fit(tmp_path, resumed_by, weights, ckpt_path=first.best_model_path)
    epoch = torch.load(first.best_model_path, weights_only=True)["epoch"]
    assert list(weights.of_epoch) == list(range(epoch + 1, 6))
    assert all(same(one, whole.of_epoch[epoch]) for epoch, one in weights.of_epoch.items())


@pytest.mark.parametrize(
    "theirs",
    [lambda: EMAWeightAveraging(decay=0.5), lambda: StochasticWeightAveraging(swa_lrs=0.01, swa_epoch_start=1)],
)
def test_beside_an_average_of_lightning_s_there_is_none_of_ours(tmp_path, theirs, log):
    own, average = stopping(restore_best_weights=False), theirs()
    fit(tmp_path, own, average)
    assert own.tracker.average is None
    assert f"averages no weights: {type(average).__name__} does so" in log.text
    assert read_record(own.record_path).settings["averaging"] is None


# What others put into a kept checkpoint in place of the weights of training, or into its average.
NOT_WRITTEN = {
    "no tensors": {"net.0.weight": 1.0},
    "no dict": [torch.ones(2)],
    "more than there is": {"net.0.bias": torch.ones(1).expand(16)},
}
NOT_FITTING = {"another shape": {"net.0.weight": torch.ones(2)}, "another name": {"net.9.weight": torch.ones(2)}}
NO_AVERAGE = {
    "a share of text": {"past": "x"},
    "a list of counts": {"n_checks": [1.0]},
    "no checks": {"n_checks": {"net.0.bias": 0}},
    "a count of text": {"n_checks": {"net.0.bias": "x"}},
    "a number for weights": {"weights": {"net.0.bias": 1}},
}


@pytest.mark.parametrize("wrong", [*NOT_WRITTEN, *NOT_FITTING, *NO_AVERAGE])
def test_crafted_weights_are_not_used(tmp_path, wrong):
    own = stopping()
    fit(tmp_path, own, max_epochs=2)
    content = torch.load(own.best_model_path, weights_only=True)
    if wrong in NO_AVERAGE:
        state = state_of(content, "BoundaryUncertaintyStopping")
        state["average"].update(NO_AVERAGE[wrong])
        expected = "holds no state that this package wrote: `average`: .*start anew"
    else:
        content[RAW_WEIGHTS] = (NOT_WRITTEN | NOT_FITTING)[wrong]
        said = "do not fit the module" if wrong in NOT_FITTING else r"cannot be read \(.*\)"
        expected = f"The checkpoint holds .* they {said}: training continues from the average"
    torch.save(content, tmp_path / "crafted.ckpt")
    with pytest.warns(UserWarning, match=expected):
        fit(tmp_path, stopping(), ckpt_path=tmp_path / "crafted.ckpt")


class Thawed(Plain):
    """A head on a backbone, which `BackboneFinetuning` freezes until an epoch."""

    def __init__(self):
        super().__init__()
        self.backbone, self.net = self.net[:-1], self.net[-1]

    def forward(self, x):
        return self.net(self.backbone(x))

    def configure_optimizers(self):
        return torch.optim.SGD(self.net.parameters(), lr=0.1)


def test_a_backbone_enters_the_average_at_the_check_after_it_is_unfrozen(tmp_path):
    weights, alone = Weights(), Weights()
    for seen, *ours in ((weights, scripted([0.1, 0.2, 0.3, 0.9], averaging=PAST)), (alone,)):
        module, _ = fit(tmp_path, *ours, BackboneFinetuning(2), seen, module=Thawed, max_epochs=4)
        if ours:
            kept = module.backbone[0].weight.detach()
    before, second, third = (weights.of_epoch[epoch]["backbone.0.weight"] for epoch in (1, 2, 3))
    assert torch.equal(before, weights.of_epoch[0]["backbone.0.weight"])
    assert not torch.allclose(before, second)
    torch.testing.assert_close(kept, second / 11 + third * 10 / 11)
    assert same(weights.of_epoch[3], alone.of_epoch[3])
