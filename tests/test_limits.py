"""The package stays light: limits on files, names and words. Those of the whole leave 3 % of slack."""

import ast
from collections import Counter
from pathlib import Path

import pytest

import bu_torch

ROOT = Path(__file__).parents[1]
FILES = [*ROOT.glob("bu_torch/**/*.py"), *ROOT.glob("callbacks/**/*.py")]
PAGES = [ROOT / "README.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")]
MOST_LINES = 400


def n_lines(files):
    return sum(len(file.read_text().splitlines()) for file in files)


@pytest.mark.parametrize(
    ("what", "reached", "limit"),
    [
        ("lines of source", n_lines(FILES), 13_000),
        ("lines of tests", n_lines(ROOT.glob("tests/**/*.py")), 11_000),
        ("words of documentation", sum(len(page.read_text().split()) for page in PAGES), 14_000),
        ("public names", len(bu_torch.__all__), 50),
    ],
)
def test_the_whole_stays_below_its_limit(what, reached, limit):
    assert reached <= limit, f"{reached} {what}"


def test_no_file_is_too_long():
    assert {str(file): lines for file in FILES if (lines := n_lines([file])) > MOST_LINES} == {}


def test_every_class_has_a_name_of_its_own():
    nodes = (node for file in FILES for node in ast.walk(ast.parse(file.read_text())))
    names = Counter(node.name for node in nodes if isinstance(node, ast.ClassDef))
    assert [name for name, number in names.items() if number > 1] == []
