"""Reading the record of a run, as far as it was written: a table of checks, and a file of details beside it.

Both files may come from anyone. They are parsed and checked, never executed; content that no run writes is refused, and
no more than `MOST_BYTES` of a file are read.
"""

import itertools
import json
import math
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from os import PathLike
from pathlib import Path
from typing import Any, Literal, NamedTuple

from bu_torch.run.timing import FORMAT
from bu_torch.signals.details import ClassRecall, Crossing, Details, Doubtful, Histogram, Pair

# A row has about 300 bytes, and a line of details at most about 40,000. Parsing a line can take 50 times its bytes in
# memory, so a line may have only a sixteenth of this.
MOST_BYTES = 2**24
_NAME = re.compile(r"boundary_uncertainty(-v\d+)?\.csv")
_REQUIRED = ("epoch", "boundary_uncertainty", "trust_score")


class End(NamedTuple):
    """Last line of a run that was not killed."""

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
        checks: In order. `epoch` and the entry named by `axis` are ints; all others are floats, NaN for an empty cell.
        last_written: Time at which the newer of the two files was written.
        settings: Settings of the callback; values that are not plain data are text, as in `versions` and `data`.
        versions: Versions of the packages.
        data: Sizes of the data, and how training draws it.
        classes: Names of the classes; empty if they have none.
        n_not_compared: Number of first checks that do not count, because they were made before a resume with other
            settings or samples, or before the first update of an average of the weights.
        setup_seconds: Time spent before the first epoch; NaN if unknown.
        started: Start of the run in ISO format; "" if unknown.
        details: Details by epoch or step, if written and read. Their `row` is an index of the dataset.
        kept: Epoch or step of the kept check, by the last line that tells; None if there is none, or if unknown.
        end: None if the run has not ended, or was killed.
        notes: Sentences on what the page cannot show and why, and the run's remarks on the kept check.
        axis: `"epoch"`, or `"step"` if an epoch has several checks.
    """

    path: Path
    checks: list[dict[str, Any]]
    last_written: datetime
    settings: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, Any] = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)
    classes: list[str] = field(default_factory=list)
    n_not_compared: int = 0
    setup_seconds: float = math.nan
    started: str = ""
    details: dict[int, Details] = field(default_factory=dict)
    kept: int | None = None
    end: End | None = None
    notes: list[str] = field(default_factory=list)
    axis: Literal["epoch", "step"] = "epoch"

    @property
    def places(self) -> list[int]:
        """The epoch of each check, or its step."""
        return [check[self.axis] for check in self.checks]

    def check_at(self, place: int | None) -> dict[str, Any] | None:
        """The check at an epoch or a step; None if there is none."""
        return next((check for check in self.checks if check[self.axis] == place), None)

    @property
    def costs(self) -> tuple[float, float]:
        """Seconds that the callback took so far, and seconds of training without it, as in the log at the end."""
        checks, total = (self.values(name)[-1] if self.checks else math.nan for name in ("check_seconds", "seconds"))
        saving, training = 0.0, total - checks
        if self.end is not None and math.isfinite(self.end.training_seconds):
            saving, training = self.end.saving_seconds, self.end.training_seconds
        return (0.0 if math.isnan(self.setup_seconds) else self.setup_seconds) + checks + saving, training

    @property
    def weighting(self) -> str:
        """Reason for unequal weights of the samples; "" if all have the same weight."""
        class_weight, is_sampled = self.settings.get("class_weight"), self.data.get("sampling") == "weighted"
        by_class = "" if class_weight is None else f"class_weight={class_weight}"
        return ", ".join(filter(None, (by_class, "weighted sampling" if is_sampled else "")))

    def class_name(self, index: int) -> str:
        """Name of a class, or its number if it has none."""
        return self.classes[index] if index < len(self.classes) else str(index)

    def has(self, name: str) -> bool:
        """True if all checks have this column."""
        return all(name in check for check in self.checks)

    def values(self, name: str) -> list[float]:
        """One column of the table; NaN if a check has no such value."""
        return [check.get(name, math.nan) for check in self.checks]

    def by_place(self, name: str) -> dict[int, float]:
        """One column by epoch or step."""
        return dict(zip(self.places, self.values(name), strict=True))


def find_records(folder: str | PathLike[str]) -> list[Path]:
    """Find tables of checks in a folder and its subfolders, the latest first.

    Raises NotADirectoryError if there is no such folder.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise NotADirectoryError(f"There is no folder {folder}.")
    tables = (path for path in folder.rglob("boundary_uncertainty*.csv") if _NAME.fullmatch(path.name))
    dated = [(written, path) for path in tables if (written := _written(path)) is not None]
    return [path for _, path in sorted(dated, key=lambda pair: (pair[0], pair[1].name), reverse=True)]


def read_record(path: str | PathLike[str]) -> RunRecord:
    """Read the record of a run: its table of checks, and the details beside it if there are any.

    An incomplete last line is left out: the run was killed, or has not ended. If there are more than 16 MiB of details,
    the first line and the last 16 MiB are read. `RunRecord.notes` says what was left out.

    Args:
        path: The table (`boundary_uncertainty.csv`, or one with a version), the details beside it, or a folder above
            them; the latest record in a folder is read.

    Returns:
        The record.

    Raises:
        FileNotFoundError: If there is no record.
        ValueError: If a run cannot have written a file, or the table has more than 16 MiB.
    """
    path = Path(path)
    if path.is_dir():
        found = find_records(path)
        if not found:
            raise FileNotFoundError(
                f"No record of a run in {path} or beneath: looked for `boundary_uncertainty.csv`, which the callbacks"
                " write beside the checkpoints, or beside the logs if there are no checkpoints."
            )
        path = found[0]
    path = path.with_suffix(".csv") if path.suffix == ".jsonl" else path
    written = _written(path)
    if written is None:
        raise FileNotFoundError(f"There is no record at {path}.")
    record = RunRecord(path, [], datetime.fromtimestamp(written, UTC))
    _read_table(record)
    details = path.with_suffix(".jsonl")
    if details.is_file():
        _read_lines(details, record, lambda line, is_first: _read_entry(line, is_first, record))
    else:
        unknown = "settings, pairs of classes, doubtful samples and histograms are unknown"
        record.notes.append(f"There is no {details.name} beside the table, so {unknown}.")
    return record


def _written(table: Path) -> float | None:
    """Time of the last change of the table or its details, in seconds since 1970; None if there is no table."""
    files = [path for path in (table, table.with_suffix(".jsonl")) if path.is_file()]
    return max(path.stat().st_mtime for path in files) if table in files else None


def _read_lines(path: Path, record: RunRecord, take: Callable[[str, bool], None]) -> None:
    """Pass the first line of a file and the last ones to `take`, but not an incomplete line.

    Raises ValueError if a line is too long or not text, or if `take` refuses it.
    """
    most, number = MOST_BYTES // 16, 0
    with path.open("rb") as file:
        while line := file.readline(most + 1):
            number += 1
            try:
                if len(line) > most:
                    raise ValueError(f"a line of a record has at most {most} bytes, and this one has more.")
                if line.endswith(b"\n"):
                    take(line.decode("utf-8-sig"), number == 1)  # a table program may have written a mark
                else:
                    record.notes.append(f"The last line of {path.name} is incomplete and is left out.")
            except UnicodeDecodeError:
                raise ValueError(f"{path}, line {number}: not a line of a record: it is not text in UTF-8.") from None
            except ValueError as error:
                raise ValueError(f"{path}, line {number}: {error}") from None
            if number == 1 and (skipped := os.fstat(file.fileno()).st_size - file.tell() - MOST_BYTES) > 0:
                record.notes.append(f"Left out of {path.name}: {skipped} bytes before the last {MOST_BYTES}.")
                file.seek(skipped, os.SEEK_CUR)
                file.readline(most)  # this line has lost its beginning


def _read_table(record: RunRecord) -> None:
    """Read the table into the record, by epoch, or by step if an epoch has several checks."""
    if (size := record.path.stat().st_size) > MOST_BYTES:
        raise ValueError(f"{record.path} has {size} bytes; a table of checks has at most {MOST_BYTES}.")
    columns: list[str] = []
    by_place: dict[tuple[int, float], dict[str, Any]] = {}

    def take(line: str, is_first: bool) -> None:
        cells = line.rstrip("\r\n").split(",")
        if is_first:
            columns.extend(cells)
            if absent := [name for name in _REQUIRED if name not in columns]:
                needed = f"the first line must name the columns {', '.join(_REQUIRED)}; there is no {absent[0]}."
                raise ValueError(f"not a record of checks: {needed}")
        if is_first or not line.strip():
            return
        try:
            check: dict[str, Any] = {name: float(cell or "nan") for name, cell in zip(columns, cells, strict=True)}
            check["epoch"] = _integer(int(cells[columns.index("epoch")]))
        except (TypeError, ValueError) as error:
            raise ValueError(f"not a row of {len(columns)} numbers, the epoch an integer ({error!s:.200}).") from None
        step = check.get("step", math.nan)
        by_place[check["epoch"], step if math.isfinite(step) else -1] = check

    _read_lines(record.path, record, take)
    record.checks = [by_place[place] for place in sorted(by_place)]
    epochs, steps = record.values("epoch"), record.values("step")
    n_more = len(epochs) - len(set(epochs))
    if not n_more:
        return
    is_rising = all(a < b for a, b in itertools.pairwise(steps)) and all(step % 1 == 0 for step in steps)
    if is_rising and 0 <= steps[0] <= steps[-1] < 2**53:
        record.axis = "step"
        record.checks = [{**check, "step": int(check["step"])} for check in record.checks]
        return
    record.checks = list({check["epoch"]: check for check in record.checks}.values())
    problem = f"{n_more} checks were made within epochs, and some of their steps are missing or do not rise"
    record.notes.append(f"{problem}: the last check of each epoch is shown.")


def _read_entry(line: str, is_first: bool, record: RunRecord) -> None:
    """Read a line of the file beside the table into the record; unknown kinds, of a later version, are skipped."""
    try:
        entry = json.loads(line, parse_constant=lambda _: None)  # for NaN and Infinity, which JSON does not have
    except (ValueError, RecursionError):
        raise ValueError("not a line of JSON.") from None
    kind = entry.get("kind") if isinstance(entry, dict) else None
    if not isinstance(entry, dict) or is_first != (kind == "header"):
        raise ValueError("expected an object, the first one of kind 'header' and no other.")
    try:
        if isinstance(kind, str) and kind in _READERS:
            _READERS[kind](entry, record)
            # The number only grows during a run, so the largest is the latest.
            record.n_not_compared = max(record.n_not_compared, _integer(entry.get("n_not_compared", 0)))
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError, RecursionError) as error:
        reason = f"{type(error).__name__}: {error}"[:200]
        raise ValueError(f"not a {kind} as this package writes it ({reason}).") from None


def _read_header(entry: dict[str, Any], record: RunRecord) -> None:
    if type(entry["format"]) is not int or entry["format"] != FORMAT:
        raise ValueError(f"format must be {FORMAT}, got {entry['format']!r}; another version of bu-torch may read it")
    record.settings, record.versions, record.data = (
        {key: value if value is None or isinstance(value, bool | int | float) else str(value) for key, value in found}
        for found in (entry[name].items() for name in ("settings", "versions", "data"))
    )
    record.data |= {f"skill of {name}": value for name, value in entry.get("skills", {}).items()}
    record.classes = [str(name) for name in entry.get("classes") or ()]
    record.setup_seconds = _number(entry.get("setup_seconds"))
    record.started = str(entry.get("started") or "")


def _read_check(entry: dict[str, Any], record: RunRecord) -> None:
    record.kept = _place(entry, f"kept_{record.axis}")
    record.details[_integer(entry[record.axis])] = Details(
        crossing=Crossing(*([*map(_number, entry["crossing"][name])] for name in Crossing._fields)),
        pairs=[Pair(_integer(k), _integer(m), *map(_number, numbers)) for k, m, *numbers in entry["pairs"]],
        n_pairs_left_out=_integer(entry.get("n_pairs_left_out", 0)),
        doubtful=[Doubtful._make([*map(_integer, classes), _number(trust)]) for *classes, trust in entry["doubtful"]],
        log_trust=_histogram(**entry["log_trust"]),
        recalls=[ClassRecall(_integer(label), *map(_number, shares)) for label, *shares in entry.get("recalls", [])],
    )


def _read_end(entry: dict[str, Any], record: RunRecord) -> None:
    record.kept, stopped = (_place(entry, name) for name in (f"kept_{record.axis}", "stopped_epoch"))
    reason, path = (str(entry.get(name) or "") for name in ("reason", "best_model_path"))
    record.end = End(stopped, reason, path, *(_number(entry.get(f"{name}_seconds")) for name in ("saving", "training")))
    record.notes += map(str, entry.get("remarks", []))


_READERS = {"header": _read_header, "check": _read_check, "end": _read_end}


def _histogram(edges: Any, counts: Any) -> Histogram:
    return Histogram([_number(edge) for edge in edges], [_integer(count) for count in counts])


def _number(value: Any) -> float:
    """A number, in which null stands for NaN and infinity."""
    if value is None:
        return math.nan
    if type(value) not in (float, int):
        raise TypeError(f"expected a number, got {type(value).__name__}")
    return float(value)


def _integer(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 2**53:
        raise TypeError(f"expected an integer >= 0, got {str(value)[:50]}")
    return value


def _place(entry: dict[str, Any], name: str) -> int | None:
    return None if entry.get(name) is None else _integer(entry[name])
