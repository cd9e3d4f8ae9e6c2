"""How sure the choice of a check is, in a word, in numbers, and in lines for the log."""

import math
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from bu_torch.rule.rules import MetricRule, RuleName
from bu_torch.run.history import History
from bu_torch.run.prepare import Fitted
from bu_torch.signals.metrics import ACCURACY, THRESHOLD, ExpectedMetric

Word = Literal["clear", "plateau", "unsure", "blind"]

# Chosen on half of the trainings of `benchmarks/quality.py`, and judged on the others.
_LEAST_ACCURACY, _LEAST_SAMPLES, _MOST_EQUALS = 0.7, 500, 20
_LEAST_GAIN = 0.01  # share of the accuracy that always predicting one class leaves to gain
_LEAST_SKILL = 0.05
_LEAST_OF_A_CLASS = 50
# Expected accuracy has the largest part in their score. No standard error is known of other scores but metrics.
_JUDGED_RULES: tuple[RuleName, ...] = ("accuracy_uncertainty_trust", "expected_accuracy")
_VERDICT = "Verdict on the choice of the epoch:"
_OF_ALL = "the same prediction for all samples"


class Confidence(NamedTuple):
    """Confidence in the choice of a check by a metric, or by a score that is mostly expected accuracy."""

    word: Word
    skill: float  # skill of predicting left-out labels, by neighbours or by regression: 1 is certain, 0 chance
    value: float  # expected value of the metric
    first_value: float  # the value at the first check
    baseline: float  # the value of the best prediction that is the same for all samples
    gain: float  # how much better it is than that of the first check, in standard errors
    n_equals: int  # checks that are as good, within a standard error; the kept one is among them
    n_checks: int
    n_samples: int
    doubts: list[str]  # why the choice is not clear, in words

    def line(self, metric: ExpectedMetric) -> str:
        """The verdict, the values of the first and of the kept check, and the skill, in words."""
        why = "many checks score about as high" if self.word == "plateau" else " and ".join(self.doubts)
        numbers = (self.first_value, self.value, self.baseline)
        style = ".2f" if max(map(abs, numbers)) <= 1 else ".3g"
        first, value, baseline = (format(number, style) for number in numbers)
        alone = "one class alone" if metric == ACCURACY else _OF_ALL
        return (
            f"{_VERDICT} {self.word}{f' ({why})' if why else ''}. Expected {metric.title} went from {first} to {value}"
            f" ({baseline} for {alone}), and {self.n_equals} of {self.n_checks} checks tie within a standard error."
            f" Held-out label skill {self.skill:.2f} (0 chance, 1 perfect)."
        )


def summary_of(
    confidence: Confidence | None, metric: ExpectedMetric, kept: Mapping[str, Any], *, is_known: bool
) -> dict[str, Any]:
    """Entries of a summary, with the name of the metric in place of `value`; all None without a confidence.

    The threshold of the `kept` check is None if the choice is blind, or this process does not know (`is_known`).
    """
    values = dict.fromkeys(Confidence._fields) if confidence is None else confidence._asdict()
    named = {"value": metric.signal, "first_value": f"first_{metric.name}", "baseline": f"one_class_{metric.name}"}
    summary = {named.get(field, field): value for field, value in values.items()}
    if THRESHOLD in kept:
        summary |= {name: kept[name] for name in kept if name.endswith(THRESHOLD)}
        if not (is_known and summary["word"] != "blind" and math.isfinite(kept[THRESHOLD])):
            summary[THRESHOLD] = None
    return summary


def judge(history: History, fitted: Fitted | None, n_columns: int) -> tuple[Confidence | None, list[str], list[str]]:
    """Judge the kept check: the confidence in it, lines to log always, and those to log if all are asked for.

    The network's logits have `n_columns`. Other processes than the first, which have nothing fitted, do not know.
    """
    kept, rule, metric = history.kept, history.rule, history.metric
    if kept is None or fitted is None:
        return None, [], []
    signals, boundary = fitted.signals, fitted.signals.boundary
    counted = history.counted
    n_samples, names = len(boundary.labels), _class_names(boundary.labels, fitted.about["classes"])
    column, baseline = accuracy_of_one_class(boundary.probabilities_of_present, n_samples, boundary.weights)
    doubt = metric.doubt(len(names))
    if metric != ACCURACY:
        baseline = metric.baseline(signals.prepared.counting_once(max(n_columns, boundary.classes.n_classes)))
        doubt = doubt or ("" if metric.is_of_sharp else _describe_few(boundary.labels))
    best = metric.sign * max(map(history.value_of, counted))
    blind = describe_blindness(best, baseline, names[column], (signals.vote_skill, signals.regression_skill), metric)
    lines = [f"{_VERDICT} blind. {blind}"] if blind else []
    if not blind and (threshold := _describe_threshold(kept, metric)):
        lines = [threshold]
    is_of_metric = isinstance(rule, MetricRule) and not rule.metric.is_drawn
    if not is_of_metric and (metric != ACCURACY or rule.name not in _JUDGED_RULES):
        return None, lines, []
    numbers = signals.skill, n_samples, baseline
    confidence = confidence_in(kept, counted, *numbers, is_blind=bool(blind), metric=metric, doubt=doubt)
    if confidence.word == "clear":
        return confidence, lines, [confidence.line(metric)]
    return confidence, lines if blind else [confidence.line(metric), *lines], []


def confidence_in(
    kept: Mapping[str, Any],
    checks: Sequence[Mapping[str, Any]],
    skill: float,
    n_samples: int,
    baseline: float,
    *,
    is_blind: bool,
    metric: ExpectedMetric = ACCURACY,
    doubt: str = "",
) -> Confidence:
    """Judge the choice of the `kept` check among those that count; a `doubt` of the metric makes it unsure.

    The standard error is the median over the checks; each is that of a gain over the best expected value before.
    """
    name, sign = metric.signal, metric.sign
    errors = [error for check in checks if (error := check.get("standard_error", 0.0)) > 0]
    error, at_kept = median(errors) if errors else 0.0, kept[name]
    values = [value for check in checks if math.isfinite(value := check[name])]
    n_equals = sum(sign * value >= sign * at_kept - error for value in values)
    gain = sign * (at_kept - values[0]) / error if error else 0.0
    change = "risen" if sign > 0 else "fallen"
    known = {
        doubt: bool(doubt),
        f"{n_samples} samples are fewer than {_LEAST_SAMPLES}": n_samples < _LEAST_SAMPLES,
        f"expected accuracy is below {_LEAST_ACCURACY}": metric == ACCURACY and at_kept < _LEAST_ACCURACY,
        f"{name.replace('_', ' ')} has not {change} by a standard error": not gain > 1,
    }
    doubts = [doubt for doubt, applies in known.items() if applies]
    word: Word = "clear"
    if is_blind:
        word = "blind"
    elif doubts:
        word = "plateau" if n_equals > _MOST_EQUALS else "unsure"
    return Confidence(word, skill, at_kept, values[0], baseline, gain, n_equals, len(checks), n_samples, doubts)


def accuracy_of_one_class(probabilities: Tensor, n_samples: int, weights: Tensor | None) -> tuple[int, float]:
    """Column of the class that scores most if it alone is predicted, and its expected accuracy."""
    by_sample = probabilities.view(-1, n_samples, probabilities.shape[1]).mean(dim=0).double()
    scores = by_sample.mean(dim=0) if weights is None else weights @ by_sample / n_samples
    best = int(scores.argmax())
    return best, float(scores[best])


def describe_blindness(
    best: float, baseline: float, name: str, skills: tuple[float, float], metric: ExpectedMetric = ACCURACY
) -> str:
    """Say that the expected value of a metric cannot tell checks apart, and what to do; "" if it can.

    `best` is the best expected value of the checks, `baseline` that of the class `name`, or of the best prediction that
    is the same for all samples; `skills` are those of the nearest samples and of a regression on all.
    """
    is_share = metric.is_larger_better and not metric.is_drawn  # 1 is the largest value
    has_gain = metric.sign * (best - baseline) > _LEAST_GAIN * (1 - baseline if is_share else abs(baseline))
    skill = "skill {:.2f} by the nearest samples, {:.2f} by regression; 1 is certain, 0 chance".format(*skills)
    if max(skills) < _LEAST_SKILL:
        return (
            f"Expected {metric.title} cannot tell these epochs apart: left-out labels can hardly be predicted"
            f" ({skill}). Choose the epoch by some held-out samples, or pass a `feature_extractor` in whose space near"
            " samples are alike."
        )
    same, remedy = _OF_ALL, ""
    if metric == ACCURACY:
        same = f"always predicting {name}"
        remedy = "; or pass `class_weight=` if the loss weighs the classes, `'balanced'` if a rare one matters"
    numbers = f"the best expected {metric.title} is {best:.4g}, and that scores {baseline:.4g} ({skill})"
    return "" if has_gain else f"No check is clearly better than {same}: {numbers}. Train longer{remedy}."


def _describe_few(labels: Tensor) -> str:
    """Say that the rarest class has few of the labels (N,) for a metric that looks at each class; "" if it has not."""
    present, counts = torch.unique(labels, return_counts=True)
    rarest = int(counts.argmin())
    is_few = counts[rarest] < _LEAST_OF_A_CLASS
    return f"class {int(present[rarest])} has {int(counts[rarest])} of the samples that are measured" if is_few else ""


def _describe_threshold(check: Mapping[str, Any], metric: ExpectedMetric) -> str:
    """Log line on the threshold of a check for a metric of two classes; "" if `argmax` predicts as well."""
    threshold, value = check.get(THRESHOLD, math.nan), check.get(metric.at_threshold, math.nan)
    if not math.isfinite(threshold) or threshold == metric.threshold == 0.5:
        return ""
    implied, by_argmax = "", "is not that of `argmax`"
    if not metric.is_at_threshold:
        by_argmax = f"is {check[metric.signal]:.4g} by `argmax`"
    elif threshold == metric.threshold:
        implied = ", as the costs imply"
    else:
        implied = f", in place of the {metric.threshold:.3g} that the costs imply"
    return (
        f"Predict class 1 where its probability is at least {threshold:.3g}{implied} (`summary['threshold']`). The"
        f" expected {metric.title} is {value:.4g} then, and {by_argmax}."
    )


def _class_names(labels: Tensor, named: Sequence[str] | None) -> list[str]:
    """Names of the classes that have samples, the dataset's if it has some."""
    present = torch.unique(labels).tolist()
    return [repr(named[c]) if named and present[-1] < len(named) else f"class {c}" for c in present]
