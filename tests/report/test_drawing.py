"""What a browser draws of the page, on a desktop and on a phone, in light and in dark."""

import csv

import browser
import pytest
import records

from bu_torch.report import read_record, write_report

pytestmark = pytest.mark.skipif(browser.BINARY is None, reason="no chromium is installed")
MAPS = ["near_boundary", "local_uncertainty", "log_trust"]
NAMES = ["deciding", "scores", "agreement", "changes", "pairs", *MAPS, "cost"]


def drawn(page, name):
    """Traces of a figure by their kind, as they are drawn."""
    return page.evaluate(
        f"""(() => {{
        const box = document.getElementById({name!r});
        const count = (what) => box.querySelectorAll(what).length;
        return {{
          traces: box.data.length, lines: count('.scatterlayer .js-line'), points: count('.scatterlayer .point'),
          maps: count('.heatmaplayer image'), labels: [...box.querySelectorAll('text')].map((t) => t.textContent),
          shapes: count('.shapelayer path'), cells: count('.heatmap-label'),
        }};
        }})()"""
    )


def overflow(page):
    return page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")


@pytest.fixture(scope="module")
def chromium():
    with browser.launched() as made:
        yield made


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """The page of a run with the letters for classes."""
    folder = tmp_path_factory.mktemp("many")
    records.write_run(folder, classes=records.LETTERS)
    return write_report(read_record(folder), folder / "report.html")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_a_desktop(chromium, many, dark):
    with browser.Browser(chromium, width=1200, dark=dark) as page:
        page.open(many.as_uri())
        assert page.evaluate("[...document.querySelectorAll('.plot')].map(p => p.id)") == NAMES
        scores = drawn(page, "scores")
        assert scores["traces"] == 9  # two scores, the ceiling, three rules on both
        assert scores["lines"] == 3
        assert scores["points"] == 6
        assert scores["shapes"] == 1
        assert "kept: " in " ".join(scores["labels"])
        assert drawn(page, "agreement")["lines"] == 4
        assert drawn(page, "changes")["lines"] == 2
        assert drawn(page, "cost")["lines"] == 2
        pairs = drawn(page, "pairs")
        assert pairs["maps"] == 2  # values, and cells without one
        assert set(records.LETTERS) <= set(pairs["labels"])
        for name in MAPS:
            assert drawn(page, name)["maps"] == 1
        text, ground = page.evaluate(
            "[getComputedStyle(document.querySelector('#scores .xtick text')).fill,"
            " getComputedStyle(document.querySelector('section')).backgroundColor]"
        )
        assert (text, ground) == (
            ("rgb(227, 232, 239)", "rgb(25, 31, 39)") if dark else ("rgb(28, 36, 48)", "rgb(255, 255, 255)")
        )
        assert overflow(page) <= 0
        assert page.complaints == []
        assert [address for address in page.requests if not address.startswith("data:")] == [many.as_uri()]
        page.prefer(not dark)
        page.wait_for(f"getComputedStyle(document.querySelector('#scores .xtick text')).fill !== {text!r}")


@pytest.mark.parametrize("width", [360, 420])
def test_nothing_is_wider_than_a_phone(chromium, many, width):
    with browser.Browser(chromium, width=width, height=740, phone=True) as page:
        page.open(many.as_uri())
        assert (page.evaluate("innerWidth"), overflow(page)) == (width, 0)
        boxes = "[...document.querySelectorAll('.plot, .scroll, pre')]"
        assert max(page.evaluate(f"{boxes}.map(b => b.scrollWidth - b.clientWidth)")) <= 1
        legends = "[...document.querySelectorAll('.legendtext')]"
        assert max(page.evaluate(f"{legends}.map(t => t.getBoundingClientRect().right)")) <= width
        assert page.evaluate("parseFloat(getComputedStyle(document.querySelector('td')).fontSize)") >= 14
        assert page.complaints == []


def test_doubtful_labels_are_saved_without_formulas(chromium, tmp_path):
    names = ["=1+1", "-x, y", 'say "@"', "@a", "+b"]
    records.write_run(tmp_path, n_checks=2, classes=names)
    record = read_record(tmp_path)
    with browser.Browser(chromium) as page:
        page.open(write_report(record, tmp_path / "report.html").as_uri())
        with page.page.expect_download() as saved:
            page.page.click("text=Save as CSV")
        rows = list(csv.DictReader(saved.value.path().read_text().splitlines()))
        assert page.complaints == []
    assert saved.value.suggested_filename == "doubtful-labels.csv"
    found = [(int(row["index"]), row["label"], row["prediction"]) for row in rows]
    shown = ["'=1+1", "'-x, y", 'say "@"', "'@a", "'+b"]
    doubtful = record.details[record.end.kept_epoch].doubtful
    assert found == [(one.row, shown[one.label], shown[one.prediction]) for one in doubtful]


def test_a_phone_with_few_classes_of_long_names(chromium, tmp_path):
    records.write_run(tmp_path / "run", n_checks=4, classes=["a very long name of a class", "versicolor", "virginica"])
    report = write_report(read_record(tmp_path / "run"), tmp_path / "report.html")
    with browser.Browser(chromium, width=360, height=740, phone=True, dark=True) as page:
        page.open(report.as_uri())
        assert overflow(page) <= 0
        assert drawn(page, "pairs")["cells"] == 6
        assert page.evaluate("document.getElementById('pairs').clientWidth") <= 360
        assert page.complaints == []


def test_markup_is_drawn_as_it_is_written(chromium, tmp_path):
    names = ["</script><b>x</b>", "<a href='javascript:alert(1)'>y</a>", "&lt;i&gt;"]
    records.write_run(tmp_path / "run", n_checks=4, classes=names)
    report = write_report(read_record(tmp_path / "run"), tmp_path / "report.html")
    with browser.Browser(chromium) as page:
        page.open(report.as_uri())
        pairs = drawn(page, "pairs")
        assert pairs["cells"] == 6
        for name in names:
            assert any(label.startswith(name[:13]) for label in pairs["labels"]), pairs["labels"]
            assert name in page.evaluate("document.querySelector('main').innerText")
        assert page.evaluate("document.querySelectorAll('main b, section a, main i, svg a').length") == 0
        assert page.complaints == []


def test_a_run_without_details_and_one_without_checks(chromium, tmp_path):
    records.write_table(tmp_path / "a" / "boundary_uncertainty.csv", records.checks(1))
    records.write_table(tmp_path / "b" / "boundary_uncertainty.csv", [])
    for folder, names in (("a", ["deciding", "scores", "agreement", "changes", "cost"]), ("b", [])):
        report = write_report(read_record(tmp_path / folder), tmp_path / f"{folder}.html")
        with browser.Browser(chromium) as page:
            page.open(report.as_uri())
            assert page.evaluate("[...document.querySelectorAll('.plot')].map(p => p.id)") == names
            assert page.complaints == []
