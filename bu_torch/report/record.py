"""Contents of a run's record, once it is read."""

import math
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from bu_torch.signals.details import Details


@dataclass(frozen=True)
class End:
    """Last line of a run that ended in order."""

    kept_epoch: int | None
    kept_step: int | None
    stopped_epoch: int | None
    reason: str
    best_model_path: str
    saving_seconds: float = math.nan
    training_seconds: float = math.nan


@dataclass
class RunRecord:
    """Record of a run, as far as it was written.

    Attributes:
        path: The table of checks.
        checks: In order. The one named by `axis` and `epoch` are ints; all else is a float, NaN if the table has none.
        last_written: Time at which the newest of the files was written.
        settings: Settings of the callback. Here, in `versions` and `data`, a value that is not plain is its text.
        versions: Versions of the packages it ran with.
        data: Sizes of the data, and how training draws it.
        classes: Names of the classes, if they have any.
        n_not_compared: Number of first checks that do not count: made before a resume with other settings or samples,
            or before the first update of an average of the weights.
        setup_seconds: Time spent before the first epoch; NaN if unknown.
        started: Start of the run in ISO format; "" if unknown.
        details: Details by epoch or step, if written and read. Their `row` is a place in the data set.
        kept_so_far: Epoch or step of the check that is kept, by the last check with details; None if unknown.
        end: None if the run still goes on, or was killed.
        missing: Sentences on what the page cannot show, and why.
        remarks: Sentences on the kept check, as the run said them.
        axis: `"epoch"`, or `"step"` if checks are within epochs.
    """

    path: Path
    checks: list[dict[str, Any]]
    last_written: datetime
    settings: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, Any] = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)
    classes: list[str] | None = None
    n_not_compared: int = 0
    setup_seconds: float = math.nan
    started: str = ""
    details: dict[int, Details] = field(default_factory=dict)
    kept_so_far: int | None = None
    end: End | None = None
    missing: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    axis: Literal["epoch", "step"] = "epoch"

    @property
    def places(self) -> list[int]:
        """The epoch of each check, or its step."""
        return [check[self.axis] for check in self.checks]

    def check_at(self, place: int | None) -> dict[str, Any] | None:
        """The check of an epoch, or a step; None if there is none."""
        return next((check for check in self.checks if check[self.axis] == place), None)

    @property
    def costs(self) -> tuple[float, float]:
        """Seconds that the callback took so far, and those of training beside it, as the log has them at the end."""
        checks, total = (self.values(name)[-1] if self.checks else math.nan for name in ("check_seconds", "seconds"))
        saving, training = 0.0, total - checks
        if self.end is not None and math.isfinite(self.end.training_seconds):
            saving, training = self.end.saving_seconds, self.end.training_seconds
        return (0.0 if math.isnan(self.setup_seconds) else self.setup_seconds) + checks + saving, training

    @property
    def weighting(self) -> str:
        """Reason for which samples do not all count alike in what was measured; "" if they do."""
        class_weight, is_sampled = self.settings.get("class_weight"), self.data.get("sampling") == "weighted"
        by_class = "" if class_weight is None else f"class_weight={class_weight}"
        return ", ".join(filter(None, (by_class, "weighted sampling" if is_sampled else "")))

    def class_name(self, index: int) -> str:
        """A class in words: its name, or its number if it has none."""
        names = self.classes or []
        return names[index] if index < len(names) else str(index)

    def has(self, *columns: str) -> bool:
        """True if all checks have these columns."""
        return all(column in check for check in self.checks for column in columns)

    def values(self, name: str) -> list[float]:
        """One column of the table, NaN where a check has no such value."""
        return [check.get(name, math.nan) for check in self.checks]

    def by_place(self, name: str) -> dict[int, float]:
        """One column by epoch or step."""
        return dict(zip(self.places, self.values(name), strict=True))
