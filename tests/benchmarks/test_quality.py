"""The benchmark judges what the shipped callback does."""

import lightning.pytorch as pl
import pandas as pd
import problems
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from bu_torch import BoundaryUncertaintyStopping


@pytest.fixture(scope="module")
def trained(quality):
    """A case, its data, and the curves of its training."""
    case = quality.Case("ionosphere", 0.2, 1, "rmsprop", 40)
    data = quality.load(case)
    return case, data, quality.train(case, *data, None).columns()


@pytest.mark.parametrize("rule", ["expected_accuracy", "boundary_uncertainty", "trust_score"])
def test_a_rule_replayed_on_curves_is_the_shipped_callback(quality, trained, tmp_path, rule):
    case, (split, test, n_classes), curves = trained
    kept, stopped = quality.RULES[rule.replace("_", " ")].decide(curves)

    pl.seed_everything(case.seed, verbose=False)
    stopping = BoundaryUncertaintyStopping(**{} if rule == "expected_accuracy" else {"rule": rule}, seed=case.seed)
    module = quality.Net(split[0].shape[1:], n_classes, case.setting)
    fitted = problems.trainer(tmp_path, stopping, max_epochs=40)
    fitted.fit(module, DataLoader(TensorDataset(*split), batch_size=32, shuffle=True))
    assert stopping.best_epoch == kept
    assert len(stopping.history) == stopped + 1
    with torch.no_grad():
        error = float((module(test[0]).argmax(dim=1) != test[1]).float().mean())
    assert error == pytest.approx(curves["test_error"][kept])


def test_tables_are_what_their_readme_says(quality):
    rows = [line.split("|")[1:5] for line in (quality.FOLDER / "data" / "README.md").read_text().splitlines()]
    said = {
        name.strip(): (int(samples), int(features), int(classes))
        for names, counts, features, classes in (row for row in rows if row and row[1].strip(" -,0123456789") == "")
        for name, samples in zip(names.split(","), counts.split(","), strict=True)
        if samples.strip("- ")
    }
    found = {}
    for name in (*quality.TABLES, *quality.UNSEEN):
        features, labels = quality.read_table(quality.Case(name, 0.0, 0, "rmsprop", 1))
        assert sorted(set(labels.tolist())) == list(range(int(labels.max()) + 1))
        assert features.isfinite().all()
        found[name] = (*features.shape, int(labels.max()) + 1)
    assert found == said
    assert not set(quality.TABLES) & set(quality.UNSEEN)


def test_label_noise_redraws_training_labels_alone(quality):
    clean, clean_test, _ = quality.load(quality.Case("banknote", 0.0, 0, "rmsprop", 1))
    noisy, noisy_test, _ = quality.load(quality.Case("banknote", 0.4, 0, "rmsprop", 1))
    assert torch.equal(clean[0], noisy[0])
    assert torch.equal(clean_test[1], noisy_test[1])
    assert float((clean[1] != noisy[1]).float().mean()) == pytest.approx(0.2, abs=0.05)  # half are redrawn as they were


def test_rules_and_summary_on_curves_made_by_hand(quality):
    agreements = ("expected_accuracy", "label_agreement", "vote_agreement", "neighbor_agreement")
    curves = {name: [0.1, 0.6, 0.2] for name in agreements} | {
        "boundary_uncertainty": [0.1, 0.5, 0.2],
        "trust_score": [1.0, 1.0, 2.0],
        "prediction_changes": [1.0, 0.1, 0.5],
        "train_loss": [3.0, 2.0, 1.0],
        "changed_predictions": [1.0, 0.2, 0.3],
        "evidence": [-0.5, 0.1, -0.5],
        "test_error": [0.5, 0.2, 0.3],
        "seconds": [2.0, 3.0, 4.0],
        "check_seconds": [1.0, 1.1, 1.2],
    }
    part = {"val_accuracy": [0.5, 0.4, 0.6], "val_loss": [1.0, 2.0, 3.0], "test_error": [0.6, 0.4, 0.4]}
    part |= {"seconds": [0.5, 1.0, 1.5], "check_seconds": [0.0] * 3}
    case = {"table": "made up", "noise": 0.0, "seed": 0, "setting": "rmsprop", "epochs": 3}
    judged = quality.judge([{"case": case, "all": curves, "part": part}]).set_index("rule")
    excess = judged.excess.round(9).to_dict()
    assert excess["expected accuracy"] == excess["boundary uncertainty"] == excess["EB criterion"] == 0.0
    assert excess["trust score"] == excess["last epoch"] == excess["training loss plateau"] == 0.1
    assert excess["hold-out accuracy"] == 0.2
    assert excess["hold-out loss"] == 0.4
    assert excess["hold-out accuracy, then retrain"] == 0.1
    seconds = judged.seconds.to_dict()
    assert seconds["expected accuracy"] == 4.0
    assert seconds["last epoch"] == pytest.approx(2.8)
    assert seconds["hold-out accuracy"] == 1.5
    assert seconds["hold-out accuracy, then retrain"] == pytest.approx(1.5 + 2.8)
    summary = quality.summarise(judged.reset_index())
    assert quality.breakdown(judged.reset_index()).loc["last epoch", ("rmsprop", 0.0)] == pytest.approx(0.5)
    assert summary.loc["last epoch", "/ hold-out accuracy"] == pytest.approx(0.5)
    assert summary.loc["last epoch", "wins"] == 1.0
    assert summary.loc["hold-out accuracy", "wins"] == 0.5


def test_the_evidence_is_the_criterion_of_its_paper(quality):
    case = quality.Case("banknote", 0.0, 0, "plain_sgd", 1)
    (x, y), _, n_classes = quality.load(case)
    torch.manual_seed(0)
    module = quality.Net(x.shape[1:], n_classes, "plain_sgd")
    values = []
    for rows in torch.arange(64).split(32):
        gradients = []
        for row in rows:
            module.zero_grad()
            torch.nn.functional.cross_entropy(module(x[row : row + 1]), y[row : row + 1]).backward()
            gradients.append(torch.cat([p.grad.flatten() for p in module.parameters()]).double())
        each = torch.stack(gradients)
        variance = each.var(dim=0)
        alive = variance > 0
        values.append(1 - 32 * float((each.mean(dim=0)[alive].square() / variance[alive]).mean()))
    found = quality.evidence(module, (x[:64], y[:64]))
    assert found == pytest.approx(sum(values) / 2, rel=1e-3)
    assert quality.evidence(module, (x, y), n_batches=2) == pytest.approx(found)


def test_curves_are_kept_and_used_again(quality, tmp_path):
    case = quality.Case("banknote", 0.0, 0, "rmsprop", 1)
    made = {"case": "made", "all": {"x": [0.1]}}
    assert quality.recall(case, None, lambda case: made) == quality.recall(case, tmp_path, lambda case: made) == made
    assert quality.recall(case, tmp_path, lambda case: pytest.fail("run again")) == made
    assert [file.name for file in tmp_path.iterdir()] == ["quality-banknote-0.0-0-rmsprop-1.json"]


def test_a_file_of_one_s_own_is_a_table(quality, tmp_path):
    file = tmp_path / "own.csv.gz"
    table = pd.DataFrame({"a": [0.5, 1.0, 2.0], "label": ["yes", "no", "yes"], "b": [True, False, True]})
    table.to_csv(file, index=False)
    features, labels = quality.read_table(quality.Case(str(file), 0.0, 0, "rmsprop", 1))
    assert torch.equal(features, torch.tensor([[0.5, 1.0], [1.0, 0.0], [2.0, 1.0]]))
    assert labels.tolist() == [1, 0, 1]
    case = quality.Case(str(file), 0.0, 0, "rmsprop", 1)
    quality.recall(case, tmp_path / "curves", lambda case: {})
    assert quality.recall(case, tmp_path / "curves", lambda case: pytest.fail("run again")) == {}
    table.assign(a=0.0).to_csv(file, index=False)
    assert quality.recall(case, tmp_path / "curves", lambda case: {"run": "again"}) == {"run": "again"}


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"a": [1.0, 2.0]}, "must have a column `label`, got the columns a"),
        ({"a": [1.0, 2.0], "b": ["x", "y"], "label": [0, 1]}, "must hold numbers beside `label`, got others in b"),
        ({"a": [1.0, None], "label": [0, None]}, "must have no empty or infinite cell, got 1 rows"),
        ({"a": [1.0, float("inf")], "label": [0, 1]}, "must have no empty or infinite cell, got 1 rows"),
        ({"a": [1.0, 2.0], "label": ["x", None]}, "must have no empty or infinite cell, got 1 rows"),
        ({"a": [1.0, 2.0], "label": [0.5, 1.0]}, "must hold classes in `label`, got fractions"),
        ({"a": [1.0, 2.0], "label": [0, 1]}, "must have at least 80 rows"),
    ],
)
def test_a_file_that_is_no_table_is_refused_before_any_training(quality, tmp_path, table, said):
    file = tmp_path / "own.csv"
    pd.DataFrame(table).to_csv(file, index=False)
    with pytest.raises(ValueError, match=said):
        quality.main(["--csv", str(file), "--results", str(tmp_path)])
    assert [path.name for path in tmp_path.iterdir()] == ["own.csv"]
