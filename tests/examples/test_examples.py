"""Each example runs as it stands, on less data."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

FOLDER = Path(__file__).parents[2] / "examples"


@pytest.fixture
def load(load, monkeypatch):
    """Import an example by its name, with what it shares with others beside it."""
    monkeypatch.syspath_prepend(str(FOLDER))
    return lambda name: load(FOLDER / f"{name}.py")


@pytest.fixture
def smoke(load, tmp_path, capsys):
    """Run an example, which must say these words and draw these figures; what it returns."""

    def smoke(name, *words, options=(), drawn=("figure.png",)):
        where = ["--plot", f"{tmp_path}/figure.png"] if "figure.png" in drawn else ["--plots", f"{tmp_path}"]
        found = load(name).main(["--smoke", *options, *(where if drawn else [])])
        said = capsys.readouterr().out
        assert [one for one in words if one not in said] == []
        figures = sorted(tmp_path.glob("*.png"))
        assert [figure.name for figure in figures] == list(drawn)
        assert all(figure.read_bytes().startswith(b"\x89PNG") for figure in figures)
        return found

    return smoke


def test_label_noise_compares_what_three_trainings_keep(load, tmp_path, capsys, monkeypatch):
    example = load("label_noise")
    monkeypatch.setattr(example, "RUNS", tmp_path / "runs")
    result, second = example.main(["--smoke", "--seeds", "2", "--plot", str(tmp_path / "figure.png")])
    lines = capsys.readouterr().out.splitlines()
    said = dict(line.split(": ", 1) for line in lines if ": " in line)
    assert said["kept epoch"] == str(result.stopping.best_epoch)
    assert said["reason"] == "Training ran until `max_epochs=3`."
    for name, curve, epoch in (
        ("what the callback kept", result.average, result.stopping.best_epoch),
        ("what a hold-out set kept", result.held_out, result.held_out_epoch),
        ("the last epoch", result.all_labels, 2),
        ("the best epoch in hindsight", result.all_labels, result.best_epoch),
    ):
        assert len(curve) == 3
        assert said[f"test error of {name}"].split()[0] == f"{curve[epoch]:.4f}"
    assert min(result.all_labels) == result.all_labels[result.best_epoch]
    assert "preparation" in said["time of the callback"]
    errors = [list(one.errors.values()) for one in (result, second)]
    assert errors[0] != errors[1]
    (means,) = [[float(value) for value in line.split()[1:]] for line in lines if line.startswith("mean ")]
    assert means == pytest.approx([sum(pair) / 2 for pair in zip(*errors, strict=True)], abs=1e-4)
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")


def test_letter_mlp_compares_what_is_kept_over_seeds(smoke):
    table = smoke("letter_mlp", "U of 650 training samples after each of 3 epochs", "means over the seeds [0, 1]")
    assert table.index.tolist() == [0, 1]
    for name in ("U", "U from label probabilities", "last epoch"):
        assert (table["best epoch"] <= table[name]).all()
    # With three epochs, patience does not end.
    for name in ("U", "U from label probabilities", "hold-out"):
        assert table[f"{name}, patience 20"].tolist() == table[name].tolist()
        assert table[f"{name}, epoch"].isin([0, 1, 2]).all()
    assert table["default"].between(0, 1, inclusive="neither").all()  # of the average


def test_perturbation_laws_are_compared_by_seed(smoke, load, tmp_path):
    options = ["--rows", f"{tmp_path}/rows.csv", "--noise", "0.2"]
    kept = smoke("perturbation_laws", "means over the seeds [0, 1]", options=options)
    assert (kept["best"] <= kept[["error", "early error", "last"]].min(axis=1)).all()
    example = load("perturbation_laws")
    training, _ = example.load(1300)
    values = example.Watched(training, 0).measure(module := example.LetterMLP())
    expected = example.ParzenUncertainty().fit(*training).score(module)
    assert values["U, sphere"] == pytest.approx(float(expected), abs=1e-6)
    assert values["U, sphere"] <= values["as printed"]
    at_x = example.ParzenUncertainty(pairs_at="sample").fit(*training).score(module)
    assert values["U, sphere, at x"] == pytest.approx(float(at_x), abs=1e-6)
    assert values["U, sphere, at x"] != values["U, sphere"]


def test_choose_checkpoint_ranks_what_a_run_saved(load, capsys):
    table = load("choose_checkpoint").main(["--smoke"])
    errors = table.attrs["errors"]
    assert len(errors) == 4
    assert list(table.index) == [
        "accuracy_uncertainty_trust",
        "expected_accuracy",
        "boundary_uncertainty",
        "trust_score",
    ]
    assert table["test error"].tolist() == [errors[epoch] for epoch in table["epoch"]]
    said = capsys.readouterr().out
    assert "4 candidates by accuracy_uncertainty_trust" in said
    assert f"best epoch in hindsight: {min(errors):.4f}" in said


@pytest.mark.filterwarnings("ignore:.*a sample's label no better than chance")  # labels are drawn at random
@pytest.mark.parametrize("options", [[], ["--backbone", "resnet18"]], ids=["plain", "backbone"])
def test_fashion_mnist_stops_on_images(load, capsys, monkeypatch, options):
    pytest.importorskip("torchvision")
    example = load("fashion_mnist")
    made_up = example.FakeData
    monkeypatch.setattr(example, "FakeData", lambda n, *rest, **others: made_up(n // 3, *rest, **others))
    stopping = example.main(["--smoke", *options])
    said = dict(line.split(": ", 1) for line in capsys.readouterr().out.splitlines() if ": " in line)
    assert said["kept epoch"] == str(stopping.best_epoch)
    assert 0 <= float(said["test error of what was kept"]) <= 1
    assert 0 <= float(said["trust, penultimate"]) <= 1
    assert (stopping.settings.feature_extractor is not None) == bool(options)


@pytest.mark.parametrize("seed", [0, 1])
def test_two_gaussians_are_best_cut_where_they_meet_and_uncertainty_does_not_tell_what_is_left_out(load, capsys, seed):
    cuts, stripes = load("two_gaussians").main(["--smoke", "--seed", str(seed)])
    assert len(cuts) == 5
    for name in ("U", "share", "Parzen U", "EA"):
        values = [row[name] for row in cuts.values()]  # from x_0 = -1 to 3
        assert values[:3] == sorted(values[:3])
        assert values[2:] == sorted(values[2:], reverse=True)
    assert min(cuts, key=lambda cut: abs(cuts[cut]["slope of EA"])) == 1.0
    assert 0.97 < cuts[1.0]["share"] <= 1
    assert max(cuts[-1.0]["share"], cuts[3.0]["share"]) < 0.5
    assert 0.65 < cuts[1.0]["Parzen U"] < 0.95
    assert 0.78 < cuts[1.0]["EA"] < 0.88  # the Bayes boundary classifies 0.841 of all samples right
    assert cuts[0.0]["slope of EA"] > 0.1 > -0.1 > cuts[2.0]["slope of EA"]
    right, left_out, displaced = stripes.values()
    assert left_out["Parzen U"] == pytest.approx(right["Parzen U"], abs=0.1)
    assert left_out["share"] < right["share"] - 0.1
    assert left_out["EA"] < right["EA"] - 0.2
    assert left_out["omission"] > 0.2
    assert max(right["omission"], displaced["omission"]) < 0.02
    assert right["EA"] - 0.05 < displaced["EA"] < right["EA"]
    assert displaced["Parzen U"] < right["Parzen U"] - 0.1
    said = capsys.readouterr().out
    for name in ("U is largest", "Parzen U is largest", "EA is largest", "EA changes least"):
        assert f"{name} at 1.00" in said


def test_continuum_comes_near_the_published_values(smoke):
    drawn = [f"continuum_figure{number}.png" for number in range(2, 8)]
    tables = smoke("continuum", drawn[-1], drawn=drawn)
    published = tables["published"]
    assert len(published) == 12
    assert published["true"].tolist() == pytest.approx(published["published"].tolist(), rel=0.12)
    assert len(tables["large"]) == 9
    assert tables["large"]["minimal error rate"].between(-16, 5).all()
    assert tables["large"]["minimal error rate"].idxmin() == 8  # where both errors are largest
    true, squared = tables["true error"], tables["true squared error"]
    assert true.loc["adjusted error count", 0.0] == true.loc["error count", 0.0]
    assert true.loc["adjusted error count", 0.5] < true.loc["error count", 0.5] < true.loc["error rate", 0.5]
    assert squared.loc["adjusted squared error count", 0.5] < squared.loc["squared error count", 0.5]


def test_tecator_ranks_twice(smoke):
    tables = smoke("tecator", "data error rate", drawn=())
    assert set(tables) == {"all", "103", "scaled"}
    for table in tables.values():
        assert ((table["error count"] > 0) & (table["error count"] < 0.5)).all()
        assert (table["adjusted squared"] <= table["squared error count"]).all()
    assert tables["scaled"]["differing"].all()  # the two rankings


def test_trust_curves_beat_no_score_at_all(smoke):
    drawn = [f"trust_curves_{name}.png" for name in ("accuracy", "suspicious", "trustworthy")]
    tables = smoke("trust_curves", "distances in several spaces", drawn=drawn)
    curves = tables["curves"]
    assert len(curves) == 9
    right = 1 - curves["error"]
    is_ahead = curves["suspicious", "trust score"] > curves["suspicious", "model confidence"]
    assert curves["suspicious", "ahead"].tolist() == is_ahead.astype(int).tolist()  # of one run
    assert (curves["trustworthy", "trust score"] > right).all()
    assert (curves["suspicious", "trust score"] > curves["error"]).mean() > 0.7
    accuracy = tables["accuracy"]["accuracy"].tolist()
    assert accuracy == sorted(accuracy)
    *layers, right = tables["layers"]["mean"]
    assert min(layers) > 1 - right
    choices = tables["choices"].loc
    assert (choices["k 10, alpha 1/8"] == choices["alpha 0.125"]).all()  # 10 is the default
    assert (choices["centroid"] != choices["alpha 0"]).any()


def test_confidence_tables_tell_coverage_and_width_of_each_method(smoke):
    table = smoke("confidence_tables", "coverage, n = 30, 3 repetitions, 20 draws")
    assert list(table.index) == ["ionosphere", "three points"]
    assert (table["coverage CUD"] == 1).all()
    assert (table[[f"width {name}" for name in ("CUD", "BS1", "BS2", "K", "M", "L")]].stack() > 0.1).all()
    assert table["width BS1"].tolist() == pytest.approx(table["width BS2"].tolist())


def test_confidence_tables_compare_widths_with_the_printed_ones(smoke):
    said = "K: width by how many samples count as tested, and printed; coverage"
    table = smoke("confidence_tables", said, options=["--widths"], drawn=())
    for name in "KML":
        assert table[f"{name}, n - n*"].gt(table[f"{name}, n*"]).all()
        assert table[f"{name}, n*"].gt(table[f"{name}, n"]).all()
    for tested, (low, high) in {"n - n*": (0.02, 0.05), "n*": (0.1, 0.16), "n": (0.2, 0.33)}.items():
        assert table[f"asks for, {tested}"].between(low, high).all()


def test_confidence_tables_compare_how_cud_shrinks(smoke, load):
    table = smoke("confidence_tables", "CUD, a_n = n, 3 repetitions, 20 draws", options=["--shrink"], drawn=())
    assert (table["width 30"] - table["within 30"] > [0.1, -1e-9]).all()  # three points: training errors are not small
    assert (table["within 50/30"] - table["width 50/30"] > [0.1, -1e-9]).all()
    assert table["printed 50/30"].tolist() == pytest.approx([0.883, 0.866], abs=1e-3)
    example = load("confidence_tables")
    train, rate = example.split("outlier", 30, 4, np.random.default_rng(0))[0], example.RATES
    radii = [example.radius_of_cud(train, rate[a](30), 20, np.random.default_rng(1)) for a in ("n^2", "n", "1")]
    assert radii[0] <= radii[1] < radii[2]


def test_convergence_of_ratios_where_it_is_proved(smoke):
    ratios, slopes, table = smoke("convergence")
    assert slopes.loc[[0.0, 0.33], "slope"].tolist() == pytest.approx([0, -1 / 3], abs=0.08)
    assert ratios["variance"].between(0.7, 1.5).all()  # Eq. 3.7
    by_cut = table["mean"].unstack("cut")
    assert (by_cut[1.0] > by_cut[0.5]).all()


def test_trust_rates_fall_and_the_score_tells_the_bayes_rule(smoke):
    found, rates, agree = smoke("trust_rates")
    assert (found.iloc[-1] < found.iloc[0]).all()
    assert rates["stated"].tolist() == pytest.approx([-1 / 3, -1 / 4, -1 / 6, -1 / 3, -1 / 3])
    assert (agree["wrong"] == 0).all()
    assert agree["decided"].is_monotonic_increasing


def test_anchor_counts_are_those_of_the_histogram_at_zero(smoke):
    table = smoke("anchor_counts")
    assert (abs(table["found"] - table["wanted"]) <= table["wanted"] / 10).all()
    assert table.groupby("log2 gamma")["U"].mean().idxmax() == -1


def test_svm_panels_show_where_new_samples_agree(smoke):
    tables = smoke("svm_panels", "GMM: 300 training and 600 test samples, C = 1; by log2 gamma", "least L_te: -1")
    rows = tables["GMM"]
    assert rows["L_te"].idxmin() == rows["U_tr 1"].idxmax() == rows["U_te 1"].idxmax() == -1
    assert abs(rows["U_tr 1"] - rows["U_te 1"])[-1] < 0.15
    assert rows["U_tr 0"][7] > rows["U_te 0"][7] + 0.1  # without the perturbation the overfitted one looks good


def test_shifts_peak_where_the_gaussians_meet(smoke):
    values = smoke("shifts", "Proposal 2")
    assert len(values) == 3
    for name, at in values.items():
        assert max(at, key=at.get) == 0.0, name


def test_svm_selection_finds_the_width_and_the_omission(smoke):
    tables = smoke("svm_selection", "GMM_inclusion", drawn=["figure.png", "figure_GMM_inclusion.png"])
    rows = tables["GMM_inclusion"]
    assert rows["U"].idxmax() == rows["L_val"].idxmin() == 0
    assert rows["omission"][-5] > 0.02 > rows["omission"][0]
    assert (rows["L_tr"] <= rows["L_val"]).all()


def test_a_peak_is_as_sharp_as_few_values_are_near_its_top(load):
    rows = pd.DataFrame(
        {"U": [0.1, 0.5, 0.9, 0.5], "U of Proposal 1": [0.0, 0.79, 0.8, 0.75], "L_val": [0.5, 0.1, 0.1, 0.1]}
    )
    found = load("svm_selection").sharpness(rows)
    assert (found["U, largest"], found["U of Proposal 1, largest"]) == (0.9, 0.8)
    assert [found[f"{name}, share"] for name in ("U", "U of Proposal 1", "-L_val")] == [0.25, 0.75, 0.75]


def test_sensitivity_is_to_the_perturbation_and_hardly_to_sizes(smoke):
    drawn = ["sensitivity.png", "sensitivity_shift.png"]
    tables = smoke("sensitivity", "GMM (400, C = 1): log2 gamma chosen", drawn=drawn)
    rows = tables["GMM"]
    assert rows["without"].idxmax() == 13
    assert rows["L_val"].idxmin() == 1
    assert {rows[f"M = {size}"].idxmax() for size in (20, 40, 80, 120, 160)} == {1}
    assert {tables["wine_white3"][f"K = {k}"].idxmax() for k in (10, 20, 40)} == {1}
    training, perturbed, new = tables["shift"]["|F|"]
    assert abs(perturbed - new) < training - new
    of_training, of_perturbed, _ = tables["shift"]["distance"]
    assert of_perturbed < of_training


def test_near_boundary_samples_and_their_neighbors(smoke):
    tables = smoke("near_boundary", "ionosphere: U by three choices")
    schemes = tables["schemes"]
    assert (schemes["near"] < 150).all()
    assert schemes["near, k = 5"].idxmax() == schemes["clusters"].idxmax() == schemes["L_val"].idxmin() == -5
    assert (tables["imbalance"]["rare"] <= 15).all()
    assert (tables["dimension"]["near"] <= tables["dimension"]["all"]).all()
    assert tables["dimension"]["share near"].is_monotonic_increasing
    assert (tables["distances"] > 0).all(axis=None)


def test_gradient_anchors_choose_svms_and_prototypes(smoke):
    tables = smoke("gradient_selection", "SVM, GMM  L_val -1")
    assert list(tables) == ["SVM, GMM", "PBC, GMM"]
    for rows in tables.values():
        for name in rows.columns[1:]:
            assert rows["L_val"][rows[name].idxmax()] == rows["L_val"].min(), name


def test_two_classes_are_drawn_in_a_ratio(load):
    features, labels = load("gradient_selection").read("GMM", 400, ratio=10)
    assert labels.bincount().tolist() == [200, 20]
    torch.testing.assert_close(features.mean(dim=0), torch.zeros(2), atol=1e-5, rtol=0)


def test_operations_of_both_proposals_are_counted(smoke):
    row = smoke("operations", "rows classified").loc["banknote"]
    assert row["Proposal 2", "rows classified"] == 120
    assert row["Proposal 2", "exponentials"] == 120 * 40
    # Each anchor: the two ends of its segment, then 30 halvings; the samples themselves once.
    assert row["Proposal 1", "rows classified"] == 32 * row["Proposal 1", "samples searched"] + 120
    assert row["Proposal 1", "additions"] > 4 * 120 * row["Proposal 1", "samples searched"]
    assert (row["gain"] > 2).all()
    assert row["gain", "rows classified"] > 100


def test_standard_split_trains_on_the_donors_part_and_tests_on_the_rest(smoke, load):
    example = load("standard_split")
    (inputs, labels), (test_inputs, test_labels) = example.landsat()
    assert (len(labels), len(test_labels)) == (4435, 2000)
    assert torch.allclose(inputs.mean(dim=0), torch.zeros(36), atol=1e-4)
    assert not torch.allclose(test_inputs.mean(dim=0), torch.zeros(36), atol=1e-2)
    assert 0.14 < float((example.with_noise(labels, 0.2, seed=0) != labels).float().mean()) < 0.19
    table = smoke("standard_split", "hold-out loss", drawn=())["test error"]
    assert table["chosen on the test set"] <= min(table["last epoch"], table["least training loss"])
