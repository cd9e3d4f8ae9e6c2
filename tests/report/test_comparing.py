"""Several runs on one page: what it shows of each, and what it refuses."""

import browser
import pytest
import records

from bu_torch.cli import main
from bu_torch.report import render, write_report
from bu_torch.report.comparing import comparison


@pytest.fixture
def runs(tmp_path):
    """Two runs that differ in a setting and their length."""
    first, second = (tmp_path / name / "checkpoints" for name in ("first", "second <b>"))
    return [records.run(first, n_checks=30, n_classes=4), records.run(second, n_checks=20, n_classes=4, patience=7)]


def test_each_run_has_a_colour_its_kept_check_and_its_costs(runs):
    shown = comparison(runs)
    (figure,) = shown.drawings
    curves = [trace for trace in figure["data"] if trace["mode"].startswith("lines")]
    assert [trace["name"] for trace in curves] == ["first", "second &lt;b&gt;"] * 4
    assert [len(trace["x"]) for trace in curves] == [30, 20] * 4
    assert len({trace["line"]["color"] for trace in curves}) == 2
    circles = [trace["x"] for trace in figure["data"] if trace["mode"] == "markers"]
    assert circles == [[record.kept] for record in runs] * 4
    for record in runs:
        assert f"epoch {record.kept}" in shown.main
        assert f"{record.check_at(record.kept)['trust_score']:.3f}" in shown.main
    assert "did not improve in the last 20 checks" in shown.main


def test_only_settings_that_differ_are_listed(runs):
    table = comparison(runs).main.partition('id="section-settings"')[2]
    words = ("patience", ">20<", ">7<", "n_neighbors", "n_samples")
    assert [word in table for word in words] == [True, True, True, False, False]


def test_runs_on_other_data_are_not_to_be_compared_by_value(runs):
    assert "can be compared value by value" in comparison(runs).main
    assert "differ in their data" not in comparison(runs).main
    runs[0].data["sampling"] = "weighted"  # which the other record does not tell
    assert "differ in their data" in comparison(runs).main
    assert ">not recorded<" in comparison(runs).main


def test_a_score_is_drawn_where_all_decided_by_the_same_rule(tmp_path):
    rows = [row | {"my_rule": 1.0} for row in records.checks(9)]
    rules = {"a": "my_rule", "b": "my_rule", "c": "trust_score"}
    made = {name: records.run(tmp_path / name, rows, n_checks=9, n_classes=3, rule=rules[name]) for name in "abc"}
    for other, title in (("b", "score"), ("c", "accuracy, uncertainty and trust")):
        figure = comparison([made["a"], made[other]]).drawings[0]
        assert figure["layout"]["annotations"][0]["text"] == title


def test_the_largest_values_of_each_run_are_seen_whatever_the_first_were(tmp_path):
    curves = {
        "short": [0.10, 0.90, 0.91, 0.92, 0.91],
        "long": [0.05] * 20 + [0.93 + 0.001 * epoch for epoch in range(30)],
    }

    def limits(*names):
        made = []
        for name in names:
            rows = [{"epoch": n, "expected_accuracy": value} for n, value in enumerate(curves[name])]
            scores = {"boundary_uncertainty": 0.5, "trust_score": 1.5}
            made.append(records.run(tmp_path / name, [row | scores for row in rows]))
        layout = comparison(made).drawings[0]["layout"]
        titles = [label["text"] for label in layout["annotations"]]
        return layout[f"yaxis{titles.index('expected accuracy') + 1}".replace("yaxis1", "yaxis")]["range"]

    low, high = limits("short", "long")
    assert 0.9 < low < 0.91  # neither the first check of the one nor twenty of the other
    assert high > 0.959


def test_a_run_without_steps_beside_one_with_several_checks_an_epoch(tmp_path):
    rows = records.checks(6)
    steps = [row | {"epoch": row["epoch"] // 3} for row in rows]
    none = [{name: value for name, value in row.items() if name != "step"} for row in rows]
    tables = {"steps": steps, "none": none, "some": [rows[0] | {"step": ""}, *rows[1:]]}
    runs = [records.run(tmp_path / name, table) for name, table in tables.items()]
    curves = [trace for trace in comparison(runs).drawings[0]["data"] if trace["mode"] != "markers"]
    assert [len(trace["x"]) for trace in curves[:3]] == [6, 0, 5]
    assert render(runs)


def test_of_signals_that_no_table_has_nothing_is_drawn(tmp_path):
    rows = [{name: row[name] for name in ("epoch", "boundary_uncertainty", "trust_score")} for row in records.checks(6)]
    runs = [records.run(tmp_path / name, rows) for name in ("one", "other")]
    assert "expected accuracy" not in str(comparison(runs).drawings)
    assert "at the perturbed samples</dd>" not in render(runs[0])


def test_accuracies_in_which_samples_count_differently_share_no_axis(tmp_path):
    weights = {"plain": None, "balanced": "balanced", "too": None}
    runs = [records.run(tmp_path / name, n_checks=9, class_weight=weights[name]) for name in weights]
    shown = comparison(runs)
    (figure,) = shown.drawings
    titles = [label["text"] for label in figure["layout"]["annotations"]]
    assert titles[:2] == [
        "accuracy, uncertainty and trust (all samples count alike)",
        "accuracy, uncertainty and trust (class_weight=balanced)",
    ]
    axes = [(trace["name"], trace["yaxis"]) for trace in figure["data"] if trace["mode"] != "markers"]
    assert axes[:3] == [("plain", "y"), ("too", "y"), ("balanced", "y2")]
    assert sum(trace["showlegend"] for trace in figure["data"]) == 3
    assert "only runs in one panel can be compared by value" in shown.main


@pytest.mark.parametrize("n_runs", [0, 1, 11])
def test_too_few_and_too_many_runs_are_refused(runs, n_runs):
    with pytest.raises(TypeError, match="`records` must be what `read_record` returns, or a list of these, got str"):
        render("folder")
    with pytest.raises(ValueError, match=f"`records` must be 2 to 10 runs to compare, got {n_runs}"):
        comparison((runs * 6)[:n_runs])


def test_the_same_run_twice_is_refused_by_the_command_too(runs, tmp_path, capsys):
    out, folder = tmp_path / "page.html", str(tmp_path / "first")
    with pytest.raises(ValueError, match="is given twice"):
        write_report([runs[0], runs[0]], out)
    assert main(["report", folder, folder, "-o", str(out)]) == 1
    assert "is given twice" in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.skipif(browser.BINARY is None, reason="no chromium is installed")
def test_a_browser_draws_the_page_of_the_command(runs, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "comparison.html"
    assert main(["report", *(str(tmp_path / name) for name in ("first", "second <b>"))]) == 0
    assert str(runs[1].path) in capsys.readouterr().out
    with browser.launched() as chromium, browser.opened(chromium, out, **browser.PHONE) as page:
        assert page.evaluate("document.querySelectorAll('.scatterlayer .js-line').length") == 8
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        assert page.evaluate("document.querySelectorAll('section b, svg a').length") == 0
