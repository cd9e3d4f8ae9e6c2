"""Averaged weights in a trainer: what is measured, kept, saved and resumed, while training goes its own way."""

import pytest
import torch
from problems import Plain, Weights, blobs, in_order, same
from problems import fit_again as fit
from torch import nn

from bu_torch import BoundaryUncertaintyMonitor, BoundaryUncertaintyStopping


def stopping(**kwargs):
    return BoundaryUncertaintyStopping(**{"n_neighbors": 20, "n_draws": 2, "averaging": 0.6, **kwargs})


@pytest.mark.parametrize("is_of_weights_alone", [False, True])
def test_the_file_loads_as_any_other_and_holds_the_weights_of_training_unless_told_otherwise(
    tmp_path, is_of_weights_alone
):
    own, weights = stopping(save_weights_only=is_of_weights_alone), Weights()
    module, made = fit(tmp_path, own, weights)
    saved = torch.load(own.best_model_path, weights_only=True)
    raw = saved.get("raw_state_dict", {})
    assert same(raw, {name: weights.of_epoch[own.best_epoch][name] for name in raw})
    of_numbers = {name for name, value in saved["state_dict"].items() if value.is_floating_point()}
    assert raw.keys() == (set() if is_of_weights_alone else of_numbers)
    assert is_of_weights_alone != bool({"callbacks", "optimizer_states", "lr_schedulers"} & saved.keys())
    assert same(Plain.load_from_checkpoint(own.best_model_path).state_dict(), saved["state_dict"])
    (tested,) = made.test(module, in_order(), ckpt_path="best", verbose=False)
    logits = module.eval()(blobs()[0])
    assert tested["test_loss"] == pytest.approx(float(nn.functional.cross_entropy(logits, blobs()[1])), abs=1e-5)


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
