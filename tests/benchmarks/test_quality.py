"""The benchmark judges what the shipped callback does."""

import sys
from pathlib import Path
from types import SimpleNamespace

import lightning.pytorch as pl
import pandas as pd
import problems
import pytest
import torch
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch.utils.data import DataLoader, TensorDataset

from bu_torch import BoundaryUncertaintyStopping, Signals


@pytest.fixture(scope="module")
def trained(quality):
    """A case, its data, and the curves of its training."""
    case = quality.Case("ionosphere", 0.2, 1, "rmsprop", 40)
    data = quality.load(case)
    return case, data, quality.train(case, *data, None).columns()


@pytest.mark.parametrize(
    ("rule", "settings"),
    [
        ("default", {}),
        ("accuracy and uncertainty", {"averaging": None}),
        ("expected accuracy", {"rule": "expected_accuracy", "averaging": None}),
        ("boundary uncertainty, average", {"rule": "boundary_uncertainty"}),
    ],
)
def test_a_rule_replayed_on_curves_is_the_shipped_callback(quality, judging, trained, tmp_path, rule, settings):
    case, (split, test, n_classes), curves = trained
    found = judging.RULES[rule].judge({"all": curves})

    pl.seed_everything(case.seed, verbose=False)
    stopping = BoundaryUncertaintyStopping(**settings, seed=case.seed)
    module = quality.Net(split[0].shape[1:], n_classes, case.setting)
    fitted = problems.trainer(tmp_path, stopping, max_epochs=40)
    fitted.fit(module, DataLoader(TensorDataset(*split), batch_size=32, shuffle=True))
    assert stopping.best_epoch == found["kept"]
    assert len(stopping.history) == found["epochs_to_stop"]
    with torch.no_grad():
        error = float((module(test[0]).argmax(dim=1) != test[1]).float().mean())
    assert error == pytest.approx(found["test_error"])
    prefix = "" if stopping.averaging is None else "averaged_"
    for name in Signals.NAMES:
        column = curves[prefix + name][: len(stopping.history)]
        assert column == pytest.approx([entry[name] for entry in stopping.history], rel=1e-6), name


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


def test_what_is_held_out_is_read_of_weights_and_of_their_average(quality, tmp_path):
    case = quality.Case("ionosphere", 0.2, 1, "sgd", 4)
    (inputs, labels), test, n_classes = quality.load(case)
    part, held = (inputs[:120], labels[:120]), (inputs[120:], labels[120:])
    curves = quality.train(case, part, test, n_classes, held)

    weights = []
    pl.seed_everything(case.seed, verbose=False)
    module = quality.Net(inputs.shape[1:], n_classes, case.setting)
    at_end = pl.callbacks.LambdaCallback(
        on_train_epoch_end=lambda _, net: weights.append(parameters_to_vector(net.parameters()).detach().clone())
    )
    loaders = DataLoader(TensorDataset(*part), batch_size=32, shuffle=True), DataLoader(TensorDataset(*held), 60)
    problems.trainer(tmp_path, at_end, max_epochs=4, num_sanity_val_steps=0).fit(module, *loaders)
    average = weights[0]
    for n, values in enumerate(weights[1:], start=1):
        average = torch.lerp(values, average, n / (n + 10))
    columns = curves.columns()
    for prefix, values in (("", weights[-1]), ("averaged_", average)):
        vector_to_parameters(values, module.parameters())
        with torch.no_grad():
            on_held, on_test = module(held[0]), module(test[0])
        assert columns[f"{prefix}val_accuracy"][-1] == pytest.approx(
            float((on_held.argmax(dim=1) == held[1]).float().mean())
        )
        loss = float(torch.nn.functional.cross_entropy(on_held, held[1]))
        assert columns[f"{prefix}val_loss"][-1] == pytest.approx(loss, rel=1e-4)
        error = float((on_test.argmax(dim=1) != test[1]).float().mean())
        assert columns[f"{prefix}test_error"][-1] == pytest.approx(error)


def test_a_bag_is_of_the_networks_that_hold_out_accuracy_keeps(quality, monkeypatch):
    monkeypatch.setattr(sys.modules[quality.Curves.held_back.__module__], "PATIENCE", 2)
    case = quality.Case("ionosphere", 0.2, 1, "sgd", 9)
    split, test, n_classes = quality.load(case)
    seen, members = [], []

    def train(split, held_out, *, is_member=False):
        if held_out is None:
            return SimpleNamespace(columns=dict)
        seen.append(set(map(tuple, held_out[0].tolist())))
        curves = quality.train(case, split, test, n_classes, held_out, is_member=is_member)
        members.append(curves)
        return curves

    record = quality.train_all(case, split, train, has_bagging=True)
    assert set().union(*seen) == set(map(tuple, split[0].tolist()))
    assert len(members[0].rows) == 9  # the hold-out training, which goes on
    for member in members[1:]:
        stops = [stop_of([row[f"{prefix}val_accuracy"] for row in member.rows]) for prefix in ("", "averaged_")]
        assert len(member.rows) == min(9, max(stops) + 2)
    for prefix in ("", "averaged_"):
        mean = sum(member.kept[prefix] for member in members) / 4
        error = float((mean.argmax(dim=1) != test[1]).float().mean())
        assert record["bagging"][f"{prefix}test_error"] == [pytest.approx(error)]
        stops = [stop_of([row[f"{prefix}val_accuracy"] for row in member.rows]) for member in members]
        assert record["bagging"][f"{prefix}epochs"] == [sum(stops) + 4]
        for member in members:
            accuracy = [row[f"{prefix}val_accuracy"] for row in member.rows]
            kept = accuracy.index(max(accuracy[: stop_of(accuracy) + 1]))
            of_kept = float((member.kept[prefix].argmax(dim=1) != test[1]).float().mean())
            assert of_kept == pytest.approx(member.rows[kept][f"{prefix}test_error"])


def stop_of(values, patience=2):
    """Where a rule stops that waits for a larger value."""
    best = [values.index(max(values[: t + 1])) for t in range(len(values))]
    return next((t for t, b in enumerate(best) if t - b >= patience), len(values) - 1)


def test_curves_are_kept_and_used_again(quality, tmp_path):
    case = quality.Case("banknote", 0.0, 0, "rmsprop", 1)
    made = {"case": "made", "all": {"x": [0.1]}}
    assert quality.recall(case, None, lambda case: made) == quality.recall(case, tmp_path, lambda case: made) == made
    assert quality.recall(case, tmp_path, lambda case: pytest.fail("run again")) == made
    assert [file.name for file in tmp_path.iterdir()] == [f"quality-v{quality.FORMAT}-banknote-0.0-0-rmsprop-1.json"]


def test_a_file_of_one_s_own_is_a_table(quality, tmp_path):
    file = tmp_path / "own.csv.gz"
    table = pd.DataFrame({"a": [0.5, 1.0, 2.0], "label": ["yes", "no", "yes"], "b": [True, False, True]})
    table.to_csv(file, index=False)
    features, labels = quality.read_table(quality.Case(str(file), 0.0, 0, "rmsprop", 1))
    assert torch.equal(features, torch.tensor([[0.5, 1.0], [1.0, 0.0], [2.0, 1.0]]))
    assert labels.tolist() == [1, 0, 1]
    case = quality.Case(str(file), 0.0, 0, "rmsprop", 1)
    quality.recall(case, tmp_path / "curves", lambda case: {} if Path(case.table) == file else pytest.fail("no file"))
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
