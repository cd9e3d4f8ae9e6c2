"""The record of a run, as far as it was written: a table of checks and, beside it, the details of each.

Both files are text that is parsed and checked; nothing in them is executed. They may come from anyone. What no run can
have written is refused. Of what is more than a page can show a part is read, and `Record.missing` says which.
"""

import csv
import itertools
import json
import math
import os
import re
import stat
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from os import PathLike
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from bu_torch.report.lines import Place, count_lines, is_torn, last_line, read_line, skip_lines, spread_lines
from bu_torch.report.record import Details, Doubt, End, Histogram, Record
from bu_torch.report.verdict import Verdict
from bu_torch.run.record import FORMAT, FORMAT_OF_EPOCHS

_NAME = re.compile(r"boundary_uncertainty(-v\d+)?\.csv")
_REQUIRED = ("epoch", "boundary_uncertainty", "trust_score")
# A row of a run has some 300 bytes, and a check beside it at most some 30,000 in 500 lists. A list takes up to 50 times
# its bytes in memory, so that a line is only parsed if it has few of them.
_MOST_TABLE_BYTES = 2**26
_MOST_ROW_BYTES = 2**16
_MOST_HEADER_BYTES = 2**23
_MOST_HEADER_BRACKETS = 2**18
_MOST_CHECK_BYTES = 2**20
_MOST_CHECK_BRACKETS = 2**12
# What is read of more than that: as much as a page can show.
_MOST_ROWS = 50_000
_MOST_COLUMNS = 40
_MOST_LINES = 1000
_MOST_PARSED_BYTES = 2**25
_MOST_PAIRS = 500
_MOST_DOUBTFUL = 100
_MOST_HISTOGRAMS = 8
_MOST_BINS = 50
_MOST_SETTINGS = 100
_MOST_CLASSES = 100_000
# A check as a run writes it, so that its place is known before it is parsed.
_PLACE = re.compile(
    rb'\{\s*"kind"\s*:\s*"check"\s*,\s*"epoch"\s*:\s*(?P<epoch>\d{1,16})\s*,'
    rb'(\s*"step"\s*:\s*(?P<step>\d{1,16})\s*,)?'
)


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
    dated = [(written, path) for path in tables if (written := _written(path)) is not None]
    return [path for _, path in sorted(dated, key=lambda pair: (pair[0], pair[1].name), reverse=True)]


def read_record(path: str | PathLike[str]) -> Record:
    """Read what a run has left: its table of checks, and the details beside it where there are any.

    A last line that was not written to its end is left out, so that the record of a killed run, or of one that still
    goes on, can be read. Of a record that is longer than a page can show, a part is read: the last 50,000 rows of the
    table, and the details of some 1,000 checks, spread evenly and with those of the kept one. `Record.missing` says
    what was left out.

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
    written = _written(path)
    if written is None:
        raise FileNotFoundError(f"There is no record at {path}.")
    record = Record(path, [], datetime.fromtimestamp(written, UTC))
    with path.open("rb") as file:
        _read_table(file, record)
    details = details_path(path)
    if details.is_file():
        with details.open("rb") as file:
            _DetailsReader(details, record).read(file)
    else:
        _order(record)
        record.missing.append(
            f"There is no {details.name} beside the table, so that settings, pairs of classes, doubtful samples and"
            " histograms are not known."
        )
    return record


def details_path(table: Path) -> Path:
    """Where the details of a table's checks are."""
    return table.with_suffix(".jsonl")


def _written(table: Path) -> float | None:
    """Seconds since 1970 at which the table or its details were last written to; None if there is no table."""
    times = [_modified(path) for path in (table, details_path(table))]
    return None if times[0] is None else max(time for time in times if time is not None)


def _modified(path: Path) -> float | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime if stat.S_ISREG(status.st_mode) else None


def _read_table(file: BinaryIO, record: Record) -> None:
    """Read the last rows of the table into the record."""
    path, size = record.path, os.fstat(file.fileno()).st_size
    if size > _MOST_TABLE_BYTES:
        raise ValueError(f"{path} has {size} bytes; a table of checks has at most {_MOST_TABLE_BYTES}.")
    n_rows = count_lines(file, 0, size) - 1
    if is_torn(file, size):
        record.missing.append(_torn(path))
    if n_rows < 0:
        return
    file.seek(0)
    columns = _cells(read_line(file, _MOST_ROW_BYTES, f"{path}, line 1"), f"{path}, line 1")
    if absent := [name for name in _REQUIRED if name not in columns[:_MOST_COLUMNS]]:
        raise ValueError(
            f"{path} is not a record of checks: its first line must name the columns {', '.join(_REQUIRED)}; there"
            f" is no {absent[0]}{f' among the first {_MOST_COLUMNS}' if len(columns) > _MOST_COLUMNS else ''}."
        )
    record.n_left_out = max(0, n_rows - _MOST_ROWS)
    skip_lines(file, file.tell(), size, record.n_left_out)
    by_place: dict[tuple[int, float], dict[str, Any]] = {}
    for number in range(record.n_left_out, n_rows):
        where = f"{path}, line {number + 2}"
        if cells := _cells(read_line(file, _MOST_ROW_BYTES, where), where):
            check = _check(columns, cells, where)
            step = check.get("step", math.nan)
            by_place[check["epoch"], step if math.isfinite(step) else -1] = check
    record.checks = [by_place[place] for place in sorted(by_place)]
    _tell_what_is_not_read(record, len(columns))


def _order(record: Record, file_format: int = FORMAT) -> None:
    """Find what tells checks apart: their steps, where there are several in an epoch."""
    epochs, steps = record.values("epoch"), record.values("step")
    n_epochs = len(set(epochs))
    is_rising = all(a < b for a, b in itertools.pairwise(steps)) and all(step % 1 == 0 for step in steps)
    if file_format > FORMAT_OF_EPOCHS and n_epochs < len(epochs) and is_rising and 0 <= steps[0] <= steps[-1] < 2**53:
        record.axis = "step"
        record.checks = [{**check, "step": int(check["step"])} for check in record.checks]
        return
    record.axis = "epoch"
    record.checks = list({check["epoch"]: check for check in record.checks}.values())
    if file_format > FORMAT_OF_EPOCHS and n_epochs < len(epochs):
        record.missing.append(
            f"{len(epochs) - n_epochs} checks were made within epochs, and their steps are not known of all, or do not"
            " rise: the last check of each epoch is shown."
        )


def _tell_what_is_not_read(record: Record, n_columns: int) -> None:
    """Say which rows and columns of the table are left out."""
    if record.n_left_out:
        record.missing.append(
            f"The table has {record.n_left_out + _MOST_ROWS} rows. The last {_MOST_ROWS} are read, the"
            f" {record.n_left_out} before are left out: the rules are replayed without them."
        )
    if n_columns > _MOST_COLUMNS:
        record.missing.append(
            f"The table has {n_columns} columns. The first {_MOST_COLUMNS} are read, the"
            f" {n_columns - _MOST_COLUMNS} after them are left out."
        )


def _torn(path: Path) -> str:
    return f"The last line of {path.name} was not written to its end and is left out."


def _cells(line: bytes, where: str) -> list[str]:
    """A line of the table by its cells; none where it is empty. A cell does not go on in the next line."""
    try:
        return next(csv.reader([_text(line, where)], strict=True), [])
    except csv.Error as error:
        raise ValueError(f"{where}: {error}.") from None


def _check(columns: list[str], row: list[str], where: str) -> dict[str, Any]:
    if len(row) != len(columns):
        raise ValueError(f"{where}: expected {len(columns)} values, got {len(row)}.")
    epoch = row[columns.index("epoch")]
    check: dict[str, Any] = {}
    try:
        for name, value in itertools.islice(zip(columns, row, strict=True), _MOST_COLUMNS):
            check[name] = float(value or "nan")
    except ValueError:
        raise ValueError(f"{where}: {name[:50]} must be a number, got {value[:50]!r}.") from None
    try:
        check["epoch"] = int(epoch)
    except ValueError:
        raise ValueError(f"{where}: epoch must be an integer, got {epoch[:50]!r}.") from None
    if not 0 <= check["epoch"] < 2**53:
        raise ValueError(f"{where}: epoch must be an integer >= 0, got {epoch[:50]}.")
    return check


class _DetailsReader:
    """Reads the file beside the table into the record.

    Args:
        path: The file, for what is said of it.
        record: What to read it into; its table is read already.
    """

    def __init__(self, path: Path, record: Record) -> None:
        self._path = path
        self._record = record
        self._n_left_out: Counter[str] = Counter()
        self._readers: dict[str, Callable[[dict[str, Any]], None]] = {
            "header": self._read_header,
            "check": self._read_check,
            "end": self._read_end,
        }

    def read(self, file: BinaryIO) -> None:
        """Read all of the file, or its first and last line and others between them."""
        size = os.fstat(file.fileno()).st_size
        where = f"{self._path}, line 1"
        first = read_line(file, _MOST_HEADER_BYTES, where)
        start = file.tell()
        if is_torn(file, size):
            self._record.missing.append(_torn(self._path))
        if not first and start == size:
            self._record.missing.append(f"{self._path.name} has no complete line yet.")
            _order(self._record)
            return
        self._parse(first, where, _MOST_HEADER_BRACKETS, is_first=True)
        n_lines = count_lines(file, start, size) if size - start <= _MOST_PARSED_BYTES else math.inf
        if n_lines <= _MOST_LINES:
            file.seek(start)
            for number in range(2, 2 + int(n_lines)):
                self._read_next(file, f"{self._path}, line {number}")
        else:
            self._read_some(file, start, size)
        for what, number in self._n_left_out.items():
            self._record.missing.append(f"Left out of {self._path.name}: {number} {what}.")

    def _read_some(self, file: BinaryIO, start: int, size: int) -> None:
        """Read the last line, which tells what was kept, that of the kept check, and others spread evenly."""
        last = last_line(file, start, size, _MOST_CHECK_BYTES, str(self._path))
        self._read_at(file, last)
        found = spread_lines(file, start, size, _MOST_LINES, _MOST_CHECK_BYTES, str(self._path))
        places = found
        while sum(place.length for place in places) > _MOST_PARSED_BYTES:
            places = places[::2]
        starts = {place.start for place in places} - {last}
        n_bytes = sum(place.length for place in places)
        if (kept := self._find_kept(file, found, size)) is not None:
            starts.add(kept)
        for begin in sorted(starts):
            self._read_at(file, begin)
        self._record.missing.append(
            f"{self._path.name} is longer than a page needs: of its {size} bytes {n_bytes} are read, in"
            f" {len(places)} lines that are spread evenly, besides the first line, the last and that of the kept check."
        )

    def _find_kept(self, file: BinaryIO, found: list[Place], size: int) -> int | None:
        """Where the line of the kept check begins, between two of those found; None if it is not there."""
        try:
            kept = Verdict.of(self._record).kept
        except ValueError:  # of settings that no rule takes, which the page refuses
            return None
        if kept is None:
            return None
        starts = [place.start for place in found if 0 <= self._place(place.head) <= kept]
        place = max(starts, default=size)
        file.seek(place)
        stop = min(size, place + _MOST_PARSED_BYTES)
        while place < stop:
            line = read_line(file, _MOST_CHECK_BYTES, f"{self._path}, byte {place}")
            if not line or self._place(line) >= kept:
                return place if self._place(line) == kept else None
            place = file.tell()
        return None

    def _place(self, line: bytes) -> int:
        """The epoch or step of a check, as far as can be told without parsing it; -1 if it cannot."""
        found = _PLACE.match(line)
        return int(found[self._record.axis] or -1) if found else -1

    def _read_at(self, file: BinaryIO, start: int) -> None:
        file.seek(start)
        self._read_next(file, f"{self._path}, byte {start}")

    def _read_next(self, file: BinaryIO, where: str) -> None:
        self._parse(read_line(file, _MOST_CHECK_BYTES, where), where, _MOST_CHECK_BRACKETS)

    def _parse(self, line: bytes, where: str, most_brackets: int, *, is_first: bool = False) -> None:
        n_brackets = line.count(b"[") + line.count(b"{")
        if n_brackets > most_brackets:
            raise ValueError(
                f"{where}: a line of a record has at most {most_brackets} brackets, [ and {{, got {n_brackets}."
            )
        text = _text(line, where)
        try:
            # `json` would take NaN and Infinity, which are no JSON.
            entry = json.loads(text, parse_constant=lambda _: None)
        except (ValueError, RecursionError):
            raise ValueError(f"{where}: not a line of JSON.") from None
        kind = entry.get("kind") if isinstance(entry, dict) else None
        if not isinstance(entry, dict) or is_first != (kind == "header"):
            raise ValueError(f"{where}: expected an object, the first one of kind 'header' and no other.")
        read = self._readers.get(kind) if isinstance(kind, str) else None
        if read is None:
            return  # what a later version may add
        try:
            read(entry)
        except (KeyError, TypeError, ValueError, OverflowError, AttributeError, RecursionError) as error:
            reason = f"{type(error).__name__}: {error}"[:200]
            raise ValueError(f"{where}: not a {kind} as this package writes it ({reason}).") from None

    def _read_header(self, entry: dict[str, Any]) -> None:
        file_format, known = entry["format"], range(FORMAT_OF_EPOCHS, FORMAT + 1)
        if type(file_format) is not int or file_format not in known:
            known_to = " or ".join(map(str, known))
            raise ValueError(f"format must be {known_to}, got {file_format!r}; a newer bu-torch may read it")
        record = self._record
        _order(record, file_format)
        record.settings, record.versions, record.data = (
            self._first_settings(name, entry[name]) for name in ("settings", "versions", "data")
        )
        classes = entry.get("classes")
        if classes is not None and not isinstance(classes, list):
            raise TypeError(f"classes must be a list, got {type(classes).__name__}")
        if classes is not None:
            record.classes = [str(name) for name in self._first(classes, _MOST_CLASSES, "names of classes", "")]
        self._read_n_not_compared(entry)
        record.setup_seconds = _number(entry.get("setup_seconds"))
        record.started = str(entry.get("started") or "")

    def _read_n_not_compared(self, entry: dict[str, Any]) -> None:
        """Checks that do not count are added as the run goes on; the last line knows of most."""
        record = self._record
        record.n_not_compared = max(record.n_not_compared, _integer(entry.get("n_not_compared", 0)))

    def _read_check(self, entry: dict[str, Any]) -> None:
        self._read_n_not_compared(entry)
        pairs = self._first(entry["pairs"], _MOST_PAIRS, "pairs of classes")
        if any(len(pair) != 5 for pair in pairs):
            raise ValueError("a pair must have 5 values")
        array = _numbers(list(itertools.chain.from_iterable(pairs))).reshape(-1, 5)
        if not ((array[:, 0] >= 0) & (array[:, 0] < array[:, 1]) & (array[:, 1] < 2**31)).all():
            raise ValueError("pairs must be of classes 0 <= k < l")
        self._record.details[_integer(entry[self._record.axis])] = Details(
            ceiling=_number(entry.get("ceiling")),
            pairs=array,
            n_pairs_left_out=_integer(entry.get("n_pairs_left_out", 0)),
            histograms=self._histograms(entry["histograms"]),
            doubtful=[
                Doubt(_integer(sample), _integer(label), _integer(prediction), _integer(nearest), _number(trust))
                for sample, label, prediction, nearest, trust in self._first(
                    entry["doubtful"], _MOST_DOUBTFUL, "doubtful samples"
                )
            ],
        )

    def _read_end(self, entry: dict[str, Any]) -> None:
        places = ("kept_epoch", "kept_step", "stopped_epoch")
        kept, step, stopped = (None if entry.get(name) is None else _integer(entry[name]) for name in places)
        self._read_n_not_compared(entry)
        self._record.end = End(
            kept, step, stopped, str(entry.get("reason") or ""), str(entry.get("best_model_path") or "")
        )

    def _histograms(self, value: Any) -> dict[str, Histogram]:
        found = {}
        for name, one in self._first(list(_table(value).items()), _MOST_HISTOGRAMS, "histograms"):
            edges, counts = one["edges"], one["counts"]
            if not 1 <= len(counts) == len(edges) - 1:
                raise ValueError("a histogram of n >= 1 counts must have n + 1 edges")
            if len(counts) > _MOST_BINS:
                self._n_left_out[f"histograms, of more than {_MOST_BINS} bins"] += 1
                continue
            found[name] = Histogram(
                _numbers(edges).tolist(), [count if count > 0 else 0.0 for count in _numbers(counts).tolist()]
            )
        return found

    def _first(self, values: Any, most: int, what: str, where: str = " of a check") -> list[Any]:
        """The first entries of a list; how many more there are is counted."""
        if not isinstance(values, list):
            raise TypeError(f"{what} must be a list, got {type(values).__name__}")
        if len(values) > most:
            self._n_left_out[f"{what}, beyond the first {most}{where}"] += len(values) - most
        return values[:most]

    def _first_settings(self, name: str, value: Any) -> dict[str, Any]:
        return dict(self._first(list(_table(value).items()), _MOST_SETTINGS, f"entries of `{name}`", ""))


def _number(value: Any) -> float:
    """A number of a record, where null stands for what is not finite."""
    return float(_numbers([value])[0])


def _numbers(values: list[Any]) -> np.ndarray:
    """Numbers of a record, likewise."""
    if others := {type(value).__name__ for value in values} - {"float", "int", "NoneType"}:
        raise TypeError(f"expected a number, got {min(others)}")
    return np.array(values, dtype=np.float64)


def _integer(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 2**53:
        raise TypeError(f"expected an integer >= 0, got {str(value)[:50]}")
    return value


def _table(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TypeError(f"expected an object, got {type(value).__name__}")
    return value


def _text(line: bytes, where: str) -> str:
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError:
        raise ValueError(f"{where}: not a line of a record: it is not text in UTF-8.") from None
