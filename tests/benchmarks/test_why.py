"""The page on why looks at what the shipped monitor measures."""

import lightning.pytorch as pl
import problems
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from bu_torch import BoundaryUncertaintyMonitor


def test_all_ends_of_tic_tac_toe(why):
    features, labels = why.tic_tac_toe()
    assert features.shape == (958, 27)
    assert labels.bincount().tolist() == [332, 626]
    assert bool((features.unflatten(1, (9, 3)).sum(dim=2) == 1).all())


def test_ring_is_a_narrow_class_within_a_wide_one(why):
    features, labels = why.ring()
    wide, narrow = (features[labels == label] for label in (0, 1))
    assert float(wide.std()) == pytest.approx(2.0, abs=0.05)
    assert float((narrow - narrow.mean(dim=0)).std()) == pytest.approx(1.0, abs=0.05)


def test_the_signals_are_those_of_the_monitor(why, tmp_path):
    split, test, n_classes = why.load(why.Case("ionosphere", 0.2, 0, "rmsprop", 3))
    variants = why.Variants(why.Reference(*split), test)
    monitor = BoundaryUncertaintyMonitor(n_draws=4, budget=None, feature_extractor="inputs")
    trainer = problems.trainer(tmp_path, monitor, variants, enable_checkpointing=False)
    pl.seed_everything(0, verbose=False)
    module = why.classifier(split, n_classes)
    trainer.fit(module, DataLoader(TensorDataset(*split), batch_size=32, shuffle=True))
    names = ("expected_accuracy", "boundary_uncertainty", "trust_score")
    names += ("label_agreement", "vote_agreement", "neighbor_agreement")
    for row, entry in zip(variants.rows, monitor.history, strict=True):
        found = {name: row[name.replace("_", " ")] for name in names}
        assert found == pytest.approx({name: entry[name] for name in names}, rel=1e-3)
        assert row["steadiness"] == pytest.approx(-entry["prediction_changes"])
        assert torch.tensor([row["U, draws 4"], row["U, M 40"]]).tolist() == pytest.approx([row["U, radius 1"]] * 2)
