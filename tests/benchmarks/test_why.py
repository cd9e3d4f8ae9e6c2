"""The page on why looks at what the shipped monitor measures."""

import lightning.pytorch as pl
import problems
import pytest
from torch.utils.data import DataLoader, TensorDataset

from bu_torch import BoundaryUncertaintyMonitor


def test_the_signals_are_those_of_the_monitor(why, tmp_path):
    split, test, n_classes = why.load(why.Case("ionosphere", 0.2, 0, "rmsprop", 3))
    variants = why.Variants(why.Reference(*split), test)
    monitor = BoundaryUncertaintyMonitor(n_draws=4, budget=None, feature_extractor="inputs")
    trainer = problems.trainer(tmp_path, monitor, variants, enable_checkpointing=False)
    pl.seed_everything(0, verbose=False)
    module = why.classifier(split, n_classes)
    trainer.fit(module, DataLoader(TensorDataset(*split), batch_size=32, shuffle=True))
    names = ("expected_accuracy", "boundary_uncertainty", "trust_score")
    names += ("label_agreement", "vote_agreement")
    for row, entry in zip(variants.rows, monitor.history, strict=True):
        found = {name: row[name.replace("_", " ")] for name in names}
        assert found == pytest.approx({name: entry[name] for name in names}, rel=1e-3)
        assert row["steadiness"] == pytest.approx(-entry["prediction_changes"])
        assert row["U, draws 4"] == row["U, radius 1"]
        assert 0 <= row["Parzen U, M 40"] <= 1
