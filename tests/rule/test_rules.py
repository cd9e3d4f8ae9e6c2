"""Rules, and the decision, which agrees with Lightning's `EarlyStopping` check by check."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from lightning.pytorch.callbacks import EarlyStopping
from problems import Given, Product

from bu_torch import Rule
from bu_torch.rule.rules import DEFAULT_RULE, RULE_NAMES, Decision, as_rule, decide, score_of
from bu_torch.run.history import History
from bu_torch.run.settings import Settings
from bu_torch.signals.catalogue import SIGNALS


def checks(**columns):
    rows = zip(*columns.values(), strict=True)
    return [{"epoch": epoch, **dict(zip(columns, map(float, row), strict=True))} for epoch, row in enumerate(rows)]


def kept(history, rule=DEFAULT_RULE, **settings):
    """The check that is kept of these, which are not changed."""
    past = History(Settings(rule=rule, patience=99, **settings))
    for entry in history:
        if past.add(dict(entry)):
            past.kept = past.entries[-1]
    return past.kept


@pytest.mark.parametrize("name", RULE_NAMES)
def test_a_rule_that_goes_by_a_name_keeps_the_first_largest_of_its_signals(name):
    rule = as_rule(name)
    assert (rule.name, bool(rule.title)) == (name, True)
    assert kept(checks(**{signal: [1, 3, 2, 3] for signal in rule.signals}), name)["epoch"] == 1


def test_a_check_gets_the_score_of_the_rule_which_begins_without_memory():
    assert made(name="two_words").title == "two words"
    assert Settings(metric="f1").deciding_rule.title == "expected F1 score"
    rng = np.random.default_rng(0)
    history = checks(trust_score=rng.normal(size=25), expected_accuracy=rng.normal(size=25))
    scores = [check["trust_score"] * check["expected_accuracy"] for check in history]
    for end in (5, 15, 25):
        assert kept(history[:end], Product())["product"] == max(scores[:end])
    rule = Given((1, 3, 2))
    assert [kept(checks(trust_score=[0, 0, 0]), rule)["epoch"] for _ in range(2)] == [1, 1]


@pytest.mark.parametrize("rule", [*RULE_NAMES, Product()], ids=lambda rule: getattr(rule, "name", rule))
def test_early_and_non_finite_checks_are_not_kept(rule):
    falling = [1.0 / (1 + epoch) for epoch in range(12)]
    history = checks(**dict.fromkeys(SIGNALS, falling))
    history[4] |= dict.fromkeys(SIGNALS, math.nan)
    assert kept(history, rule, start_from_epoch=4)["epoch"] == 5
    assert kept(history, rule, start_from_epoch=12) is None


@pytest.mark.parametrize(
    ("rule", "missing", "error", "message"),
    [
        (Product, "expected_accuracy", KeyError, "expected_accuracy"),
        (lambda: made(score=lambda self, values: "good"), "", TypeError, r"`Made\.score` .*got str"),
        (lambda: made(score=lambda self, values: values["omission"]), "", KeyError, "`Made.score` reads 'omission'"),
    ],
)
def test_a_missing_signal_or_a_score_that_is_no_number_is_an_error(rule, missing, error, message):
    values = {"trust_score": 1.0, "expected_accuracy": 1.0}
    values.pop(missing, None)
    with pytest.raises(error, match=message):
        score_of(rule(), values)


def made(**attributes):
    return type("Made", (Product,), attributes)()


@pytest.mark.parametrize(
    ("rule", "error", "message"),
    [
        (Product, TypeError, "`rule`.* got the class Product"),
        (None, TypeError, "got NoneType"),
        (made(name="two words"), ValueError, "`rule.name`"),
        (made(name=None), ValueError, "`rule.name`"),
        (made(name="epoch"), ValueError, "`rule.name`.* got 'epoch'"),
        (made(score=Rule.score), TypeError, "`rule`.*`score`.*Made"),
        (made(name="trust_score"), ValueError, "`rule.name`.* got 'trust_score'"),
        (made(name="train_loss"), ValueError, "`rule.name`.* got 'train_loss'"),
        (made(signals=()), ValueError, "`rule.signals`"),
        (made(signals=("loss",)), ValueError, "`rule.signals`.*'loss'"),
        (made(signals="trust_score"), ValueError, "`rule.signals`"),
    ],
)
def test_what_is_no_rule_is_refused(rule, error, message):
    with pytest.raises(error, match=message):
        as_rule(rule)


NAN, INF = math.nan, math.inf


def stepwise(scores, **settings):
    decisions = [Decision()]
    for score in scores:
        decisions.append(decide(decisions[-1], score, **settings))
    return decisions[1:]


def by_lightning(scores, **settings):
    stopping = EarlyStopping("score", mode="max", **settings)
    for score in scores:
        should_stop, _ = stopping._evaluate_stopping_criteria(torch.tensor(score, dtype=torch.float64))
        yield bool(should_stop), stopping.wait_count, float(stopping.best_score)


scores = st.lists(st.sampled_from([0.0, 0.1, 0.2, 0.25, 0.3, 1.0, -1.0, NAN, INF, -INF]), max_size=12)


@given(scores=scores, patience=st.integers(0, 4), min_delta=st.sampled_from([0.0, 0.05, 0.1]))
def test_each_decision_is_lightning_s(scores, patience, min_delta):
    settings = {"patience": patience, "min_delta": min_delta}
    own, theirs = stepwise(scores, **settings), by_lightning(scores, **settings)
    assert [(one.should_stop, one.wait, one.best) for one in own] == list(theirs)
