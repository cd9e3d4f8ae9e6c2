"""Progress of a long computation on a bar."""

from bu_torch.internal.progress import advance, shown_on, uncounted


def test_a_bar_moves_by_what_is_counted_and_is_refreshed_by_all_else():
    moves = []

    class Bar:
        def update(self, n=1):
            moves.append(n)

    with shown_on(Bar()):
        advance(25)
        advance()
        with uncounted():
            advance(7)
        advance(3)
    advance(25)
    assert moves == [25, 0, 0, 3]
