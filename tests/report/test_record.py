"""Records of all kinds: whole, torn, resumed, and files that are none."""

import json
import os

import pandas as pd
import pytest
import records
from records import CHECK, write

from bu_torch.report import find_records, read_record


def test_a_whole_record_is_read_and_so_it_is_by_pandas(tmp_path):
    path = records.write_run(tmp_path / "a" / "checkpoints", n_checks=5)
    record, written = read_record(tmp_path), [json.loads(line) for line in path.read_text().splitlines()]
    assert record.path == path
    assert record.values("epoch") == sorted(record.details) == [0, 1, 2, 3, 4]
    assert (record.settings["rule"], record.classes) == ("accuracy_uncertainty_trust", ["a", "b", "c"])
    assert (record.end.stopped_epoch, record.kept, record.notes) == (4, written[-1]["kept_epoch"], [])
    check, read = written[4], record.details[3]
    assert [list(doubt) for doubt in read.doubtful] == check["doubtful"]
    assert [list(recall) for recall in read.recalls] == check["recalls"]
    assert read.crossing._asdict() == check["crossing"]
    table = pd.read_json(path, lines=True).query("kind == 'check'")
    assert table.trust_score.tolist() == pytest.approx(record.values("trust_score"))


def test_the_record_written_to_last_counts_and_others_are_listed(tmp_path):
    paths = [
        records.write_run(tmp_path / "one", n_checks=2),
        records.write_run(tmp_path / "one", n_checks=3, name="boundary_uncertainty-v1"),
        records.write_run(tmp_path / "two" / "deeper", n_checks=4),
    ]
    for age, path in zip((50, 0, 150), paths, strict=True):
        os.utime(path, (1e9 - age, 1e9 - age))
    (tmp_path / "boundary_uncertainty_of_others.jsonl").write_text("{}\n")
    assert find_records(tmp_path) == [paths[1], paths[0], paths[2]]
    assert len(read_record(tmp_path).checks) == 3


@pytest.mark.parametrize("cut", [1, 10, 100])
def test_a_torn_last_line_is_left_out(tmp_path, cut):
    path = records.write_run(tmp_path, n_checks=3)
    path.write_bytes(path.read_bytes()[:-cut])
    record = read_record(tmp_path)
    assert (record.end, len(record.checks)) == (None, 3)
    assert "is incomplete" in record.notes[0]


def test_several_checks_an_epoch_are_told_apart_by_their_steps(tmp_path):
    checks = [CHECK | {"epoch": n // 3, "step": 40 * (n + 1)} for n in range(7)]
    write(tmp_path, records.header(), *checks, records.end(0) | {"kept_step": 120})
    record = read_record(tmp_path)
    assert (record.axis, record.kept) == ("step", 120)
    assert record.places == list(record.details) == [40, 80, 120, 160, 200, 240, 280]
    assert [check["epoch"] for check in record.checks] == [0, 0, 0, 1, 1, 1, 2]


def test_nothing_there(tmp_path):
    with pytest.raises(FileNotFoundError, match="No record of a run"):
        read_record(tmp_path)
    os.mkfifo(tmp_path / "boundary_uncertainty.jsonl")  # which is not waited for
    for name in ("gone.jsonl", "boundary_uncertainty.jsonl"):
        with pytest.raises(FileNotFoundError, match="There is no record"):
            read_record(tmp_path / name)
    with pytest.raises(NotADirectoryError):
        find_records(tmp_path / "gone")


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ("[" * 4000 + "\n", "line 2"),
        ("3\n", "line 2"),
        (records.header(), "line 2"),
        ({"kind": "check"}, "KeyError: 'epoch'"),
        (CHECK | {"crossing": {"network": [10**400], "attainable": []}}, "OverflowError"),
        (CHECK | {"crossing": {"network": [0.5]}}, "KeyError: 'attainable'"),
        (CHECK | {"doubtful": [[1, 2, 3]]}, "line 2"),
        (CHECK | {"recalls": [[1, 0.5]]}, "line 2"),
        ({"kind": "end", "kept_epoch": 0, "stopped_epoch": "no"}, "line 2"),
        ([CHECK], "line 1"),
        ([records.header() | {"format": 3}], "format must be 4, got 3"),
        ([records.header() | {"settings": []}], "line 1"),
    ],
)
def test_what_no_run_has_written_is_refused(tmp_path, entries, message):
    path = write(tmp_path, *(entries if isinstance(entries, list) else [records.header(), entries]))
    with pytest.raises(ValueError, match=message) as found:
        read_record(path)
    assert str(path) in str(found.value)
    assert len(str(found.value)) < 500
    path.write_bytes("x\n".encode("utf-16"))
    with pytest.raises(ValueError, match="line 1"):
        read_record(path)
