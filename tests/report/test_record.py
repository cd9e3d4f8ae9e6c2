"""Records of all kinds: whole, torn, old, resumed, and files that are none."""

import math
import os

import pytest
import records
from records import BINS, CHECK, lines, table

from bu_torch.report import find_records, read_record
from bu_torch.report.verdict import RunVerdict

HEAD = records.HEAD.replace("\n", "\r\n")


def test_a_whole_record(tmp_path):
    path = records.write_run(tmp_path / "a" / "checkpoints", n_checks=5, classes=["x", "y", "z"])
    record = read_record(tmp_path)
    for file in (path, path.with_suffix(".jsonl")):
        assert read_record(file).path == record.path == path
    assert record.values("epoch") == sorted(record.details) == [0, 1, 2, 3, 4]
    assert record.values("trust_score") == [row["trust_score"] for row in records.checks(5)]
    assert (record.settings["rule"], record.classes) == ("accuracy_uncertainty_trust", ["x", "y", "z"])
    assert (record.end.stopped_epoch, record.notes) == (4, [])
    written, read = records.details(3, 3, 5), record.details[3]
    assert [list(pair) for pair in read.pairs] == written["pairs"]
    assert [list(doubt) for doubt in read.doubtful] == written["doubtful"]
    assert [list(recall) for recall in read.recalls] == written["recalls"]
    assert read.log_trust._asdict() == written["log_trust"]
    assert read.crossing._asdict() == written["crossing"]


def test_the_record_written_to_last_counts_and_others_are_listed(tmp_path):
    paths = [
        records.write_run(tmp_path / "one", n_checks=2, n_classes=2),
        records.write_run(tmp_path / "one", n_checks=3, n_classes=2, name="boundary_uncertainty-v1"),
        records.write_run(tmp_path / "two" / "deeper", n_checks=4, n_classes=2),
    ]
    for age, path in zip((50, 100, 150), paths, strict=True):
        for file in (path, path.with_suffix(".jsonl")):
            os.utime(file, (1e9 - age, 1e9 - age))
    os.utime(paths[1].with_suffix(".jsonl"), (1e9, 1e9))  # its details are the newest of all
    (tmp_path / "boundary_uncertainty_of_others.csv").write_text("a,b\n")
    assert find_records(tmp_path) == [paths[1], paths[0], paths[2]]
    assert len(read_record(tmp_path).checks) == 3


def test_a_table_that_begins_with_a_byte_order_mark_is_read(tmp_path):
    table(tmp_path, b"\xef\xbb\xbf", HEAD, "0,0.1,1.0\r\n")
    assert read_record(tmp_path).values("trust_score") == [1.0]


@pytest.mark.parametrize("cut", range(1, 11))
def test_a_torn_last_row_is_left_out(tmp_path, cut):
    table(tmp_path, (HEAD + "0,0.1,1.0\r\n1,0.2,1.25\r\n")[:-cut])
    record = read_record(tmp_path)
    assert record.values("epoch") == [0]
    assert "is incomplete" in record.notes[0]


@pytest.mark.parametrize("cut", [1, 10, 100])
def test_a_torn_last_line_of_the_details_is_left_out(tmp_path, cut):
    path = records.write_run(tmp_path, n_checks=3, n_classes=2).with_suffix(".jsonl")
    path.write_bytes(path.read_bytes()[:-cut])
    record = read_record(tmp_path)
    assert (record.end, len(record.details)) == (None, 3)
    assert "is incomplete" in record.notes[0]


@pytest.mark.parametrize("text", ["", HEAD, HEAD[:10]])
def test_a_run_killed_before_its_first_check(tmp_path, text):
    table(tmp_path, text)
    (tmp_path / "boundary_uncertainty.jsonl").write_text('{"kind": "hea')
    assert read_record(tmp_path).checks == []


def test_names_of_a_later_version_rows_of_one_epoch_and_what_is_no_number(tmp_path):
    lines(tmp_path, {"kind": "later", "x": [1]}, first={**records.header(), "new": 1})
    table(tmp_path, HEAD.strip() + ",more\r\n0,0.1,1,7\r\n1,0.2,1,7\r\n2,nan,inf,\r\n1,0.9,1,7\r\n")
    record = read_record(tmp_path)
    assert record.settings["patience"] == 20
    assert record.values("epoch") == [0, 1, 2]
    assert record.values("boundary_uncertainty")[:2] == [0.1, 0.9]  # of two rows of an epoch the later
    last = record.checks[2]
    assert math.isnan(last["boundary_uncertainty"])
    assert math.isnan(last["more"])
    assert last["trust_score"] == math.inf


def test_nothing_there(tmp_path):
    with pytest.raises(FileNotFoundError, match=f"No record of a run in {tmp_path} or beneath: looked for"):
        read_record(tmp_path)
    with pytest.raises(FileNotFoundError, match="There is no record"):
        read_record(tmp_path / "gone.csv")
    (tmp_path / "file").write_text("")
    for name in ("gone", "file"):
        with pytest.raises(NotADirectoryError, match=f"There is no folder .*{name}"):
            find_records(tmp_path / name)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\r\n1,2\r\n", "must name the columns epoch, boundary_uncertainty, trust_score; there is no epoch"),
        (HEAD + "0,0.5\r\n1,2,3\r\n", "line 2: not a row of 3 numbers, the epoch an integer"),
        (HEAD + "0.5,1,1\r\n", "epoch an integer .*'0.5'"),
        (HEAD + "-1,1,1\r\n", "epoch an integer .*>= 0, got -1"),
        (HEAD.encode("utf-16"), "not text in UTF-8"),
        (b"\x80\x04\x95pickle\n", "not text in UTF-8"),
    ],
)
def test_tables_of_others_are_refused(tmp_path, text, message):
    refused(table(tmp_path, text), message)


def refused(path, message):
    with pytest.raises(ValueError, match=message) as found:
        read_record(path)
    assert str(path) in str(found.value)
    assert len(str(found.value)) < 500


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ("[" * 4000 + "\n", "line 2: not a line of JSON"),
        ("3\n", "line 2: expected an object"),
        (records.header(), "line 2: expected an object, the first one of kind 'header' and no other"),
        ({"kind": "check", "epoch": 0}, "not a check as this package writes it .KeyError: 'crossing'"),
        (CHECK | {"epoch": -1}, "expected an integer >= 0, got -1"),
        (CHECK | {"crossing": {"network": ["high"], "attainable": []}}, "expected a number, got str"),
        (CHECK | {"crossing": {"network": [10**400], "attainable": []}}, "OverflowError"),
        (CHECK | {"crossing": {"network": [0.5]}}, "KeyError: 'attainable'"),
        (CHECK | {"pairs": [[0, 1, 0.5]]}, "not a check"),
        (CHECK | {"pairs": [[0, 1, True, 1]]}, "expected a number, got bool"),
        (CHECK | {"log_trust": BINS | {"edges": "ab"}}, "expected a number, got str"),
        (CHECK | {"log_trust": BINS | {"counts": [0.5]}}, "expected an integer >= 0"),
        (CHECK | {"doubtful": [[1, 2, 3]]}, "not a check"),
        (CHECK | {"recalls": [[1, 0.5]]}, "not a check"),
        ({"kind": "end", "kept_epoch": "no"}, "not a end as this package writes it"),
        ([CHECK], "the first one of kind 'header'"),
        ([records.header() | {"format": 2}], "format must be 3, got 2"),
        ([records.header() | {"settings": []}], "not a header"),
    ],
)
def test_crafted_details_are_refused(tmp_path, entries, message):
    first, *others = entries if isinstance(entries, list) else [records.header(), entries]
    refused(lines(tmp_path, *others, first=first), message)


def test_several_checks_an_epoch_are_told_apart_by_their_steps(tmp_path):
    rows = [row | {"epoch": place // 3} for place, row in enumerate(records.checks(7))]
    places = ({"epoch": row["epoch"], "step": row["step"]} for row in rows)
    checks = (records.details(number, 2, 7) | place for number, place in enumerate(places))
    lines(tmp_path, *checks, records.end(0) | {"kept_step": 120})
    record = records.run(tmp_path, rows)
    assert record.axis == "step"
    assert record.places == list(record.details) == [40, 80, 120, 160, 200, 240, 280]
    assert [check["epoch"] for check in record.checks] == [0, 0, 0, 1, 1, 1, 2]
    assert RunVerdict.of(record).kept == 120
    assert record.check_at(120)["epoch"] == 0


def test_steps_that_do_not_rise_leave_the_epochs(tmp_path):
    table(tmp_path, "epoch,step,boundary_uncertainty,trust_score\r\n0,4,0.1,1\r\n1,4,0.2,1\r\n1,3,0.3,1\r\n")
    record = read_record(tmp_path)
    assert (record.axis, record.places) == ("epoch", [0, 1])
    assert "1 checks were made within epochs" in record.notes[0]
    assert record.values("boundary_uncertainty") == [0.1, 0.2]
