"""The checks of a training, as plain numbers: which is kept, and when to stop."""

import math
import pickle

import pytest

from bu_torch.run.history import History
from bu_torch.run.settings import MeasurementSettings, Settings

NAN = math.nan


def check(epoch, score, error=0.0, step=None):
    values = {"expected_accuracy": score, "trust_score": 1.0, "standard_error": error}
    return {"epoch": epoch, **({} if step is None else {"step": step}), **values}


def feed(history, checks):
    """Add (score, standard error) of the next epochs; those that are to be saved."""
    saved = []
    for score, error in checks:
        history.add(check(len(history.entries), score, error))
        if history.is_kept_new:
            saved.append(len(history.entries) - 1)
    return saved


def kept(history):
    return None if history.kept is None else history.kept["epoch"]


EQUALS = [(0.5, 0.0), (0.6, 0.0), (0.595, 0.02), (0.585, 0.02), (0.591, 0.02), (NAN, NAN), (0.589, 0.02)]


def test_of_equals_the_latest_is_kept_and_the_highest_is_another():
    history = History(Settings(patience=4, check_finite=False))
    assert feed(history, EQUALS) == [0, 1, 2, 4]
    assert (kept(history), history.highest["epoch"], history.verdict.wait) == (4, 1, 5)
    assert math.isclose(history.last_score, 0.589)


@pytest.mark.parametrize("end", range(len(EQUALS) + 1))
def test_a_state_goes_on_as_if_uncut(end):
    whole, first, second = (History(Settings(check_finite=False)) for _ in range(3))
    feed(whole, EQUALS)
    feed(first, EQUALS[:end])
    state = pickle.loads(pickle.dumps(first.state_dict()))  # noqa: S301  (our own)
    second.load(state["history"], state["n_not_compared"], state["rule"])
    assert not second.is_kept_new
    feed(second, EQUALS[end:])
    assert repr(second.entries) == repr(whole.entries)
    assert (second.kept, second.highest, second.verdict) == (whole.kept, whole.highest, whole.verdict)


@pytest.mark.parametrize(
    ("lost_at", "left", "then", "saved"),
    [
        ([0.1, 0.5, 0.9], 1, [0.4, 0.6], [4]),  # the newest file is damaged
        ([0.1, 0.9], None, [0.05, 0.5], [2, 3]),  # no file is left
        ([0.9, 0.5, 0.3], 0, [0.8, 0.95], [4]),  # nothing is lost
        ([0.1, 0.5, 0.9, 0.3], 1, [0.4, 0.6], [5]),  # a run resumes with an older file
        ([0.1, 0.5], 7, [0.05], [2]),  # a file of no check
    ],
)
def test_it_falls_back_to_what_is_saved(lost_at, left, then, saved):
    history = History(Settings(patience=9))
    feed(history, [(score, 0.0) for score in lost_at])
    wait = history.verdict.wait
    history.fall_back(left)
    assert kept(history) == (left if left in range(len(lost_at)) else None)
    assert history.highest is history.kept
    assert (history.verdict.wait, history.verdict.best, history.is_kept_new) == (wait, max(lost_at), False)
    assert feed(history, [(score, 0.0) for score in then]) == saved


@pytest.mark.parametrize("again", [0.9, 0.4, 0.95])
def test_a_kept_check_that_is_made_again_stays_kept_and_is_not_saved_again(again):
    history = History(Settings())
    history.add(check(0, 0.5, step=4))
    history.add(check(1, 0.9, step=8))
    entry = check(1, again, step=8)
    history.add(entry)
    assert len(history.entries) == 2
    assert (history.kept is entry, history.is_kept_new) == (True, False)


def test_checks_that_do_not_count_are_not_compared():
    history = History(Settings(patience=2))
    history.add(check(0, 0.9), is_counted=False)
    assert (history.n_not_compared, history.kept, history.last_score, history.is_comparable) == (1, None, None, False)
    assert feed(history, [(0.1, 0.0), (0.2, 0.0)]) == [1, 2]
    history.reset()
    assert (history.kept, history.verdict.wait, history.compared) == (None, 0, [])
    assert [entry["epoch"] for entry in history.entries] == [0, 1, 2]


def test_early_checks_are_neither_kept_nor_the_most_accurate():
    history = History(Settings(start_from_epoch=2))
    assert feed(history, [(0.9, 0.0), (0.8, 0.0), (0.5, 0.0), (0.6, 0.0)]) == [2, 3]
    assert history.is_most_accurate(check(4, 0.7))
    assert not history.is_most_accurate(check(4, 0.6))
    assert history.is_most_accurate(check(3, 0.6))  # that is made again
    assert not history.is_most_accurate(check(1, 0.95))


def test_without_a_rule_nothing_is_kept():
    history = History(MeasurementSettings())
    assert feed(history, [(0.5, 0.0), (0.9, 0.0)]) == []
    assert (history.kept, history.highest, history.last_score) == (None, None, None)
    assert not history.verdict.should_stop
    assert history.state_dict() == {"history": history.entries, "n_not_compared": 0}


@pytest.mark.parametrize("end", range(4))
def test_a_resumed_run_remembers_a_highest_that_is_not_kept(end):
    rows = [(0.70, 0.0, 2.0), (0.72, 0.05, 1.0), (0.705, 0.01, 1.5), (0.71, 0.05, 1.9)]
    made = [check(epoch, score, error) | {"trust_score": trust} for epoch, (score, error, trust) in enumerate(rows)]
    whole, first, second = (History(Settings()) for _ in range(3))
    for one in made:
        whole.add(dict(one))
    for one in made[:end]:
        first.add(dict(one))
    state = pickle.loads(pickle.dumps(first.state_dict()))  # noqa: S301  (our own)
    second.load(state["history"], state["n_not_compared"], state["rule"])
    second.fall_back(*((None, None) if first.kept is None else (first.kept["epoch"], None)))
    for one in made[end:]:
        second.add(dict(one))
    assert (kept(whole), whole.highest["epoch"]) == (0, 1)
    assert (second.kept, second.highest, second.verdict) == (whole.kept, whole.highest, whole.verdict)
