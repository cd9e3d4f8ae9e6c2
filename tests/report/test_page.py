"""What the page says, that it needs nothing from elsewhere, and that nothing in a record gets to run."""

import hashlib
import json
import math
import os
import random
import re
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
import records

from bu_torch import SelectionRule
from bu_torch.cli import main
from bu_torch.report import figures, read_record, render
from bu_torch.report.page import content, resource
from bu_torch.report.text import cleaned, duration, escaped, shown_number, without_folders
from bu_torch.rule.rules import RULE_NAMES
from bu_torch.signals.catalogue import SIGNALS

MARKUP = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&{{main}}\u202e\x00\ud800"


class Elements(HTMLParser):
    """Elements with their attributes, and the words between them."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.words = [], ""
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))

    def handle_data(self, data):
        self.words += data


def words(record):
    return re.sub(r"\s+", " ", Elements(content(record).main).words)


def cells(record, section):
    """Words of each row of the table in a section."""
    body = content(record).main.partition(f'id="section-{section}"')[2].partition("<tbody>")[2].partition("</tbody>")[0]
    return [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in body.split("</tr>")[:-1]]


def figures_of(record):
    return {one["name"]: one for one in content(record).drawings}


def traces(record, name, mode="lines"):
    return {trace["name"]: trace for trace in figures_of(record)[name]["data"] if trace["mode"].startswith(mode)}


def test_what_a_finished_run_shows(tmp_path):
    record = records.run(tmp_path, classes=records.LETTERS, averaging="uniform")
    kept, said = record.kept, words(record)
    expected = (
        f"Epoch {kept} was kept",
        "Stopped in epoch 59: accuracy, uncertainty and trust did not improve in the last 20 checks.",
        f"boundary uncertainty{record.checks[kept]['boundary_uncertainty']:.3f}",
        f"Uncertainty near the boundary, at epoch {kept}",
        f"Samples unlike those nearby, at epoch {kept}",
        "accuracy, uncertainty and trust, this run's",
        "All values are measured on averaged weights.",
        *(str(doubt.row) for doubt in record.details[kept].doubtful),
        *(*record.settings, *record.versions, *record.data),
        *("/".join(Path(file).parts[-3:]) for file in (record.path, record.end.best_model_path)),
    )
    assert [one for one in expected if one not in said] == []
    assert str(tmp_path) not in render(record)
    maps = ["crossing", "pairs", "log_trust"]
    assert list(figures_of(record)) == ["deciding", "scores", "agreement", "changes", *maps, "cost"]


@pytest.mark.parametrize("start", [0, 10, 30])
def test_what_each_rule_would_have_kept_is_what_it_replays(tmp_path, start):
    draw, rows = random.Random(0), records.checks(60)
    for row in rows:
        row["trust_score"] = draw.choice([math.nan, math.inf, 1.0, row["trust_score"]])
        row["expected_accuracy"] = draw.choice([math.nan, 0.5, row["expected_accuracy"]])
    record = records.run(tmp_path, rows, rule="trust_score", start_from_epoch=start)
    drawn = traces(record, "scores", "markers")
    replayed = [name for name in RULE_NAMES if name != "parzen_uncertainty"]  # which no default run measures
    assert len(drawn) == len(replayed) + 1  # the largest
    for name in replayed:
        kept = SelectionRule(name, start_from_epoch=start).replay(record.checks)
        assert drawn[f"rule: {figures._RULES[name][0]}"]["x"] == [kept["epoch"]]


@pytest.mark.parametrize("rule", [*RULE_NAMES, "my_rule", None])
def test_the_score_that_decides_is_drawn_first_where_its_largest_is_seen(tmp_path, rule):
    rows = [
        row | {"my_rule": -abs(row["epoch"] - 7.0), "parzen_uncertainty": row["boundary_uncertainty"]}
        for row in records.checks(40)
    ]
    record = records.run(tmp_path, rows, n_checks=40, n_classes=3, rule=rule)
    figure = content(record).drawings[0]
    (score, kept), (low, high) = figure["data"], figure["layout"]["yaxis"]["range"]
    assert score["x"] == list(range(40))
    if rule == "my_rule":
        assert score["y"] == [row["my_rule"] for row in rows]
    else:
        expected = record.values(rule or "accuracy_uncertainty_trust")
        assert score["y"] == pytest.approx(expected, rel=1e-6)
    if rule is None:
        assert (kept["x"], kept["y"]) == ([score["y"].index(max(score["y"]))], [max(score["y"])])
    assert low < max(score["y"]) < high
    assert sum(low <= value <= high for value in score["y"]) >= 30


def test_each_share_has_a_panel_of_its_own_where_its_best_values_are_seen(tmp_path):
    record = records.run(tmp_path, n_checks=40, n_classes=3)
    colours, shares = [], [signal for signal in SIGNALS.values() if signal.panel == "shares" and signal.formula]
    for name, is_larger_better in (("agreement", True), ("changes", False)):
        layout, drawn = figures_of(record)[name]["layout"], traces(record, name, "lines")
        signals = [signal for signal in shares if signal.is_larger_better is is_larger_better]
        assert list(drawn) == [signal.title for signal in signals]
        assert [label["text"] for label in layout["annotations"][:-1]] == list(drawn)
        for signal in signals:
            trace, values = drawn[signal.title], record.values(signal.name)
            low, high = layout[f"yaxis{trace['yaxis'][1:]}"]["range"]
            assert low < (max if is_larger_better else min)(values) < high
            assert low > min(values) if is_larger_better else high < max(values)  # the first epochs are cut off
            colours.append(trace["line"]["color"])
    assert len(colours) == len(set(colours)) == len(shares)


def test_two_classes_need_no_map_of_pairs(tmp_path):
    shown = content(records.run(tmp_path, n_checks=2, n_classes=2))
    assert "pairs" not in {one["name"] for one in shown.drawings}
    assert "Classes with the longest boundaries" not in shown.main


def test_the_library_in_the_page_is_the_one_that_was_checked():
    script = resource("plotly/plotly-cartesian.min.js").encode()
    assert script.startswith(b"/**\n* plotly.js (cartesian - minified) v4.1.1\n")
    assert hashlib.sha256(script).hexdigest() == "79542150855a52c567260e3137095dbe2b744e6d702a5cabe67da246942fba7a"
    assert "MIT License" in resource("plotly/LICENSE")


def test_each_section_is_in_the_table_of_contents(tmp_path):
    found = Elements(content(records.run(tmp_path, n_checks=10, n_classes=3)).main).elements
    names = [f"#{attributes['id']}" for tag, attributes in found if tag == "section"]
    assert [attributes["href"] for tag, attributes in found if tag == "a"] == names
    assert len(names) == 13


def test_recall_is_listed_by_class_and_a_record_may_lack_it(tmp_path):
    recalls = [[2, 0.125, 0.25, None], [0, 0.5, 0.75, 0.625]]
    for changed, expected in (
        ({"recalls": recalls}, [["c", "0.125", "0.250", "–"], ["a", "0.500", "0.750", "0.625"]]),  # noqa: RUF001
        ({"recalls": []}, []),
    ):
        check = records.details(0, 3, 1) | changed
        records.lines(tmp_path, check, records.end(0), first=records.header(["a", "b", "c"]))
        record = records.run(tmp_path, records.checks(1))
        assert cells(record, "recall") == expected
        assert ("Recall by class, at epoch 0" in words(record)) == bool(expected)


def test_the_longest_boundaries_are_listed(tmp_path):
    pairs = [[0, 1, 0.75, 0.7], [1, 2, 0.25, 1.0]]
    records.lines(tmp_path, records.details(0, 3, 1) | {"pairs": pairs}, records.end(0))
    record = records.run(tmp_path, records.checks(1))
    assert cells(record, "longest-pairs") == [["0", "1", "0.750", "0.700"], ["1", "2", "0.250", "1.000"]]
    notes = figures_of(record)["pairs"]["data"][0]["hovertext"]
    assert "uncertainty 0.700, share of the boundary 0.750" in notes[0][1]


def test_the_curve_near_the_boundary_is_beside_the_most_uncertain(tmp_path):
    record = records.run(tmp_path, n_checks=3, n_classes=2)
    most, own = traces(record, "crossing").values()
    crossing = record.details[record.kept].crossing
    assert (most["y"], own["y"]) == (pytest.approx(crossing.attainable), pytest.approx(crossing.network))
    assert own["x"] == pytest.approx([(part + 0.5) / 20 for part in range(20)])


def test_a_class_that_makes_up_most_of_the_doubtful_samples_is_named(tmp_path):
    for labels, is_said in (([2, 2, 0], True), ([2, 1, 0], False)):
        doubtful = [[row, label, 1, 0, 0.5] for row, label in enumerate(labels)]
        records.lines(tmp_path, records.details(0, 3, 1) | {"doubtful": doubtful}, records.end(0))
        said = words(records.run(tmp_path, records.checks(1)))
        assert ("whichever is lower: 2 have the label 2. The nearest samples contradict" in said) == is_said


@pytest.mark.parametrize(
    ("sampling", "class_weight", "note"),
    [
        ("uniform", None, ""),
        ("weighted", None, ", weighted sampling"),
        ("uniform", "balanced", ", class_weight=balanced"),
    ],
)
def test_an_accuracy_in_which_samples_count_differently_says_so(tmp_path, sampling, class_weight, note):
    record = records.run(tmp_path, n_checks=3, n_classes=3, class_weight=class_weight)
    record.data["sampling"] = sampling
    assert f"at the perturbed samples{note}" + "score" in words(record)


def test_a_metric_that_decided_has_a_tile_a_column_and_its_threshold(tmp_path):
    rows = [row | {"neg_cost": -5.5, "expected_cost": 5.5, "threshold": 0.055} for row in records.checks(20)]
    record = records.run(tmp_path, rows, n_checks=20, n_classes=3, rule="neg_cost")
    said = words(record)
    assert "expected cost5.500it decided" in said
    assert "threshold0.055predict class 1 from this probability on" in said
    assert "Here class 1 is predicted from a probability of 0.5 on." in said
    assert {row[-1] for row in cells(record, "rules") if row[0].startswith("<strong>")} == {"5.500"}


def test_a_killed_run_says_so_and_a_monitor_that_it_decides_nothing(tmp_path):
    killed = words(records.run(tmp_path / "killed", n_checks=10, n_classes=3, ended=False))
    assert "is kept so far" in killed
    assert "is still going, or it was killed. The last check is of epoch 9." in killed
    watched = records.run(tmp_path / "watched", n_checks=10, n_classes=3, rule=None)
    assert "The default rule would have kept epoch" in words(watched)
    assert "The callback only measured." in words(watched)
    assert "would be kept:" in json.dumps(content(watched).drawings)


@pytest.mark.parametrize("ended", [True, False])
def test_a_rule_that_cannot_be_replayed_is_drawn_where_the_run_has_kept(tmp_path, ended):
    rows = [row | {"my_rule": float(min(row["epoch"], 9))} for row in records.checks(20)]
    checks = [records.details(epoch, 3, 20) | {"kept_epoch": min(epoch, 7)} for epoch in range(20)]
    end = [records.end(7)] if ended else []
    records.lines(tmp_path, *checks, *end, first=records.header(n_classes=3, rule="my_rule"))
    record = records.run(tmp_path, rows)
    assert traces(record, "scores", "markers")["rule: my rule"]["x"] == [7]
    assert all(one in words(record) for one in ("my rule, this run's", "It is below the highest score, in epoch 9."))
    if not ended:
        assert "Epoch 7 is kept so far" in words(record)


@pytest.mark.parametrize(
    ("end", "is_said"), [((4,), True), ((3,), False), ((4, 4), False), ((4, None, "Training failed: OSError."), False)]
)
def test_of_a_run_that_ends_at_its_best_it_is_said_that_more_may_help(tmp_path, end, is_said):
    rows = [row | {"my_rule": float(row["epoch"])} for row in records.checks(5)]
    records.lines(tmp_path, records.end(*end), first=records.header(rule="my_rule"))
    assert ("longer training may help." in words(records.run(tmp_path, rows))) == is_said


def test_a_table_alone_shows_what_it_has(tmp_path):
    record = records.run(tmp_path, records.checks(10))
    assert list(figures_of(record)) == ["deciding", "scores", "agreement", "changes", "cost"]
    assert "no boundary_uncertainty.jsonl beside the table" in words(record)
    record = records.run(tmp_path, [{"epoch": 0, "boundary_uncertainty": 0.5, "trust_score": 1.5}])
    assert list(figures_of(record)) == ["scores"]


def test_a_run_without_a_check(tmp_path):
    records.lines(tmp_path)
    record = records.run(tmp_path, [])
    assert "No check yet" in words(record)
    assert content(record).drawings == []
    assert "patience" in words(record)


def test_values_that_are_not_finite_are_gaps_and_where_all_are_nothing_is_kept(tmp_path):
    rows = records.checks(8)
    rows[2]["boundary_uncertainty"] = rows[3]["trust_score"] = math.nan
    rows[4]["trust_score"] = math.inf
    record = records.run(tmp_path, rows)
    drawn = traces(record, "scores")
    for name, gaps in (("boundary uncertainty", [2]), ("trust score", [3, 4])):
        assert [i for i, y in enumerate(drawn[name]["y"]) if y is None] == gaps
    assert "not finite in 1 of 8 checks" in words(record)
    records.lines(tmp_path, first=records.header(rule="trust_score"))
    none = {"boundary_uncertainty": math.nan, "trust_score": math.nan}
    record = records.run(tmp_path, [row | none for row in rows])
    assert "No epoch was kept" in words(record)
    assert render(record)


def test_a_resumed_run_has_costs_from_where_it_resumed(tmp_path):
    rows = records.checks(6)
    for row in rows[:3]:
        row["step"] = row["seconds"] = row["check_seconds"] = ""
    cost = figures_of(records.run(tmp_path, rows))["cost"]
    assert [y is None for y in cost["data"][0]["y"]] == [True, True, True, False, False, False]
    record = records.run(tmp_path, n_checks=6, n_classes=3)
    spent, total = record.checks[-1]["check_seconds"], record.checks[-1]["seconds"]
    assert record.costs == (6.81 + spent, total - spent)
    record.end = record.end._replace(saving_seconds=2.0, training_seconds=20.0)
    assert record.costs == (6.81 + spent + 2, 20)


def test_the_pair_map_is_symmetric_and_blank_where_nothing_is_known(tmp_path):
    record = records.run(tmp_path / "letters", n_checks=3, classes=records.LETTERS)
    pairs = {(k, m): u for k, m, _, u in record.details[record.kept].pairs}
    shown = figures_of(record)["pairs"]
    values = shown["data"][0]["z"]
    for k in range(26):
        assert values[k][k] is None
        for m in range(k):
            assert values[k][m] == values[m][k] == pairs.get((m, k))
    record = records.run(tmp_path / "many", n_checks=2, n_classes=120)
    assert len(figures_of(record)["pairs"]["data"][0]["z"]) == 40
    assert "The 40 classes with the longest boundaries are shown, 80 are not." in words(record)


def test_many_checks_are_thinned_in_maps_and_the_kept_one_stays(tmp_path, monkeypatch):
    monkeypatch.setattr(figures, "_MOST_COLUMNS", 20)
    record = records.run(tmp_path, n_checks=57, n_classes=2)
    (trace,) = figures_of(record)["log_trust"]["data"]
    assert len(trace["x"]) <= 22
    assert {record.kept, 56} <= set(trace["x"])
    sums = [sum(column) for column in zip(*trace["z"], strict=True)]
    assert sums == pytest.approx([1] * len(sums))


def test_the_page_needs_nothing_from_elsewhere(tmp_path):
    page = render(records.run(tmp_path, n_checks=3, n_classes=3))
    policy = next(a["content"] for _, a in Elements(page).elements if a.get("http-equiv") == "Content-Security-Policy")
    parts = ("default-src 'none'", "connect-src 'none'", "unsafe-eval")
    assert [part in policy for part in parts] == [True, True, False]
    assert re.search(r"script-src ('sha256-[\w+/=]{44}' ?){2};", policy)
    assert not re.search(r"url\(|@import", re.search(r"<style>(.*?)</style>", page, re.DOTALL)[1])
    assert page.count("plotly.js (cartesian - minified) v") == 1
    assert len(page) < 2_000_000


def test_markup_in_a_record_is_shown_and_not_run(tmp_path):
    folder = tmp_path / "<img src=x onerror=alert(3)>"
    details = records.write_run(folder, n_checks=3, classes=[MARKUP, "<!--", "&"]).with_suffix(".jsonl")
    made = [json.loads(line) for line in details.read_text().splitlines()]
    made[0]["settings"][MARKUP] = made[0]["versions"]["torch"] = made[0]["started"] = MARKUP
    made[0]["data"]["shape"] = {MARKUP: [MARKUP]}
    made[-1]["reason"] = made[-1]["best_model_path"] = MARKUP
    made[1][MARKUP] = {"edges": [0, 1], "counts": [1]}
    details.write_text("".join(f"{json.dumps(line)}\n" for line in made))
    record = read_record(tmp_path)
    page = render(record)
    page.encode("utf-8")
    kinds = [tag for tag, _ in Elements(page).elements]
    assert (kinds.count("script"), kinds.count("img")) == (3, 0)
    inside = re.search(r'<script type="application/json" id="content">(.*?)</script>', page, re.DOTALL)[1]
    assert inside.isascii()
    assert "<" not in inside
    assert len(json.loads(inside)) == 8
    assert "<img" not in json.dumps(content(record).drawings)
    assert "\u202e" not in page
    assert "\x00" not in page.replace(re.search(r"plotly\.js \(cartesian.*", page, re.DOTALL)[0], "")


def test_a_file_that_is_no_page_is_left_as_it_is(tmp_path, capsys):
    records.write_run(tmp_path / "run", n_checks=2, n_classes=2)
    out, command = tmp_path / "report.html", ["report", str(tmp_path / "run"), "-o", str(tmp_path / "report.html")]
    for before in (b"mine", b""):
        out.write_bytes(before)
        assert main(command) == (1 if before else 0)
        assert (out.read_bytes() == before) == bool(before)
    assert "report.html exists and was not written by bu-torch" in capsys.readouterr().err
    assert main(command) == 0


def test_the_command_writes_beside_the_record_and_says_where(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "plotly", None)  # which need not be installed
    older, newer = (records.write_run(tmp_path / name, n_checks=2, n_classes=2) for name in ("older", "newer"))
    for file in (older, older.with_suffix(".jsonl")):
        os.utime(file, (1e9, 1e9))
    assert main(["report", str(tmp_path)]) == 0
    page, newest = newer.with_suffix(".html"), f"The newest of 2 records in {tmp_path} is shown."
    assert capsys.readouterr().out.splitlines() == [f"Wrote {page}, the page of {newer}.", newest]
    assert all(one in page.read_text() for one in ("newer/boundary_uncertainty.csv", "plotly.js (cartesian"))
    assert not older.with_suffix(".html").exists()
    out = tmp_path / "new" / "page.html"
    assert main(["report", str(older), "-o", str(out)]) == 0
    assert capsys.readouterr().out.splitlines() == [f"Wrote {out}, the page of {older}."]
    assert main(["report", str(older), "-o", str(out / "page.html")]) == 1
    assert "Name another file (`-o`)" in capsys.readouterr().err


def test_text_for_people():
    assert (escaped("a<b>&\"'"), escaped("x" * 50, 10)) == ("a&lt;b&gt;&amp;&quot;&#x27;", "x" * 9 + "…")
    said = without_folders("/home/me/x/y.csv: 1/2 of 'C:\\a\\b\\c\\d e', https://a.b/c/d/e")
    assert said == "me/x/y.csv: 1/2 of 'b/c/d e', https://a.b/c/d/e"
    assert cleaned("a\nb\x1b[31m\u202e\u200d") == "a b\ufffd[31m\ufffd\u200d"
    numbers = {0.25: "0.250", 1234567.0: "1,234,567", 5.7e-09: "below 0.001", 0.0: "0.000", 1e20: "1e+20"}
    assert [shown_number(value) for value in (*numbers, -2.5)] == [*numbers.values(), "-2.500"]
    assert shown_number(math.nan) == duration(math.nan) == "–"  # noqa: RUF001
    assert [duration(s) for s in (0.0123, 59.0, 600.0, 7300.0)] == ["12 ms", "59.0 s", "10 min", "2 h 2 min"]
