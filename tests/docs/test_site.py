"""The documentation holds every public name and every argument; `make docs` builds it without a warning."""

import importlib
import inspect
import re
from pathlib import Path

import pytest

import bu_torch
from bu_torch.rule.rules import RULE_NAMES
from bu_torch.run.settings import Settings
from bu_torch.signals.metrics import METRICS

ROOT = Path(__file__).parents[2]
DOCS, README = ROOT / "docs", ROOT / "README.md"
TEXTS = {page: page.read_text() for page in (README, *DOCS.rglob("*.md"))}
MODULES = (bu_torch, bu_torch.callbacks, bu_torch.evaluation, bu_torch.functional, bu_torch.report)


def test_a_forge_shows_the_pages_without_building_them_and_all_links_lead_to_files():
    for page, text in TEXTS.items():
        assert not re.search(r'^(?:::: |--8<--|=== "|!!! |\?\?\? )', text, re.MULTILINE), page
        links = [page.parent / target for target in re.findall(r"\]\((?!https?:|#)([^)#\s]+)", text)]
        links += [ROOT / path for path in re.findall(r"(?:examples|benchmarks|docs)/[\w/]+\.(?:py|yaml|json)\b", text)]
        assert [link for link in links if not link.exists()] == [], page


def test_every_public_name_is_in_the_reference_with_its_source():
    pages = "".join(TEXTS[page] for page in DOCS.glob("api/*.md"))
    linked = dict(re.findall(r"^- \[`(\S+)`\]\(../../(\S+)\)$", pages, re.MULTILINE))
    named = set(linked)
    for module in MODULES:
        for name in module.__all__:
            where = {f"{module.__name__}.{name}", f"bu_torch.callbacks.{name}"}
            assert name.startswith("__") or named & where, f"{module.__name__}.{name} is not in docs/api"
    for name in named:
        module, _, attribute = name.rpartition(".")
        source = inspect.getsourcefile(getattr(importlib.import_module(module), attribute))
        assert Path(source).samefile(ROOT / linked[name]), name


# Names, the page where each is, and where else: in the docstrings, or in the first column of a table.
RULED = (Settings, bu_torch.rank_checkpoints)
NAMED = [(f'`"{name}"`', "options.md", RULED) for name in RULE_NAMES]
NAMED += [(f"`{name}`", "watching.md", (bu_torch.BoundaryUncertaintyMonitor,)) for name in bu_torch.Signals.NAMES]
NAMED += [(f'`"{name}"`', "metrics.md", (Settings,)) for name in METRICS]
ARGUMENTS = inspect.signature(bu_torch.BoundaryUncertaintyStopping).parameters
NAMED += [(f"`{name}`", "options.md", ()) for name in ARGUMENTS]


@pytest.mark.parametrize(("name", "page", "places"), NAMED)
def test_each_rule_signal_and_argument_is_on_its_page_and_in_the_docstrings(name, page, places):
    rows = TEXTS[DOCS / page] if places else "".join(re.findall(r"^\|[^|]*\|", TEXTS[DOCS / page], re.MULTILINE))
    assert name in rows
    for place in places:
        assert name in place.__doc__, place.__name__


@pytest.mark.drawn
def test_pictures_are_drawn(load, tmp_path):
    values = load(DOCS / "pictures.py").main(["--smoke", "--folder", str(tmp_path)])
    assert max(values.values()) == list(values.values())[1]  # neither the smooth boundary nor the one by heart
    drawn, shown = ({path.name for path in folder.glob("*.png")} for folder in (tmp_path, DOCS / "pictures"))
    assert drawn == shown
