"""The documentation builds without a warning, and holds every public name and every argument."""

import importlib
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import bu_torch
from bu_torch.rule.rules import RULE_NAMES
from bu_torch.run.settings import Settings

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
MODULES = (bu_torch, bu_torch.callbacks, bu_torch.evaluation, bu_torch.functional, bu_torch.report)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    pytest.importorskip("mkdocs")
    pytest.importorskip("material")
    pytest.importorskip("mkdocstrings")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env=environment)
    assert result.returncode == 0, result.stdout + result.stderr
    return folder


def test_site_builds_without_a_warning_and_asks_no_other_server(site):
    pages = list(site.rglob("*.html"))
    assert len(pages) > 20
    for page in pages:
        text = page.read_text()
        assert not re.search(r'<(?:script|link|img)[^>]*(?:src|href)="?https?:', text), page
        assert "--8<--" not in text, page
    text = (site / "recipes" / "plain-loop" / "index.html").read_text()
    assert "BoundaryUncertaintyStopper(inputs, labels" in re.sub("<[^>]*>", "", text)
    assert not list(site.rglob("*.py"))


def test_docstrings_are_on_the_pages(site):
    text = (site / "api" / "callbacks" / "index.html").read_text()
    assert "Stop a training when its decision boundary gets no better" in text
    assert "_prepare" not in text


def test_every_public_name_is_in_the_reference():
    named = set(re.findall(r"^::: (\S+)$", "".join(page.read_text() for page in DOCS.glob("api/*.md")), re.MULTILINE))
    for module in MODULES:
        for name in module.__all__:
            where = {f"{module.__name__}.{name}", f"bu_torch.callbacks.{name}"}
            assert name.startswith("__") or named & where, f"{module.__name__}.{name} is not in docs/api"
    for name in named:
        module, _, attribute = name.rpartition(".")
        assert hasattr(importlib.import_module(module), attribute), name


def test_every_argument_is_among_the_options():
    options = (DOCS / "options.md").read_text()
    for name in inspect.signature(bu_torch.BoundaryUncertaintyStopping).parameters:
        assert re.search(rf"^\|[^|]*`{name}`[^|]*\|", options, re.MULTILINE), name


@pytest.mark.parametrize("name", RULE_NAMES)
def test_each_rule_that_goes_by_a_name_is_among_the_options_and_in_the_docstrings(name):
    assert f'`"{name}"`' in (DOCS / "options.md").read_text()
    for place in (Settings, bu_torch.SelectionRule, bu_torch.rank_checkpoints):
        assert f'`"{name}"`' in place.__doc__, place.__name__


def test_readme_is_short_and_begins_with_a_comparison_and_a_script_of_thirty_lines():
    readme = (ROOT / "README.md").read_text()
    assert len(readme.splitlines()) <= 100
    before, quickstart = readme.split("## Quickstart")
    blocks = [re.findall(r"^```python\n(.*?)^```$", part, re.MULTILINE | re.DOTALL) for part in (before, quickstart)]
    assert [len(found) for found in blocks] == [1, 1]
    for script in (*blocks[0], *blocks[1]):
        compile(script, "README.md", "exec")
    assert len(blocks[1][0].splitlines()) <= 30


def test_readme_has_the_table_that_the_benchmarks_print(load, capsys):
    load(ROOT / "benchmarks" / "errors.py").main()
    assert capsys.readouterr().out in (ROOT / "README.md").read_text()


def test_links_and_commands_on_the_pages_lead_to_files():
    for page in [ROOT / "README.md", *DOCS.rglob("*.md")]:
        text = page.read_text()
        if page in (ROOT / "README.md", DOCS / "limits.md"):
            for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", text):
                assert (page.parent / target).exists(), f"{page.name}: {target}"
        for target in re.findall(r"(?:examples|benchmarks|docs)/[\w/]+\.(?:py|yaml|json)\b", text):
            assert (ROOT / target).exists(), f"{page.name}: {target}"


def test_pictures_are_drawn(load, tmp_path, capsys):
    values = load(DOCS / "pictures.py").main(["--smoke", "--folder", str(tmp_path)])
    smooth, right, by_heart = values.values()
    assert right > max(smooth, by_heart)
    drawn, shown = ({path.name for path in folder.glob("*.png")} for folder in (tmp_path, DOCS / "pictures"))
    assert drawn == shown
    assert str(tmp_path) in capsys.readouterr().out


@pytest.mark.parametrize("name", bu_torch.Signals.NAMES)
def test_each_signal_is_on_the_page_of_watching_and_in_the_monitor_s_docstring(name):
    assert f"`{name}`" in (DOCS / "watching.md").read_text()
    assert f"`{name}`" in bu_torch.BoundaryUncertaintyMonitor.__doc__


def test_no_page_holds_a_table_that_is_still_to_be_filled():
    for page in [ROOT / "README.md", ROOT / "CHANGELOG.md", *DOCS.rglob("*.md")]:
        text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
        assert not re.findall(r"^[A-Z_]{4,}$", text, re.MULTILINE), page
        rules = re.findall(r"^\|[-|: ]+\|$\n(.?)", text, re.MULTILINE)
        assert set(rules) <= {"|"}, f"{page} has a table without rows"
