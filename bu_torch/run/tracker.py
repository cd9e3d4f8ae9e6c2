"""Tracker of one training from check to check; it knows no trainer."""

import itertools
import math
import warnings
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bu_torch.functional.groups import dtype_of_labels
from bu_torch.internal.logits import warn_of_probabilities
from bu_torch.internal.printing import cleaned
from bu_torch.internal.replica import evaluation_copy
from bu_torch.rule.rules import STANDARD_ERROR, MetricRule
from bu_torch.run.check_setup import CheckSetup
from bu_torch.run.history import (
    JUDGED_RULES,
    Confidence,
    History,
    confidence_in,
    describe_worse_than_chance,
    place_of,
    summary_of,
)
from bu_torch.run.settings import MeasurementSettings
from bu_torch.run.state import no_classes, no_numbers, read_state
from bu_torch.run.timing import Record, RunTimer, plain, row
from bu_torch.run.weights import WeightAverage, listed, state_to_keep
from bu_torch.samples.samples import Samples
from bu_torch.signals.details import (
    Details,
    RecallTracker,
    accuracy_alone,
    describe_blindness,
    describe_few,
    describe_threshold,
    describe_unpredicted,
    names_and_shares,
)
from bu_torch.signals.measuring import Measurement, Signals
from bu_torch.signals.metrics import THRESHOLD, as_metric

# Scores can be compared only if these settings are the same.
_COMPARED = ["metric", "start_from_epoch", "n_neighbors", "n_draws", "max_samples", "budget", "seed", "class_weight"]


class LastCheck:
    """Measures a check, and holds what it leaves for the next: predictions, recalls, and its details until it ends."""

    def __init__(self) -> None:
        self.recall_tracker = RecallTracker()
        self.recalls: list[float] = []  # as `Measurement.recalls` gives them; empty if another process measured
        self.n_columns = 0  # width of the last logits that this process measured
        self.measurement: Measurement | None = None  # between `measure` and `end_check`, where it was measured
        # The next check is compared with the last one, (n_draws * N,), and with the best by expected value, (N,).
        self.predictions = no_classes()
        self.contributions = self.best_contributions = no_numbers()

    def measure(self, signals: Signals, logits: Tensor) -> dict[str, float]:
        n_samples = len(signals.boundary.labels)
        known = ((self.predictions, n_samples * signals.boundary.n_draws), (self.best_contributions, n_samples))
        before, best = (one.to(logits.device) if len(one) == n_rows else None for one, n_rows in known)
        self.n_columns = logits.shape[1]
        self.measurement = signals.measure(logits, before, best)
        self.predictions, self.contributions = self.measurement.predictions, self.measurement.contributions
        values = {**self.measurement.values, STANDARD_ERROR: self.measurement.standard_error}
        measured = torch.cat((torch.stack(list(values.values())), self.measurement.recalls())).tolist()
        self.recalls = measured[len(values) :]
        return dict(zip(values, measured, strict=False))

    def forget(self) -> None:
        """Compare the next check with none before."""
        self.predictions, self.best_contributions = self.predictions[:0], self.best_contributions[:0]
        self.recall_tracker = RecallTracker()

    def state_dict(self) -> dict[str, Any]:
        # On the CPU, in the smallest type that holds all classes.
        narrow = dtype_of_labels(1 + int(self.predictions.max()) if len(self.predictions) else 0)
        return {
            "predictions": self.predictions.cpu().to(narrow),
            "best_contributions": self.best_contributions.cpu(),
            "recalls": self.recall_tracker.state_dict(),
        }

    def load(self, state: Mapping[str, Any]) -> None:
        self.predictions, self.best_contributions = state["predictions"], state["best_contributions"]
        self.recall_tracker = state["recalls"]


class Tracker:
    """Measures each check of one training, keeps the history and the record, and says what to keep and when to stop.

    A training calls it in this order, with `logits_at` of `bu_torch.internal.logits`. A record and a resume also need
    `begin`, `end_check`, `end` and `continue_with`.

        tracker = Tracker(Settings(patience=10))
        plan = tracker.check_setup.plan_checks(n_training=len(inputs), n_visited=len(inputs), n_operations=100_000)
        tracker.prepare(bu_torch.samples.samples.choose_among(inputs, labels, lambda n: plan.n_samples, seed=0))
        for epoch in range(500):
            train_one_epoch(model)
            with tracker.look(model, epoch) as network:
                logits = logits_at(network, tracker.check_setup.signals.perturbed_inputs)
                tracker.add(epoch, tracker.measure(logits))
            if tracker.history.is_kept_new:
                save(tracker.state_to_keep(model))
            if tracker.history.verdict.should_stop:
                break

    If several processes train, one of them prepares and measures, and all of them `add` the same values. With
    `MeasurementSettings` alone, nothing is decided.
    """

    def __init__(self, settings: MeasurementSettings, warn: Callable[[str], None] | None = None) -> None:
        self.settings = settings
        self.warn: Callable[[str], None] = warn or partial(warnings.warn, stacklevel=2)
        self.history = History(settings)  # decides which check is kept, and when to stop
        self.check_setup = CheckSetup(settings)  # samples, and what is computed from them before training
        self.last_check = LastCheck()
        self.average: WeightAverage | None = None
        if settings.averaging is not None:
            self.average = WeightAverage(settings.averaging, settings.averaging_device)
        self.timer = RunTimer()  # time and record
        self.summary: dict[str, Any] = {}  # what was kept, and whether to trust it, once training has ended
        self.remarks: list[str] = []  # the same in sentences
        self._has_warned = False  # a warning about predictions worse than chance is given once

    @property
    def checks(self) -> list[dict[str, Any]]:
        """One dict a check, in order, as in `BoundaryUncertaintyMonitor`; `step` only if it is known."""
        return self.history.entries

    def prepare(self, samples: Samples, **options: Any) -> str:
        """Compute all that does not depend on the network, with options and errors as in `CheckSetup.prepare`."""
        return self.check_setup.prepare(samples, self.warn, has_resumed=bool(self.checks), **options)

    def continue_with(self, fingerprint: str, is_restored: bool = True) -> bool:
        """Compare the samples with those of earlier checks; if they differ, start anew and return False.

        They also differ if their preparation, which the state held, could not be restored.
        """
        before = self.check_setup.fingerprint
        are_the_same = not self.checks or before is None or (is_restored and before == fingerprint)
        if not are_the_same:
            self.history.reset()
            self.last_check.forget()
        self.check_setup.fingerprint = fingerprint
        return are_the_same

    def update_average(self, model: object, epoch: int, step: int | None = None) -> None:
        """Add the weights of a check to the average, if there is one; a repeated check is added once."""
        if self.average is not None and isinstance(model, nn.Module):
            self.average.update(model, is_again=self.history.is_last(epoch, step))
            if self.average.renewed:
                self.warn(f"The average of weights of another shape begins anew: {listed(self.average.renewed)}.")

    def averages(self, model: object) -> dict[str, Tensor]:
        """Averaged weights by name, which a check reads and keeps in place of the model's; empty without an average."""
        return self.average.values(model) if self.average is not None and isinstance(model, nn.Module) else {}

    def look(self, model: Any, epoch: int, step: int | None = None) -> AbstractContextManager[Any]:
        """Context of the network that a check reads: a copy of the model, with averaged weights if there are any.

        The callbacks do the same in steps, because all processes of a trainer take part (`FitSession._make_check`).
        """
        self.update_average(model, epoch, step)
        return evaluation_copy(model, self.averages(model))

    def state_to_keep(self, model: object) -> dict[str, Any]:
        """The `state_dict` of the weights that the last check has read; empty for a model that is no module."""
        return state_to_keep(model, self.averages(model))

    def measure(self, logits: Tensor) -> dict[str, float]:
        """Signals and `standard_error` of the network's logits at the perturbed inputs; waits for the device once."""
        if self.timer.check_seconds == 0:
            warn_of_probabilities(logits, "The module", self.warn)
        return self.last_check.measure(self.check_setup.signals, logits)

    def add(
        self, epoch: int, values: Mapping[str, float], step: int | None = None, *, is_counted: bool = True
    ) -> dict[str, Any]:
        """Add a check, decide, and return the new entry, which replaces one of the same epoch and step.

        With `is_counted=False`, neither it nor any check before it counts for the patience or as best.
        """
        entry = {"epoch": epoch, **({} if step is None else {"step": step}), **values}
        if self.history.has_best_value(entry):
            self.last_check.best_contributions = self.last_check.contributions
        self.history.add(entry, is_counted=is_counted)
        if self.history.last_score is not None:
            recalls, is_kept = self.last_check.recalls, self.history.kept is entry
            self.last_check.recall_tracker.add(epoch, step, recalls, is_kept=is_kept)
        if not is_counted:
            self.last_check.forget()
        data = self.check_setup.about["data"]
        line = describe_worse_than_chance(self.checks, self.last_check.n_columns, data) if data else ""
        if line and not self._has_warned:
            self._has_warned = True
            self.warn(line)  # last, because filters may turn a warning into an error
        return entry

    def begin(self, started: float, folder: Path | None, settings: Mapping[str, Any]) -> None:
        """Count the time of training from now on, and open a record with `settings` in `folder`, if there is one."""
        self.timer.begin(started, has_resumed=bool(self.checks))
        if folder is not None:
            self.open_record(folder, settings)

    def open_record(self, folder: Path, settings: Mapping[str, Any]) -> None:
        """Open a record with `settings` in `folder`."""
        timer, checks = self.timer, self.history
        named = {**settings, "rule": None, **checks.rule_settings()}
        header = {
            "settings": {name: plain(value) for name, value in named.items()},
            "n_not_compared": checks.n_not_compared,
            **self.check_setup.about,
            "setup_seconds": timer.setup_seconds,
        }
        columns = filter(None, [*self.check_setup.signals.names, STANDARD_ERROR, checks.score_name])
        timer.record = Record(folder, header, map(row, self.checks), columns)

    def end_check(self, started: float, details: Details | None, train_loss: float | None = None) -> None:
        """Count the time of the last check, and write it to the record."""
        if self.timer.path and details is not None:
            entry, kept, rows = self.checks[-1], self.history.kept or {}, self.check_setup.rows
            line = {
                "kind": "check",
                "epoch": entry["epoch"],
                "step": entry.get("step"),
                "kept_epoch": kept.get("epoch"),
                "kept_step": kept.get("step"),
                "n_not_compared": self.history.n_not_compared,  # the header may be older, when all checks counted
                "crossing": {
                    name: [plain(value) for value in part] for name, part in details.crossing._asdict().items()
                },
                "pairs": details.pairs,
                "n_pairs_left_out": details.n_pairs_left_out,
                "log_trust": details.log_trust._asdict(),
                "doubtful": [[int(rows[one.row]), *one[1:]] for one in details.doubtful],
            }
            self.timer.record.write_line(line)
        self.last_check.measurement = None
        self.timer.end_check(started, self.checks[-1], train_loss)

    def end(self, reason: str, **kept: Any) -> None:
        """Judge what was kept, and write the last line of the record."""
        seconds = {name: getattr(self.timer, name) for name in ("saving_seconds", "training_seconds")}
        check = None if kept.get("kept_epoch") is None else self.history.kept  # weights may be lost
        confidence, self.remarks = None, []
        if check is not None and self.check_setup.is_prepared:
            confidence, self.remarks = self._judge(check)
        if self.history.selection is not None:
            judged = summary_of(confidence, as_metric(self.settings.metric))
            score = None if check is None else check[self.history.score_name]
            self.summary = {"reason": reason, "score_name": self.history.score_name, "score": score, **kept, **judged}
            if check is not None and THRESHOLD in check:
                of_blind = {THRESHOLD: None} if judged["word"] == "blind" else {}
                self.summary |= {name: check[name] for name in check if name.endswith(THRESHOLD)} | of_blind
        line = {"kind": "end", "reason": reason, "n_not_compared": self.history.n_not_compared, **kept, **seconds}
        self.timer.record.write_line(line | {"remarks": self.remarks})

    def conclusion(self, how: str, reason: str, cost: str, path: str = "", **place: bool) -> list[str]:
        """Lines on what was kept and whether to trust it; arguments as in `History.describe_kept`.

        `how` says if its weights are in the model: "", "partly " or "not ".
        """
        line = self.history.describe_kept(how, reason, path, is_averaged=self.average is not None, **place)
        return [f"{line} {cost}", *self.remarks]

    def _judge(self, check: Mapping[str, Any]) -> tuple[Confidence | None, list[str]]:
        """Judge the kept check in words; name classes that are never predicted, and one that loses much."""
        signals, selection = self.check_setup.signals, self.history.selection
        boundary = signals.boundary
        names, shares = names_and_shares(boundary.labels, boundary.weights, self.check_setup.about["classes"])
        counted = [one for one in self.history.compared if selection is None or selection.score(one) is not None]
        known = self.last_check.recall_tracker
        if any(one is not None and len(one.expected) != len(names) for one in (known.kept, known.balanced)):
            self.last_check.recall_tracker = RecallTracker()  # a state of other classes
        metric, skills = signals.metric, (signals.vote_skill, signals.regression_skill)
        value, sign = ("expected_accuracy", 1.0) if metric is None else (metric.signal, metric.sign)
        column, alone = accuracy_alone(boundary.probabilities_of_present, len(boundary.labels), boundary.weights)
        if metric is not None:
            alone = metric.uninformed(signals.plain_probabilities(self.last_check.n_columns))
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
        lines = [blind or ("" if confidence is None else confidence.line())]
        recalls = self.last_check.recall_tracker.kept
        if recalls is not None and (recalls.epoch, recalls.step) == place_of(check):
            lines.append(describe_unpredicted(names, shares, recalls.expected))
        if metric is not None and not blind:
            lines.append(describe_threshold(check, metric))
        return confidence, [line for line in (*lines, self.unrecognised(check)) if line]

    def unrecognised(self, check: Mapping[str, Any]) -> str:
        """Log line on a class that loses much by the kept check; "" if none does, or if classes are weighted."""
        boundary = self.check_setup.signals.boundary
        if boundary.class_weight is not None or self.check_setup.signals.metric is not None:
            return ""
        return self.last_check.recall_tracker.line(check, *torch.unique(boundary.labels, return_counts=True))

    def release(self) -> None:
        """Free what `prepare` computed, and the average, because training has ended."""
        self.check_setup.release()
        if self.average is not None:
            self.average.release()
        self.last_check.measurement = None

    def state_dict(self) -> dict[str, Any]:
        """All that a resumed training needs, as plain numbers, strings and tensors on the CPU."""
        state = self.history.state_dict() | self.last_check.state_dict() | self.check_setup.state_dict()
        if self.average is not None:
            state["average"] = self.average.state_dict()
        # Tables of numbers, one for each run of checks with the same entries: single numbers are slow to save.
        as_numbers = partial(torch.tensor, dtype=torch.float64, device="cpu")
        state["history"] = [
            {"names": list(names), "values": as_numbers([[*check.values()] for check in checks])}
            for names, checks in itertools.groupby(self.checks, key=tuple)
        ]
        return state | {"settings": self._compared_settings() or None}

    def load_state_dict(self, state_dict: Any) -> None:
        """Continue from a `state_dict`; patience and the best epoch start anew if it is damaged, or settings differ."""
        damage = ""
        try:
            state = read_state(state_dict)
        except ValueError as error:
            state, damage = read_state({}), str(error)
        now = self._compared_settings()
        before = now if state["settings"] is None else state["settings"]
        changed = {name: value for name, value in now.items() if value != before.get(name)}
        score = self.history.score_name
        if score and any(score not in check for check in state["history"]):  # an earlier version had no such score
            changed["rule"] = now["rule"]
        self.last_check.load(state)
        self.check_setup.load(state)
        if self.average is not None and state["average"] is not None:
            self.average.load_state_dict(state["average"])
        rule = None if changed or damage else state["rule"]
        try:
            self.history.load(state["history"], state["n_not_compared"], rule)
        except Exception as error:  # a rule of the user's may raise anything
            self.history.load(state["history"], 0, None)
            damage = f"`rule`: {cleaned(f'{type(error).__name__}: {error}')}"
        if changed or damage:
            self.last_check.forget()
            self.check_setup.fingerprint = None  # no check is left to compare
        if damage:
            self.warn(
                f"The checkpoint holds no state that this package wrote: {damage}. Patience and the best epoch start"
                " anew."
            )
        elif changed:
            was = ", ".join(f"{name}={before.get(name)!r:.100}" for name in changed)
            is_now = ", ".join(f"{name}={value!r:.100}" for name, value in changed.items())
            self.warn(
                f"The run resumes with {is_now} instead of {was}: its scores cannot be compared with earlier ones, so"
                " patience and the best epoch start anew."
            )

    def _compared_settings(self) -> dict[str, int | float | str | None]:
        """Settings that scores depend on, as plain data; empty without a rule."""
        if self.history.selection is None:
            return {}
        named = {name: getattr(self.settings, name) for name in _COMPARED}
        named["metric"] = str(as_metric(self.settings.metric) or "accuracy")
        if isinstance(weights := named["class_weight"], dict | list):
            named["class_weight"] = repr(weights)  # a state holds plain data
        past = None if self.average is None else self.average.past
        return {**self.history.rule_settings(), "averaging": past, **named}
