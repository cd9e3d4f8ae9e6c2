"""Which epoch is kept: the rules that compare checks, whoever made the checks."""

import math
from typing import Any, Literal, get_args

import torch

from bu_torch._inputs import check_integer
from bu_torch.functional import standardized_gain
from bu_torch.functional._checks import check_choice

RuleName = Literal["expected_accuracy", "consensus", "boundary_uncertainty", "trust_score"]
DEFAULT_RULE: RuleName = "expected_accuracy"
History = list[dict[str, Any]]
# What each rule looks at, with the sign that makes larger better.
SIGNALS: dict[str, dict[str, int]] = {
    "expected_accuracy": {"expected_accuracy": 1},
    "consensus": {"label_agreement": 1, "vote_agreement": 1, "neighbor_agreement": 1, "prediction_changes": -1},
    "boundary_uncertainty": {"boundary_uncertainty": 1},
    "trust_score": {"trust_score": 1},
}
_CHANGES = "prediction_changes"
_LEAST_GAIN = 1e-6  # standard deviations: what a moving average still gains long after its values stand still is none


class SelectionRule:
    """Says of each check, from it and those before, whether its epoch is to be kept; causal, with nothing to fit.

    Every rule gives an epoch a score, and the kept epoch is the first with the largest. The score of
    `"expected_accuracy"`, `"boundary_uncertainty"` and `"trust_score"` is that number. `"consensus"` compares four
    signals of an epoch with those of the kept one, each in units of its standard deviation over all checks so far
    (`bu_torch.functional.standardized_gain`), and replaces the kept epoch where the mean gain exceeds `min_delta`; its
    score is the number of replacements so far. A check with none before it has `prediction_changes` of 1, which tells
    nothing of its epoch: it enters the standard deviation, and is no gain of later epochs.

    Args:
        name: `"expected_accuracy"`, `"consensus"`, `"boundary_uncertainty"` or `"trust_score"`.
        min_delta: For `"consensus"`, the gain in standard deviations that replaces the kept epoch, >= 0. The others
            keep the largest value all the same.
        smoothing: Weight of the past in an exponential moving average of what the rule looks at, corrected for the
            start, 0 <= smoothing < 1.
        start_from_epoch: Checks of earlier epochs are not kept, >= 0.

    Attributes:
        score_name: The entry of a check that holds its score.
        shown_name: The entry that tells most of an epoch in words: `boundary_uncertainty` for `"consensus"`.

    Raises:
        ValueError: If an argument is out of range.
        TypeError: If an integer is none.

    Example:
        >>> rule = SelectionRule("trust_score")
        >>> rule.replay([{"epoch": 0, "trust_score": 1.0}, {"epoch": 1, "trust_score": 3.0}])["epoch"]
        1
    """

    def __init__(
        self,
        name: RuleName = DEFAULT_RULE,
        *,
        min_delta: float = 0.0,
        smoothing: float = 0.0,
        start_from_epoch: int = 0,
    ) -> None:
        self.name: str = check_choice("name", name, get_args(RuleName))
        if not 0 <= min_delta < math.inf:
            raise ValueError(f"`min_delta` must be a finite number >= 0, got {min_delta!r}.")
        self.min_delta = min_delta
        if not 0 <= smoothing < 1:
            raise ValueError(f"`smoothing` must be a number with 0 <= smoothing < 1, got {smoothing!r}.")
        self.smoothing = smoothing
        self.start_from_epoch = check_integer("start_from_epoch", start_from_epoch, 0)

    @property
    def signals(self) -> dict[str, int]:
        """What is looked at, with the sign that makes larger better."""
        return SIGNALS[self.name]

    @property
    def score_name(self) -> str:
        return "replacements" if self.name == "consensus" else self._looked_at(self.name)

    @property
    def shown_name(self) -> str:
        return "boundary_uncertainty" if self.name == "consensus" else self.score_name

    @property
    def added(self) -> list[str]:
        """The entries that `complete` adds to a check."""
        smoothed = [self._looked_at(name) for name in self.signals if self.smoothing]
        return [*smoothed, *(["replacements"] if self.name == "consensus" else [])]

    def complete(self, history: History) -> None:
        """Add to the last check what follows from those before it.

        Args:
            history: Checks in order of their epochs, each with `epoch` and the signals looked at (NaN where one could
                not be measured), all but the last completed before. The last one gets `<signal>_smoothed` where
                `smoothing` is on, and `replacements` for `"consensus"`; NaN where a signal is NaN.

        Raises:
            KeyError: If a signal is missing.
        """
        entry = history[-1]
        if self.smoothing:
            for name in self.signals:
                values = [check[name] for check in history]
                entry[f"{name}_smoothed"] = _moving_averages(values, self.smoothing)[-1]
        if self.name == "consensus":
            entry["replacements"] = self._replacements(history)

    def score(self, entry: dict[str, Any]) -> float | None:
        """The score of a completed check; None where its epoch is too early to count."""
        return None if entry["epoch"] < self.start_from_epoch else entry[self.score_name]

    def kept(self, history: History) -> dict[str, Any] | None:
        """The check whose epoch is kept among completed ones: the first with the largest score; None if none counts."""
        scores = [(entry, self.score(entry)) for entry in history]
        counted = [(entry, score) for entry, score in scores if score is not None and math.isfinite(score)]
        return max(counted, key=lambda pair: pair[1])[0] if counted else None

    def replay(self, history: History) -> dict[str, Any] | None:
        """What this rule would have kept of checks that another rule, or none, has judged; they are left as they are.

        Args:
            history: Checks in order of their epochs, each with `epoch` and the signals looked at.

        Returns:
            A completed copy of the check whose epoch is kept; None if none counts.

        Raises:
            KeyError: If a signal is missing.
        """
        judged: History = []
        for entry in history:
            judged.append(dict(entry))
            self.complete(judged)
        return self.kept(judged)

    def _looked_at(self, signal: str) -> str:
        return f"{signal}_smoothed" if self.smoothing else signal

    def _replacements(self, history: History) -> float:
        """How often an epoch has replaced the kept one, the last check included; NaN if it cannot be compared."""
        names = [self._looked_at(name) for name in self.signals]
        entry = history[-1]
        if not all(math.isfinite(entry[name]) for name in names):
            return math.nan
        checks = [check for check in history if all(math.isfinite(check.get(name, math.nan)) for name in names)]
        counted = [index for index, check in enumerate(checks[:-1]) if check["epoch"] >= self.start_from_epoch]
        if not counted:
            return float(entry["epoch"] >= self.start_from_epoch)
        most = checks[counted[-1]]["replacements"]
        kept = next(index for index in counted if checks[index]["replacements"] == most)
        columns = [
            [sign * check[name] for check in checks] for name, sign in zip(names, self.signals.values(), strict=True)
        ]
        signals = torch.tensor(columns, dtype=torch.float64).T
        gain = float(standardized_gain(signals, kept))
        if checks[kept][_CHANGES] == 1:
            changes = list(self.signals).index(_CHANGES)
            gain -= float(standardized_gain(signals[:, changes : changes + 1], kept)) / len(names)
        return most + (gain > max(self.min_delta, _LEAST_GAIN))


def _moving_averages(values: list[float], weight_of_past: float) -> list[float]:
    """Exponential moving average of the finite values, corrected for the start; NaN where a value is not finite."""
    total = weight = 0.0
    averages = []
    for value in values:
        if math.isfinite(value):
            total = weight_of_past * total + (1 - weight_of_past) * value
            weight = weight_of_past * weight + (1 - weight_of_past)
        averages.append(total / weight if math.isfinite(value) else math.nan)
    return averages
