"""Numbers in the pages are those of the committed results."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("page", "names"),
    [
        ("README.md", ["errors"]),
        ("docs/limits.md", ["ratios", "fresh_ratios", "excesses"]),
        ("docs/choosing-checkpoints.md", ["verdicts"]),
    ],
)
def test_tables_in_a_page_are_those_of_the_committed_results(load, page, names):
    errors = load(ROOT / "benchmarks" / "errors.py")
    said = (ROOT / page).read_text().splitlines()
    for name in names:
        header, _, *rows = errors.lines(getattr(errors, name)())
        assert len(rows) > 3
        assert [row for row in (header, *rows) if row not in said] == []
