"""The progress of a long computation: bars that are shown, moved, and left alone."""

from bu_torch.internal.printing import advance, shown_on, uncounted


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
