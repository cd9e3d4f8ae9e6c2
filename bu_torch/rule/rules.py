"""Rules and decision: a rule scores each check; the epoch with the largest score, or its equal, is kept."""

import math
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from functools import partial
from numbers import Real
from typing import Any, Literal, NamedTuple, get_args

from bu_torch.internal.inputs import check_integer, check_number
from bu_torch.signals.catalogue import SIGNALS

RuleName = Literal["expected_accuracy", "boundary_uncertainty", "trust_score"]
DEFAULT_RULE: RuleName = "expected_accuracy"
RULE_NAMES: tuple[RuleName, ...] = get_args(RuleName)
Checks = Sequence[dict[str, Any]]
STANDARD_ERROR = "standard_error"  # entry of a check: of its expected accuracy less the highest before
# Columns of a history or a record that no rule may be named after, beside the signals.
_RESERVED = ("epoch", "step", "seconds", "check_seconds", "train_loss", STANDARD_ERROR)


class Rule:
    """Scores a check by some of its signals; the epoch with the largest score is kept, or one of its equals.

    Pass an instance of a subclass as `rule=`. It sets `name` and `signals`, and defines `score`; `margin` if epochs may
    be equal, `preference` if it chooses among those, `settings` if it has parameters. A rule that remembers something
    also defines `reset`, `state_dict` and `load_state_dict`, and serves one callback only.

    Attributes:
        name: Name of the rule in checkpoints, records and messages. Two callbacks of one trainer must have rules of
            different names, and a rule may not have the name of a signal or of another column of a record.
        signals: Names of the signals that `score` reads (`bu_torch.Signals.NAMES`).
        title: The rule's name in words, for plots and pages; by default its name with spaces.
        unit: Unit of the score, `min_delta` and `stopping_threshold`; "" for a plain number.

    Example:
        >>> class Cautious(Rule):
        ...     name = "cautious"
        ...     signals = ("expected_accuracy", "prediction_changes")
        ...
        ...     def score(self, values):
        ...         return values["expected_accuracy"] - 0.1 * values["prediction_changes"]
        >>> Cautious().score({"expected_accuracy": 0.75, "prediction_changes": 0.5})
        0.7
    """

    name: str
    signals: tuple[str, ...]
    unit: str = ""

    @property
    def title(self) -> str:
        return self.name.replace("_", " ")

    def score(self, values: Mapping[str, float]) -> float:
        """Score a check by the values of its signals, all finite: larger is better, NaN or infinite is not kept."""
        raise NotImplementedError(f"{type(self).__name__} must define `score`.")

    def margin(self, values: Mapping[str, float], standard_error: float) -> float:
        """Distance below the highest score so far at which a check is still its equal, and may be kept in its place.

        With 0, the default, the first of equal scores is kept. Patience counts from the highest score. The margin must
        follow from the arguments and the settings alone: it is asked for again of earlier checks. `standard_error` is
        that of the difference between this check's expected accuracy and the highest before; 0 if both predict alike.
        """
        return 0.0

    def preference(self, values: Mapping[str, float]) -> float:
        """A number by which one of equal checks is chosen, larger is better; of the same number the latest is kept."""
        return 0.0

    def settings(self) -> dict[str, Any]:
        """Plain data that scores depend on besides the signals; with other ones, a resumed run starts anew."""
        return {}

    def reset(self) -> None:
        """Forget all checks: a training or a replay begins."""

    def state_dict(self) -> dict[str, Any]:
        """Memory of the checks so far: plain numbers, strings, tensors and containers of them."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken."""


class SignalRule(Rule):
    """Scores by one signal, of which larger values are better."""

    def __init__(self, signal: str) -> None:
        self.name = signal
        self.signals = (signal,)

    @property
    def title(self) -> str:
        return SIGNALS[self.name].title

    def score(self, values: Mapping[str, float]) -> float:
        return values[self.name]


class ExpectedAccuracy(Rule):
    """Expected accuracy says which checks are good, and trust chooses among those that it cannot tell apart.

    The samples are a draw, so a difference within a standard error tells little. Breiman et al. (1984) take the
    simplest of models within one; here the check with the largest trust score is taken, or the latest of those, which
    has learnt longest. Margins wider than half a standard error are as good on tables, and worse on images
    (docs/limits.md, "What the margin does").

    Args:
        n_standard_errors: A check within this many standard errors of the highest score is its equal, >= 0. With 0 the
            first highest is kept.
    """

    name = "expected_accuracy"
    signals = ("expected_accuracy", "trust_score")

    def __init__(self, n_standard_errors: float = 0.5) -> None:
        self.n_standard_errors = check_number("n_standard_errors", n_standard_errors, 0)

    def score(self, values: Mapping[str, float]) -> float:
        return values["expected_accuracy"]

    def margin(self, values: Mapping[str, float], standard_error: float) -> float:
        return self.n_standard_errors * standard_error

    def preference(self, values: Mapping[str, float]) -> float:
        return values["trust_score"]

    def settings(self) -> dict[str, Any]:
        return {"n_standard_errors": self.n_standard_errors}


# Every rule that goes by a name, as a callable that makes it, for a rule may remember.
RULES: dict[RuleName, Callable[..., Rule]] = {
    "expected_accuracy": ExpectedAccuracy,
    "boundary_uncertainty": partial(SignalRule, "boundary_uncertainty"),
    "trust_score": partial(SignalRule, "trust_score"),
}


def as_rule(rule: Any) -> Rule:
    """A rule by its name, or one of the user's own that has been checked."""
    if isinstance(rule, str):
        if rule not in RULES:
            names = ", ".join(map(repr, RULES))
            raise ValueError(f"`rule` must be one of {names}, or a `bu_torch.Rule`, got {rule!r}.")
        return RULES[rule]()
    if not isinstance(rule, Rule):
        got = f"the class {rule.__name__}" if isinstance(rule, type) else type(rule).__name__
        raise TypeError(f"`rule` must be a name or an instance of `bu_torch.Rule`, got {got}.")
    name, signals = getattr(rule, "name", None), getattr(rule, "signals", None)
    if not isinstance(name, str) or not name.isidentifier():
        raise ValueError(f"`rule.name` must be a string of letters, digits and underscores, got {name!r}.")
    if not isinstance(signals, tuple) or not signals:
        raise ValueError(f"`rule.signals` must be a tuple with at least one name, got {signals!r}.")
    if unknown := [signal for signal in signals if signal not in SIGNALS]:
        raise ValueError(f"`rule.signals` must be names among {', '.join(SIGNALS)}, got {unknown[0]!r}.")
    if type(rule).score is Rule.score:
        raise TypeError(f"`rule` must define `score`, which {type(rule).__name__} does not.")
    is_taken = name in (*SIGNALS, *RULES, *_RESERVED)
    if is_taken and not (name in RULES and type(rule) is type(RULES[name]())):
        raise ValueError(f"`rule.name` must not be the name of a signal, a rule or another column, got {name!r}.")
    return rule


class SelectionRule:
    """Keeps the first epoch with the largest score, or one within the rule's margin of it that the rule prefers.

    Args:
        rule: `"expected_accuracy"`, `"boundary_uncertainty"`, `"trust_score"`, or a `Rule`.
        start_from_epoch: Checks of earlier epochs are not kept, >= 0.

    Attributes:
        rule: The `Rule`.
        score_name: The entry of a check that holds its score.

    Raises:
        ValueError: If an argument is out of range.
        TypeError: If an integer is none, or `rule` is no rule.

    Example:
        >>> rule = SelectionRule("trust_score")
        >>> rule.replay([{"epoch": 0, "trust_score": 1.0}, {"epoch": 1, "trust_score": 3.0}])["epoch"]
        1
    """

    def __init__(self, rule: RuleName | Rule = DEFAULT_RULE, *, start_from_epoch: int = 0) -> None:
        self.rule = as_rule(rule)
        self.start_from_epoch = check_integer("start_from_epoch", start_from_epoch, 0)

    @property
    def score_name(self) -> str:
        return self.rule.name

    @property
    def title(self) -> str:
        """Rule in words."""
        return self.rule.title

    @property
    def added(self) -> list[str]:
        """Entries that `complete` adds to a check."""
        return [] if self.rule.name in SIGNALS else [self.rule.name]

    def complete(self, history: Checks) -> None:
        """Add the score to the last check, unless it is a signal; NaN if a signal is not finite.

        Checks are in order of their epochs, each with `epoch` and the signals looked at, all but the last completed.

        Raises:
            KeyError: If a signal is missing.
            TypeError: If the rule's score is no number.
        """
        entry = history[-1]
        if self.rule.name not in SIGNALS:
            is_finite = all(math.isfinite(entry[name]) for name in self.rule.signals)
            entry[self.rule.name] = self._of_rule("score", entry) if is_finite else math.nan

    def score(self, entry: Mapping[str, Any]) -> float | None:
        """The score of a completed check; None if its epoch is too early to count."""
        return None if entry["epoch"] < self.start_from_epoch else entry[self.score_name]

    def kept(self, history: Checks) -> dict[str, Any] | None:
        """The check whose epoch is kept among completed ones; None if none counts."""
        kept, highest = None, -math.inf
        for entry in history:
            score, takes_place = self.score(entry), self.takes_place(entry, kept, highest)
            kept = entry if takes_place else kept
            highest = score if score is not None and highest < score < math.inf else highest
        return kept

    def takes_place(self, entry: Mapping[str, Any], kept: Mapping[str, Any] | None, highest: float) -> bool:
        """True if a completed check counts, and the rule would have it in the place of the `kept` one.

        A check is an equal of the `highest` score so far if it lies within its margin of it. The kept one is an equal
        of a score that is higher still if it lies within either's margin.
        """
        score = self.score(entry)
        if score is None or not math.isfinite(score):
            return False
        if kept is None:
            return True
        top, margin = max(score, highest), self._margin(entry)
        kept_score = kept[self.score_name]
        if score < top - margin or (margin == 0 and score == kept_score):
            return False
        if kept_score < top - max(margin, self._margin(kept)):
            return True
        return not self._of_rule("preference", entry) < self._of_rule("preference", kept)

    def _margin(self, entry: Mapping[str, Any]) -> float:
        """Margin of a check, 0 if it is none or not known."""
        if STANDARD_ERROR not in entry:
            return 0.0
        margin = self._of_rule("margin", entry, entry[STANDARD_ERROR])
        return margin if margin > 0 else 0.0

    def replay(self, history: Checks) -> dict[str, Any] | None:
        """Replay the rule on checks that another rule, or none, has judged; they are left as they are.

        Gives a completed copy of the check that is kept, or None if none counts. Raises as `complete`.
        """
        return self.kept(self.judged(history))

    def judged(self, history: Checks) -> list[dict[str, Any]]:
        """Completed copies of all checks, as in `replay`."""
        judged = [dict(entry) for entry in history]
        self.rule.reset()
        for entry in judged:
            self.complete([entry])
        return judged

    def _of_rule(self, method: str, entry: Mapping[str, Any], *further: Any) -> float:
        """Number that a method of the rule gives for a check."""
        name = f"`{type(self.rule).__name__}.{method}`"
        values = {signal: entry[signal] for signal in self.rule.signals}
        try:
            found = getattr(self.rule, method)(values, *further)
        except KeyError as error:
            raise KeyError(f"{name} reads {error}, which is not among its `signals`") from error
        if isinstance(found, bool) or not isinstance(found, Real):
            raise TypeError(f"{name} must give a number, got {type(found).__name__}.")
        return float(found)


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
