"""Records that were made to fill the memory, the time or the page of who reads them."""

import json
import os
import random
import re
import tracemalloc

import pytest
import records
from records import CHECK, HEAD, lines, table

from bu_torch.report import read_record, render
from bu_torch.report.page import content, resource
from bu_torch.report.verdict import RunVerdict
from bu_torch.signals import details

MEBIBYTE = 2**20


def refused(folder, most=64 * MEBIBYTE):
    """Why a record is refused, which may take no more memory than this."""
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=r"line \d|a table of checks") as found:
            read_record(folder)
        assert tracemalloc.get_traced_memory()[1] < most
    finally:
        tracemalloc.stop()
    return str(found.value)


def page_of(folder, most=MEBIBYTE):
    """The page of a record, which may be no larger than this beside its library."""
    page = render(read_record(folder))
    assert len(page.encode()) - len(resource("plotly/plotly-cartesian.min.js")) < most
    return page


def notes(record):
    return "\n".join(record.notes)


def check(folder, **changed):
    return lines(folder, CHECK | changed)


DEEP = "[" * 900 + "]" * 900
LONG = "a line of a record has at most 1048576 bytes"
# By what is written: which line is refused, and why.
REFUSED = {
    "columns": (lambda f: table(f, HEAD.strip(), ",c" * 10**6, "\n"), 1, LONG),
    "a cell over all lines": (lambda f: table(f, HEAD, '0,"\n', '","\n' * 40_000), 2, "not a row of 3 numbers"),
    "pairs": (lambda f: check(f, pairs=[[0, 1, 0.5, 1]] * 10**5), 2, LONG),
    "deep lists": (lambda f: lines(f, f'{{"kind":"check","x":[{",".join([DEEP] * 500)}]}}\n'), 2, "not a check"),
}


@pytest.mark.parametrize(("write", "number", "why"), list(REFUSED.values()), ids=list(REFUSED))
def test_a_line_that_no_run_has_written_is_refused(tmp_path, write, number, why):
    write(tmp_path)
    assert f"line {number}: {why}" in refused(tmp_path)


class TestTable:
    def test_a_table_larger_than_any_of_a_run(self, tmp_path):
        os.truncate(table(tmp_path, HEAD), 2**40)  # a hole in the file takes no space
        assert "a table of checks has at most 16777216" in refused(tmp_path, most=MEBIBYTE)

    def test_a_pipe_is_not_waited_for(self, tmp_path):
        file = table(tmp_path, HEAD)
        os.mkfifo(file.with_suffix(".jsonl"))
        assert "There is no boundary_uncertainty.jsonl beside the table" in notes(read_record(tmp_path))
        file.unlink()
        os.mkfifo(file)
        with pytest.raises(FileNotFoundError):
            read_record(file)


class TestChecks:
    def test_the_most_that_a_run_writes_is_read(self, tmp_path):
        pairs = [[0, 1 + place, 0.1, 0.5] for place in range(details._MOST_PAIRS)]
        doubtful = [[place, 1, 2, 3, 0.5] for place in range(50)]
        bins = {"edges": list(range(29)), "counts": [1] * 28}
        full = CHECK | {"pairs": pairs, "doubtful": doubtful, "log_trust": bins}
        lines(tmp_path, *(full | {"epoch": epoch} for epoch in range(50)))
        record = read_record(tmp_path)
        assert record.notes == []
        assert len(record.details) == 50
        assert [list(pair) for pair in record.details[0].pairs] == pairs
        assert [list(doubt) for doubt in record.details[0].doubtful] == doubtful
        assert len(record.details[0].log_trust.counts) == 28

    def test_more_than_a_page_shows_is_left_out(self, tmp_path):
        pairs = [[k, 1 + k + place, 0.1, 0.5] for k in range(40) for place in range(300)]
        check(tmp_path, pairs=pairs, doubtful=[[place, 1, 2, 3, 0.5] for place in range(20_000)])
        assert "100 samples, by the trust in their label or" in page_of(tmp_path)


@pytest.mark.parametrize("letter", ["x", "&", "\U0001f600", "\u202e"])
def test_names_of_ten_thousand_letters(tmp_path, letter):
    pairs = [[k, m, 0.1, 0.5] for m in range(40) for k in range(m)][:500]
    name = letter * (MEBIBYTE // len(json.dumps(letter)) // 60)
    lines(tmp_path, CHECK | {"pairs": pairs, "doubtful": [[0, 1, 2, 3, 0.5]]}, first=records.header([name] * 50))
    assert page_of(tmp_path, most=2 * MEBIBYTE)


def test_of_more_details_than_are_read_the_last_are_shown(tmp_path, monkeypatch):
    monkeypatch.setattr("bu_torch.report.record.MOST_BYTES", 2**18)
    record = records.run(tmp_path, n_checks=300, n_classes=2)
    size, first = record.path.with_suffix(".jsonl").stat().st_size, min(record.details)
    assert list(record.details) == list(range(first, 300))
    assert 100 < first < 250
    assert (record.kept, record.settings["patience"]) == (RunVerdict.of(record).kept, 20)
    left_out = int(re.search(r"jsonl: (\d+) bytes before the last 262144", notes(record))[1])
    assert size - 2**18 - 2**14 < left_out < size - 2**18
    assert f"{first} of 300 checks have no details here" in content(record).main


def test_numbers_at_the_ends_of_their_range(tmp_path):
    draw, most = random.Random(0), 2**53 - 1
    odd = ["nan", "inf", "-inf", "1e308", "-1e308", "5e-324", "-0", "", "1e999", " 1 ", "1_0"]
    bins = {"edges": [-1e308, 0, 5e-324, 1e308], "counts": [most, most, 0]}
    pairs = [[0, 1, 1e308, -1e308], [0, 2**31 - 1, None, None], [1, 2, 5e-324, 1e308]]
    doubtful = [[most, 0, most, 5, 1e308], [0, 0, 0, 0, None]]
    check = CHECK | {"pairs": pairs, "doubtful": doubtful, "log_trust": bins}
    check["crossing"] = {"network": [1e308, -1e308, None], "attainable": [5e-324, 0, 1e308]}
    lines(tmp_path, check | {"epoch": 0}, check | {"epoch": 1}, records.end(most))
    columns = list(records.checks(1)[0])
    rows = (",".join([str(n), *(draw.choice(odd) for _ in columns[1:])]) + "\n" for n in (*range(200), most))
    table(tmp_path, ",".join(columns) + "\n", *rows)
    record = read_record(tmp_path)
    assert render(record)
    shown = content(record)
    assert not re.search(r"\d{100}", json.dumps(shown.drawings[2]))
    assert len(shown.main) < MEBIBYTE
