"""How sure the choice of a check is, in a word, in numbers, and in lines for the log."""

import math
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, Literal, NamedTuple

from bu_torch.rule.rules import MetricRule, RuleName
from bu_torch.run.history import History
from bu_torch.signals.details import accuracy_alone, class_names, describe_blindness, describe_few, describe_threshold
from bu_torch.signals.measuring import Signals
from bu_torch.signals.metrics import THRESHOLD, ExpectedMetric

Word = Literal["clear", "plateau", "unsure", "blind"]

# Chosen on half of the trainings of `benchmarks/quality.py`, and judged on the others.
_LEAST_ACCURACY, _LEAST_SAMPLES, _MOST_EQUALS = 0.7, 500, 20
# Expected accuracy has the largest part in their score. No standard error is known of other scores but metrics.
_JUDGED_RULES: tuple[RuleName, ...] = ("accuracy_uncertainty_trust", "expected_accuracy")


class Confidence(NamedTuple):
    """Confidence in the choice of a check by a metric, or by a score that is mostly expected accuracy."""

    metric: ExpectedMetric | None  # None is accuracy
    word: Word
    skill: float  # skill of predicting left-out labels, by neighbours or by regression: 1 is certain, 0 chance
    value: float  # expected value of the metric
    first_value: float  # the value at the first check
    uninformed: float  # the value of the best prediction that is the same for all samples
    gain: float  # how much better it is than that of the first check, in standard errors
    n_equals: int  # checks that are as good, within a standard error; the kept one is among them
    n_checks: int
    n_samples: int
    doubts: list[str]  # why the choice is not clear, in words

    def line(self) -> str:
        """Say it in three sentences."""
        verdict = {
            "clear": "clear",
            "plateau": "unsure: many checks score about as high",
            "unsure": f"unsure: {' and '.join(self.doubts)}",
            "blind": "not to be trusted",
        }[self.word]
        title, alone = "accuracy", "one class alone"
        if self.metric is not None:
            title, alone = self.metric.title, "the same prediction for all samples"
        numbers = (self.first_value, self.value, self.uninformed)
        style = ".2f" if max(map(abs, numbers)) <= 1 else ".3g"
        first, value, uninformed = (format(number, style) for number in numbers)
        return (
            f"The choice of the epoch is {verdict}. Expected {title} went from {first} to {value} ({uninformed} for"
            f" {alone}), and {self.n_equals} of {self.n_checks} checks tie within a standard error. Held-out label"
            f" skill {self.skill:.2f} (0 chance, 1 perfect)."
        )


def summary_of(
    confidence: Confidence | None, metric: ExpectedMetric | None, kept: Mapping[str, Any], *, is_known: bool
) -> dict[str, Any]:
    """Entries of a summary, with the name of the metric in place of `value`; all None without a confidence.

    The threshold of the `kept` check is None if the choice is blind, or this process does not know (`is_known`).
    """
    values = dict.fromkeys(Confidence._fields) if confidence is None else confidence._asdict()
    name = "accuracy" if metric is None else metric.name
    named = {"value": f"expected_{name}", "first_value": f"first_{name}", "uninformed": f"one_class_{name}"}
    summary = {named.get(field, field): value for field, value in values.items() if field != "metric"}
    if THRESHOLD in kept:
        summary |= {name: kept[name] for name in kept if name.endswith(THRESHOLD)}
        if not (is_known and summary["word"] != "blind" and math.isfinite(kept[THRESHOLD])):
            summary[THRESHOLD] = None
    return summary


def confidence_in(
    kept: Mapping[str, Any],
    checks: Sequence[Mapping[str, Any]],
    skill: float,
    n_samples: int,
    uninformed: float,
    *,
    is_blind: bool,
    metric: ExpectedMetric | None = None,
    doubt: str = "",
) -> Confidence:
    """Judge the choice of the `kept` check among those that count; a `doubt` of the metric makes it unsure.

    The standard error is the median over the checks; each is that of a gain over the best expected value before.
    """
    name, sign = ("expected_accuracy", 1.0) if metric is None else (metric.signal, metric.sign)
    errors = [error for check in checks if (error := check.get("standard_error", 0.0)) > 0]
    error, at_kept = median(errors) if errors else 0.0, kept[name]
    values = [value for check in checks if math.isfinite(value := check[name])]
    n_equals = sum(sign * value >= sign * at_kept - error for value in values)
    gain = sign * (at_kept - values[0]) / error if error else 0.0
    change = "risen" if sign > 0 else "fallen"
    known = {
        doubt: bool(doubt),
        f"{n_samples} samples are fewer than {_LEAST_SAMPLES}": n_samples < _LEAST_SAMPLES,
        f"expected accuracy is below {_LEAST_ACCURACY}": metric is None and at_kept < _LEAST_ACCURACY,
        f"{name.replace('_', ' ')} has not {change} by a standard error": not gain > 1,
    }
    doubts = [doubt for doubt, applies in known.items() if applies]
    word: Word = "clear"
    if is_blind:
        word = "blind"
    elif doubts:
        word = "plateau" if n_equals > _MOST_EQUALS else "unsure"
    n_checks = len(checks)
    return Confidence(metric, word, skill, at_kept, values[0], uninformed, gain, n_equals, n_checks, n_samples, doubts)


def judge(
    history: History, signals: Signals, classes: list[str] | None, n_columns: int
) -> tuple[Confidence | None, list[str], list[str]]:
    """Judge the kept check: the confidence in it, doubts about it, and other remarks, in words.

    `classes` are names of the classes, if the dataset has them; the network's logits have `n_columns`.
    """
    kept, selection, metric, boundary = history.kept, history.selection, signals.metric, signals.boundary
    if kept is None or selection is None:
        return None, [], []
    n_samples, names, sign = len(boundary.labels), class_names(boundary.labels, classes), history.sign
    counted = [check for check in history.compared if selection.score(check) is not None]
    column, alone = accuracy_alone(boundary.probabilities_of_present, n_samples, boundary.weights)
    if metric is not None:
        alone = metric.uninformed(signals.plain_probabilities(n_columns))
    values = [sign * check[history.value_name] for check in counted]
    best = sign * max(filter(math.isfinite, values), default=math.nan)
    blind = describe_blindness(best, alone, names[column], (signals.vote_skill, signals.regression_skill), metric)
    threshold = "" if metric is None or blind else describe_threshold(kept, metric)
    remarks, rule = [threshold] if threshold else [], selection.rule
    is_of_metric = isinstance(rule, MetricRule) and not rule.metric.is_drawn
    if not is_of_metric and (metric is not None or rule.name not in _JUDGED_RULES):
        return None, [blind] if blind else [], remarks
    doubt = "" if metric is None else metric.doubt(len(names))
    if metric is not None and not metric.is_of_sharp:
        doubt = doubt or describe_few(boundary.labels)
    numbers = signals.skill, n_samples, alone
    confidence = confidence_in(kept, counted, *numbers, is_blind=bool(blind), metric=metric, doubt=doubt)
    if confidence.word == "clear":
        return confidence, [], [confidence.line(), *remarks]
    return confidence, [blind or confidence.line()], remarks
