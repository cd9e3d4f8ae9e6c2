"""Reading the record of a run, as far as it was written: a file of lines in JSON, parsed and never executed."""

import json
import math
import re
from dataclasses import dataclass, field
from datetime import UTC, datetime
from os import PathLike
from pathlib import Path
from typing import Any, Literal, NamedTuple

from bu_torch.run.record import FORMAT
from bu_torch.signals.catalogue import ClassRecall, Crossing, Details, Doubtful, Meeting

_NAME = re.compile(r"boundary_uncertainty(-v\d+)?\.jsonl")

_Checks = dict[tuple[int, int], tuple[dict[str, Any], Details | None]]  # by epoch and step, -1 if unknown


class End(NamedTuple):
    """Last line of a run that was not killed."""

    stopped_epoch: int | None
    reason: str
    best_model_path: str
    saving_seconds: float
    training_seconds: float


@dataclass
class RunRecord:
    """Record of a run, as far as it was written."""

    path: Path
    checks: list[dict[str, Any]]  # `epoch`, and the entry named by `axis`, are ints; all else floats, NaN for null
    last_written: datetime
    settings: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, Any] = field(default_factory=dict)  # of the packages
    data: dict[str, Any] = field(default_factory=dict)  # its sizes, and how training draws it
    classes: list[str] = field(default_factory=list)  # their names; empty if they have none
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

    def class_name(self, index: int) -> str:
        """Name of a class, at most 60 characters of it, or its number if it has none."""
        return self.classes[index][:60] if index < len(self.classes) else str(index)

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
    *lines, rest = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines, 1):
        try:
            entry = json.loads(line, parse_constant=lambda _: None)  # for NaN and Infinity, which JSON does not have
            if (number == 1) != (entry["kind"] == "header"):
                raise ValueError("the first line, and no other, is of kind 'header'")
            _read(entry, record, checks)
            if entry["kind"] == "end" or "crossing" in entry:  # not a check before a resume
                kept = entry
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


def _read(entry: dict[str, Any], record: RunRecord, checks: _Checks) -> None:
    """Take what a line says."""
    if entry["kind"] == "header":
        if entry["format"] != FORMAT:
            raise ValueError(f"format must be {FORMAT}, got {entry['format']!r}: it is of another version of bu-torch")
        record.settings, record.versions = {**entry["settings"]}, {**entry["versions"]}
        skills = {f"skill of {name}": value for name, value in entry.get("skills", {}).items()}
        record.data = {**entry["data"], **skills}
        record.classes = [str(name) for name in entry.get("classes") or ()]
        record.setup_seconds = _number(entry.get("setup_seconds"))
        record.started = str(entry.get("started") or "")
    elif entry["kind"] == "check":
        epoch, step = int(entry["epoch"]), _place(entry, "step")
        numbers = {name: _number(one) for name, one in entry.items() if one is None or isinstance(one, int | float)}
        details = _details_of(entry) if "crossing" in entry else None
        checks[epoch, -1 if step is None else step] = numbers | {"epoch": epoch}, details
    elif entry["kind"] == "end":
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
