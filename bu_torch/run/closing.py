"""Lines on what a run has kept."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from bu_torch.internal.printing import cleaned
from bu_torch.run.confidence import Confidence, confidence_in
from bu_torch.signals.details import blindness_of, unpredicted_of

if TYPE_CHECKING:
    from bu_torch.run.tracker import Tracker


def describe_exception(exception: BaseException) -> str:
    """Say why training ended early."""
    if isinstance(exception, KeyboardInterrupt):
        return "Training was interrupted (KeyboardInterrupt)."
    return f"Training failed: {type(exception).__name__}{f': {exception}' if str(exception) else '.'}"


def describe_choice(tracker: "Tracker", check: Mapping[str, Any] | None) -> tuple[Confidence | None, list[str]]:
    """Judge the kept `check`, and say it; name classes that are never predicted, and one that loses much."""
    if check is None or not tracker.groundwork.is_prepared:
        return None, []
    signals, named = tracker.groundwork.signals, tracker.groundwork.about["classes"]
    selection = tracker.checks.selection
    counted = [one for one in tracker.checks.compared if selection is None or selection.score(one) is not None]
    values = [entry["expected_accuracy"] for entry in counted]
    blind = blindness_of(signals, named, max(filter(math.isfinite, values), default=math.nan))
    n_samples = len(signals.boundary.labels)
    confidence = confidence_in(check, counted, signals.skill, n_samples, is_blind=bool(blind))
    lines = [blind or confidence.line()]
    recalls = tracker.predictions.recognition.kept
    if recalls is not None and (recalls.epoch, recalls.step) == (check["epoch"], check.get("step")):
        lines.append(unpredicted_of(signals, named, recalls.expected))
    return confidence, [line for line in (*lines, tracker.unrecognised(check)) if line]


def place_of_check(check: dict[str, Any], *, is_by_steps: bool) -> str:
    """A check in words: its epoch, or its step too."""
    if is_by_steps and "step" in check:
        return f"step {check['step']} of epoch {check['epoch']}"
    return f"epoch {check['epoch']}"


def describe_none_kept(why: str, reason: str) -> str:
    """Say that no check was kept, and why, and the `reason` for which training ended."""
    return f"Boundary uncertainty kept no epoch: {why}. {reason} The weights are those of training."


def describe_kept(
    tracker: "Tracker", kept: dict[str, Any], path: str, how: str, reason: str, *, is_by_steps: bool, is_open: bool
) -> str:
    """Say what was kept, where it is, and why training ended; if the end was `open`, whether longer training may help.

    `how` the weights are in the model is "", "partly " or "not ".
    """
    selection, name = tracker.checks.selection, tracker.checks.score_name
    assert selection is not None  # noqa: S101  (there is a rule)
    unit = selection.rule.unit
    where = f", its checkpoint is {cleaned(path)}" if path else ""
    is_last = is_open and kept is tracker.history[-1]
    longer = " That was the last check: longer training may help." if is_last else ""
    return (
        f"Boundary uncertainty kept {place_of_check(kept, is_by_steps=is_by_steps)}"
        f" ({selection.title}: {kept[name]:.4f}{unit and f' {unit}'}):"
        f" its {'averaged ' if tracker.average is not None else ''}weights are {how}in the model{where}."
        f" {reason.rstrip('.')}.{longer}"
    )
