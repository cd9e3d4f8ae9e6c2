import math

import numpy as np
import pytest
from problems import Gain

from bu_torch import Rule, SelectionRule
from bu_torch.rule.rules import RULE_NAMES, ExpectedAccuracy, as_rule
from bu_torch.signals.catalogue import SIGNALS


def checks(**columns):
    rows = zip(*columns.values(), strict=True)
    return [{"epoch": epoch, **dict(zip(columns, map(float, row), strict=True))} for epoch, row in enumerate(rows)]


class Product(Rule):
    """Of two signals."""

    name = "product"
    signals = ("trust_score", "expected_accuracy")

    def score(self, values):
        return values["trust_score"] * values["expected_accuracy"]


@pytest.mark.parametrize("name", RULE_NAMES)
def test_a_rule_that_goes_by_a_name_keeps_the_first_largest_and_needs_signals_alone(name):
    rule = as_rule(name)
    assert SelectionRule(name).replay(checks(**{signal: [1, 3, 2, 3] for signal in rule.signals}))["epoch"] == 1
    assert rule.name == name
    assert rule.title
    history = [{"epoch": epoch, **dict.fromkeys(SIGNALS, 0.5 + 0.1 * epoch)} for epoch in range(3)]
    assert SelectionRule(name).replay(history)["epoch"] in range(3)
    assert (SelectionRule().rule.name, SelectionRule().score_name) == ("expected_accuracy",) * 2


def equals(scores, errors, **columns):
    columns = {"trust_score": [1.0] * len(scores)} | columns
    return checks(expected_accuracy=scores, standard_error=errors, **columns)


@pytest.mark.parametrize(
    ("scores", "errors", "kept"),
    [
        ([0.6, 0.595, 0.5], [0, 0.02, 0.02], 1),
        ([0.6, 0.6, 0.5], [0, 0, 0.02], 0),  # alike in each prediction
        ([0.6, 0.6, 0.5], [0, 0.02, 0.02], 1),
        ([0.6, 0.58, 0.595], [0, 0.02, 0.02], 2),
        ([0.6, 0.591, 0.582, 0.573], [0, 0.02, 0.02, 0.02], 1),  # equal to the highest, not to one another
        ([0.6, 0.595, 0.7, 0.65], [0, 0.02, 0.02, 0.02], 2),
        ([0.6, math.nan, 0.595], [0, math.nan, 0.02], 2),
        ([0.6, 0.599], [0, math.nan], 0),
        ([0.6, 0.592, 0.599, 0.598], [0, 0.02, 0, 0], 1),  # the others are no equals
    ],
)
def test_of_equally_trusted_checks_within_half_a_standard_error_of_the_highest_the_latest_is_kept(scores, errors, kept):
    rule, history = SelectionRule(), equals(scores, errors)
    replayed = rule.replay(history)
    for end in range(1, 1 + len(history)):
        rule.complete(history[:end])
    assert rule.kept(history) == replayed
    assert replayed["epoch"] == kept
    assert [entry["expected_accuracy"] for entry in history] == pytest.approx(scores, nan_ok=True)
    alone = SelectionRule(ExpectedAccuracy(n_standard_errors=0.0)).replay(equals(scores, errors))
    assert alone["epoch"] == scores.index(max(x for x in scores if not math.isnan(x)))


EACH = [0, 0.02, 0.02, 0.02]


@pytest.mark.parametrize(
    ("scores", "errors", "trust", "kept"),
    [
        ([0.6, 0.595, 0.598], EACH, [1, 2, 1.5], 1),  # trusted most
        ([0.6, 0.595, 0.598], EACH, [3, 2, 1.5], 0),
        ([0.6, 0.595, 0.598], EACH, [1, 2, 2], 2),  # as much, and later
        ([0.6, 0.58, 0.598], EACH, [1, 9, 2], 2),  # the most trusted is no equal
        ([0.6, 0.605, 0.604], EACH, [2, 1, 1.5], 0),  # equal to a higher one that came later
        ([0.6, 0.595, 0.606, 0.604], EACH, [1, 9, 2, 3], 3),  # no equal of the new highest any more
        ([0.6, 0.605, 0.612], EACH, [2, 1, 1.5], 2),
        ([0.72, 0.70, 0.705], [0, 0.05, 0.001], [1, 2, 0.5], 1),  # the last is higher than the kept one, but no equal
        ([0.72, 0.70, 0.72], [0, 0.05, 0], [1, 2, 1], 1),  # the last predicts as the highest, which is trusted less
        ([0.72, 0.71, 0.73], [0, 0.05, 0.001], [1, 2, 1], 1),  # an equal by its own margin
        ([0.70, 0.71, 0.73], [0, 0.001, 0.05], [1, 2, 1], 1),  # an equal by that of the new highest
        ([0.70, 0.71, 0.73], [0, 0.001, 0.001], [1, 2, 1], 2),
        ([0.7, math.inf, 0.699], [0, 0, 0.02], [1, 1, 1], 2),
    ],
)
def test_of_checks_equal_by_a_margin_of_their_own_or_of_the_highest_the_most_trusted_is_kept(
    scores, errors, trust, kept
):
    for unit in (1, 7):
        history = equals(scores, errors[: len(scores)], trust_score=[unit * value for value in trust])
        assert SelectionRule().replay(history)["epoch"] == kept


@pytest.mark.parametrize("wrong", [-1, math.nan, math.inf, "x", True])
def test_a_margin_of_no_size_is_refused(wrong):
    with pytest.raises(ValueError, match="`n_standard_errors` must be a finite number >= 0"):
        ExpectedAccuracy(wrong)


def test_what_is_equal_does_not_drift():
    """A thousand checks, each within half a standard error of the one before."""
    falling = [0.9 - 0.0001 * epoch for epoch in range(1000)]
    kept = SelectionRule().replay(equals(falling, [0.0] + [0.0101] * 999))
    assert kept["epoch"] == 50


def test_early_checks_and_other_rules_have_no_equals():
    history = equals([0.9, 0.5, 0.6, 0.595], [0, 0.5, 0.5, 0.02], trust_score=[1, 3, 2.99, 2])
    history = [entry | {"boundary_uncertainty": 1 - entry["expected_accuracy"]} for entry in history]
    assert SelectionRule(start_from_epoch=1).replay(history)["epoch"] == 1
    for name in RULE_NAMES[1:]:
        first = max(history, key=lambda entry: entry[name])["epoch"]
        assert SelectionRule(name).replay(history)["epoch"] == first

    class Margin(Product):
        name = "with_margin"

        def margin(self, values, standard_error):
            return 0.02 if standard_error else 0.0

    assert SelectionRule(Margin()).replay(history)["epoch"] == 2


def test_a_rule_of_one_s_own_scores_by_its_signals():
    history = checks(trust_score=[1, 2, 4, 3], expected_accuracy=[0.9, 0.8, 0.3, 0.5])
    kept = SelectionRule(Product()).replay(history)
    assert (kept["epoch"], kept["product"]) == (1, 1.6)
    assert "product" not in history[1]
    assert (SelectionRule(Product()).added, SelectionRule("trust_score").added) == (["product"], [])


def test_a_replay_begins_without_memory():
    history = checks(trust_score=[5, 4, 7], boundary_uncertainty=[0, 0, 0])
    rule = SelectionRule(Gain())
    assert [rule.replay(history)["epoch"] for _ in range(2)] == [0, 0]


def test_a_replay_is_causal_and_leaves_the_checks_alone():
    rng = np.random.default_rng(0)
    history = checks(trust_score=rng.normal(size=25), expected_accuracy=rng.normal(size=25))
    before, whole = ([dict(entry) for entry in history] for _ in range(2))
    rule = SelectionRule(Product())
    for end in range(len(whole)):
        rule.complete(whole[: end + 1])
    for end in (5, 15, 25):
        assert rule.replay(history[:end])["epoch"] == rule.kept(whole[:end])["epoch"]
    assert history == before


@pytest.mark.parametrize("rule", [*RULE_NAMES, Product()], ids=lambda rule: getattr(rule, "name", rule))
def test_early_and_non_finite_checks_are_not_kept(rule):
    falling = [1.0 / (1 + epoch) for epoch in range(12)]
    history = checks(**dict.fromkeys(RULE_NAMES, falling))
    history[4] |= dict.fromkeys(RULE_NAMES, math.nan)
    assert SelectionRule(rule, start_from_epoch=4).replay(history)["epoch"] == 5
    assert SelectionRule(rule, start_from_epoch=12).replay(history) is None


@pytest.mark.parametrize(
    ("rule", "missing", "error", "message"),
    [
        (Product, "expected_accuracy", KeyError, "expected_accuracy"),
        (lambda: made(score=lambda self, values: "good"), "", TypeError, r"`Made\.score` must give a number, got str"),
        (lambda: made(score=lambda self, values: values["omission"]), "", KeyError, "`Made.score` reads 'omission'"),
        (lambda: made(margin=lambda self, values, error: "wide"), "", TypeError, r"`Made\.margin` must give a number"),
        (lambda: made(margin=lambda self, values, error: values["u"]), "", KeyError, "`Made.margin` reads 'u'"),
    ],
)
def test_a_missing_signal_or_a_score_that_is_none_is_an_error(rule, missing, error, message):
    history = checks(trust_score=[1, 0.5], expected_accuracy=[1, 0.5], standard_error=[0, 0.1])
    history[0].pop(missing, None)
    with pytest.raises(error, match=message):
        SelectionRule(rule()).replay(history)


def made(**attributes):
    return type("Made", (Product,), attributes)()


@pytest.mark.parametrize(
    ("rule", "error", "message"),
    [
        (Product, TypeError, "`rule` must be a name or an instance of `bu_torch.Rule`, got the class Product"),
        (None, TypeError, "got NoneType"),
        (made(name="two words"), ValueError, "`rule.name`"),
        (made(name=None), ValueError, "`rule.name`"),
        (made(name="epoch"), ValueError, "`rule.name` must not be"),
        (made(score=Rule.score), TypeError, "`rule` must define `score`, which Made does not"),
        (made(name="trust_score"), ValueError, "`rule.name` must not be the name of a signal, .* got 'trust_score'"),
        (made(name="train_loss"), ValueError, "or another column, got 'train_loss'"),
        (made(signals=()), ValueError, "`rule.signals`"),
        (made(signals=("loss",)), ValueError, "`rule.signals` must be names among boundary_.*'loss'"),
        (made(signals="trust_score"), ValueError, "`rule.signals`"),
    ],
)
def test_what_is_no_rule_is_refused(rule, error, message):
    with pytest.raises(error, match=message):
        as_rule(rule)
