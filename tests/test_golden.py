"""The comparison with another commit finds what differs, and nothing where nothing does."""

import pytest
from golden import ROOT, compare, differences


def result(score=0.5, stopped=4):
    return {"a table": {"ends": [2, 24, stopped, ""], "checks": [{"epoch": 0, "score": score}]}}


def test_epochs_and_numbers_that_differ_are_named():
    assert list(differences(result(), result(0.5 + 1e-8))) == []
    assert list(differences(result(float("nan")), result(float("nan")))) == []
    (line,) = differences(result(), result(0.6))
    assert "a table, epoch 0: score" in line
    (line,) = differences(result(), result(stopped=None))
    assert "[2, 24, 4, '']" in line


@pytest.mark.slow
def test_a_training_is_that_of_the_commit_before():
    if not (ROOT / ".git").exists():
        pytest.skip("needs the history of the repository")
    assert compare("HEAD", ["a table"]) == []
