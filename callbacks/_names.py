"""Names of what several callbacks of one trainer log, so that none takes the mean of two measurements."""

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from bu_torch.run.settings import MeasurementSettings

_MEASURED = [field.name for field in fields(MeasurementSettings) if field.name not in ("cache", "averaging_device")]
_MEASURED += ["every_n_epochs", "every_n_train_steps", "reference", "input_key", "label_key"]


def suffix_of(callback: Any, monitors: Sequence[Any]) -> str:
    """End of the names that `callback` logs: "" for the first of `monitors`, "_2" for the next that differs.

    Those that measure alike log equal values, and share their names.
    """
    groups: list[list[Any]] = []
    for one in monitors:
        group = next((group for group in groups if all(_log_alike(one, other) for other in group)), None)
        if group is None:
            groups.append(group := [])
        group.append(one)
        if one is callback:
            number = 1 + next(place for place, other in enumerate(groups) if other is group)
            return f"_{number}" if number > 1 else ""
    return ""


def _log_alike(first: Any, second: Any) -> bool:
    """Tell if two callbacks log equal values under each name that both log."""
    return all(_equal(getattr(first, name), getattr(second, name)) for name in _MEASURED)


def _equal(first: Any, second: Any) -> bool:
    if isinstance(first, tuple) and isinstance(second, tuple):
        return len(first) == len(second) and all(map(_equal, first, second))
    is_plain = all(isinstance(one, bool | int | float | str | dict | list) for one in (first, second))
    return first is second or (is_plain and bool(first == second))
