"""Each example runs as it stands, on less data, and finds what the papers and this project say: `pytest -m drawn`."""

from pathlib import Path

import numpy as np
import pytest

FOLDER = Path(__file__).parents[2] / "examples"
pytestmark = pytest.mark.drawn


def continuum(tables):
    yield np.allclose(tables["published"]["true"], tables["published"]["published"], rtol=0.12)
    yield tables["large"]["minimal error rate"].idxmin() == 8  # where both errors are largest
    true, squared = tables["true error"], tables["true squared error"]
    yield true.loc["adjusted error count", 0.0] == true.loc["error count", 0.0]
    yield true.loc["adjusted error count", 0.5] < true.loc["error count", 0.5] < true.loc["error rate", 0.5]
    yield squared.loc["adjusted squared error count", 0.5] < squared.loc["squared error count", 0.5]


def trust_curves(tables):
    curves, choices = tables["curves"], tables["choices"].loc
    yield (curves["trustworthy", "trust score"] > 1 - curves["error"]).all()
    yield (curves["suspicious", "trust score"] > curves["error"]).mean() > 0.7
    *layers, right = tables["layers"]["mean"]
    yield min(layers) > 1 - right
    yield (choices["k 10, alpha 1/8"] == choices["alpha 0.125"]).all()  # 10 is the default


def convergence(found):
    ratios, slopes, table = found
    yield np.allclose(slopes.loc[[0.0, 0.33], "slope"], [0, -1 / 3], atol=0.08)
    yield ratios["variance"].between(0.7, 1.5).all()  # Eq. 3.7
    yield (table["mean"].unstack("cut")[1.0] > table["mean"].unstack("cut")[0.5]).all()


def sensitivity(tables):
    rows, wine = tables["GMM"], tables["wine_white3"]
    yield (rows["without"].idxmax(), rows["L_val"].idxmin()) == (13, 1)
    yield {rows[f"M = {size}"].idxmax() for size in (20, 40, 80, 120, 160)} == {1}
    yield {wine[f"K = {k}"].idxmax() for k in (10, 20, 40)} == {1}
    training, perturbed, new = tables["shift"]["|F|"]
    yield abs(perturbed - new) < training - new


def svm_panels(rows):
    yield rows["L_te"].idxmin() == rows["U_tr 1"].idxmax() == rows["U_te 1"].idxmax() == -1
    yield rows["U_tr 0"][7] > rows["U_te 0"][7] + 0.1  # without the perturbation the overfitted one looks good


def operations(row, n=120):
    yield (row["Proposal 2", "rows classified"], row["Proposal 2", "exponentials"]) == (n, n * 40)
    # Each anchor: the two ends of its segment, then 30 halvings; the samples themselves once.
    yield row["Proposal 1", "rows classified"] == 32 * row["Proposal 1", "samples searched"] + n


def near_boundary(schemes, dimension):
    yield schemes["near, k = 5"].idxmax() == schemes["clusters"].idxmax() == schemes["L_val"].idxmin() == -5
    yield (dimension["near"] <= dimension["all"]).all()
    yield dimension["share near"].is_monotonic_increasing


def gradient_selection(tables):
    for rows in tables.values():
        yield from (rows["L_val"][rows[name].idxmax()] == rows["L_val"].min() for name in rows.columns[1:])


def label_noise(results):
    (result,) = results  # of the weights that the callback measures, which are averaged
    yield result.kept_error == result.average[result.stopping.best_epoch]
    yield len(result.all_labels) == len(result.stopping.history) == 3


def choose_checkpoint(table):
    yield len(table) == len(table.attrs["errors"]) == 4
    yield from table["test error"] == [table.attrs["errors"][epoch] for epoch in table["epoch"]]


# Of each example: figures, claims, and an option.
ONE = ("figure.png",)
WIDTHS = [f"width {name}" for name in ("CUD", "BS1", "BS2", "K", "M", "L")]
EXAMPLES = [
    ("label_noise", ONE, label_noise),
    ("choose_checkpoint", (), choose_checkpoint),
    ("letter_mlp", ONE, lambda table: (table["best epoch"] <= table[["U", "last epoch"]].min(axis=1))),
    ("continuum", [f"continuum_figure{number}.png" for number in range(2, 8)], continuum),
    ("tecator", (), lambda tables: tables["scaled"]["differing"]),  # the two rankings
    ("trust_curves", [f"trust_curves_{name}.png" for name in ("accuracy", "suspicious", "trustworthy")], trust_curves),
    ("confidence_tables", ONE, lambda table: [*(table["coverage CUD"] == 1), *(table[WIDTHS].stack() > 0.1)]),
    ("confidence_tables", (), lambda table: table["K, n - n*"].gt(table["K, n*"]) & table["K, n*"].gt(table["K, n"]),
     "--widths"),
    ("confidence_tables", (), lambda table: abs(table["width 30"] - table["within 30"]) > [0.1, -1e-9], "--shrink"),
    ("convergence", ONE, convergence),
    ("trust_rates", ONE, lambda found: [*(found[0].iloc[-1] < found[0].iloc[0]), *(found[2]["wrong"] == 0)]),
    ("anchor_counts", ONE, lambda table: [table.groupby("log2 gamma")["U"].mean().idxmax() == -1]),
    ("svm_panels", ONE, lambda tables: svm_panels(tables["GMM"])),
    ("shifts", ONE, lambda values: (max(at, key=at.get) == 0.0 for at in values.values())),
    ("svm_selection", ["figure.png", "figure_GMM_inclusion.png"],
     lambda tables: [tables["GMM_inclusion"]["U"].idxmax() == tables["GMM_inclusion"]["L_val"].idxmin() == 0]),
    ("sensitivity", ["sensitivity.png", "sensitivity_shift.png"], sensitivity),
    ("near_boundary", ONE, lambda tables: near_boundary(tables["schemes"], tables["dimension"])),
    ("gradient_selection", ONE, gradient_selection),
    ("operations", ONE, lambda table: operations(table.loc["banknote"])),
    ("standard_split", (), lambda tables: [tables["test error"]["chosen on the test set"]
                                           <= tables["test error"]["last epoch"]]),
]  # fmt: skip


@pytest.mark.parametrize("row", EXAMPLES, ids=lambda row: " ".join((row[0], *row[3:])))
def test_an_example_finds_what_is_claimed(load, tmp_path, capsys, row):
    name, drawn, claims, *options = row
    where = ["--plot", f"{tmp_path}/figure.png"] if "figure.png" in drawn else ["--plots", f"{tmp_path}"]
    found = load(FOLDER / f"{name}.py").main(["--smoke", *options, *(where if drawn else [])])
    assert capsys.readouterr().out
    figures = sorted(tmp_path.glob("*.png"))
    assert [figure.name for figure in figures] == list(drawn)
    assert all(figure.read_bytes().startswith(b"\x89PNG") for figure in figures)
    held = [bool(is_so) for is_so in claims(found)]
    assert held == [True] * len(held) != []


@pytest.mark.filterwarnings("ignore:::bu_torch")  # labels are drawn at random
@pytest.mark.parametrize("options", [[], ["--backbone", "resnet18"]], ids=["plain", "backbone"])
def test_fashion_mnist_stops_on_images(load, capsys, monkeypatch, options):
    pytest.importorskip("torchvision")
    example = load(FOLDER / "fashion_mnist.py")
    made_up = example.FakeData
    monkeypatch.setattr(example, "FakeData", lambda n, *rest, **others: made_up(n // 3, *rest, **others))
    stopping = example.main(["--smoke", *options])
    said = dict(line.split(": ", 1) for line in capsys.readouterr().out.splitlines() if ": " in line)
    assert said["kept epoch"] == str(stopping.best_epoch)
    assert (stopping.feature_extractor is not None) == bool(options)


def test_two_gaussians_are_best_cut_where_they_meet_and_uncertainty_does_not_tell_what_is_left_out(load):
    cuts, stripes = load(FOLDER / "two_gaussians.py").main(["--smoke"])
    for name in ("U", "share", "Parzen U", "EA"):
        values = [row[name] for row in cuts.values()]  # from x_0 = -1 to 3
        assert values[:3] == sorted(values[:3])
        assert values[2:] == sorted(values[2:], reverse=True)
    assert 0.78 < cuts[1.0]["EA"] < 0.88  # the Bayes boundary classifies 0.841 of all samples right
    assert cuts[0.0]["slope of EA"] > 0.1 > abs(cuts[1.0]["slope of EA"]) > -0.1 > cuts[2.0]["slope of EA"]
    right, left_out, displaced = stripes.values()
    assert left_out["Parzen U"] == pytest.approx(right["Parzen U"], abs=0.1)
    assert left_out["share"] < right["share"] - 0.1
    assert left_out["omission"] > 0.2 > 0.02 > max(right["omission"], displaced["omission"])
    assert left_out["EA"] < right["EA"] - 0.2 < right["EA"] - 0.05 < displaced["EA"] < right["EA"]
    assert displaced["Parzen U"] < right["Parzen U"] - 0.1
