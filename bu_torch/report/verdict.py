"""The kept check, the reason for it, and the checks that other rules would have kept."""

import math
import re
from dataclasses import dataclass
from typing import Any

from bu_torch.report.record import RunRecord
from bu_torch.report.text import without_folders
from bu_torch.rule.rules import DEFAULT_RULE, RULE_NAMES, SelectionRule
from bu_torch.signals.catalogue import SIGNALS
from bu_torch.signals.details import Details


@dataclass(frozen=True)
class RunVerdict:
    """A record with the decision of its run, and the decisions of other rules."""

    record: RunRecord
    rule: str | None  # rule that decided; None if there was none, or if it is not recorded
    kept: int | None  # epoch or step; if no rule decided, the one that the default rule would have kept
    by_rule: dict[str, dict[str, Any] | None]  # check that each rule would have kept, if its signals are recorded
    scores: dict[int, float]  # scores of checks that count, by epoch or step, from the rule or the default rule

    @classmethod
    def of(cls, record: RunRecord) -> "RunVerdict":
        """Judge a record."""
        rule, counted = record.settings.get("rule"), record.checks[record.n_not_compared :]
        first = record.settings.get("start_from_epoch") or 0
        rules = {name: SelectionRule(name, start_from_epoch=first) for name in RULE_NAMES if record.has(name)}
        by_rule: dict[str, Any] = {name: selection.replay(counted) for name, selection in rules.items()}
        decided = rule or DEFAULT_RULE
        scored = (check for check in counted if decided in check and check["epoch"] >= first)
        scores = {check[record.axis]: check[decided] for check in scored}
        kept = record.kept
        if rule is None:
            check = by_rule.get(DEFAULT_RULE)
            kept = None if check is None else check[record.axis]
        elif rule not in RULE_NAMES and record.has(rule):  # a rule of the user's, which cannot be replayed
            by_rule[rule] = record.check_at(kept)
        return cls(record, rule, kept, by_rule, scores)

    @property
    def kept_label(self) -> str:
        return "kept" if self.rule else "would be kept"

    @property
    def title(self) -> str:
        """Name in words of the rule that decided, or would have decided."""
        return rule_title(self.rule or DEFAULT_RULE)

    @property
    def metric(self) -> str | None:
        """Signal of the metric that decided; None if none did."""
        name = f"expected_{self.rule[4:]}" if self.rule and self.rule.startswith("neg_") else self.rule
        is_metric = name and name.startswith("expected_") and name not in RULE_NAMES
        return name if is_metric and self.record.has(str(name)) else None

    @property
    def why_not_highest(self) -> str:
        """Sentence on the highest score if another check is kept, such as after weights were lost; "" otherwise."""
        finite = {place: value for place, value in self.scores.items() if math.isfinite(value)}
        if self.kept not in finite or finite[self.kept] == max(finite.values()):
            return ""
        return f"It is below the highest score, in {self.record.axis} {max(finite, key=finite.__getitem__)}."

    @property
    def headline(self) -> tuple[str, str]:
        """The kept check and the end of the run, in words."""
        record, ending, why = self.record, _ending(self.record), self.why_not_highest
        if not record.checks:
            return f"No check {'yet' if record.end is None else 'was made'}", ending
        if self.rule is None and DEFAULT_RULE not in self.by_rule:
            return "The default rule cannot be replayed", f"The record lacks `{DEFAULT_RULE}`. {ending}"
        if self.rule is None:
            would = f"no {record.axis}" if self.kept is None else f"{record.axis} {self.kept}"
            decided = "The callback only measured" if record.settings else "The record does not name a rule"
            return f"The default rule would have kept {would}", f"{why} {decided}. {ending}".lstrip()
        if self.kept is None:
            return f"No {record.axis} was kept", f"No finite check counted. {ending}"
        end, longer = record.end, ""
        if end and not why and self.kept == record.places[-1]:
            is_open = end.stopped_epoch is None and not end.reason.startswith("Training failed")
            longer = " That was the last check: longer training may help." if is_open else ""
        is_kept = "was kept" if end else "is kept so far"
        return f"{record.axis.capitalize()} {self.kept} {is_kept}", f"{why} {ending}{longer}".lstrip()

    @property
    def details(self) -> tuple[int, Details] | None:
        """Epoch or step, and details, of the kept check, or of the last check with details if it has none."""
        details = self.record.details
        place = self.kept if self.kept in details else max(details, default=None)
        return None if place is None else (place, details[place])


def rule_title(name: str) -> str:
    """Name of a rule in words; a loss or cost counts by its negative."""
    words = f"expected {name[4:]}, negated" if name.startswith("neg_") else name
    return SIGNALS[name].title if name in SIGNALS else words.replace("_", " ")


def _ending(record: RunRecord) -> str:
    """The end of the run in words, with titles of signals instead of their names."""
    last = f" The last check is of {record.axis} {record.places[-1]}." if record.checks else ""
    if record.end is None:
        is_known = "The run is still going, or it was killed" if record.settings else "The end is not recorded"
        return f"{is_known}.{last}"
    reason = re.sub(r"\w+", lambda found: rule_title(found[0]) if found[0] in SIGNALS else found[0], record.end.reason)
    return without_folders(reason) or f"The run has ended.{last}"
