"""Measurement of one check, what it leaves for the next, and the judgement of the kept one."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from bu_torch.rule.rules import STANDARD_ERROR, MetricRule
from bu_torch.run.history import JUDGED_RULES, Confidence, History, confidence_in
from bu_torch.signals.details import (
    Measurement,
    accuracy_alone,
    class_names,
    describe_blindness,
    describe_few,
    describe_threshold,
)
from bu_torch.signals.measuring import Signals


class LastCheck:
    """Measures a check, and holds what it leaves for the next: predictions, and its details until it ends."""

    def __init__(self) -> None:
        self.n_columns = 0  # width of the last logits that this process measured
        self.measurement: Measurement | None = None  # between `measure` and `end_check`, where it was measured
        # The next check is compared with the last one, (n_draws * N,), and with the best by expected accuracy, or
        # metric, (N,), which may be another check than the one with the best score.
        self.predictions: Tensor | None = None
        self.contributions: Tensor | None = None
        self.best_contributions: Tensor | None = None

    def measure(self, signals: Signals, logits: Tensor) -> dict[str, float]:
        n_samples = len(signals.boundary.labels)
        known = ((self.predictions, n_samples * signals.boundary.n_draws), (self.best_contributions, n_samples))
        before, best = (None if one is None or len(one) != n_rows else one.to(logits.device) for one, n_rows in known)
        self.n_columns = logits.shape[1]
        self.measurement = signals.measure(logits, before, best)
        self.predictions, self.contributions = self.measurement.predictions, self.measurement.contributions
        values = {**self.measurement.values, STANDARD_ERROR: self.measurement.standard_error}
        return dict(zip(values, torch.stack(list(values.values())).tolist(), strict=True))

    def forget(self) -> None:
        """Compare the next check with none before."""
        self.predictions = self.best_contributions = None

    def state_dict(self) -> dict[str, Any]:
        predictions, best = self.predictions, self.best_contributions
        if predictions is not None:  # on the CPU, in the smallest type that holds all classes
            is_narrow = int(predictions.max()) <= torch.iinfo(torch.uint8).max
            predictions = predictions.cpu().to(torch.uint8 if is_narrow else torch.int32)
        contributions = None if best is None else best.cpu()
        return {"predictions": predictions, "best_contributions": contributions}

    def load(self, state: Mapping[str, Any]) -> None:
        self.predictions, self.best_contributions = state["predictions"], state["best_contributions"]

    def judge(
        self, check: Mapping[str, Any], history: History, signals: Signals, classes: list[str] | None
    ) -> tuple[Confidence | None, str, list[str]]:
        """Judge the kept check; give the doubt about it, "" for none, and what else is to say."""
        boundary, selection = signals.boundary, history.selection
        names = class_names(boundary.labels, classes)
        counted = [one for one in history.compared if selection is None or selection.score(one) is not None]
        metric, skills = signals.metric, (signals.vote_skill, signals.regression_skill)
        value, sign = ("expected_accuracy", 1.0) if metric is None else (metric.signal, metric.sign)
        column, alone = accuracy_alone(boundary.probabilities_of_present, len(boundary.labels), boundary.weights)
        if metric is not None:
            alone = metric.uninformed(signals.plain_probabilities(self.n_columns))
        finite = [one[value] for one in counted if math.isfinite(one[value])]
        best = max(finite, key=lambda one: sign * one, default=math.nan)
        blind, confidence = describe_blindness(best, alone, names[column], skills, metric), None
        rule = None if selection is None else selection.rule
        is_judged = rule is not None and metric is None and rule.name in JUDGED_RULES
        if is_judged or (isinstance(rule, MetricRule) and not rule.metric.is_drawn):
            given = (signals.skill, len(boundary.labels), alone)
            doubt = "" if metric is None else metric.doubt(len(names))
            if metric is not None and not metric.is_of_sharp:
                doubt = doubt or describe_few(boundary.labels)
            confidence = confidence_in(check, counted, *given, is_blind=bool(blind), metric=metric, doubt=doubt)
        said = blind or ("" if confidence is None else confidence.line())
        threshold = "" if metric is None or blind else describe_threshold(check, metric)
        if confidence is not None and confidence.word == "clear":
            return confidence, "", [line for line in (said, threshold) if line]
        return confidence, said, [threshold] if threshold else []
