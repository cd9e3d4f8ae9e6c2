import csv
import json
import math
import shutil

import problems
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from problems import Product
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset

from bu_torch import BoundaryUncertaintyStopping, Signals, rank_checkpoints, read_samples
from bu_torch.rule.rules import RULE_NAMES, as_rule
from bu_torch.samples.samples import stratified_rows

INPUTS, LABELS = DATA = problems.blobs(n=150)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A real run that saves every epoch, watched on all samples by the callback: its history and its folder."""
    folder = tmp_path_factory.mktemp("run")
    stopping = BoundaryUncertaintyStopping(rule="trust_score", max_samples=150, n_draws=4, averaging=None)
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


@pytest.mark.parametrize("rule", [*(name for name in RULE_NAMES if name != "parzen_uncertainty"), Product()])
def test_candidates_are_ranked_by_the_score_of_a_rule(run, rank, rule):
    ranking, rule = rank(rule=rule), as_rule(rule)
    scores = [rule.score(c.signals) for c in ranking]
    assert [c.score for c in ranking] == scores == sorted(scores, reverse=True)
    assert [c.rank for c in ranking] == [1, 2, 3, 4, 5, 6]
    assert (ranking.rule, ranking.best) == (rule.name, ranking[0])
    assert ranking.best.epoch == max(run[0].history, key=rule.score)["epoch"]


def test_a_rule_that_compares_checks_is_refused(rank):
    steady = Product()
    steady.name, steady.signals = "steady", ("trust_score", "prediction_changes")
    with pytest.raises(ValueError, match="`rule`"):
        rank(rule=steady)


def test_a_file_named_twice_counts_once_and_a_copy_ranks_beside_it(run, rank, tmp_path):
    one, files = rank(), sorted(run[1].iterdir())
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
    assert (module.training, module.net[3].training) == (True, False)


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
    with pytest.warns(UserWarning, match="finite score"):
        rank(tmp_path / "diverged.pt")


def test_table_json_and_csv_tell_the_same(run, rank, tmp_path):
    ranking = rank()
    ranking.to_json(tmp_path / "new" / "ranking.json")
    ranking.to_csv(tmp_path / "new" / "ranking.csv")
    content = json.loads((tmp_path / "new" / "ranking.json").read_text())
    assert (content["rule"], content["candidates"]) == (ranking.rule, [c.as_record() for c in ranking])
    rows = csv.DictReader((tmp_path / "new" / "ranking.csv").read_text().splitlines())
    assert [float(row["score"]) for row in rows] == [c.score for c in ranking]
    _, header, *lines = str(ranking).splitlines()
    assert header.split()[:3] == ["rank", "epoch", "step"]
    assert [line[line.index(str(run[1])) :] for line in lines] == [str(c.path) for c in ranking]


def test_what_does_not_fit_is_refused_by_name(run, signals, tmp_path):
    whole = {"paths": (files := sorted(run[1].iterdir())), "module": problems.Classifier(), "dataset": DATA}
    dicts = [{"image": x, "target": y} for x, y in zip(*DATA, strict=True)]
    refused = {
        "paths": ([], [files[0], "missing.ckpt"], tmp_path),
        "module": ("module", problems.Classifier(d=5)),
        "dataset": (3, [1.0, 2.0, 3.0], dicts, (INPUTS, LABELS[1:]), (INPUTS, LABELS + 5)),
        "signals": (3, Signals().fit(INPUTS + 1, LABELS)),
        "rule": ("loss",),
        "batch_size": (0,),
    }
    said = {"paths": "`paths`|no checkpoint", "module": "`module`|ckpt` does not fit", "dataset": "`dataset`|`logits`"}
    for name, values in refused.items():
        for value in values:
            with pytest.raises((TypeError, ValueError, FileNotFoundError), match=said.get(name, f"`{name}`")):
                rank_checkpoints(**{**whole, name: value})


def test_samples_may_come_in_any_form(rank):
    weights = torch.rand(len(LABELS))
    dicts = [{"image": x, "weight": w, "target": y} for x, y, w in zip(*DATA, weights, strict=True)]
    by_key = {"input_key": "image", "label_key": "target"}
    expected = rank()
    assert expected == rank(dataset=read_samples((weights, *DATA), input_key=-2, label_key=-1))
    assert expected == rank(dataset=read_samples(DataLoader(dicts, batch_size=7, shuffle=True), **by_key))
    few = Subset(TensorDataset(*DATA), stratified_rows(150, 90, 0, LABELS))
    assert rank(dataset=read_samples(DATA, 90), signals=None) == rank(dataset=few, signals=None)


def test_a_metric_ranks_and_fitted_signals_of_other_prices_are_refused(tmp_path):
    two = (LABELS > 0).long()
    for name in range(3):
        torch.save(nn.Linear(4, 2).state_dict(), tmp_path / f"{name}.pt")
    ranking = rank_checkpoints(tmp_path, nn.Linear(4, 2), (INPUTS, two), metric="log_loss")
    losses = [one.signals["expected_log_loss"] for one in ranking]
    assert losses == sorted(losses)
    signals = Signals(metric=[[0, 1], [5, 0]]).fit(INPUTS, two)
    with pytest.raises(ValueError, match="`signals`"):
        rank_checkpoints(tmp_path, nn.Linear(4, 2), (INPUTS, two), metric=[[0, 1], [50, 0]], signals=signals)


def test_a_folder_of_hugging_face_s_stands_for_its_model(tmp_path):
    module = problems.Classifier()
    for name, content in {"pytorch_model.bin": module.state_dict(), "optimizer.pt": {}, "rng_state.pth": [1]}.items():
        torch.save(content, tmp_path / name)
    ranking = rank_checkpoints(tmp_path, module, DATA)
    assert [one.path.name for one in ranking.candidates] == ["pytorch_model.bin"]
