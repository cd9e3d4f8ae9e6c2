"""Reading the record of a run, as far as it was written: a file of lines in JSON, parsed and never executed."""

import json
import math
import re
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, Literal, NamedTuple

from bu_torch.run.record import FORMAT
from bu_torch.signals.catalogue import ClassRecall, Crossing, Details, Doubtful, Meeting

_NAME = re.compile(r"boundary_uncertainty(-v\d+)?\.jsonl")
_NO_VALUES = ("kind", "kept_epoch", "kept_step", "n_not_compared")  # entries of a check that are none of its values

_Checks = dict[tuple[int, int], tuple[dict[str, Any], Details | None]]  # by epoch and step, -1 if unknown


class End(NamedTuple):
    """Last line of a run that was not killed."""

    stopped_epoch: int | None
    reason: str
    best_model_path: str
    saving_seconds: float = math.nan
    training_seconds: float = math.nan


@dataclass
class RunRecord:
    """Record of a run, as far as it was written."""

    path: Path
    checks: list[dict[str, Any]]  # `epoch`, and the entry named by `axis`, are ints; all else floats, NaN for null
    last_written: datetime
    settings: dict[str, Any] = field(default_factory=dict)  # what is not plain data is text; so it is in the next two
    versions: dict[str, Any] = field(default_factory=dict)  # of the packages
    data: dict[str, Any] = field(default_factory=dict)  # its sizes, and how training draws it
    classes: list[str] = field(default_factory=list)  # their names; empty if they have none
    n_not_compared: int = 0  # first checks that do not count, such as those before a resume with other settings
    setup_seconds: float = math.nan  # before the first epoch
    started: str = ""  # in ISO format
    details: dict[int, Details] = field(default_factory=dict)  # by epoch or step; `row` is an index of the dataset
    kept: int | None = None  # epoch or step of the kept check, by the last line that tells
    end: End | None = None  # None if the run has not ended, or was killed
    notes: list[str] = field(default_factory=list)  # what the page cannot show and why, and remarks on the kept check
    axis: Literal["epoch", "step"] = "epoch"  # "step" if an epoch has several checks

    @property
    def places(self) -> list[int]:
        """The epoch of each check, or its step."""
        return [check[self.axis] for check in self.checks]

    def check_at(self, place: int | None) -> dict[str, Any] | None:
        """The check at an epoch or a step; None if there is none."""
        return next((check for check in self.checks if check[self.axis] == place), None)

    @property
    def shown_details(self) -> tuple[int, Details] | None:
        """Epoch or step, and details, of the kept check, or of the last check with details if it has none."""
        place = self.kept if self.kept in self.details else max(self.details, default=None)
        return None if place is None else (place, self.details[place])

    @property
    def costs(self) -> tuple[float, float]:
        """Seconds that the callback took so far, and seconds of training without it, as in the log at the end."""
        checks, total = (self.values(name)[-1] if self.checks else math.nan for name in ("check_seconds", "seconds"))
        saving, training = 0.0, total - checks
        if self.end is not None and math.isfinite(self.end.training_seconds):
            saving, training = self.end.saving_seconds, self.end.training_seconds
        return (0.0 if math.isnan(self.setup_seconds) else self.setup_seconds) + checks + saving, training

    @property
    def is_resumed(self) -> bool:
        """Whether the first checks are of an earlier run, whose record has their seconds and training losses."""
        return bool(self.checks) and math.isnan(self.values("seconds")[0])

    @property
    def weighting(self) -> str:
        """Reason for unequal weights of the samples; "" if all have the same weight."""
        class_weight, is_sampled = self.settings.get("class_weight"), self.data.get("sampling") == "weighted"
        by_class = "" if class_weight is None else f"class_weight={class_weight}"
        return ", ".join(filter(None, (by_class, "weighted sampling" if is_sampled else "")))

    def class_name(self, index: int) -> str:
        """Name of a class, or its number if it has none."""
        return self.classes[index] if index < len(self.classes) else str(index)

    def values(self, name: str) -> list[float]:
        """One value of each check; NaN if a check has no such value."""
        return [check.get(name, math.nan) for check in self.checks]


def find_records(folder: str | PathLike[str]) -> list[Path]:
    """Find records in a folder and its subfolders, the latest first."""
    folder = Path(folder)
    if not folder.is_dir():
        raise NotADirectoryError(f"There is no folder {folder}.")
    files = [path for path in folder.rglob("*.jsonl") if _NAME.fullmatch(path.name) and path.is_file()]
    return sorted(files, key=lambda path: (path.stat().st_mtime, path.name), reverse=True)


def read_record(path: str | PathLike[str]) -> RunRecord:
    """Read the record of a run; an incomplete last line is left out, because the run was killed, or has not ended.

    Takes the record (`boundary_uncertainty.jsonl`, or one with a version), or a folder above it, whose latest record is
    read. Raises FileNotFoundError if there is none, and ValueError if a run cannot have written the file.
    """
    path = Path(path)
    if path.is_dir():
        found = find_records(path)
        if not found:
            raise FileNotFoundError(
                f"No record of a run in {path} or beneath: looked for `boundary_uncertainty.jsonl`, which the callbacks"
                " write beside the checkpoints, or beside the logs if there are no checkpoints."
            )
        path = found[0]
    if not path.is_file():
        raise FileNotFoundError(f"There is no record at {path}.")
    record = RunRecord(path, [], datetime.fromtimestamp(path.stat().st_mtime, UTC))
    checks: _Checks = {}
    kept: dict[str, Any] = {}
    read: dict[str, Any] = {"header": partial(_read_header, record), "end": partial(_read_end, record)}
    read["check"] = partial(_read_check, checks)
    *lines, rest = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines, 1):
        try:
            entry = json.loads(line, parse_constant=lambda _: None)  # for NaN and Infinity, which JSON does not have
            if (number == 1) != (entry["kind"] == "header"):
                raise ValueError("the first line, and no other, is of kind 'header'")
            if entry["kind"] in read:
                read[entry["kind"]](entry)
            if entry["kind"] == "end" or "crossing" in entry:  # not a check before a resume
                kept = entry
            # The number only grows during a run, so the largest is the latest.
            record.n_not_compared = max(record.n_not_compared, int(entry.get("n_not_compared", 0)))
        except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
            what = f"{type(error).__name__}: {str(error)[:200]}"
            raise ValueError(f"{path}, line {number} is not of a record that this version writes ({what}).") from None
    if rest:
        record.notes.append("The last line of the record is incomplete and is left out.")
    epochs = [epoch for epoch, _ in checks]
    record.axis = "step" if len(set(epochs)) < len(epochs) and all(step >= 0 for _, step in checks) else "epoch"
    last = {place[record.axis == "step"]: place for place in sorted(checks)}  # or the last check of each epoch
    record.checks = [checks[place][0] | {record.axis: key} for key, place in last.items()]
    record.details = {key: one for key, place in last.items() if (one := checks[place][1]) is not None}
    record.kept = _place(kept, f"kept_{record.axis}")
    return record


def _read_header(record: RunRecord, entry: dict[str, Any]) -> None:
    if entry["format"] != FORMAT:
        raise ValueError(f"format must be {FORMAT}, got {entry['format']!r}; another version of bu-torch may read it")
    record.settings, record.versions, record.data = (
        {key: one if one is None or isinstance(one, bool | int | float) else str(one) for key, one in found}
        for found in (entry[name].items() for name in ("settings", "versions", "data"))
    )
    record.data |= {f"skill of {name}": value for name, value in entry.get("skills", {}).items()}
    record.classes = [str(name) for name in entry.get("classes") or ()]
    record.setup_seconds = _number(entry.get("setup_seconds"))
    record.started = str(entry.get("started") or "")


def _read_check(checks: _Checks, check: dict[str, Any]) -> None:
    epoch, step = int(check["epoch"]), _place(check, "step")
    values = {name: one for name, one in check.items() if name not in _NO_VALUES and not isinstance(one, dict | list)}
    numbers = {name: _number(one) for name, one in values.items()}
    details = _details_of(check) if "crossing" in check else None
    checks[epoch, -1 if step is None else step] = numbers | {"epoch": epoch}, details


def _read_end(record: RunRecord, entry: dict[str, Any]) -> None:
    reason, best = (str(entry.get(name) or "") for name in ("reason", "best_model_path"))
    seconds = (_number(entry.get(f"{name}_seconds")) for name in ("saving", "training"))
    record.end = End(_place(entry, "stopped_epoch"), reason, best, *seconds)
    record.notes += map(str, entry.get("remarks", []))


def _details_of(check: dict[str, Any]) -> Details:
    return Details(
        crossing=Crossing(*([*map(_number, check["crossing"][name])] for name in Crossing._fields)),
        meeting=[Meeting(*map(int, one[:2]), *map(_number, one[2:])) for one in check.get("meeting", [])],
        doubtful=[Doubtful._make([*map(int, one), _number(p)]) for *one, p in check["doubtful"]],
        recalls=[ClassRecall(int(label), *map(_number, shares)) for label, *shares in check["recalls"]],
    )


def _number(value: Any) -> float:
    """A number, in which null stands for NaN and infinity."""
    return math.nan if value is None else float(value)


def _place(entry: dict[str, Any], name: str) -> int | None:
    return None if entry.get(name) is None else int(entry[name])
