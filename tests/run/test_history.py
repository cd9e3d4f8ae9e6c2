"""The checks of a training, as plain numbers: which is kept, and when to stop."""

import pytest

from bu_torch.run.history import History, confidence_in, summary_of
from bu_torch.run.settings import Settings
from bu_torch.signals.metrics import METRICS


def check(epoch, score, step=None):
    values = {"accuracy_uncertainty_trust": score, "expected_accuracy": score}
    return {"epoch": epoch, **({} if step is None else {"step": step}), **values}


def feed(history, checks):
    """Add the scores of the next epochs; those that are to be saved."""
    saved = []
    for score in checks:
        history.add(check(len(history.entries), score))
        if history.is_kept_new:
            saved.append(len(history.entries) - 1)
    return saved


def kept(history):
    return None if history.kept is None else history.kept["epoch"]


@pytest.mark.parametrize(
    ("scores", "forget", "left", "then", "saved"),
    [
        ([0.1, 0.5, 0.9], "last", 1, [0.4, 0.6], [4]),
        ([0.9], "last", None, [0.5], [1]),
        ([0.1, 0.9], "best", None, [0.05, 0.5], [2, 3]),
    ],
)
def test_it_falls_back_to_what_is_saved_and_a_state_says_so(scores, forget, left, then, saved):
    history, again = History(Settings(patience=9)), History(Settings(patience=9))
    feed(history, scores)
    assert kept(history) == scores.index(max(scores))
    wait = history.verdict.wait
    history.forget_last() if forget == "last" else history.forget_best()
    again.load(history.state_dict(), is_compared=True)
    for one in (history, again):
        assert kept(one) == left
        assert (one.verdict.wait, one.verdict.best, one.is_kept_new) == (wait, max(scores), False)
        assert feed(one, then) == saved


def test_the_best_is_a_check_whose_weights_are_saved():
    history = History(Settings())
    for score, best in ((0.5, None), (0.9, 0)):
        history.add(check(len(history.entries), score))
        assert (None if history.best is None else history.best["epoch"]) == best
        history.mark_saved()
        assert history.best is history.entries[-1]


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
    assert (history.n_not_compared, history.kept, history.last_score, history.compared) == (1, None, None, [])
    assert feed(history, [0.1, 0.2]) == [1, 2]
    history.reset()
    assert (history.kept, history.verdict.wait, history.compared) == (None, 0, [])
    assert [entry["epoch"] for entry in history.entries] == [0, 1, 2]


def test_the_least_improvement_is_said():
    history = History(Settings(patience=1, min_delta=0.5))
    feed(history, [0.5, 0.9])
    assert history.why_stopped(1).endswith("trust did not improve by more than 0.5 in the last check.")


def test_early_checks_are_neither_kept_nor_the_most_accurate():
    history = History(Settings(start_from_epoch=2))
    assert feed(history, [0.9, 0.8, 0.5, 0.6]) == [2, 3]
    assert history.has_best_value(check(4, 0.7))
    assert not history.has_best_value(check(4, 0.6))
    assert history.has_best_value(check(3, 0.6))  # that is made again
    assert not history.has_best_value(check(1, 0.95))


def rising(*accuracies, error=0.01):
    return [{"expected_accuracy": one, "standard_error": error * (n > 0)} for n, one in enumerate(accuracies)]


RISING = rising(0.5, 0.6, 0.7, 0.695, 0.6)
FLAT = rising(0.5, *[0.7] * 21)
LOW = rising(0.5, 0.6, 0.69, 0.6)


@pytest.mark.parametrize(
    ("history", "n_samples", "is_blind", "word"),
    [
        (RISING, 500, False, "clear"),
        (LOW, 500, False, "unsure"),
        (RISING, 499, False, "unsure"),
        (RISING, 500, True, "blind"),
        (FLAT, 500, False, "clear"),
        (FLAT, 499, False, "plateau"),
        (FLAT[:-1], 499, False, "unsure"),
    ],
)
def test_the_word_of_confidence(history, n_samples, is_blind, word):
    assert confidence_in(history[2], history, 0.4, n_samples, 0.3, is_blind=is_blind).word == word


def test_the_numbers_of_confidence():
    found = confidence_in(RISING[2], RISING, 0.4, 600, 0.3, is_blind=False)
    assert (found.n_equals, found.n_checks) == (2, 5)
    assert (found.skill, found.value, found.gain) == (0.4, 0.7, pytest.approx(20))
    said = ("clear", "from 0.50 at the first check to 0.70 (one class alone: 0.30); 2 of 5 checks", "with skill 0.40")
    assert [one for one in said if one not in found.line()] == []


def test_the_doubts_of_a_choice_are_named():
    found = confidence_in(LOW[2], LOW, 0.4, 40, 0.3, is_blind=False)
    assert "is unsure: 40 samples are fewer than 500 and expected accuracy is below 0.7. Expected" in found.line()
    alone = confidence_in(RISING[2], RISING[2:3], 0.4, 600, 0.3, is_blind=False)
    assert "is unsure: expected accuracy has not risen by a standard error. Expected" in alone.line()


def test_a_single_check_is_never_clear_and_one_that_is_not_finite_does_not_count():
    alone = rising(0.7)
    assert confidence_in(alone[0], alone, 0.9, 600, 0.3, is_blind=False).word == "unsure"
    history = rising(float("nan"), 0.6, 0.7)
    found = confidence_in(history[2], history, 0.9, 600, 0.3, is_blind=False)
    assert (found.word, found.n_equals) == ("clear", 1)
    assert found.gain == pytest.approx(10)


def test_without_a_standard_error_nothing_has_moved():
    found = confidence_in(RISING[0], rising(0.5, 0.5, error=0.0), 0.4, 600, 0.3, is_blind=False)
    assert (found.gain, found.n_equals) == (0, 2)


def test_a_loss_is_judged_by_its_fall_and_under_its_own_name():
    loss = METRICS["log_loss"]
    checks = [
        {"epoch": n, "expected_accuracy": 0.1, "expected_log_loss": one, "standard_error": 0.05 * (n > 0)}
        for n, one in enumerate((0.9, 0.5, 0.3, 0.32, 0.8))
    ]
    found = confidence_in(checks[2], checks, 0.4, 600, 0.69, is_blind=False, metric=loss)
    assert (found.word, found.n_equals, found.gain) == ("clear", 2, pytest.approx(12))
    said = ("log loss went from 0.90 at the first check to 0.30 (", ": 0.69); 2 of 5 checks come")
    assert [one for one in said if one not in found.line()] == []
    summary = summary_of(found, loss)
    assert [summary[f"{one}_log_loss"] for one in ("expected", "first", "one_class")] == [0.3, 0.9, 0.69]
    worse = confidence_in(checks[4], [checks[0], checks[4]], 0.4, 40, 0.69, is_blind=False, metric=loss)
    assert worse.doubts == ["40 samples are fewer than 500"]
    same = confidence_in(checks[0], checks[:1], 0.4, 600, 0.69, is_blind=False, metric=loss)
    assert same.doubts == ["expected log loss has not fallen by a standard error"]
    assert set(summary_of(None, loss)) == set(summary)
