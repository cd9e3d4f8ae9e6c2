"""What a run leaves, as it is held in memory once it is read."""

import math
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np


class Histogram(NamedTuple):
    """Counts of what lies between each two edges, the outer ones with all beyond; an edge that is not finite is NaN."""

    edges: list[float]
    counts: list[float]


class Doubt(NamedTuple):
    """A sample by its index in the data set, with the trust in its label or the prediction, whichever is lower."""

    sample: int
    label: int
    prediction: int
    nearest: int
    trust: float


@dataclass(frozen=True)
class Details:
    """What a check tells beyond its row in the table.

    Attributes:
        ceiling: What a boundary with both classes equally likely would reach on average with these counts.
        pairs: One row a pair of classes k < l: k, l, share of the samples, effective number of samples near the
            boundary, boundary uncertainty.
        n_pairs_left_out: How many more there are, with fewer samples near their boundary.
        histograms: By name.
        doubtful: Lowest trust first.
    """

    ceiling: float
    pairs: np.ndarray
    n_pairs_left_out: int
    histograms: dict[str, Histogram]
    doubtful: list[Doubt]


@dataclass(frozen=True)
class End:
    """How a run ended that ended in order."""

    kept_epoch: int | None
    kept_step: int | None
    stopped_epoch: int | None
    reason: str
    best_model_path: str


@dataclass
class Record:
    """What a run has left.

    Attributes:
        path: The table of checks.
        checks: One a check, in order of the epochs and steps; of two checks of the same place the later one. What
            `axis` names is an int, and so is `epoch`; all else is a float: NaN where the table says nothing. Of a table
            of more than 50,000 rows, the last ones.
        axis: What tells checks apart, and what they are drawn over: their epochs, or the steps of checks within epochs.
        n_left_out: How many rows come before those.
        settings: Of the callback.
        versions: Of what it ran with.
        data: Sizes of what was measured.
        classes: Their names; None where they have none.
        n_not_compared: So many checks, the first, do not count: those of a run that this one resumed with other
            settings or samples, or those before an average of the weights was updated first.
        setup_seconds: What was spent before the first epoch; NaN where unknown.
        started: When, in ISO format; "" where unknown.
        details: By epoch or step, as far as they were written; of a long record, those of some 1,000 checks.
        end: None where the run still goes on, or was killed.
        missing: What the page cannot show, and why; in sentences.
        last_written: When the newest of the files was.
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
    end: End | None = None
    missing: list[str] = field(default_factory=list)
    n_left_out: int = 0
    axis: Literal["epoch", "step"] = "epoch"

    @property
    def places(self) -> list[int]:
        """The epoch of each check, or its step."""
        return [check[self.axis] for check in self.checks]

    def check_at(self, place: int | None) -> dict[str, Any] | None:
        """The check of an epoch, or a step; None if there is none."""
        return next((check for check in self.checks if check[self.axis] == place), None)

    def values(self, name: str) -> list[float]:
        """One column of the table, NaN where a check has no such value."""
        return [check.get(name, math.nan) for check in self.checks]
