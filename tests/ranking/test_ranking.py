import csv
import json
import math
import shutil

import numpy as np
import pandas as pd
import problems
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from problems import Product
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset

from bu_torch import BoundaryUncertaintyStopping, SelectionRule, Signals, rank_checkpoints, rank_models, read_samples
from bu_torch.ranking.estimators import estimator_logits
from bu_torch.rule.rules import RULE_NAMES
from bu_torch.samples.balance import stratified_rows

INPUTS, LABELS = DATA = problems.blobs(n=150)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A real run that saves every epoch, watched on all samples by the callback: its history and its folder."""
    folder = tmp_path_factory.mktemp("run")
    stopping = BoundaryUncertaintyStopping(rule="trust_score", budget=None, n_draws=4, averaging=None)
    saving = ModelCheckpoint(folder / "all", filename="{epoch}", save_top_k=-1)
    problems.fit(folder, stopping, saving, data=problems.loader(*DATA), max_epochs=6)
    return stopping, folder / "all"


@pytest.fixture(scope="module")
def signals():
    return Signals().fit(*DATA)


@pytest.fixture(scope="module")
def rank(run, signals):
    """Rank checkpoints, of the run if none are given, with signals that are fitted."""

    def rank(paths=run[1], module=problems.Classifier, dataset=DATA, **options):
        return rank_checkpoints(paths, module, dataset, **{"signals": signals, **options})

    return rank


def by_name(ranking):
    return {candidate.name: candidate for candidate in ranking}


def test_checkpoints_of_a_run_have_the_signals_that_the_callback_measured(run):
    stopping, folder = run
    ranking = rank_checkpoints(folder, problems.Classifier(), DATA)
    assert sorted(candidate.epoch for candidate in ranking) == list(range(6))
    for candidate in ranking:
        measured = stopping.history[candidate.epoch]
        assert candidate.step == 5 * (candidate.epoch + 1)
        assert candidate.path == folder / f"epoch={candidate.epoch}.ckpt"
        for name, value in candidate.signals.items():
            assert value == pytest.approx(measured[name], abs=1e-6), name


@pytest.mark.parametrize("rule", [name for name in RULE_NAMES if name != "parzen_uncertainty"])
def test_the_best_is_what_a_rule_of_one_number_keeps(run, rank, rule):
    stopping, ranking = run[0], rank(rule=rule)
    assert ranking.best.epoch == SelectionRule(rule).replay(stopping.history)["epoch"]
    assert ranking.best.score == ranking.best.signals[rule]
    assert [c.score for c in ranking] == sorted((c.signals[rule] for c in ranking), reverse=True)
    assert [c.rank for c in ranking] == [1, 2, 3, 4, 5, 6]
    if rule == "trust_score":
        assert ranking.best.epoch == stopping.best_epoch


def test_a_rule_of_one_s_own_ranks_unless_it_compares_checks(rank):
    ranking = rank(rule=Product())
    assert ranking.rule == "product"
    expected = [c.signals["trust_score"] * c.signals["expected_accuracy"] for c in ranking]
    assert [c.score for c in ranking] == expected == sorted(expected, reverse=True)
    steady = Product()
    steady.name, steady.signals = "steady", ("trust_score", "prediction_changes")
    with pytest.raises(ValueError, match=r"`rule` must not read prediction_changes, .* got 'steady'"):
        rank(rule=steady)


def test_a_file_named_twice_counts_once_and_a_copy_ranks_beside_it(run, rank, tmp_path):
    one, files = rank(), sorted(run[1].iterdir())
    with pytest.warns(UserWarning, match="epoch=0.ckpt` is named twice"):
        assert rank([*files, files[0]]) == one
    shutil.copy(one.best.path, tmp_path / "last.ckpt")
    best, second = rank([tmp_path / "last.ckpt", *files])[:2]
    assert best.score == second.score
    assert {best.path.name, second.path.name} == {"last.ckpt", one.best.path.name}


def test_nothing_of_the_users_is_touched(rank, random_states):
    module = problems.Classifier()
    module.net[3].eval()
    loader, before, states = problems.loader(*DATA), problems.weights_of(module), random_states()
    for one in (module, problems.Classifier):
        rank(module=one, dataset=loader)
    assert random_states() == states
    assert problems.same(module.state_dict(), before)
    assert module.training
    assert not module.net[3].training
    assert all(parameter.requires_grad and parameter.grad is None for parameter in module.parameters())


def test_weights_that_are_not_finite_rank_last(run, rank, tmp_path):
    state = problems.Classifier().state_dict()
    state["net.4.bias"][:] = math.nan
    torch.save(state, tmp_path / "diverged.pt")
    for rule in (Product(), "trust_score"):
        ranking = rank([tmp_path / "diverged.pt", run[1]], rule=rule)
        assert ranking[-1].path.name == "diverged.pt"
        assert math.isnan(ranking[-1].score)
        assert all(math.isfinite(c.score) for c in ranking[:-1])
    ranking.to_json(tmp_path / "ranking.json")
    assert json.loads((tmp_path / "ranking.json").read_text())["candidates"][-1]["score"] is None


def test_table_json_and_csv_tell_the_same(run, rank, tmp_path):
    ranking = rank()
    ranking.to_json(tmp_path / "new" / "ranking.json")
    ranking.to_csv(tmp_path / "new" / "ranking.csv")
    content = json.loads((tmp_path / "new" / "ranking.json").read_text())
    assert content["rule"] == "accuracy_uncertainty_trust"
    assert content["candidates"] == [c.as_record() for c in ranking]
    rows = csv.DictReader((tmp_path / "new" / "ranking.csv").read_text().splitlines())
    assert [float(row["score"]) for row in rows] == [c.score for c in ranking]
    lines = str(ranking).splitlines()
    assert lines[0] == "6 candidates by accuracy_uncertainty_trust, best first"
    assert lines[1].split()[:3] == ["rank", "epoch", "step"]
    assert lines[2].endswith(str(ranking.best.path))
    assert len({line.index(str(run[1])) for line in lines[2:]}) == 1


def test_a_model_that_cannot_take_the_inputs_is_named_and_equally_good_ones_keep_their_order():
    with pytest.raises(ValueError, match=r"^wide: .*shapes cannot be multiplied"):
        rank_models({"fits": nn.Linear(4, 3), "wide": nn.Linear(7, 3)}, *DATA)
    linear = nn.Linear(4, 3)
    assert [c.name for c in rank_models([linear, linear], *DATA)] == ["0: Linear", "1: Linear"]
    assert [c.name for c in rank_models({"b": linear, "a": linear}, DATA)] == ["b", "a"]


def test_the_best_are_copied_and_nothing_is_overwritten(run, rank, tmp_path):
    folders, kept = [tmp_path / "logs" / f"version_{number}" for number in (0, 1)], tmp_path / "kept"
    for folder in folders:
        shutil.copytree(run[1], folder)
    ranking = rank(folders)
    copies = ranking.copy_best(3, kept)
    places = [path.relative_to(tmp_path / "logs") for path in ranking.paths]
    assert [copy.relative_to(kept) for copy in copies] == places[:3]
    assert all(copy.read_bytes() == path.read_bytes() for copy, path in zip(copies, ranking.paths, strict=False))
    assert ranking.copy_best(3, kept) == copies
    copies[1].write_text("another")
    (kept / places[3]).unlink(missing_ok=True)
    with pytest.raises(FileExistsError, match="already exists"):
        ranking.copy_best(4, kept)
    assert copies[1].read_text() == "another"
    assert sum(file.is_file() for file in kept.rglob("*")) == 3
    with pytest.raises(ValueError, match="`n_best`"):
        ranking.copy_best(13, kept)


def test_what_does_not_fit_is_refused_by_name(run, signals, tmp_path):
    files = sorted(run[1].iterdir())
    for error, said, changed in (
        (ValueError, "`paths`", {"paths": []}),
        (FileNotFoundError, "missing.ckpt", {"paths": [files[0], "missing.ckpt"]}),
        (FileNotFoundError, "no checkpoint", {"paths": tmp_path}),
        (ValueError, "epoch=0.ckpt` does not fit", {"module": problems.Classifier(d=5)}),
        (TypeError, "`module`", {"module": "module"}),
        (TypeError, "`dataset`", {"dataset": 3}),
        (ValueError, "`dataset`", {"dataset": [1.0, 2.0, 3.0]}),
        (ValueError, "one length", {"dataset": (INPUTS, LABELS[1:])}),
        (ValueError, "epoch=0.ckpt: `logits`", {"paths": files[0], "dataset": (INPUTS, LABELS + 5)}),
        (ValueError, "`signals` must be fitted on the samples", {"dataset": (INPUTS + 1, LABELS), "signals": signals}),
        (TypeError, "`signals`", {"signals": 3}),
        (ValueError, "`rule`", {"rule": "loss"}),
        (ValueError, "`batch_size`", {"batch_size": 0}),
    ):
        with pytest.raises(error, match=said):
            rank_checkpoints(**{"paths": files, "module": problems.Classifier(), "dataset": DATA, **changed})


def test_samples_may_come_in_any_form():
    weights = torch.rand(len(LABELS))
    dicts = [{"image": x, "weight": w, "target": y} for x, y, w in zip(*DATA, weights, strict=True)]
    by_key = {"input_key": "image", "label_key": "target"}
    models = {"sum": lambda x: x[:, :3], "far": lambda x: x[:, :3] - 5 * x[:, 1:]}
    expected = rank_models(models, *DATA)
    assert expected == rank_models(models, read_samples((weights, *DATA), input_key=-2, label_key=-1))
    assert expected == rank_models(models, read_samples(DataLoader(dicts, batch_size=7, shuffle=True), **by_key))
    few = Subset(TensorDataset(*DATA), stratified_rows(150, 90, 0, LABELS))
    assert rank_models(models, read_samples(DATA, 90)) == rank_models(models, few)
    with pytest.raises(ValueError, match=r"^`dataset`: batches are dicts .*Pass a pair \(inputs, labels\)"):
        rank_models(models, dicts)


def test_models_of_any_kind_are_ranked_together():
    features = INPUTS.double()
    regression, linear = LogisticRegression(max_iter=500).fit(features, LABELS), nn.Linear(4, 3).double()
    linear.weight.data[:], linear.bias.data[:] = map(torch.from_numpy, (regression.coef_, regression.intercept_))
    forms = {"module": linear, "function": lambda x: linear(x), "far": lambda x: linear(x - 2)}
    with pytest.warns(UserWarning, match=r"different kinds are ranked \(Linear, LogisticRegression, function\)"):
        ranking = rank_models({"regression": regression, **forms}, features, LABELS)
    values = by_name(ranking)
    for name in ("module", "function"):
        assert values[name].signals == pytest.approx(values["regression"].signals, abs=1e-9)
    assert ranking[-1].name == "far"
    assert ranking.paths == []
    with pytest.raises(ValueError, match="without"):
        ranking.copy_best(1, "anywhere")


@pytest.mark.filterwarnings("ignore:Classifiers of different kinds")
def test_labels_of_estimators_may_be_of_any_kind():
    features = INPUTS.numpy().astype(np.float64)
    expected = None
    for names in (np.array([0, 1, 2]), np.array([-5, 3, 7]), np.array(["a", "b", "c"]), np.array([1.0, 2.0, 3.0])):
        y = names[LABELS.numpy()]
        models = {
            "svc": SVC().fit(features, y),
            "pipeline": make_pipeline(StandardScaler(), LogisticRegression()).fit(features, y),
            "neighbors": KNeighborsClassifier(9).fit(features, y),
        }
        found = {name: c.signals for name, c in by_name(rank_models(models, features, y)).items()}
        expected = expected or found
        assert found == expected


def test_an_estimator_that_does_not_know_a_class_never_predicts_it():
    features, labels = INPUTS.numpy(), LABELS.numpy()
    part = KNeighborsClassifier(5).fit(features[labels != 1], labels[labels != 1])
    whole = KNeighborsClassifier(5).fit(features, labels)
    ranking = rank_models({"part": part, "whole": whole}, features, labels)
    assert ranking.best.name == "whole"
    assert by_name(ranking)["part"].signals["label_agreement"] < 0.7


def test_what_is_no_fitted_classifier_is_refused():
    features, labels = INPUTS.numpy(), LABELS.numpy()
    four = np.where((labels == 2) & (np.arange(len(labels)) % 6 < 3), 3, labels)
    ovo, ovo_of_four = (SVC(decision_function_shape="ovo").fit(features, y) for y in (labels, four))
    common = np.where(np.arange(len(labels)) // 3 % 4 > 0, 0, labels)  # one of three columns is mostly right by chance
    ovo_of_common = SVC(decision_function_shape="ovo").fit(features, common)
    words = np.array(["a", "b", "c"], dtype=object)[labels]
    for error, said, models, y in (
        (ValueError, "decision_function_shape='ovr'", [ovo], labels),
        (ValueError, "decision_function_shape='ovr'", [ovo_of_common], common),
        (ValueError, f"`labels` .* got None or NaN for 1 of {len(labels)}", [ovo], [None, *words[1:]]),
        (ValueError, f"`labels` .* got None or NaN for 1 of {len(labels)}", [ovo], [np.nan, *labels[1:]]),
        (
            ValueError,
            f"`labels` .* got None or NaN for 1 of {len(labels)}",
            [ovo],
            pd.array([None, *words[1:]], "string"),
        ),
        (ValueError, "`labels` must hold classes of one kind, got int, str", [ovo], np.array([0, *words[1:]], object)),
        (ValueError, "must be fitted", [KNeighborsClassifier()], labels),
        (ValueError, "`models`", [], labels),
        (ValueError, "one column for each", [ovo_of_four], four),
        (TypeError, "`models`", [3], labels),
        (TypeError, "got one Linear", nn.Linear(4, 3), labels),
        (TypeError, "got one SVC", ovo, labels),
        (TypeError, "`labels`", [nn.Linear(4, 3)], np.array(["a", "b", "c"])[labels]),
    ):
        with pytest.raises(error, match=said):
            rank_models(models, features, y)


def test_a_machine_of_many_classes_is_ranked_though_votes_decide_its_predictions():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 26, 300)
    inputs = (rng.normal(size=(300, 4)) + 0.6 * rng.normal(size=(26, 4))[labels]).astype("float32")
    machine = SVC(kernel="linear", C=10).fit(inputs, labels)
    assert (machine.decision_function(inputs).argmax(axis=1) == machine.predict(inputs)).mean() < 0.9
    assert rank_models([machine], inputs, labels).best.score > 0


def test_a_machine_of_three_classes_that_votes_against_its_scores_is_ranked():
    rng = np.random.default_rng(148)
    labels = rng.integers(0, 3, 132)
    inputs = (rng.normal(size=(132, 2)) + 0.5 * rng.normal(size=(3, 2))[labels]).astype("float32")
    machine = SVC(C=66, kernel="sigmoid").fit(inputs, labels)
    assert (machine.decision_function(inputs).argmax(axis=1) == machine.predict(inputs)).mean() < 0.8
    logits = estimator_logits(machine, np.arange(3))(torch.from_numpy(inputs))
    assert np.array_equal(logits.numpy(), machine.decision_function(inputs))


def test_fitted_signals_of_other_prices_are_refused():
    models, two = [nn.Linear(4, 2)], (LABELS > 0).long()
    signals = Signals(metric=[[0, 1], [5, 0]]).fit(INPUTS, two)
    with pytest.raises(ValueError, match=r"`signals` must measure `metric=cost\[\[0.0, 1.0\], \[50.0, 0.0\]\]`, got"):
        rank_models(models, INPUTS, two, metric=[[0, 1], [50, 0]], signals=signals)
