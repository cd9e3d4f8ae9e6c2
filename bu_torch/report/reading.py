"""The record of a run, as far as it was written: a table of checks and, beside it, the details of each.

Both files are text that is parsed and checked; nothing in them is executed.
"""

import csv
import io
import json
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

_NAME = re.compile(r"boundary_uncertainty(-v\d+)?\.csv")
_REQUIRED = ("epoch", "boundary_uncertainty", "trust_score")
_FORMAT = 1
# Beyond these a file is none that a run has written, and reading it could fill the memory.
_MOST_TABLE_BYTES = 2**26
_MOST_DETAIL_BYTES = 2**30
_MOST_LINE_BYTES = 2**25
_MOST_BINS = 1000


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
    stopped_epoch: int | None
    reason: str
    best_model_path: str


@dataclass
class Record:
    """What a run has left.

    Attributes:
        path: The table of checks.
        checks: One a check, in order of the epochs; of two checks of an epoch the later one. `epoch` is an int, all
            else a float: NaN where the table says nothing.
        settings: Of the callback.
        versions: Of what it ran with.
        data: Sizes of what was measured.
        classes: Their names; None where they have none.
        n_not_compared: So many checks, the first, are those of a run that this one resumed with other settings or
            samples: its own are not compared with them.
        setup_seconds: What was spent before the first epoch; NaN where unknown.
        started: When, in ISO format; "" where unknown.
        details: By epoch, as far as they were written.
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

    def values(self, name: str) -> list[float]:
        """One column of the table, NaN where a check has no such value."""
        return [check.get(name, math.nan) for check in self.checks]


def find_records(folder: str | PathLike[str]) -> list[Path]:
    """Tables of checks in a folder and all folders beneath.

    Args:
        folder: Where to look.

    Returns:
        Paths of the tables, the one written to last first.

    Raises:
        FileNotFoundError: If there is no such folder.
        NotADirectoryError: If it is a file.
    """
    folder = Path(folder)
    if not folder.exists():
        raise FileNotFoundError(f"There is no folder {folder}.")
    if not folder.is_dir():
        raise NotADirectoryError(f"{folder} is a file, not a folder.")
    tables = [path for path in folder.rglob("boundary_uncertainty*.csv") if _NAME.fullmatch(path.name)]
    dated = [(_written(path), path) for path in tables if path.is_file()]
    return [path for _, path in sorted(dated, key=lambda pair: (pair[0], pair[1].name), reverse=True)]


def read_record(path: str | PathLike[str]) -> Record:
    """Read what a run has left: its table of checks, and the details beside it where there are any.

    A last line that was not written to its end is left out, so that the record of a killed run, or of one that still
    goes on, can be read.

    Args:
        path: The table (`boundary_uncertainty.csv`, or one with a version), the details beside it, or any folder above:
            then the table written to last counts.

    Returns:
        The record.

    Raises:
        FileNotFoundError: If there is no record.
        ValueError: If a file is not what a run writes.
    """
    path = Path(path)
    if path.is_dir():
        found = find_records(path)
        if not found:
            raise FileNotFoundError(
                f"No record of a run in {path} or beneath: looked for `boundary_uncertainty.csv`, which the callbacks"
                " write beside the checkpoints, or beside the logs where there are none."
            )
        path = found[0]
    path = path.with_suffix(".csv") if path.suffix == ".jsonl" else path
    if not path.is_file():
        raise FileNotFoundError(f"There is no record {path}.")
    record = Record(path, [], datetime.fromtimestamp(_written(path), UTC))
    record.checks = _read_table(path, record.missing)
    details = details_path(path)
    if details.is_file():
        _read_details(details, record)
    else:
        record.missing.append(
            f"There is no {details.name} beside the table, so that settings, pairs of classes, doubtful samples and"
            " histograms are not known."
        )
    return record


def details_path(table: Path) -> Path:
    """Where the details of a table's checks are."""
    return table.with_suffix(".jsonl")


def _written(table: Path) -> float:
    """Seconds since 1970 at which the table or its details were last written to."""
    times = [path.stat().st_mtime for path in (table, details_path(table)) if path.is_file()]
    return max(times, default=0.0)


def _read_table(path: Path, missing: list[str]) -> list[dict[str, Any]]:
    lines = list(_whole_lines(path, _MOST_TABLE_BYTES, missing))
    rows = csv.reader(io.StringIO("".join(lines), newline=""), strict=True)
    try:
        columns = next(rows, None)
        if columns is None:
            return []
        if absent := [name for name in _REQUIRED if name not in columns]:
            raise ValueError(
                f"{path} is not a record of checks: its first line must name the columns {', '.join(_REQUIRED)}; there"
                f" is no {absent[0]}."
            )
        checks = [_check(columns, row, f"{path}, line {rows.line_num}") for row in rows if row]
    except csv.Error as error:
        raise ValueError(f"{path} is not a record of checks: line {rows.line_num}: {error}.") from None
    by_epoch = {check["epoch"]: check for check in checks}
    return [by_epoch[epoch] for epoch in sorted(by_epoch)]


def _check(columns: list[str], row: list[str], where: str) -> dict[str, Any]:
    if len(row) != len(columns):
        raise ValueError(f"{where}: expected {len(columns)} values, got {len(row)}.")
    check: dict[str, Any] = {}
    for name, value in zip(columns, row, strict=True):
        try:
            check[name] = int(value) if name == "epoch" else float(value or "nan")
        except ValueError:
            kind = "an integer" if name == "epoch" else "a number"
            raise ValueError(f"{where}: {name[:50]} must be {kind}, got {value[:50]!r}.") from None
    if not 0 <= check["epoch"] < 2**53:
        raise ValueError(f"{where}: epoch must be an integer >= 0, got {row[columns.index('epoch')][:50]}.")
    return check


def _read_details(path: Path, record: Record) -> None:
    number = 0
    for number, line in enumerate(_whole_lines(path, _MOST_DETAIL_BYTES, record.missing), start=1):
        where = f"{path}, line {number}"
        try:
            # `json` would take NaN and Infinity, which are no JSON.
            entry = json.loads(line, parse_constant=lambda _: None)
        except (ValueError, RecursionError):
            raise ValueError(f"{where}: not a line of JSON.") from None
        if not isinstance(entry, dict) or (number == 1) != (entry.get("kind") == "header"):
            raise ValueError(f"{where}: expected an object, the first one of kind 'header' and no other.")
        read = _READERS.get(str(entry.get("kind")))
        if read is None:
            continue  # what a later version may add
        try:
            read(entry, record)
        except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
            reason = f"{type(error).__name__}: {error}"[:200]
            raise ValueError(f"{where}: not a {entry['kind']} as this package writes it ({reason}).") from None
    if number == 0:
        record.missing.append(f"{path.name} has no complete line yet.")


def _read_header(entry: dict[str, Any], record: Record) -> None:
    if entry["format"] != _FORMAT:
        raise ValueError(f"format must be {_FORMAT}, got {entry['format']!r}; a newer bu-torch may read it")
    record.settings, record.versions, record.data = (_table(entry[name]) for name in ("settings", "versions", "data"))
    classes = entry.get("classes")
    if classes is not None and not isinstance(classes, list):
        raise TypeError(f"classes must be a list, got {type(classes).__name__}")
    record.classes = None if classes is None else [str(name) for name in classes]
    record.n_not_compared = _integer(entry.get("n_not_compared", 0))
    record.setup_seconds = _number(entry.get("setup_seconds"))
    record.started = str(entry.get("started") or "")


def _read_check(entry: dict[str, Any], record: Record) -> None:
    pairs = np.array([[_number(value) for value in pair] for pair in entry["pairs"]], dtype=np.float64).reshape(-1, 5)
    if not ((pairs[:, 0] >= 0) & (pairs[:, 0] < pairs[:, 1]) & (pairs[:, 1] < 2**31)).all():
        raise ValueError("pairs must be of classes 0 <= k < l")
    record.details[_integer(entry["epoch"])] = Details(
        ceiling=_number(entry.get("ceiling")),
        pairs=pairs,
        n_pairs_left_out=_integer(entry.get("n_pairs_left_out", 0)),
        histograms={str(name): _histogram(value) for name, value in entry["histograms"].items()},
        doubtful=[
            Doubt(_integer(sample), _integer(label), _integer(prediction), _integer(nearest), _number(trust))
            for sample, label, prediction, nearest, trust in entry["doubtful"]
        ],
    )


def _read_end(entry: dict[str, Any], record: Record) -> None:
    kept, stopped = (
        None if entry.get(name) is None else _integer(entry[name]) for name in ("kept_epoch", "stopped_epoch")
    )
    record.end = End(kept, stopped, str(entry.get("reason") or ""), str(entry.get("best_model_path") or ""))


_READERS: dict[str, Callable[[dict[str, Any], Record], None]] = {
    "header": _read_header,
    "check": _read_check,
    "end": _read_end,
}


def _histogram(value: dict[str, Any]) -> Histogram:
    edges, counts = ([_number(number) for number in value[name]] for name in ("edges", "counts"))
    if not 1 <= len(counts) <= _MOST_BINS or len(edges) != len(counts) + 1:
        raise ValueError(f"a histogram of n <= {_MOST_BINS} counts must have n + 1 edges")
    return Histogram(edges, [count if count > 0 else 0.0 for count in counts])


def _number(value: Any) -> float:
    """A number of a record, where null stands for what is not finite."""
    if value is None:
        return math.nan
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"expected a number, got {type(value).__name__}")
    return float(value)


def _integer(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**53:
        raise TypeError(f"expected an integer >= 0, got {str(value)[:50]}")
    return value


def _table(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TypeError(f"expected an object, got {type(value).__name__}")
    return value


def _whole_lines(path: Path, most_bytes: int, missing: list[str]) -> Iterator[str]:
    """Lines of a text file that end in a line break; what follows the last break was not written to its end."""
    size = path.stat().st_size
    if size > most_bytes:
        raise ValueError(f"{path} has {size} bytes; a record has at most {most_bytes}.")
    with path.open("rb") as file:
        while line := file.readline(_MOST_LINE_BYTES):
            if len(line) == _MOST_LINE_BYTES:
                raise ValueError(f"{path} has a line of more than {_MOST_LINE_BYTES} bytes; a record has none.")
            if not line.endswith(b"\n"):
                missing.append(f"The last line of {path.name} was not written to its end and is left out.")
                return
            try:
                yield line.decode("utf-8")
            except UnicodeDecodeError:
                raise ValueError(f"{path} is not a record: it is not text in UTF-8.") from None
