"""What was kept and why, and what the other rules would have kept."""

import math
from dataclasses import dataclass
from typing import Any, get_args

from bu_torch.report.reading import Details, Record
from bu_torch.selection import DEFAULT_RULE, RuleName, SelectionRule

RULE_LABELS = {name: name.replace("_", " ") for name in get_args(RuleName)}


@dataclass(frozen=True)
class Verdict:
    """What there is to say of a run before any figure.

    Attributes:
        rule: The rule that decided; None where nothing did, or where the record does not tell.
        kept: The kept epoch, or that the default rule would have kept where nothing decided; None if there is none.
        by_rule: The check that each rule would have kept; None where it would have kept none. A rule is missing where
            the table lacks what it looks at.
    """

    rule: str | None
    kept: int | None
    by_rule: dict[str, dict[str, Any] | None]

    @classmethod
    def of(cls, record: Record) -> "Verdict":
        """Judge a record.

        Raises:
            ValueError: If its settings are none that a rule takes.
        """
        rule = record.settings.get("rule")
        if rule is not None and rule not in get_args(RuleName):
            raise ValueError(
                f"{record.path}: the rule in the settings must be one of {', '.join(get_args(RuleName))},"
                f" got {str(rule)[:50]!r}."
            )
        by_rule = {name: _replay(name, record) for name in get_args(RuleName) if _can_replay(name, record)}
        if record.end is not None and rule is not None:
            return cls(rule, record.end.kept_epoch, by_rule)
        name = rule or (DEFAULT_RULE if DEFAULT_RULE in by_rule else "consensus")  # which older records lack
        check = by_rule.get(name)
        return cls(rule, None if check is None else check["epoch"], by_rule)


def headline(record: Record, verdict: Verdict) -> tuple[str, str]:
    """What was kept, and why the run ended; in words."""
    if not record.checks:
        return "No check yet", f"The record was begun, and holds no check. {_ending(record)}"
    if verdict.rule is None:
        would = "no epoch" if verdict.kept is None else f"epoch {verdict.kept}"
        decided = "The callback only measured" if record.settings else "The record does not tell what decided"
        replayed = "The default rule" if DEFAULT_RULE in verdict.by_rule else "Consensus"
        return f"{replayed} would have kept {would}", f"{decided}. {_ending(record)}"
    if verdict.kept is None:
        return "No epoch was kept", f"No finite check counted. {_ending(record)}"
    return f"Epoch {verdict.kept} {'was kept' if record.end else 'is kept so far'}", _ending(record)


def level(record: Record, verdict: Verdict) -> str:
    """Boundary uncertainty of the kept epoch beside what it could reach; in words, "" where there is none."""
    check = next((check for check in record.checks if check["epoch"] == verdict.kept), None)
    if check is None or not math.isfinite(check["boundary_uncertainty"]):
        return ""
    value = f"At epoch {verdict.kept}, boundary uncertainty is {check['boundary_uncertainty']:.3f}"
    details = record.details.get(check["epoch"])
    if details is None or not details.ceiling > 0:
        return f"{value}."
    return (
        f"{value}; a boundary with both classes equally likely along it would reach {details.ceiling:.3f} on average"
        " with as many samples near it."
    )


def shown_details(record: Record, verdict: Verdict) -> tuple[int, Details] | None:
    """The details of the kept epoch; where there are none, the last there are."""
    if not record.details:
        return None
    epoch = verdict.kept if verdict.kept in record.details else max(record.details)
    return epoch, record.details[epoch]


def _ending(record: Record) -> str:
    last = f" The last check is that of epoch {record.checks[-1]['epoch']}." if record.checks else ""
    if record.end is None:
        if not record.settings:
            return f"How the run ended is not recorded.{last}"
        return f"The run still goes on, or it ended without a word (killed).{last}"
    return record.end.reason or f"The run has ended.{last}"


def _can_replay(name: RuleName, record: Record) -> bool:
    signals = SelectionRule(name).signals
    return all(signal in check for check in record.checks for signal in signals)


def _replay(name: RuleName, record: Record) -> dict[str, Any] | None:
    settings = record.settings
    options: dict[str, Any] = {
        option: settings[option] for option in ("smoothing", "start_from_epoch") if settings.get(option) is not None
    }
    if name == "consensus" == settings.get("rule") and settings.get("min_delta") is not None:
        options["min_delta"] = settings["min_delta"]
    try:
        return SelectionRule(name, **options).replay(record.checks[record.n_not_compared :])
    except (TypeError, ValueError) as error:
        raise ValueError(f"{record.path}: the settings beside it are none that a rule takes: {error}") from None
