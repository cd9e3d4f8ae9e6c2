"""The page on what can go wrong names tests that are there."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NAMED = sorted(set(re.findall(r"`(tests/[\w/]+\.py(?:::\w+)*)`", (ROOT / "docs" / "reliability.md").read_text())))


@pytest.mark.parametrize("name", NAMED)
def test_each_test_that_is_named_exists(name):
    file, *path = name.split("::")
    here = ast.parse((ROOT / file).read_text()).body
    for part in path:
        found = [node for node in here if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == part]
        assert found, name
        here = found[0].body


def test_many_are_named():
    assert len(NAMED) > 15
