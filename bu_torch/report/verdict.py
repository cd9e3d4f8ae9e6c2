"""The kept check and the reason, and the checks that other rules would have kept."""

import math
import re
from dataclasses import dataclass
from typing import Any

from bu_torch.report.record import RunRecord
from bu_torch.report.text import without_folders
from bu_torch.rule.rules import DEFAULT_RULE, RULE_NAMES, RULES, SelectionRule, as_rule
from bu_torch.signals.catalogue import SIGNALS
from bu_torch.signals.details import Details


@dataclass(frozen=True)
class RunVerdict:
    """Decision of a run, and those of the other rules."""

    rule: str | None  # that decided; None if nothing did, or if the record does not tell
    kept: int | None  # epoch or step; if nothing decided, that which the default would have kept
    by_rule: dict[str, dict[str, Any] | None]  # the check that each would have kept; only rules whose signals are there

    @classmethod
    def of(cls, record: RunRecord) -> "RunVerdict":
        """Judge a record; ValueError if its settings are none that a rule takes."""
        rule = record.settings.get("rule")
        if rule is not None and not (isinstance(rule, str) and rule.isidentifier()):
            got = repr(rule[:50]) if isinstance(rule, str) else type(rule).__name__
            raise ValueError(f"{record.path}: the rule in the settings must be a name, got {got}.")
        by_rule: dict[str, dict[str, Any] | None] = {
            name: _selection(name, record).replay(record.checks[record.n_not_compared :])
            for name in RULE_NAMES
            if _has(record, *as_rule(name).signals)
        }
        if rule is None:
            check = by_rule.get(DEFAULT_RULE)
            return cls(rule, None if check is None else check[record.axis], by_rule)
        kept = record.kept_so_far
        if record.end is not None:
            kept = record.end.kept_step if record.axis == "step" else record.end.kept_epoch
        if rule not in RULE_NAMES and _has(record, rule):  # not to be replayed
            by_rule[rule] = record.check_at(kept)
        return cls(rule, kept, by_rule)


def scores(record: RunRecord, verdict: RunVerdict) -> tuple[str, dict[int, float]]:
    """The score that decided, or would have: in words, and its values by epoch or step."""
    column = name = verdict.rule or DEFAULT_RULE
    checks = record.checks[record.n_not_compared :]
    if name in RULE_NAMES:
        rule = _selection(name, record)
        checks, column = rule.judged(checks) if _has(record, *rule.rule.signals) else [], rule.score_name
    start = record.settings.get("start_from_epoch")
    first = start if isinstance(start, int) else 0
    counted = (check for check in checks if column in check and check["epoch"] >= first)
    return rule_label(name), {check[record.axis]: check[column] for check in counted}


def rule_label(name: str) -> str:
    """A rule in words."""
    return as_rule(name).title if name in RULE_NAMES else name.replace("_", " ")


def why_not_highest(record: RunRecord, verdict: RunVerdict) -> str:
    """Name the epoch of the highest score, if another is kept, and the reason; "" if it is kept."""
    finite = {place: value for place, value in scores(record, verdict)[1].items() if math.isfinite(value)}
    if verdict.kept not in finite or finite[verdict.kept] == max(finite.values()):
        return ""
    highest = f"the highest score, in {record.axis} {max(finite, key=finite.__getitem__)}."
    replayed = verdict.by_rule.get(DEFAULT_RULE) or {} if verdict.rule in (None, DEFAULT_RULE) else {}
    is_margin = replayed.get(record.axis) == verdict.kept and record.settings.get("rule.n_standard_errors", 0.5) == 0.5
    return f"{'Trust chose it within half a standard error of' if is_margin else 'It is below'} {highest}"


def headline(record: RunRecord, verdict: RunVerdict) -> tuple[str, str]:
    """The kept check and the end of the run, in words."""
    ending = _ending(record)
    if not record.checks:
        return f"No check {'yet' if record.end is None else 'was made'}", ending
    why = why_not_highest(record, verdict)
    if verdict.rule is None:
        would = f"no {record.axis}" if verdict.kept is None else f"{record.axis} {verdict.kept}"
        decided = "The callback only measured" if record.settings else "The record does not tell what decided"
        return f"The default rule would have kept {would}", f"{why} {decided}. {ending}".lstrip()
    if verdict.kept is None:
        return f"No {record.axis} was kept", f"No finite check counted. {ending}"
    is_kept = "was kept" if record.end else "is kept so far"
    is_open = (
        record.end is not None
        and record.end.stopped_epoch is None
        and not record.end.reason.startswith("Training failed")
    )
    longer = " Longer training may help." if is_open and not why and verdict.kept == record.places[-1] else ""
    return f"{record.axis.capitalize()} {verdict.kept} {is_kept}", f"{why} {ending}{longer}".lstrip()


def level(record: RunRecord, verdict: RunVerdict) -> str:
    """Boundary uncertainty of the kept check, its expected maximum and agreeing pairs; "" if there is none."""
    check = record.check_at(verdict.kept)
    if check is None or not math.isfinite(check["boundary_uncertainty"]):
        return ""
    value = f"At {record.axis} {verdict.kept}, boundary uncertainty is {check['boundary_uncertainty']:.3f}."
    details = record.details.get(check[record.axis])
    if details is None or not details.ceiling > 0:
        return value
    value += f" Its expected maximum at this number of samples is {details.ceiling:.3f}; chance may exceed it."
    if details.agreeing_pairs < 1:
        value += (
            f" It is 0 at {1 - details.agreeing_pairs:.0%} of the perturbed samples, where the network's two likeliest"
            " classes are not those of the labels nearby."
        )
    return value


def shown_details(record: RunRecord, verdict: RunVerdict) -> tuple[int, Details] | None:
    """The details of the kept check, with its epoch or step; of the last check with details if it has none."""
    if not record.details:
        return None
    place = verdict.kept if verdict.kept in record.details else max(record.details)
    return place, record.details[place]


def _ending(record: RunRecord) -> str:
    """The end of the run, rules and signals by their titles."""
    last = f" The last check is of {record.axis} {record.places[-1]}." if record.checks else ""
    if record.end is None:
        is_known = (
            "The run is still going, or it was killed" if record.settings else "How the run ended is not recorded"
        )
        return f"{is_known}.{last}"
    titles = {name: signal.title for name, signal in SIGNALS.items()}
    titles |= {name: rule_label(name) for name in RULE_NAMES}
    reason = without_folders(record.end.reason)
    return re.sub(r"\w+", lambda found: titles.get(found[0], found[0]), reason) or f"The run has ended.{last}"


def _has(record: RunRecord, *columns: str) -> bool:
    return all(column in check for check in record.checks for column in columns)


def _selection(name: Any, record: RunRecord) -> SelectionRule:
    """A rule that goes by a name, with the settings of the run."""
    settings = record.settings
    start = settings.get("start_from_epoch")
    try:
        selection = SelectionRule(name, start_from_epoch=0 if start is None else start)
        if name == settings.get("rule"):
            recorded = {option: settings.get(f"rule.{option}") for option in selection.rule.settings()}
            own = {option: float(value) for option, value in recorded.items() if isinstance(value, int | float)}
            selection.rule = RULES[name](**own)
        return selection
    except (TypeError, ValueError, RecursionError) as error:
        reason = f"{error}"[:500]
        raise ValueError(f"{record.path}: the settings beside it do not suit its rule: {reason}") from None
