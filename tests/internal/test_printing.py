"""The progress of a long computation: bars that are shown, moved, and left alone."""

import pytest

from bu_torch.internal import printing
from bu_torch.internal.printing import advance, progress, showing_progress, shown_on, uncounted


class Bar:
    def __init__(self):
        self.moves = []

    def update(self, n=1):
        self.moves.append(n)


def test_work_that_is_not_counted_refreshes_the_bar_without_moving_it():
    bar = Bar()
    with shown_on(bar):
        advance(20)
        with uncounted():
            advance(7)
        advance()
    advance(5)
    assert bar.moves == [20, 0, 0]


@pytest.mark.parametrize("is_shown", [True, False])
def test_bars_are_shown_only_where_a_run_shows_them(capsys, monkeypatch, is_shown):
    monkeypatch.setattr(printing, "_BAR_DELAY", 0)
    with showing_progress(is_shown), progress("bu-torch works", total=10):
        advance(10)
    with progress("bu-torch works elsewhere", total=10):
        advance(10)
    said = capsys.readouterr().err
    assert ("bu-torch works:" in said) == is_shown
    assert "elsewhere" not in said
