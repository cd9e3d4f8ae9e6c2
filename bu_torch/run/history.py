"""The checks of one training: which of them is kept, when to stop, and how sure the choice is."""

import json
import math
from collections.abc import Mapping, Sequence
from functools import partial, reduce
from statistics import median
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from bu_torch.internal.output import printable
from bu_torch.rule.rules import STANDARD_ERROR, Decision, MetricRule, RuleName, decide, score_of
from bu_torch.run.prepare import Fitted
from bu_torch.run.settings import Settings
from bu_torch.signals.metrics import ACCURACY, THRESHOLD, ExpectedMetric, as_metric

Entry = dict[str, Any]  # one check: epoch, step, signals and score

_SETTLED = 5  # checks
_LATE = 0.1  # share of the checks: so late a kept check may be followed by better ones
_BELOW_CHANCE = 0.8


class History:
    """Checks in order, and the decision after the last one, computed from plain numbers alone.

    It alone knows the best check: `kept`, the best whose weights are kept. Settings that do not decide keep none.
    """

    kept: Entry | None  # set by the engine, together with its weights
    decision: Decision  # decision after the last check
    n_not_compared: int  # checks before the first that counts for the patience or as best

    def __init__(self, settings: Settings) -> None:
        self.settings, self.metric, self.rule = settings, as_metric(settings.metric), settings.deciding_rule
        self.entries: list[Entry] = []
        self.reset()

    @property
    def counted(self) -> list[Entry]:
        """Checks that count for the patience or as best: since the last `reset`, and not before `start_from_epoch`."""
        return [entry for entry in self.entries[self.n_not_compared :] if self._counts(entry)]

    def _counts(self, entry: Entry) -> bool:
        return entry["epoch"] >= self.settings.start_from_epoch

    @property
    def score_name(self) -> str:
        """Entry of a check that holds its score; "" if nothing is decided."""
        return self.rule.name if self.settings.decides else ""

    def is_last(self, epoch: int, step: int | None = None) -> bool:
        last = self.entries[-1] if self.entries else {}
        return (last.get("epoch"), last.get("step")) == (epoch, step)

    def value_of(self, entry: Entry) -> float:
        """Expected value of the metric, larger is better; -inf if it is not finite."""
        value = self.metric.sign * entry.get(self.metric.signal, math.nan)
        return value if math.isfinite(value) else -math.inf

    def has_best_value(self, entry: Entry) -> bool:
        """Whether a check counts and its expected value of the metric beats that of all others that count."""
        others = [check for check in self.counted if check is not entry]
        return self._counts(entry) and self.value_of(entry) > max(map(self.value_of, others), default=-math.inf)

    def add(self, entry: Entry) -> bool:
        """Add a check with its score, decide, and return whether it is the best: the engine keeps it with its weights.

        It takes the place of one that was made at the same epoch and step, and does not count.
        """
        if self.settings.decides and self.rule.name not in entry:  # that of a signal is measured
            entry[self.rule.name] = score_of(self.rule, entry)  # the user's may raise: nothing has changed yet
        if self.is_last(entry["epoch"], entry.get("step")):
            del self.entries[-1]
            self.n_not_compared = min(self.n_not_compared, len(self.entries))
        self.entries.append(entry)
        self._decide()
        if not (self.settings.decides and self._counts(entry) and math.isfinite(score := entry[self.rule.name])):
            return False
        return self.kept is None or score > self.kept[self.rule.name]

    def why_stopped(self, epoch: int, step: int | None = None) -> str:
        """Reason to stop after the last check, made at this epoch and step; "" if there is none."""
        decision = self.decision
        if not decision.should_stop:
            return ""
        where = f"in epoch {epoch}" if step is None else f"at step {step} of epoch {epoch}"
        start = f"Stopped {where}: {self.rule.title}"
        if not math.isfinite(score := self.entries[-1][self.score_name]):
            return f"{start} is not finite ({score})."
        wait, min_delta = decision.wait, self.settings.min_delta
        by = f" by more than {min_delta:g}" if min_delta else ""
        return f"{start} did not improve{by} in the last {'check' if wait == 1 else f'{wait} checks'}."

    def describe_end(self, kept: Entry, summary: Mapping[str, Any], *, is_restored: bool) -> list[str]:
        """Say what was kept and where; and why training ended, and whether longer training may help."""
        rule, path, ended = self.rule, summary.get("best_model_path"), summary["reason"]
        step = f", step {kept['step']}" if "step" in kept else ""
        score = f"{rule.shown(kept[self.score_name]):.4f}{rule.unit and f' {rule.unit}'}"
        file = f"in {printable(path)}" if path else ""
        if is_restored:
            where = " and ".join(filter(None, ("in the model", file)))
        else:
            where = ", ".join(filter(None, (file, "not in the model")))
        is_averaged = self.settings.averaging is not None
        line = (
            f"bu-torch kept epoch {kept['epoch']}{step} ({rule.title}: {score})."
            f" Its {'averaged ' if is_averaged else ''}weights are {where}."
        )
        n_since = next(n for n, entry in enumerate(reversed(self.entries)) if entry is kept)
        is_open = summary["stopped_epoch"] is None and not ended.startswith("Training failed")
        if is_open and n_since <= _LATE * len(self.entries):
            which = "among the last" if n_since else "the last"
            lag = ", and so may `averaging=None`, because an average lags" if is_averaged else ""
            ended = f"{ended.rstrip('.')}. The kept check is {which}: longer training may be better{lag}."
        return [line, ended]

    def why_none_kept(self) -> str:
        """Reason why no epoch is kept."""
        if self.n_not_compared == len(self.entries):
            return "no check counted" if self.entries else "no check was made"
        if not self.counted:
            return f"all checks were of epochs before `start_from_epoch={self.settings.start_from_epoch}`"
        return "no finite check counted"

    def reset(self) -> None:
        """Compare later checks with none of those so far."""
        self.n_not_compared = len(self.entries)
        self.kept, self.decision = None, Decision()
        self.rule.reset()

    def rule_settings(self) -> dict[str, Any]:
        """Name and settings of the rule, as states and records have them; empty if nothing is decided."""
        if not self.settings.decides:
            return {}
        return {"rule": self.rule.name, **{f"rule.{name}": value for name, value in self.rule.settings().items()}}

    def state_dict(self) -> dict[str, Any]:
        """Checks in JSON, which is saved faster than single numbers, and the state of the rule."""
        kept = next((n for n, entry in enumerate(self.entries) if entry is self.kept), None)
        checks = {"history": json.dumps(self.entries), "n_not_compared": self.n_not_compared, "kept": kept}
        return checks | {"rule": self.rule.state_dict()}

    def load(self, state: Mapping[str, Any], *, is_compared: bool) -> None:
        """Continue from a `state_dict`; with `is_compared=False`, no earlier check counts."""
        self.entries = json.loads(state["history"])
        self.reset()
        if is_compared:
            self.n_not_compared = min(state["n_not_compared"], len(self.entries))
            self.rule.load_state_dict(dict(state["rule"]))
            self._decide()
            self.kept = None if state["kept"] is None else self.entries[state["kept"]]

    def _decide(self) -> None:
        """Decide anew by all checks that count."""
        scores = [entry[self.rule.name] for entry in self.counted] if self.settings.decides else []
        by = partial(decide, patience=self.settings.patience, min_delta=self.settings.min_delta)
        self.decision = reduce(by, scores, Decision())


def describe_worse_than_chance(checks: Sequence[Entry], n_columns: int, data: Mapping[str, int]) -> str:
    """Warning that the network, whose logits have `n_columns`, predicts worse than chance; "" if it does not.

    It is judged once: at the first check if it has more columns than there are classes, else at the fifth.
    """
    accuracies, n_present = [check["expected_accuracy"] for check in checks], data["n_present"]
    is_due = len(checks) == (1 if n_columns > data["n_classes"] else _SETTLED)
    if not (is_due and max(accuracies) < _BELOW_CHANCE / n_present):  # which NaN is not
        return ""
    return (
        f"Expected accuracy is {accuracies[-1]:.2f} at check {len(checks)}, worse than chance, and the network gives"
        f" {n_columns} columns for {n_present} classes. The scores describe it only if `forward` gives one logit for"
        " each class of the labels that it is trained on: no embedding (`output_key=` names the logits in a tuple or a"
        " dict), and no labels that `training_step` changes (change them in the dataset or `on_after_batch_transfer`)."
    )


def describe_exception(exception: BaseException) -> str:
    """Say why training ended early."""
    if isinstance(exception, KeyboardInterrupt):
        return "Training was interrupted (KeyboardInterrupt)."
    return f"Training failed: {type(exception).__name__}{f': {exception}' if str(exception) else '.'}"


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


def judge(history: History, fitted: Fitted | None, n_columns: int) -> tuple[Confidence | None, list[str]]:
    """Judge the kept check: the confidence in it, and lines to log, of which the first is the verdict if there is one.

    The network's logits have `n_columns`. Other processes than the first, which have nothing fitted, do not know.
    """
    kept, rule, metric = history.kept, history.rule, history.metric
    if kept is None or fitted is None:
        return None, []
    signals, boundary = fitted.signals, fitted.signals.boundary
    counted = history.counted
    n_samples, present, named = len(boundary.labels), boundary.classes.classes.tolist(), fitted.about["classes"]
    column, baseline = accuracy_of_one_class(boundary.probabilities_of_present, n_samples, boundary.weights)
    one_class = present[column]
    name = repr(named[one_class]) if named and present[-1] < len(named) else f"class {one_class}"
    doubt = metric.doubt(len(present))
    if metric != ACCURACY:
        baseline = metric.baseline(signals.counting_once(max(n_columns, boundary.classes.n_classes)))
        doubt = doubt or ("" if metric.compares_probabilities else _describe_few(boundary.labels))
    best = metric.sign * max(map(history.value_of, counted))
    blind = describe_blindness(best, baseline, name, (signals.vote_skill, signals.regression_skill), metric)
    line = f"{_VERDICT} blind. {blind}" if blind else _describe_threshold(kept, metric)
    lines = [line] if line else []
    is_of_metric = isinstance(rule, MetricRule) and not rule.metric.is_drawn
    if not is_of_metric and (metric != ACCURACY or rule.name not in _JUDGED_RULES):
        return None, lines
    numbers = signals.skill, n_samples, baseline
    confidence = confidence_in(kept, counted, *numbers, is_blind=bool(blind), metric=metric, doubt=doubt)
    return confidence, lines if blind else [confidence.line(metric), *lines]


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
    errors = [error for check in checks if (error := check.get(STANDARD_ERROR, 0.0)) > 0]
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
    by_argmax = "not that of" if metric.is_at_threshold else f"{check[metric.signal]:.4g} by"
    return (
        f"Predict class 1 where its probability is at least {threshold:.3g} (`summary['threshold']`). The expected"
        f" {metric.title} is {value:.4g} then, and {by_argmax} `argmax`."
    )
