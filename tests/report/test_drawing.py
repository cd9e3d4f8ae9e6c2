"""What a browser draws of the page, on a desktop and on a phone, in light and in dark."""

import csv

import browser
import pytest
import records

from bu_torch.report import read_record, write_report

pytestmark = pytest.mark.skipif(browser.BINARY is None, reason="no chromium is installed")
OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
TICKS = "getComputedStyle(document.querySelector('#scores .xtick text')).fill"
PLOTS = "[...document.querySelectorAll('.plot')].map(p => p.id)"
NAMES = ["deciding", "scores", "agreement", "changes", "crossing", "pairs", "log_trust", "cost"]


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


@pytest.fixture(scope="module")
def chromium():
    with browser.launched() as made:
        yield made


@pytest.fixture
def opened(chromium, tmp_path):
    """Open the page of a run with these classes, or of the record in a folder."""

    def opened(classes=None, folder=tmp_path, **window):
        if classes:
            records.write_run(folder, n_checks=4, classes=classes)
        return browser.opened(chromium, write_report(read_record(folder), folder / "report.html"), **window)

    return opened


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """The page of a run with the letters for classes."""
    folder = tmp_path_factory.mktemp("many")
    records.write_run(folder, classes=records.LETTERS)
    return write_report(read_record(folder), folder / "report.html")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_a_desktop(chromium, many, dark):
    with browser.opened(chromium, many, dark=dark) as page:
        assert page.evaluate(PLOTS) == NAMES
        scores, pairs = drawn(page, "scores"), drawn(page, "pairs")
        assert scores["traces"] == 12  # two scores, their largest values, four rules on both
        assert [scores[kind] for kind in ("lines", "points", "shapes")] == [2, 10, 1]
        assert "kept: " in " ".join(scores["labels"])
        assert [drawn(page, name)["lines"] for name in ("agreement", "changes", "cost")] == [3, 1, 2]
        assert pairs["maps"] == 1
        assert set(records.LETTERS) <= set(pairs["labels"])
        assert drawn(page, "log_trust")["maps"] == 1
        assert drawn(page, "crossing")["lines"] == 2  # the network's, and the most that can be reached
        text = page.evaluate(TICKS)
        ground = page.evaluate("getComputedStyle(document.querySelector('section')).backgroundColor")
        assert text == ("rgb(227, 232, 239)" if dark else "rgb(28, 36, 48)")
        assert ground == ("rgb(25, 31, 39)" if dark else "rgb(255, 255, 255)")
        assert page.evaluate(OVERFLOW) <= 0
        page.emulate_media(color_scheme="light" if dark else "dark")
        page.wait_for_function(f"() => {TICKS} !== {text!r}")


@pytest.mark.parametrize("width", [360, 420])
def test_nothing_is_wider_than_a_phone(chromium, many, width):
    with browser.opened(chromium, many, **{**browser.PHONE, "width": width}) as page:
        assert (page.evaluate("innerWidth"), page.evaluate(OVERFLOW)) == (width, 0)
        boxes = "[...document.querySelectorAll('.plot, .scroll, pre')]"
        assert max(page.evaluate(f"{boxes}.map(b => b.scrollWidth - b.clientWidth)")) <= 1
        legends = "[...document.querySelectorAll('.legendtext')]"
        assert max(page.evaluate(f"{legends}.map(t => t.getBoundingClientRect().right)")) <= width
        assert page.evaluate("parseFloat(getComputedStyle(document.querySelector('td')).fontSize)") >= 14


def test_doubtful_samples_are_saved_without_formulas(opened, tmp_path):
    with opened(["=1+1", "-x, y", 'say "@"', "@a", "+b"]) as page:
        with page.expect_download() as saved:
            page.click("text=Save as CSV")
        rows = list(csv.DictReader(saved.value.path().read_text().splitlines()))
    assert saved.value.suggested_filename == "doubtful-samples.csv"
    found = [(int(row["index"]), row["label"], row["prediction"]) for row in rows]
    shown, record = ["'=1+1", "'-x, y", 'say "@"', "'@a", "'+b"], read_record(tmp_path)
    doubtful = record.details[record.kept].doubtful
    assert found == [(one.row, shown[one.label], shown[one.prediction]) for one in doubtful]


def test_markup_is_drawn_as_it_is_written(opened):
    names = ["</script><b>x</b>", "<a href='javascript:alert(1)'>y</a>", "&lt;i&gt;"]
    with opened(names) as page:
        pairs = drawn(page, "pairs")
        assert pairs["cells"] == 6
        for name in names:
            assert any(label.startswith(name[:13]) for label in pairs["labels"]), pairs["labels"]
            assert name in page.evaluate("document.querySelector('main').innerText")
        assert page.evaluate("document.querySelectorAll('main b, section a, main i, svg a').length") == 0
