"""Comparison of ways to stop, on tables of one's own."""

import logging
import re

import numpy as np
import pandas as pd
import problems
import pytest
import torch

from bu_torch.cli import main
from bu_torch.comparison.tables import compare, read_table
from bu_torch.signals.metrics import as_metric


def test_a_file_of_one_s_own_is_a_table(tmp_path):
    file = tmp_path / "own.csv.gz"
    table = pd.DataFrame({"a": [0.5, 1.0, 2.0], "label": ["yes", "no", "yes"], "b": [True, False, True]})
    pd.concat([table] * 40).to_csv(file, index=False)
    features, labels = read_table(file)
    assert torch.equal(features[:3], torch.tensor([[0.5, 1.0], [1.0, 0.0], [2.0, 1.0]]))
    assert labels.tolist() == [1, 0, 1] * 40


# What pandas would read otherwise than meant too; each with a word of what is said.
NO_TABLES = [
    *((table, "`label`") for table in ({"a": [1.0]}, {"a": [1.0], " label ": [0]}, {"label": [0, 1] * 60})),
    *(({"a": [1.0] * len(labels), "label": labels}, "rows") for labels in ([], [0, 1], [0] * 80, range(90))),
    ({"a": [1.0, 2.0], "label": ["x", None]}, "missing"),
    *(
        ({"a": [1.0, 2.0] * 40, "b": [value] * 80, "label": [0, 1] * 40}, "'b'")
        for value in ("Rome", "2024-01-02", None, np.inf)
    ),
    (",a,label\n0,1,0\n1,2,1\n", "must name each column"),
    *((text, "separated by commas") for text in ("a,label\n1,0,5\n2,1,5\n", "a;b;label\n0,1;1,5;0\n0,2;1,5;1\n")),
]


@pytest.mark.parametrize(("table", "said"), NO_TABLES)
def test_a_file_that_is_no_table_is_refused(tmp_path, table, said):
    file = tmp_path / "own.csv"
    file.write_text(table if isinstance(table, str) else pd.DataFrame(table).to_csv(index=False))
    with pytest.raises((TypeError, ValueError), match=said):
        read_table(file)
    (tmp_path / "damaged.csv.gz").write_bytes(b"a,label\n")
    with pytest.raises(ValueError, match="cannot be read as columns"):
        read_table(tmp_path / "damaged.csv.gz")


@pytest.fixture(scope="module")
def clean():
    return compare(problems.blobs(400), seed=0, n_epochs=30)


def test_errors_are_those_of_the_epochs_that_are_named(clean):
    first, second = (compare(problems.blobs(200), seed=0, n_epochs=3) for _ in range(2))
    assert first == second
    assert all(clean.results["best epoch"] <= clean.results[name] < 0.5 for name in ("last epoch", "refit 20 %"))
    assert clean.epochs["last epoch"] == 30
    assert 21 <= clean.epochs["bu-torch"] <= 30
    assert clean.epochs["refit 20 %"] > clean.epochs["hold-out 25 %"] - 20


def test_wrong_labels_are_trained_on_and_not_tested_on(clean):
    noisy = compare(problems.blobs(400), 0, 30, 0.9)
    assert noisy.results["best epoch"] > clean.results["best epoch"] + 0.05


def test_the_command_prints_a_row_for_each_table_and_leaves_logs_and_threads(tmp_path, capsys):
    inputs, labels = problems.blobs(200)
    for name in ("few", "more"):
        pd.DataFrame(inputs).assign(label=labels).to_csv(tmp_path / f"{name}.csv", index=False)
    (tmp_path / "none.csv").write_text("")
    (tmp_path / "other.csv").write_text("a;label\n1;0\n")
    before = logging.getLogger("bu_torch").level, torch.get_num_threads()
    assert main(["compare", str(tmp_path), "--seeds", "1", "--epochs", "3"]) == 0
    *rows, first, second, mean, minus, epochs = capsys.readouterr().out.partition("\n\n")[0].splitlines()
    assert re.match(r"Left out: .*none\.csv`.*No columns", first)
    assert re.match(r"Left out: .*other\.csv`.* got 'a;label'", second)
    lines = [*rows, mean, minus, epochs]
    assert [line.split()[0] for line in lines] == ["test", "few", "more", "mean", "minus", "epochs"]
    rows = [[float(cell) for cell in re.findall(r"0\.\d{3}", line)] for line in lines[1:4]]
    assert rows[2] == pytest.approx([(one + two) / 2 for one, two in zip(*rows[:2], strict=True)], abs=1e-3)
    assert (logging.getLogger("bu_torch").level, torch.get_num_threads()) == before


def test_a_table_that_is_too_small_for_one_of_the_ways_is_left_out(tmp_path, capsys):
    inputs, labels = problems.blobs(160)
    for name, given in (("good", labels == 0), ("rare", torch.arange(160) < 2)):
        pd.DataFrame(inputs).assign(label=given).to_csv(tmp_path / f"{name}.csv", index=False)
    command = ["compare", "--seeds", "1", "--epochs", "2", "--metric", "f1"]
    assert main([*command, str(tmp_path)]) == 0
    assert re.search(r"Left out: `.*rare\.csv`(.|\n)*\nmean", capsys.readouterr().out)
    assert main([*command, str(tmp_path / "rare.csv")]) == 1


def test_costs_are_compared_with_a_threshold_for_each_way(tmp_path, capsys):
    y = torch.arange(240) % 6 == 0
    x = torch.randn(240, 2, generator=torch.Generator().manual_seed(0)) + y.unsqueeze(1)
    pd.DataFrame(x).assign(label=y.int()).to_csv(tmp_path / "churn.csv", index=False)
    costs = "[[0, 10], [100, 10]]"
    assert main(["compare", str(tmp_path), "--seeds", "1", "--epochs", "3", "--metric", costs]) == 0
    header, row = (line.split() for line in capsys.readouterr().out.splitlines()[:2])
    assert header[:2] == ["cost", "bu-torch"]
    assert float(row[-1]) == pytest.approx(10, abs=1)  # an offer to all
    assert all(float(cell) <= 13 for cell in row[1:])  # at 0.5 each network costs 16, an offer to nobody


def test_the_command_says_what_is_wrong(tmp_path, capsys):
    gone = str(tmp_path / "gone.csv")
    said = {"costs": "'accuracy'", "[[0, 1": "matrix"}
    for where, metric in ((str(tmp_path), "f1"), (gone, "f1"), *((gone, metric) for metric in said)):
        assert main(["compare", where, "--metric", metric]) == 1
        assert said.get(metric, where) in "".join(capsys.readouterr())


def test_a_metric_needs_each_class_in_the_test_half():
    labels = torch.zeros(100, dtype=torch.long)
    labels[torch.randperm(100, generator=torch.Generator().manual_seed(0))[:20]] = 1  # all in the training half
    with pytest.raises(ValueError, match=r"test half .*2 classes .*auroc, got 1"):
        compare((torch.randn(100, 2), labels), seed=0, n_epochs=1, metric=as_metric("auroc"))
