"""Rules on curves made by hand, and what is said of them."""

import math

import pytest

CASE = {"table": "made up", "noise": 0.0, "seed": 0, "setting": "rmsprop", "epochs": 3}
SIGNALS = ("expected_accuracy", "label_agreement", "vote_agreement", "neighbor_agreement", "accuracy_and_uncertainty")
CURVES = {name: [0.1, 0.6, 0.2] for name in SIGNALS} | {
    "boundary_uncertainty": [0.1, 0.5, 0.2],
    "trust_score": [1.0, 1.0, 2.0],
    "prediction_changes": [1.0, 0.1, 0.5],
    "loo_loss": [0.4, 0.5, 0.6],
    "log_evidence": [-9.0, -8.0, -7.0],
    "distance": [1.0, 1.5, 2.0],
    "train_loss": [3.0, 2.0, 1.0],
    "changed_predictions": [1.0, 0.2, 0.3],
    "evidence": [-0.5, 0.1, -0.5],
    "test_error": [0.5, 0.2, 0.3],
    "kept_so_far": [0, 1, 1],
    "averaged_accuracy_and_uncertainty": [0.1, 0.3, 0.2],
    "averaged_kept_so_far": [0, 1, 2],
    "averaged_expected_accuracy": [0.3, 0.2, 0.1],
    "averaged_test_error": [0.5, 0.4, 0.15],
    "seconds": [2.0, 3.0, 4.0],
    "check_seconds": [1.0, 1.1, 1.2],
}
PART = {
    "val_accuracy": [0.5, 0.4, 0.6],
    "val_loss": [1.0, 2.0, 3.0],
    "test_error": [0.6, 0.4, 0.4],
    "averaged_val_accuracy": [0.5, 0.7, 0.6],
    "averaged_val_loss": [3.0, 2.0, 1.0],
    "averaged_test_error": [0.6, 0.35, 0.45],
    "seconds": [0.5, 1.0, 1.5],
    "check_seconds": [0.0] * 3,
}
BAG = {
    "check_seconds": [0.0],
    **{"test_error": [0.25], "epochs": [9.0], "seconds": [5.0]},
    **{"averaged_test_error": [0.1], "averaged_epochs": [10.0], "averaged_seconds": [6.0]},
}
RECORD = {"case": CASE, "all": CURVES, "part": PART, "bagging": BAG}


def test_rules_on_curves_made_by_hand(judging):
    judged = judging.judge([RECORD]).set_index("rule")
    expected = {
        "default": -0.05,
        "default, no limit": -0.05,
        "default, no margin": 0.2,
        "accuracy and uncertainty": 0.0,
        "expected accuracy": 0.0,
        "expected accuracy, average": 0.3,
        "boundary uncertainty": 0.0,
        "trust score": 0.1,
        "leave-one-out loss": 0.3,
        "marginal likelihood": 0.1,
        "growth of the distance": 0.1,
        "training loss plateau": 0.1,
        "EB criterion": 0.0,
        "last epoch": 0.1,
        "last epoch, average": -0.05,
        "best in hindsight, average": -0.05,
        "hold-out accuracy": 0.2,
        "hold-out accuracy, average": 0.15,
        "hold-out loss": 0.4,
        "hold-out loss, average": 0.25,
        "hold-out accuracy, then retrain": 0.1,
        "bagging": 0.05,
        "bagging, average": -0.1,
    }
    assert judged.excess.loc[list(expected)].to_dict() == pytest.approx(expected)
    seconds = {
        "default": 4.0,
        "accuracy and uncertainty": 4.0,
        "last epoch": 2.8,
        "hold-out accuracy": 1.5,
        "hold-out accuracy, then retrain": 1.5 + 2.8,
        "bagging, average": 6.0,
    }
    assert judged.seconds.loc[list(seconds)].to_dict() == pytest.approx(seconds)
    assert judged.epochs_to_stop.loc[["default", "bagging", "bagging, average"]].tolist() == [3, 9, 10]


def test_rules_without_their_curves_are_left_out(judging):
    less = {name: values for name, values in CURVES.items() if name != "evidence"}
    judged = judging.judge([{"case": CASE, "all": less, "part": PART}])
    assert not {"EB criterion", "bagging", "bagging, average"} & set(judged.rule)
    assert "hold-out accuracy" in set(judged.rule)


def test_patience_ends_a_rule_and_no_limit_does_not(judging):
    accuracy = [0.0, 0.5, *[0.1] * 30, 0.9]
    columns = {"val_accuracy": accuracy, "test_error": accuracy, "seconds": accuracy, "check_seconds": accuracy}
    record = {"all": columns, "part": columns}
    patient, unlimited = (judging.RULES[f"hold-out accuracy{end}"].judge(record) for end in ("", ", no limit"))
    assert (patient["kept"], patient["epochs_to_stop"]) == (1, 22)
    assert (unlimited["kept"], unlimited["epochs_to_stop"]) == (32, 33)


def test_what_is_equal_is_kept_until_the_rule_stops(judging):
    scores = [0.0, 0.5, *[0.4] * 18, 0.45, *[0.4] * 10]
    kept_so_far = [0, *[1] * 19, 20, *[21] * 10]
    columns = {"averaged_accuracy_and_uncertainty": scores, "averaged_kept_so_far": kept_so_far}
    columns |= {name: scores for name in ("averaged_test_error", "test_error", "seconds", "check_seconds")}
    record = {"all": columns}
    kept = {end: judging.RULES[f"default{end}"].judge(record) for end in ("", ", no limit", ", no margin")}
    assert [one["kept"] for one in kept.values()] == [21, 21, 1]
    assert [one["epochs_to_stop"] for one in kept.values()] == [22, 31, 22]


def test_the_summary_sorts_by_excess_and_divides_by_references(judging, tmp_path, capsys):
    judged = judging.judge([RECORD])
    summary = judging.summarise(judged)
    assert summary.excess.is_monotonic_increasing
    assert set(summary.index) == set(judging.RULES) - {rule for rule in judging.RULES if rule not in set(judged.rule)}
    assert judging.breakdown(judged).loc["last epoch", ("rmsprop", 0.0)] == pytest.approx(0.5)
    assert summary.loc["last epoch", "/ hold-out accuracy"] == pytest.approx(0.5)
    assert summary.loc["default", "/ last epoch"] == pytest.approx(-0.5)
    assert summary.loc["last epoch", "wins"] == 1.0
    assert summary.loc["hold-out accuracy", "wins"] == 0.5
    judging.show(summary)
    lines = capsys.readouterr().out.splitlines()
    assert next(line for line in lines if line.startswith(">")).startswith("> default ")
    assert set(judging.DRAWN) < set(judging.RULES)
    judging.plot(judged, tmp_path / "rules.png")
    assert (tmp_path / "rules.png").stat().st_size > 1000


def test_no_ratio_to_a_reference_without_excess(judging):
    best = {**PART, "test_error": [0.2, 0.2, 0.2]}
    judged = judging.judge([{"case": CASE, "all": CURVES, "part": best}])
    summary = judging.summarise(judged)
    assert math.isnan(summary.loc["default", "/ hold-out accuracy"])
    assert summary.loc["default", "/ last epoch"] == pytest.approx(-0.5)
    assert judging.breakdown(judged).isna().all(axis=None)
