"""Records that were made to fill the memory, the time or the page of who reads them."""

import itertools
import json
import math
import os
import random
import re
import tracemalloc

import pytest
import records

from bu_torch import SelectionRule
from bu_torch.cli import main
from bu_torch.report import figures, read_record, reading, render
from bu_torch.report.drawing import plotly_script
from bu_torch.report.page import content
from bu_torch.report.verdict import Verdict
from bu_torch.signals import details

HEAD = "epoch,boundary_uncertainty,trust_score\n"
CHECK = {"kind": "check", "epoch": 0, "ceiling": 0.3, "pairs": [], "histograms": {}, "doubtful": []}
BINS = {"edges": [0, 1], "counts": [1]}
MEBIBYTE = 2**20


def table(folder, *parts):
    path = folder / "boundary_uncertainty.csv"
    with path.open("w") as file:
        file.writelines(parts)
    return path


def lines(folder, *entries, first=None):
    """A record of one check, with these lines beside it."""
    table(folder, HEAD, "0,0.5,1.5\n")
    path = folder / "boundary_uncertainty.jsonl"
    with path.open("w") as file:
        for entry in (first or records.header(), *entries):
            file.write(entry if isinstance(entry, str) else f"{json.dumps(entry)}\n")
    return path


def peak_of_reading(folder):
    """Bytes that reading a record takes at most, and what it was refused with."""
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="a line of a record has at most") as found:
            read_record(folder)
        return tracemalloc.get_traced_memory()[1], str(found.value)
    finally:
        tracemalloc.stop()


def size_without_plotly(page):
    return len(page.encode()) - len(plotly_script())


def notes(record):
    return "\n".join(record.missing)


def setting(value, times):
    """A header of a setting that is so many lists."""
    many = ",".join([value] * times)
    return f'{{"kind":"header","format":1,"settings":{{"x":[{many}]}},"versions":{{}},"data":{{}}}}\n'


def check(folder, **changed):
    return lines(folder, CHECK | changed)


ROW = "0,0.5,1.5\n"
DEEP = "[" * 900 + "]" * 900
BYTES = "a line of a record has at most {} bytes"
BRACKETS = "a line of a record has at most {} brackets"
LONG = BYTES.format(MEBIBYTE)
# By what is written: which line is refused, why, and how many MiB are taken for it.
UNPARSED = {
    "columns": (lambda f: table(f, HEAD.strip(), ",c" * 10**5, "\n"), 1, BYTES.format(65536), 4),
    "a cell": (lambda f: table(f, HEAD, ROW, f"1,{'1' * 10**5},1.5\n"), 3, BYTES.format(65536), 4),
    "a quoted cell": (lambda f: table(f, HEAD, ROW, f'1,"{"1" * 10**5}",1.5\n'), 3, BYTES.format(65536), 4),
    "a large cell": (lambda f: table(f, HEAD, ROW, f"1,{'x' * 10**7},1.5\n"), 3, BYTES.format(65536), 4),
    "pairs": (lambda f: check(f, pairs=[[0, 1, 0.5, 1, 1]] * 10**5), 2, LONG, 4),
    "samples": (lambda f: check(f, doubtful=[[1, 2, 3, 4, 0.5]] * 10**5), 2, LONG, 4),
    "histograms": (lambda f: check(f, histograms={f"h{n}": BINS for n in range(10**5)}), 2, LONG, 4),
    "bins": (lambda f: check(f, histograms={"x": {"edges": [0] * 10**6, "counts": [0] * 10**6}}), 2, LONG, 4),
    "lists": (lambda f: check(f, x=[[]] * 10**6), 2, LONG, 4),
    "deep lists": (lambda f: lines(f, f'{{"x":[{",".join([DEEP] * 500)}]}}\n'), 2, BRACKETS.format(4096), 8),
    "many lists": (lambda f: lines(f, f'{{"x":[{",".join(["[]"] * 300_000)}]}}\n'), 2, BRACKETS.format(4096), 8),
    "many objects": (lambda f: lines(f, f'{{"x":[{",".join(["{}"] * 300_000)}]}}\n'), 2, BRACKETS.format(4096), 8),
    "deep settings": (lambda f: lines(f, first=setting(DEEP, 2330)), 1, BRACKETS.format(2**18), 24),
    "many settings": (lambda f: lines(f, first=setting("[]", 2**21)), 1, BRACKETS.format(2**18), 24),
    "a header": (lambda f: lines(f, first=records.header() | {"started": "x" * 2**23}), 1, BYTES.format(2**23), 24),
}


@pytest.mark.parametrize(("write", "number", "why", "most"), list(UNPARSED.values()), ids=list(UNPARSED))
def test_a_line_that_no_run_has_written_is_not_parsed(tmp_path, write, number, why, most):
    write(tmp_path)
    peak, said = peak_of_reading(tmp_path)
    assert f"line {number}: {why}" in said
    assert peak < most * MEBIBYTE


def test_the_last_line_is_longer_than_any_of_a_run(tmp_path):
    os.truncate(lines(tmp_path, CHECK), 2**32)  # a hole in the file takes no space
    peak, said = peak_of_reading(tmp_path)
    assert "the last one has more" in said
    assert peak < 8 * MEBIBYTE


class TestTable:
    def test_a_million_rows(self, tmp_path):
        table(tmp_path, HEAD, *(f"{epoch},0.5,{epoch}\n" for epoch in range(10**6)))
        record = read_record(tmp_path)
        assert record.values("epoch") == list(range(950_000, 10**6))
        assert record.n_left_out == 950_000
        assert "has 1000000 rows. The last 50000 are read, the 950000 before are left out" in notes(record)
        page = render(record)
        assert size_without_plotly(page) < MEBIBYTE
        assert notes(record).partition("\n")[0] in page
        assert "one of every 13 checks" in page
        assert "<dd>1000000</dd>" in page

    def test_rows_of_nothing_but_line_breaks(self, tmp_path):
        table(tmp_path, HEAD, "\n" * 10**6, "7,0.5,1.5\n")
        record = read_record(tmp_path)
        assert record.values("epoch") == [7]
        assert record.n_left_out == 950_001

    def test_the_rules_compare_what_is_read(self, tmp_path, monkeypatch):
        monkeypatch.setattr(reading, "_MOST_ROWS", 10)
        lines(tmp_path, first=records.header(rule="trust_score") | {"n_not_compared": 12})
        values = [9] * 12 + [1, 2, 3, 8, 3, 2, 1, 0]
        head = "epoch,boundary_uncertainty,trust_score,seconds,check_seconds\n"
        table(tmp_path, head, *(f"{epoch},0.5,{value},{epoch},{epoch}\n" for epoch, value in enumerate(values)))
        record = read_record(tmp_path)
        assert record.values("epoch") == list(range(10, 20))
        assert Verdict.of(record).kept == 15  # 10 and 11, with the largest values, are of another run
        cost = next(one for one in content(record).drawings if one["name"] == "cost")
        assert cost["data"][0]["y"] == [None, *[1.0] * 9]  # the first total is not that of one check

    def test_a_hundred_columns(self, tmp_path):
        more = "".join(f",c{place}" for place in range(97))
        table(tmp_path, HEAD.strip(), more, "\n0,0.5,1.5", ",7" * 97, "\n")
        record = read_record(tmp_path)
        assert list(record.checks[0]) == [*HEAD.strip().split(","), *(f"c{place}" for place in range(37))]
        assert "has 100 columns. The first 40 are read, the 60 after them are left out" in notes(record)

    def test_needed_columns_behind_too_many_others(self, tmp_path):
        table(tmp_path, "c," * 40, HEAD, "7," * 40, "0,0.5,1.5\n")
        with pytest.raises(ValueError, match="there is no epoch among the first 40"):
            read_record(tmp_path)

    def test_a_table_larger_than_any_of_a_run(self, tmp_path):
        os.truncate(table(tmp_path, HEAD), 2**27)  # a hole in the file takes no space
        with pytest.raises(ValueError, match="a table of checks has at most"):
            read_record(tmp_path)

    def test_a_cell_that_goes_on_over_all_lines(self, tmp_path):
        table(tmp_path, HEAD, '0,"\n', '","\n' * 40_000)
        with pytest.raises(ValueError, match="line 2: unexpected end of data"):
            read_record(tmp_path)

    def test_a_pipe_is_not_waited_for(self, tmp_path):
        os.mkfifo(table(tmp_path, HEAD).with_suffix(".jsonl"))
        assert "There is no boundary_uncertainty.jsonl beside the table" in notes(read_record(tmp_path))
        (tmp_path / "boundary_uncertainty.csv").unlink()
        os.mkfifo(tmp_path / "boundary_uncertainty.csv")
        with pytest.raises(FileNotFoundError):
            read_record(tmp_path / "boundary_uncertainty.csv")


class TestChecks:
    def test_the_most_that_a_run_writes_is_read(self, tmp_path):
        pairs = [[0, 1 + place, 0.1, 1.0, 0.5] for place in range(details._MOST_PAIRS)]
        doubtful = [[place, 1, 2, 3, 0.5] for place in range(50)]
        bins = {"edges": [None, *range(27), None], "counts": [1] * 28}
        histograms = {name: bins for name in ("near_boundary", "local_uncertainty", "log_trust")}
        full = {"pairs": pairs, "doubtful": doubtful, "histograms": histograms}
        lines(tmp_path, *(CHECK | full | {"epoch": epoch} for epoch in range(50)))
        record = read_record(tmp_path)
        assert record.missing == []
        assert len(record.details) == 50
        assert record.details[0].pairs.tolist() == pairs
        assert [list(doubt) for doubt in record.details[0].doubtful] == doubtful
        assert {name: len(one.counts) for name, one in record.details[0].histograms.items()} == dict.fromkeys(
            histograms, 28
        )

    def test_more_than_a_page_shows_is_left_out_and_counted(self, tmp_path):
        many = {
            "pairs": [[0, 1 + place, 0.1, 1.0, 0.5] for place in range(700)],
            "doubtful": [[place, 1, 2, 3, 0.5] for place in range(300)],
            "histograms": {f"h{place}": BINS for place in range(20)},
        }
        fine = {"histograms": {"near_boundary": {"edges": list(range(52)), "counts": [1] * 51}}}
        lines(tmp_path, *(CHECK | many | {"epoch": epoch} for epoch in range(3)), CHECK | fine | {"epoch": 3})
        record = read_record(tmp_path)
        assert [len(record.details[epoch].pairs) for epoch in range(4)] == [500, 500, 500, 0]
        assert [doubt.sample for doubt in record.details[2].doubtful] == list(range(100))
        assert [len(record.details[epoch].histograms) for epoch in range(4)] == [8, 8, 8, 0]
        assert record.missing == [
            "Left out of boundary_uncertainty.jsonl: 600 pairs of classes, beyond the first 500 of a check.",
            "Left out of boundary_uncertainty.jsonl: 36 histograms, beyond the first 8 of a check.",
            "Left out of boundary_uncertainty.jsonl: 600 doubtful samples, beyond the first 100 of a check.",
            "Left out of boundary_uncertainty.jsonl: 1 histograms, of more than 50 bins.",
        ]
        page = render(record)
        assert all(note in page for note in record.missing)

    @pytest.mark.parametrize("depth", [3, 500, 900, 990, 2000])
    @pytest.mark.parametrize("name", ["kind", "epoch", "ceiling", "reason"])
    def test_a_value_of_lists_within_lists(self, tmp_path, name, depth):
        entry = CHECK | {"kind": "end" if name == "reason" else "check", name: "NESTED"}
        lines(tmp_path, json.dumps(entry).replace('"NESTED"', "[" * depth + "]" * depth) + "\n")
        try:
            assert size_without_plotly(render(read_record(tmp_path))) < MEBIBYTE
        except ValueError as error:
            assert "boundary_uncertainty.jsonl, line 2: not a" in str(error)  # noqa: PT017
        else:
            assert name in ("kind", "reason")

    def test_integers_of_thousands_of_digits(self, tmp_path):
        lines(tmp_path, '{"kind":"check","epoch":' + "9" * 5000 + "}\n")
        with pytest.raises(ValueError, match="line 2: not a line of JSON"):
            read_record(tmp_path)
        lines(tmp_path, CHECK | {"n_pairs_left_out": 10**4000})
        with pytest.raises(ValueError, match="expected an integer >= 0"):
            read_record(tmp_path)


class TestHeader:
    def test_ten_thousand_settings(self, tmp_path):
        many = {f"setting {place}": "x" * 350 for place in range(10_000)}
        lines(tmp_path, first=records.header() | {"settings": many, "versions": many})
        record = read_record(tmp_path)
        assert list(record.settings) == list(many)[:100]
        assert record.missing == [
            f"Left out of boundary_uncertainty.jsonl: 9900 entries of `{name}`, beyond the first 100."
            for name in ("settings", "versions")
        ]
        assert size_without_plotly(render(record)) < MEBIBYTE

    def test_as_many_classes_as_there_can_be_and_more(self, tmp_path):
        names = [f"[{number}]" for number in range(100_000)]
        lines(tmp_path, first=records.header(names))
        record = read_record(tmp_path)
        assert record.classes == names
        assert record.missing == []
        lines(tmp_path, first=records.header([*names, "a", "b"]))
        record = read_record(tmp_path)
        assert record.classes == names
        assert record.missing == [
            "Left out of boundary_uncertainty.jsonl: 2 names of classes, beyond the first 100000."
        ]

    @pytest.mark.parametrize("letter", ["x", "&", "\U0001f600", "\u202e"])
    def test_names_of_a_million_letters(self, tmp_path, letter):
        pairs = [[k, m, 0.1, 1.0, 0.5] for m in range(40) for k in range(m)][:500]
        name = letter * (6 * MEBIBYTE // len(json.dumps(letter)) // 50)
        lines(tmp_path, CHECK | {"pairs": pairs, "doubtful": [[0, 1, 2, 3, 0.5]]}, first=records.header([name] * 50))
        assert size_without_plotly(render(read_record(tmp_path))) < 2 * MEBIBYTE

    @pytest.mark.parametrize("name", ["rule", "start_from_epoch"])
    def test_a_setting_that_a_rule_reads_is_nested(self, tmp_path, name):
        header = json.dumps(records.header(**{name: "NESTED"})).replace('"NESTED"', "[" * 950 + "]" * 950)
        lines(tmp_path, first=f"{header}\n")
        with pytest.raises(ValueError, match="setting") as found:
            render(read_record(tmp_path))
        assert len(str(found.value)) < 1000


class TestLongRun:
    def test_details_of_more_checks_than_a_page_needs(self, tmp_path):
        records.write_run(tmp_path, n_checks=1500, n_classes=2)
        record = read_record(tmp_path)
        kept = record.end.kept_epoch
        assert len(record.checks) == 1500
        assert 900 < len(record.details) < 1100
        epochs = sorted(record.details)
        assert epochs[0] == 0
        assert max(b - a for a, b in itertools.pairwise(epochs)) <= 3
        assert record.details[kept].pairs.tolist() == records.details(kept, 2, 1500)["pairs"]
        size = (tmp_path / "boundary_uncertainty.jsonl").stat().st_size
        assert f"is longer than a page needs: of its {size} bytes" in notes(record)
        page = content(record).main
        assert f"Samples that trust doubts most, at epoch {kept}" in page
        assert f"Of {1500 - len(record.details)} of 1500 checks there are no details here" in page

    @pytest.mark.parametrize("ended", [True, False])
    def test_the_kept_epoch_is_found_whatever_it_is(self, tmp_path, monkeypatch, ended):
        monkeypatch.setattr(reading, "_MOST_LINES", 7)
        records.write_run(tmp_path, n_checks=40, n_classes=2, ended=ended)
        rows = records.checks(40)
        for kept in range(40):
            for row in rows:
                row["expected_accuracy"] = float(row["epoch"] == kept)
            records.write_table(tmp_path / "boundary_uncertainty.csv", rows)
            path = tmp_path / "boundary_uncertainty.jsonl"
            written = path.read_text().splitlines(keepends=True)[: 41 if not ended else None]
            if ended:
                written[-1] = json.dumps(records.end(kept)) + "\n"
            path.write_text("".join(written))
            record = read_record(tmp_path)
            assert kept in record.details
            assert (record.end is not None) == ended
            assert ended or 39 in record.details  # the last line
            assert len(record.details) <= 9

    def test_bytes_count_where_lines_are_long(self, tmp_path, monkeypatch):
        records.write_run(tmp_path, n_checks=60, n_classes=8)
        size = (tmp_path / "boundary_uncertainty.jsonl").stat().st_size
        monkeypatch.setattr(reading, "_MOST_PARSED_BYTES", size // 4)
        record = read_record(tmp_path)
        read = int(re.search(r"bytes (\d+) are read", notes(record))[1])
        assert size // 10 < read <= size // 4
        assert 6 < len(record.details) < 20
        assert {0, record.end.kept_epoch} <= set(record.details)

    def test_a_torn_last_line_of_a_long_file(self, tmp_path, monkeypatch):
        monkeypatch.setattr(reading, "_MOST_LINES", 7)
        path = records.write_run(tmp_path, n_checks=40, n_classes=2).with_suffix(".jsonl")
        path.write_bytes(path.read_bytes()[:-5])
        record = read_record(tmp_path)
        assert record.end is None
        assert 39 in record.details
        assert "not written to its end" in notes(record)

    def test_a_million_lines_of_no_meaning(self, tmp_path):
        lines(tmp_path, '{"kind":"x"}\n' * 10**6)
        record = read_record(tmp_path)
        assert record.details == {}
        assert "of its 13000" in notes(record)

    def test_a_long_file_of_settings_that_no_rule_takes(self, tmp_path, monkeypatch):
        monkeypatch.setattr(reading, "_MOST_LINES", 7)
        records.write_run(tmp_path, n_checks=40, n_classes=2, start_from_epoch=-5)
        with pytest.raises(ValueError, match="none that a rule takes"):
            render(read_record(tmp_path))

    def test_curves_of_many_checks_are_thinned_and_the_kept_one_stays(self, tmp_path, monkeypatch):
        monkeypatch.setattr(figures, "_MOST_POINTS", 10)
        records.write_run(tmp_path, n_checks=57, n_classes=2)
        record = read_record(tmp_path)
        shown = content(record)
        for drawing in shown.drawings:
            if drawing["name"] in ("deciding", "scores", "agreement", "cost"):
                for trace in drawing["data"]:
                    if trace["name"] not in ("its ceiling", "kept", "largest") and not trace["name"].startswith("rule"):
                        assert len(trace["x"]) <= 12
                        assert {record.end.kept_epoch, 56} <= set(trace["x"])
        assert "one of every 6 checks" in shown.main

    @pytest.mark.parametrize("start", [0, 30])
    def test_rules_are_replayed_as_they_replay_themselves(self, tmp_path, start):
        draw = random.Random(0)
        rows = records.checks(60)
        for row in rows:
            row["trust_score"] = draw.choice([math.nan, math.inf, 1.0, row["trust_score"]])
            row["expected_accuracy"] = draw.choice([math.nan, 0.5, row["expected_accuracy"]])
        lines(tmp_path, first=records.header(start_from_epoch=start))
        records.write_table(tmp_path / "boundary_uncertainty.csv", rows)
        record = read_record(tmp_path)
        for name, check in Verdict.of(record).by_rule.items():
            expected = SelectionRule(name, start_from_epoch=start).replay(record.checks)
            assert check["epoch"] == expected["epoch"]


class TestPage:
    def test_numbers_at_the_ends_of_their_range(self, tmp_path):
        draw = random.Random(0)
        odd = ["nan", "inf", "-inf", "1e308", "-1e308", "5e-324", "-0", "", "1e999", " 1 ", "1_0"]
        entries = [
            CHECK
            | {
                "epoch": epoch,
                "ceiling": 1e308,
                "pairs": [
                    [0, 1, 1e300, 1e308, -1e308],
                    [0, 2**31 - 1, None, None, None],
                    [1, 2, -1e308, 5e-324, 1e308],
                ],
                "histograms": {"near_boundary": {"edges": [None, 1e308, -1e308, None], "counts": [1e308, 1e308, None]}},
                "doubtful": [[2**53 - 1, 0, 2**53 - 1, 5, 1e308], [0, 0, 0, 0, None]],
            }
            for epoch in (0, 1)
        ]
        lines(tmp_path, *entries, records.end(2**53 - 1))
        rows = (
            ",".join([str(epoch), *(draw.choice(odd) for _ in records.COLUMNS[1:])]) + "\n"
            for epoch in (*range(200), 2**53 - 1)
        )
        table(tmp_path, ",".join(records.COLUMNS) + "\n", *rows)
        shown = content(read_record(tmp_path))
        assert json.loads(shown.json)
        assert not re.search(r"\d{100}", json.dumps(shown.drawings[2]))
        assert len(shown.main) < MEBIBYTE

    def test_very_many_records_nearby(self, tmp_path, capsys):
        for number in range(130):
            (tmp_path / f"{number}").mkdir()
            table(tmp_path / f"{number}", HEAD, "0,0.5,1.5\n")
        out = tmp_path / "page.html"
        assert main(["report", str(tmp_path), "-o", str(out)]) == 0
        said = capsys.readouterr().out.splitlines()
        assert len(said) == 22
        assert said[-1] == "  not shown: 109 more"
        page = out.read_text()
        assert page.count("<li><code>") == 100
        assert "<li>and 29 more</li>" in page
