"""Confidence in the choice of a check."""

import pytest

from bu_torch.run.history import confidence_in


def checks(*accuracies, error=0.01):
    return [{"expected_accuracy": one, "standard_error": error * (n > 0)} for n, one in enumerate(accuracies)]


RISING = checks(0.5, 0.6, 0.7, 0.695, 0.6)
FLAT = checks(0.5, *[0.7] * 21)


@pytest.mark.parametrize(
    ("history", "skill", "n_samples", "is_blind", "word"),
    [
        (RISING, 0.2, 500, False, "clear"),
        (RISING, 0.19, 500, False, "unsure"),
        (RISING, 0.9, 499, False, "unsure"),
        (RISING, 0.9, 500, True, "blind"),
        (FLAT, 0.9, 500, False, "plateau"),
        (FLAT[:-1], 0.9, 500, False, "clear"),
    ],
)
def test_the_word(history, skill, n_samples, is_blind, word):
    found = confidence_in(history[2], history, skill, n_samples, is_blind=is_blind)
    assert found.word == word
    assert f"skill {skill:.2f}" in found.line()


def test_the_numbers():
    found = confidence_in(RISING[2], RISING, 0.4, 600, is_blind=False)
    assert (found.n_equals, found.n_checks) == (2, 5)
    assert found.gain == pytest.approx(20)
    assert "moved by +20 standard errors, and in 2 of 5 checks" in found.line()


def test_a_single_check_is_never_clear_and_one_that_is_not_finite_does_not_count():
    alone = checks(0.7)
    assert confidence_in(alone[0], alone, 0.9, 600, is_blind=False).word == "unsure"
    history = checks(float("nan"), 0.6, 0.7)
    found = confidence_in(history[2], history, 0.9, 600, is_blind=False)
    assert (found.word, found.n_equals) == ("clear", 1)
    assert found.gain == pytest.approx(10)


def test_without_a_standard_error_nothing_has_moved():
    found = confidence_in(RISING[0], checks(0.5, 0.5, error=0.0), 0.4, 600, is_blind=False)
    assert (found.gain, found.n_equals) == (0, 2)
