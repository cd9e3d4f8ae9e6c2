"""What the page says, that it needs nothing from elsewhere, and that nothing in a record gets to run."""

import hashlib
import json
import os
import re
import shutil
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
import records
from records import write

from bu_torch import __version__
from bu_torch.cli import main
from bu_torch.report import read_record, render
from bu_torch.report.page import content, resource

GOLDEN = Path(__file__).with_name("golden.html")
MARKUP = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&{{main}}\u202e\x00\ud800"


class Elements(HTMLParser):
    """Elements with their attributes."""

    def __init__(self, text):
        super().__init__()
        self.elements = []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))


def test_the_page_of_a_run_is_as_it_was(tmp_path):
    """If a change is meant, delete the file, and the test writes it anew."""
    path = records.write_run(tmp_path / "run" / "checkpoints", n_checks=12, n_doubtful=6, averaging=0.7)
    os.utime(path, (1e9, 1e9))
    title, main, drawings = content(read_record(path))
    parts = [title, *main.replace("><", ">\n<").splitlines(), *map(json.dumps, drawings)]
    text = "\n".join(parts).replace(__version__, "VERSION") + "\n"
    if not GOLDEN.exists():
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text()
    assert str(tmp_path) not in text


def test_the_page_needs_nothing_from_elsewhere(tmp_path):
    page = render(records.run(tmp_path, n_checks=3))
    policy = next(a["content"] for _, a in Elements(page).elements if a.get("http-equiv") == "Content-Security-Policy")
    parts = ("default-src 'none'", "connect-src 'none'", "unsafe-eval")
    assert [part in policy for part in parts] == [True, True, False]
    assert re.search(r"script-src ('sha256-[\w+/=]{44}' ?){2};", policy)
    assert not re.search(r"url\(|@import", re.search(r"<style>(.*?)</style>", page, re.DOTALL)[1])
    assert len(page) < 2_000_000
    script = resource("plotly/plotly-cartesian.min.js").encode()
    assert script.startswith(b"/**\n* plotly.js (cartesian - minified) v4.1.1\n")
    assert hashlib.sha256(script).hexdigest() == "79542150855a52c567260e3137095dbe2b744e6d702a5cabe67da246942fba7a"
    assert "MIT License" in resource("plotly/LICENSE")


@pytest.mark.parametrize("first", [1.5, None])
def test_a_page_of_a_resumed_run_says_where_its_first_losses_are(tmp_path, first):
    made = [json.loads(line) for line in records.write_run(tmp_path / "whole", n_checks=4).read_text().splitlines()]
    made[1]["train_loss"] = first
    assert ("earlier record" in render(read_record(write(tmp_path, *made)))) == (first is None)


def test_markup_in_a_record_is_shown_and_not_run(tmp_path):
    path = records.write_run(tmp_path / "<img src=x onerror=alert(3)>", n_checks=3, classes=[MARKUP, "<!--", "&"])
    made = [json.loads(line) for line in path.read_text().splitlines()]
    made[0]["settings"][MARKUP] = made[0]["versions"]["torch"] = made[0]["started"] = MARKUP
    made[0]["data"]["shape"], made[0]["settings"]["rule"] = {MARKUP: [MARKUP]}, MARKUP
    made[-1]["reason"] = made[-1]["best_model_path"] = MARKUP
    made[1][MARKUP] = 0.5
    page = render(read_record(write(path.parent, *made)))
    page.encode("utf-8")
    kinds = [tag for tag, _ in Elements(page).elements]
    assert (kinds.count("script"), kinds.count("img")) == (3, 0)
    inside = re.search(r'<script type="application/json" id="content">(.*?)</script>', page, re.DOTALL)[1]
    assert inside.isascii()
    assert "<" not in inside
    assert "<img" not in inside.replace("\\u003c", "<")
    assert "\u202e" not in page
    assert "\x00" not in page.replace(re.search(r"plotly\.js \(cartesian.*", page, re.DOTALL)[0], "")


def test_the_command_writes_beside_the_record_and_over_no_other_file(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "plotly", None)  # which need not be installed
    older, newer = (records.write_run(tmp_path / name, n_checks=2) for name in ("older", "newer"))
    os.utime(older, (1e9, 1e9))
    assert main(["report", str(tmp_path)]) == 0
    page, (wrote, newest) = newer.with_suffix(".html"), capsys.readouterr().out.splitlines()
    assert (str(page) in wrote, str(newer) in wrote, "newest of 2" in newest) == (True, True, True)
    assert "plotly.js (cartesian" in page.read_text()
    out = tmp_path / "new" / "page.html"
    assert main(["report", str(older), "-o", str(out)]) == 0
    assert main(["report", str(older), "-o", str(out / "page.html")]) == 1
    assert "Name another file (`-o`)" in capsys.readouterr().err
    for before in (b"mine", b""):
        out.write_bytes(before)
        assert main(["report", str(older), "-o", str(out)]) == (1 if before else 0)
        assert (out.read_bytes() == before) == bool(before)


@pytest.mark.parametrize("asked", [["report", "FOLDER"], ["--version"]])
def test_a_reader_that_ends_early_is_no_error(tmp_path, monkeypatch, asked):
    records.write_run(tmp_path)
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as stdout:  # closing it writes what is left, as Python does when it exits
        monkeypatch.setattr(sys, "stdout", stdout)
        assert main([word.replace("FOLDER", str(tmp_path)) for word in asked]) == 0


CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
PHONE = {"viewport": {"width": 360, "height": 740}, "device_scale_factor": 2, "is_mobile": True, "has_touch": True}
IS_DRAWN = "() => [...document.querySelectorAll('.plot')].every(p => p.querySelector('.main-svg'))"


@pytest.fixture
def page(tmp_path):
    """The page of a run on a phone, once its figures are drawn: it may log nothing, and fetch nothing but itself."""
    playwright = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("no chromium is installed")
    names, file = ["=1+1", "</script><b>x</b>", "&lt;i&gt;"], tmp_path / "report.html"
    file.write_text(render(records.run(tmp_path, n_checks=4, classes=names)))
    complaints, requests = [], []
    with playwright.sync_playwright() as started:
        chromium = started.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        page = chromium.new_page(**PHONE)
        page.set_default_timeout(60_000)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", lambda said: complaints.append(said.text))
        page.on("request", lambda request: requests.append(request.url))
        page.goto(file.as_uri())
        page.wait_for_function(IS_DRAWN)
        yield page
        chromium.close()
    assert complaints == []
    assert [address for address in requests if not address.startswith("data:")] == [file.as_uri()]


def test_a_look_in_a_browser(page):
    """In light and in dark."""
    assert page.evaluate("[...document.querySelectorAll('.plot')].map(p => p.id)") == ["curves", "crossing"]
    assert page.evaluate("document.querySelectorAll('#curves .scatterlayer .js-line').length") == 8
    assert page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") <= 0
    assert page.evaluate("document.querySelectorAll('main b, section a, main i, svg a').length") == 0
    ticks = "getComputedStyle(document.querySelector('#curves .xtick text')).fill"
    before = page.evaluate(ticks)
    page.emulate_media(color_scheme="dark")
    page.wait_for_function(f"() => {ticks} !== {before!r}")
    with page.expect_download() as saved:
        page.click("text=Save as CSV")
    assert '"\'=1+1"' in saved.value.path().read_text()  # no formula of a spreadsheet
