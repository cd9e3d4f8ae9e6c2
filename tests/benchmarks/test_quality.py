"""The benchmark judges what the shipped callback does."""

import importlib.util
import sys
from pathlib import Path

import lightning.pytorch as pl
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from bu_torch import BoundaryUncertaintyStopping

FILE = Path(__file__).parents[2] / "benchmarks" / "quality.py"


@pytest.fixture(scope="module")
def quality():
    spec = importlib.util.spec_from_file_location("benchmark_quality", FILE)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


@pytest.mark.parametrize(
    ("rule", "name"),
    [("boundary_uncertainty", "boundary uncertainty"), ("trust_score", "trust score"), ("consensus", "consensus")],
)
def test_a_rule_replayed_on_curves_is_the_shipped_callback(quality, tmp_path, rule, name):
    case = quality.Case("ionosphere", 0.2, 1, "rmsprop", 40)
    split, test, n_classes = quality.load(case)
    curves, _ = quality.train(case, split, test, n_classes, None)
    kept, stopped = quality.RULES[name][1]({"all": curves.columns()})

    pl.seed_everything(case.seed, verbose=False)
    stopping = BoundaryUncertaintyStopping(rule=rule, seed=case.seed)
    trainer = pl.Trainer(
        max_epochs=40, callbacks=[stopping], accelerator="cpu", default_root_dir=tmp_path, logger=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    module = quality.Net(split[0].shape[1], n_classes, case.setting)
    trainer.fit(module, DataLoader(TensorDataset(*split), batch_size=32, shuffle=True))
    assert stopping.best_epoch == kept
    assert len(stopping.history) == stopped + 1
    with torch.no_grad():
        error = float((module(test[0]).argmax(dim=1) != test[1]).float().mean())
    assert error == pytest.approx(curves.columns()["test_error"][kept])


def test_label_noise_redraws_training_labels_alone(quality):
    clean, clean_test, _ = quality.load(quality.Case("banknote", 0.0, 0, "rmsprop", 1))
    noisy, noisy_test, _ = quality.load(quality.Case("banknote", 0.4, 0, "rmsprop", 1))
    assert torch.equal(clean[0], noisy[0])
    assert torch.equal(clean_test[1], noisy_test[1])
    assert float((clean[1] != noisy[1]).float().mean()) == pytest.approx(0.2, abs=0.05)  # half are redrawn as they were


def test_rules_and_summary_on_curves_made_by_hand(quality):
    curves = {
        "boundary_uncertainty": [0.1, 0.5, 0.2],
        "trust_score": [1.0, 1.0, 2.0],
        "label_agreement": [0.1, 0.6, 0.2],
        "neighbor_agreement": [0.1, 0.6, 0.2],
        "prediction_changes": [1.0, 0.1, 0.5],
        "train_loss": [3.0, 2.0, 1.0],
        "changed_predictions": [1.0, 0.2, 0.3],
        "test_error": [0.5, 0.2, 0.3],
    }
    part = {"val_accuracy": [0.5, 0.4, 0.6], "val_loss": [1.0, 2.0, 3.0], "test_error": [0.6, 0.4, 0.4]}
    case = {"table": "made up", "noise": 0.0, "seed": 0, "setting": "rmsprop", "epochs": 3}
    judged = quality.judge([{"case": case, "all": curves, "part": part}]).set_index("rule")
    excess = judged.excess.round(9).to_dict()
    assert excess["boundary uncertainty"] == excess["consensus"] == 0.0
    assert excess["trust score"] == excess["last epoch"] == excess["training loss plateau"] == 0.1
    assert excess["hold-out accuracy"] == 0.2
    assert excess["hold-out loss"] == 0.4
    assert excess["hold-out accuracy, then retrain"] == 0.1
    summary = quality.summarise(judged.reset_index())
    assert summary.loc["last epoch", "/ hold-out accuracy"] == pytest.approx(0.5)
    assert summary.loc["last epoch", "wins"] == 1.0
    assert summary.loc["hold-out accuracy", "wins"] == 0.5
