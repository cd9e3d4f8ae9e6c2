"""Scripts of `benchmarks/`: the data, the rules that are compared, stages whose time is told, and tables in pages."""

import math
from pathlib import Path

import pytest
import torch

from bu_torch import Signals
from bu_torch.rule.rules import STANDARD_ERROR

FOLDER = Path(__file__).parents[2] / "benchmarks"
ACCURACY = "averaged_expected_accuracy"


def test_tables_are_whole_and_none_that_a_choice_has_seen_counts_as_unseen(load):
    tables = load(FOLDER / "tables.py")
    assert not set(tables.TABLES) & set(tables.UNSEEN)
    for name in (*tables.TABLES, *tables.UNSEEN):
        features, labels = tables.read_table(name)
        assert features.isfinite().all()
        assert labels.unique().tolist() == list(range(int(labels.max()) + 1))


@pytest.mark.parametrize(
    ("kind", "share"), [("none", 0), ("uniform-0.2", 2 / 15), ("pairs-0.4", 0.4), ("hard-0.2", 0.2)]
)
@pytest.mark.parametrize("n_classes", [3, 4])
def test_so_many_labels_change_and_pairs_are_classes_with_near_means(load, kind, share, n_classes):
    noise = load(FOLDER / "noise.py")
    generator = torch.Generator().manual_seed(0)
    before = torch.randint(n_classes, (2000,), generator=generator)
    centres = torch.tensor([[0.0, 0.0], [2.0, 0.0], [9.0, 0.0], [9.0, 1.0]])
    features = centres[before] + torch.randn(2000, 2, generator=generator)
    given = before.clone(), features, n_classes, kind
    after, again = (noise.corrupt(*given, torch.Generator().manual_seed(0)) for _ in range(2))
    assert torch.equal(after, again)
    assert torch.equal(before, given[0])
    if n_classes == 3:
        assert float((before != after).double().mean()) == pytest.approx(share, abs=0.03)
    elif kind == "pairs-0.4":
        for own, other in ((0, 1), (1, 0), (2, 3), (3, 2)):
            assert set(after[before == own].tolist()) == {own, other}


def record(**columns):
    """Curves of five epochs."""
    both = ("", "averaged_")
    curves = {prefix + name: [0.5] * 5 for prefix in both for name in (*Signals.NAMES, STANDARD_ERROR)}
    curves |= {"test_error": [0.5, 0.4, 0.3, 0.2, 0.1], "averaged_test_error": [0.55, 0.45, 0.35, 0.25, 0.15]}
    curves |= {"long_test_error": [0.9] * 5, "changed_predictions": [1, 4, 3, 5, 6], "disparity": [0] * 5}
    curves |= {"skill": [0.5] * 5, "alone": [0.1] * 5, "n_measured": [600] * 5}
    curves |= {f"most_{name}": [2.0] * 5 for name in ("accuracy", "uncertainty", "trust")}
    part = {"test_error": [0.6, 0.61, 0.62, 0.63, 0.64], "averaged_test_error": [0.7, 0.71, 0.72, 0.73, 0.74]}
    names = ("val_accuracy", "val_loss", "val_scaled_loss")
    part |= {prefix + name: [0.0, 0.0, 1.0, 0.0, 0.0] for name in names for prefix in both}
    return {"all": curves | columns, "quarter": part, "tenth": part}


@pytest.mark.parametrize(
    ("rule", "columns", "expected"),
    [
        ("last epoch, averaged (0.97)", {}, 0.9),
        ("bu-torch", {"averaged_accuracy_uncertainty_trust": [0.1, 0.2, 0.9, 0.3, 0.9]}, 0.35),
        ("latest within 1 standard errors", {"averaged_accuracy_uncertainty_trust": [0.1, 0.2, 0.9, 0.8, 0.5]}, 0.15),
        ("accuracy and trust", {"averaged_boundary_uncertainty": [9, 0, 0, 0, 0], ACCURACY: [0, 0, 0, 0.7, 0]}, 0.25),
        ("boundary uncertainty, no average", {"boundary_uncertainty": [0.1, 0.2, 0.1, 0.1, 0.3]}, 0.1),
        ("hold-out accuracy, 25 %", {}, 0.62),
        ("hold-out loss, 25 %, averaged", {}, 0.7),
        ("hold-out accuracy, 10 %, then retrained on all", {}, 0.3),
        ("Label Wave", {}, 0.3),
        ("gradient disparity, five in all", {"disparity": [0, 1, 2, 3, 4]}, 0.1),
        ("best average in hindsight", {}, 0.15),
    ],
)
def test_what_each_rule_keeps(load, rule, columns, expected):
    quality = load(FOLDER / "quality.py")
    rows = {row["rule"]: row["test_error"] for row in quality.judge(record(**columns))}
    assert rows[rule] == expected


def test_stages_are_all_there(load, monkeypatch):
    speed = load(FOLDER / "speed.py")
    monkeypatch.setattr(speed, "median_ms", lambda call, repeats: 1e3 * speed.once(call)[0])
    check, whole = speed.check_stages(200, 4, 3, 1), speed.whole(200, 4, 3)
    for row in (speed.setup_stages(200, 4, 3), check, whole):
        assert all(math.isfinite(value) and value > 0 for value in row.values())
    assert whole["peak MiB"] >= whole["MiB of imports"]
    assert {"forward", "U", "trust", "votes"} < set(check)


@pytest.mark.parametrize(
    ("page", "names"),
    [
        ("README.md", ["errors"]),
        ("docs/limits.md", ["ratios", "fresh_ratios", "excesses"]),
        ("docs/choosing-checkpoints.md", ["verdicts"]),
    ],
)
def test_tables_in_a_page_are_those_of_the_committed_results(load, page, names):
    errors = load(FOLDER / "errors.py")
    said = (FOLDER.parent / page).read_text().splitlines()
    for name in names:
        header, _, *rows = errors.lines(getattr(errors, name)())
        assert len(rows) > 3
        assert [row for row in (header, *rows) if row not in said] == []
