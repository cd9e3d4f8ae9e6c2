"""Lines on what a run has kept."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from bu_torch.signals.sight import blindness_of, unpredicted_of

if TYPE_CHECKING:
    from bu_torch.run.tracker import Tracker


def remarks(tracker: "Tracker", check: Mapping[str, Any] | None) -> list[str]:
    """Lines on the kept `check`: a score that cannot see, classes never predicted, and a class that loses much."""
    if check is None or not tracker.groundwork.is_prepared:
        return []
    signals, named = tracker.groundwork.signals, tracker.groundwork.about["classes"]
    values = [entry["expected_accuracy"] for entry in tracker.history]
    lines = [blindness_of(signals, named, max(filter(math.isfinite, values), default=math.nan))]
    recalls = tracker.predictions.recognition.kept
    if recalls is not None and (recalls.epoch, recalls.step) == (check["epoch"], check.get("step")):
        lines.append(unpredicted_of(signals, named, recalls.expected))
    return [line for line in (*lines, tracker.unrecognised(check)) if line]
