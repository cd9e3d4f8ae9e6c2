"""When to stop: patience, the least improvement, a threshold, and scores that are not finite, as one pure function."""

import math
from enum import StrEnum
from typing import NamedTuple


class Reason(StrEnum):
    """Reason to stop, by the names that Lightning's `EarlyStoppingReason` has."""

    NOT_STOPPED = "not_stopped"
    STOPPING_THRESHOLD = "stopping_threshold"
    PATIENCE_EXHAUSTED = "patience_exhausted"
    NON_FINITE_METRIC = "non_finite_metric"


class Verdict(NamedTuple):
    """Decision after a check, and all that the next decision needs."""

    best: float = -math.inf  # score that has to be exceeded
    wait: int = 0  # checks in a row without improvement
    reason: Reason = Reason.NOT_STOPPED

    @property
    def should_stop(self) -> bool:
        return self.reason != Reason.NOT_STOPPED


def decide(
    before: Verdict,
    score: float,
    *,
    patience: int,
    min_delta: float = 0.0,
    stopping_threshold: float | None = None,
    check_finite: bool = True,
) -> Verdict:
    """Decide after a check with a score, larger is better, as Lightning's `EarlyStopping(mode="max")` does.

    `before` is the verdict after the check before. `patience` 0 and 1 are alike.
    """
    if check_finite and not math.isfinite(score):
        return before._replace(reason=Reason.NON_FINITE_METRIC)
    if stopping_threshold is not None and score > stopping_threshold:
        return before._replace(reason=Reason.STOPPING_THRESHOLD)
    if score - min_delta > before.best:
        return Verdict(score)
    wait = before.wait + 1
    return Verdict(before.best, wait, Reason.PATIENCE_EXHAUSTED if wait >= patience else Reason.NOT_STOPPED)
