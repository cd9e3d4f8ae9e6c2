"""Checks of a training as plain numbers: which is kept if one is made again, and what is said at the end."""

import math

import pytest

from bu_torch.run.engine import Engine
from bu_torch.run.history import History
from bu_torch.run.settings import Settings


def check(epoch, score, step=None):
    values = {"accuracy_uncertainty_trust": score, "expected_accuracy": score}
    return {"epoch": epoch, **({} if step is None else {"step": step}), **values}


def test_a_check_that_counts_is_not_made_again():
    engine = Engine(Settings())  # not prepared
    assert [engine.add(1, check(1, 0.9, step=8), 8), engine.check(None, 1, 8)] == [True, False]
    engine.forget_checks()
    with pytest.raises(AttributeError):
        engine.check(None, 1, 8)
    assert engine.add(1, check(1, 0.4, step=8), 8)


@pytest.mark.parametrize(
    ("scores", "first", "why"), [([], 0, "made"), ([0.5], 1, "start_from_epoch"), ([math.nan], 0, "finite")]
)
def test_where_nothing_is_kept_the_reason_is_named(scores, first, why):
    history = History(Settings(start_from_epoch=first))
    for score in scores:
        history.add(check(0, score))
    assert why in history.why_none_kept()
    history.reset()
    assert history.why_none_kept() == ("no check counted" if scores else "no check was made")


@pytest.mark.parametrize("averaging", [0.7, None])
@pytest.mark.parametrize(
    ("scores", "stopped", "is_late"),
    [([0.1, 0.9], None, True), ([*[0.1] * 9, 0.9, 0.5], None, True), ([0.9, 0.5], None, False), ([0.9], 0, False)],
)
def test_a_kept_check_among_the_last_asks_for_longer_training(scores, stopped, is_late, averaging):
    history, end = History(Settings(averaging=averaging)), {"reason": "Training ended.", "stopped_epoch": stopped}
    for epoch, score in enumerate(scores):
        if history.add(entry := check(epoch, score)):
            history.kept = entry
    _, said = history.describe_end(history.kept, end, is_restored=True)
    assert ("longer" in said, "`averaging=None`" in said) == (is_late, is_late and averaging is not None)


def test_no_best_value_is_sought_before_the_first_epoch_that_counts():
    history, found = History(Settings(start_from_epoch=1)), []
    for epoch, score in enumerate((0.9, 0.5, 0.7)):
        history.add(entry := check(epoch, score))
        found.append(history.has_best_value(entry))
    assert found == [False, True, True]
