import math

import numpy as np
import pytest

from bu_torch import SelectionRule

SIGNS = {"label_agreement": 1, "vote_agreement": 1, "neighbor_agreement": 1, "prediction_changes": -1}


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def checks(**columns):
    length = len(next(iter(columns.values())))
    return [
        {"epoch": epoch, **{name: float(values[epoch]) for name, values in columns.items()}} for epoch in range(length)
    ]


def consensus_checks(generator, n_epochs):
    return checks(**{name: generator.normal(size=n_epochs) for name in SIGNS})


def slow_consensus(history, min_delta=0.0):
    """Replace the kept epoch where the mean gain, each in its standard deviation so far, exceeds `min_delta`."""
    kept = 0
    for now in range(1, len(history)):
        gains = []
        for name, sign in SIGNS.items():
            values = [entry[name] for entry in history[: now + 1]]
            mean = sum(values) / len(values)
            spread = math.sqrt(sum((value - mean) ** 2 for value in values) / len(values))
            if (name, values[kept]) == ("prediction_changes", 1):
                gains.append(0)  # no check came before it
            else:
                gains.append(sign * (values[now] - values[kept]) / spread)
        if sum(gains) / len(gains) > max(min_delta, 1e-6):
            kept = now
    return kept


@pytest.mark.parametrize("min_delta", [0.0, 0.5])
def test_consensus_replaces_as_written(rng, min_delta):
    for _ in range(20):
        history = consensus_checks(rng, 30)
        assert SelectionRule("consensus", min_delta=min_delta).replay(history)["epoch"] == slow_consensus(
            history, min_delta
        )


def test_a_check_without_one_before_it_is_compared_without_its_changes(rng):
    for smoothing in (0.0, 0.5):
        worse = checks(**{name: [0.8, *(0.7 + 0.01 * rng.random(20))] for name in list(SIGNS)[:3]})
        for entry in worse:
            entry["prediction_changes"] = 0.005 if entry["epoch"] else 1.0
        assert SelectionRule("consensus", smoothing=smoothing).replay(worse)["epoch"] == 0
    for _ in range(20):
        history = consensus_checks(rng, 30)
        history[0]["prediction_changes"] = 1.0
        assert SelectionRule("consensus").replay(history)["epoch"] == slow_consensus(history)
    same = checks(label_agreement=[0.5] * 3, vote_agreement=[0.5] * 3, neighbor_agreement=[0.5] * 3)
    for entry in same:
        entry["prediction_changes"] = 0.0 if entry["epoch"] else 1.0
    assert SelectionRule("consensus").replay(same)["epoch"] == 0


@pytest.mark.parametrize("name", ["expected_accuracy", "boundary_uncertainty", "trust_score"])
def test_a_rule_of_one_number_keeps_its_first_largest(name):
    history = checks(**{name: [1, 3, 2, 3]})
    assert SelectionRule(name).replay(history)["epoch"] == 1


def test_expected_accuracy_is_the_default():
    assert (SelectionRule().name, SelectionRule().score_name) == ("expected_accuracy", "expected_accuracy")


def test_a_replay_is_causal_and_leaves_the_checks_alone(rng):
    history = consensus_checks(rng, 25)
    before = [dict(entry) for entry in history]
    whole = [dict(entry) for entry in history]
    rule = SelectionRule("consensus", smoothing=0.3)
    for end in range(len(whole)):
        rule.complete(whole[: end + 1])
    for end in (5, 15, 25):
        assert rule.replay(history[:end])["epoch"] == rule.kept(whole[:end])["epoch"]
    assert history == before


@pytest.mark.parametrize("name", ["expected_accuracy", "consensus", "boundary_uncertainty", "trust_score"])
def test_early_and_non_finite_checks_are_not_kept(rng, name):
    history = consensus_checks(rng, 12)
    for entry in history:
        for one_number in ("expected_accuracy", "boundary_uncertainty", "trust_score"):
            entry[one_number] = 1.0 / (1 + entry["epoch"])
    for key in list(history[4]):
        if key != "epoch":
            history[4][key] = math.nan
    kept = SelectionRule(name, start_from_epoch=4).replay(history)
    assert kept["epoch"] >= 5
    if name != "consensus":
        assert kept["epoch"] == 5
    assert SelectionRule(name, start_from_epoch=12).replay(history) is None


def test_smoothing_decides_on_the_average():
    rule = SelectionRule("trust_score", smoothing=0.5)
    kept = rule.replay(checks(trust_score=[0, 4, 2, 3]))
    # 0, 8/3, 16/7, 8/3 + 0 ...: the average corrected for the start
    averages = [0, (0 * 0.5 + 4) / 1.5, (0 * 0.25 + 4 * 0.5 + 2) / 1.75, (4 * 0.25 + 2 * 0.5 + 3) / 1.875]
    assert kept["epoch"] == averages.index(max(averages))
    assert kept["trust_score_smoothed"] == pytest.approx(max(averages))
    assert rule.score_name == rule.shown_name == "trust_score_smoothed"


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"name": "loss"}, "name"),
        ({"min_delta": -1.0}, "min_delta"),
        ({"min_delta": math.nan}, "min_delta"),
        ({"smoothing": 1.0}, "smoothing"),
        ({"start_from_epoch": -1}, "start_from_epoch"),
    ],
)
def test_arguments_out_of_range_are_refused(arguments, name):
    with pytest.raises(ValueError, match=f"`{name}`"):
        SelectionRule(**arguments)


def test_a_missing_signal_is_an_error():
    with pytest.raises(KeyError, match="vote_agreement"):
        SelectionRule("consensus").replay([{"epoch": 0, "label_agreement": 1.0}])
