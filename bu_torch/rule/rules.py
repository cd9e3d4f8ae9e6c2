"""Rules, which score each check, and the decision whether to stop."""

import math
from collections.abc import Mapping
from functools import cached_property
from numbers import Real
from typing import Any, Literal, NamedTuple, get_args

from bu_torch.functional.checks import check_choice
from bu_torch.signals.catalogue import SIGNALS
from bu_torch.signals.metrics import ACCURACY, ExpectedMetric

RuleName = Literal[
    "accuracy_uncertainty_trust", "expected_accuracy", "boundary_uncertainty", "trust_score", "parzen_uncertainty"
]
DEFAULT_RULE: RuleName = "accuracy_uncertainty_trust"
RULE_NAMES: tuple[RuleName, ...] = get_args(RuleName)
# Entry of a check: standard error of the gain in expected accuracy, or the metric, over the best before.
STANDARD_ERROR = "standard_error"
# Names of other columns of a history or a record, which no rule may have.
_RESERVED = ("epoch", "step", "seconds", "check_seconds", "train_loss", STANDARD_ERROR)


class Rule:
    """Scores a check by some of its signals; the first epoch with the largest score is kept.

    Pass an instance of a subclass as `rule=`. A subclass sets `name` and `signals` and defines `score`, and `settings`
    if it has parameters. A rule with memory serves one callback, and defines `reset`, `state_dict`, `load_state_dict`.

    Attributes:
        name: Name of the rule in checkpoints, records and messages. Two callbacks of one trainer must have rules of
            different names, and a rule may not have the name of a signal or of another column of a record.
        signals: Names of the signals that `score` reads (`bu_torch.Signals.NAMES`).
        title: Name of the rule in plots and pages; by default `name` with spaces for underscores.
        unit: Unit of the score and of `min_delta`; "" for a plain number.
    """

    name: str
    signals: tuple[str, ...]
    unit: str = ""

    @cached_property
    def title(self) -> str:
        return self.name.replace("_", " ")

    def score(self, values: Mapping[str, float]) -> float:
        """Score a check by its signals, all finite. Larger is better; a check with NaN or infinity is not kept."""
        raise NotImplementedError(f"{type(self).__name__} must define `score`.")

    def shown(self, score: float) -> float:
        """Score as messages tell it under `title`: a loss itself, whose score is negative."""
        return score

    def settings(self) -> dict[str, Any]:
        """Parameters of the score, as plain data. If they differ, a resumed run does not compare earlier checks."""
        return {}

    def reset(self) -> None:
        """Forget all checks, because a training begins."""

    def state_dict(self) -> dict[str, Any]:
        """Memory of the checks so far, as numbers, strings, tensors and containers of them."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the memory from a `state_dict`."""


class SignalRule(Rule):
    """Scores a check by one signal, whose larger values are better, such as the default score: a signal, too."""

    def __init__(self, signal: str) -> None:
        self.name, self.signals, self.title = signal, (signal,), SIGNALS[signal].title

    def score(self, values: Mapping[str, float]) -> float:
        return values[self.name]


class MetricRule(Rule):
    """Scores a check by the expected value of a metric; of losses and costs by its negative, as in scikit-learn."""

    def __init__(self, metric: ExpectedMetric) -> None:
        self.metric, self.signals = metric, (metric.signal,)
        self.name = metric.signal if metric.is_larger_better else f"neg_{metric.name}"
        self.title = f"expected {metric.title}"

    def shown(self, score: float) -> float:
        return self.metric.sign * score

    def score(self, values: Mapping[str, float]) -> float:
        return self.metric.sign * values[self.metric.signal]

    def settings(self) -> dict[str, Any]:
        return {} if self.metric.settings is None else {"settings": repr(self.metric.settings)}


def as_rule(rule: Any, metric: ExpectedMetric = ACCURACY) -> Rule:
    """Rule with a name, or the user's own rule after checks; it may read the values of a metric that is measured."""
    if isinstance(rule, str):
        return SignalRule(check_choice("rule", rule, RULE_NAMES))
    if not isinstance(rule, Rule):
        got = f"the class {rule.__name__}" if isinstance(rule, type) else type(rule).__name__
        raise TypeError(f"`rule` must be a name or an instance of `bu_torch.Rule`, got {got}.")
    name, signals = getattr(rule, "name", None), getattr(rule, "signals", None)
    if not isinstance(name, str) or not name.isidentifier() or name in (*SIGNALS, *_RESERVED):
        raise ValueError(
            "`rule.name` must be a string of letters, digits and underscores, and not the name of a signal, a rule or"
            f" another column, got {name!r}."
        )
    known = (*SIGNALS, *metric.entries)
    if not isinstance(signals, tuple) or not signals or not all(signal in known for signal in signals):
        raise ValueError(f"`rule.signals` must be a tuple of names among {', '.join(known)}, got {signals!r}.")
    if type(rule).score is Rule.score:
        raise TypeError(f"`rule` must define `score`, which {type(rule).__name__} does not.")
    return rule


def score_of(rule: Rule, values: Mapping[str, float]) -> float:
    """Score of a check by the values of its signals, all of which must be there; NaN if one of them is not finite."""
    name, seen = f"`{type(rule).__name__}.score`", {signal: values[signal] for signal in rule.signals}
    if not all(map(math.isfinite, seen.values())):
        return math.nan
    try:
        score = rule.score(seen)
    except KeyError as error:
        raise KeyError(f"{name} reads {error}, which is not among its `signals`") from error
    if isinstance(score, bool) or not isinstance(score, Real):
        raise TypeError(f"{name} must give a number, got {type(score).__name__}.")
    return float(score)


class Decision(NamedTuple):
    """Decision after a check, with the state that the next decision needs."""

    best: float = -math.inf  # score to exceed
    wait: int = 0  # checks in a row without improvement
    should_stop: bool = False  # because of the patience, or of a score that is not finite


def decide(before: Decision, score: float, *, patience: int, min_delta: float = 0.0) -> Decision:
    """Decide after a check whether to stop, as Lightning's `EarlyStopping(mode="max")` does.

    `before` is the decision after the previous check. `patience` 0 means the same as 1.
    """
    if not math.isfinite(score):
        return before._replace(should_stop=True)
    if score - min_delta > before.best:
        return Decision(score)
    wait = before.wait + 1
    return Decision(before.best, wait, wait >= patience)
