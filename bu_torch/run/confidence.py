"""Confidence in the choice of an epoch, in three numbers and a word."""

import math
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, Literal, NamedTuple

Word = Literal["clear", "plateau", "unsure", "blind"]

# Chosen on half of the trainings of `benchmarks/quality.py`, and judged on the others.
_LEAST_SKILL, _LEAST_SAMPLES, _MOST_EQUALS = 0.2, 500, 20


class Confidence(NamedTuple):
    """Confidence in the choice of a check."""

    word: Word
    skill: float  # skill of predicting left-out labels, by neighbours or by regression: 1 is certain, 0 chance
    gain: float  # expected accuracy less that of the first check, in standard errors
    n_equals: int  # checks whose expected accuracy is as high, within a standard error; the kept one is among them
    n_checks: int

    def line(self) -> str:
        """Say it in a sentence."""
        start = {
            "clear": "The choice is clear",
            "plateau": f"The choice is one of many: {self.n_equals} checks are about as good",
            "unsure": "The choice is unsure: there are few samples or checks, or the labels are hard to predict",
            "blind": "The choice cannot be trusted",
        }[self.word]
        return (
            f"{start}. Left-out labels are predicted with skill {self.skill:.2f} (1 is certain, 0 chance); since the"
            f" first check expected accuracy moved by {self.gain:+.0f} standard errors, and in {self.n_equals} of"
            f" {self.n_checks} checks it is as high, within one."
        )


def confidence_in(
    kept: Mapping[str, Any], checks: Sequence[Mapping[str, Any]], skill: float, n_samples: int, *, is_blind: bool
) -> Confidence:
    """Judge the choice of the `kept` one among the checks that count.

    The standard error is the median of those of the checks, each of a gain over the highest expected accuracy before.
    """
    errors = [error for check in checks if (error := check.get("standard_error", 0.0)) > 0]
    error, at_kept = median(errors) if errors else 0.0, kept["expected_accuracy"]
    values = [value for check in checks if math.isfinite(value := check["expected_accuracy"])]
    n_equals = sum(value >= at_kept - error for value in values)
    gain = (at_kept - values[0]) / error if error else 0.0
    word: Word = "unsure"
    if is_blind:
        word = "blind"
    elif n_equals > _MOST_EQUALS:
        word = "plateau"
    elif gain > 1 and skill >= _LEAST_SKILL and n_samples >= _LEAST_SAMPLES:
        word = "clear"
    return Confidence(word, skill, gain, n_equals, len(checks))
