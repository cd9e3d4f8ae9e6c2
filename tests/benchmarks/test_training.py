"""Trainings of several networks at a time, what is read of them, and how long it takes."""

import math


def test_stages_are_all_there(speed):
    check, whole = speed.check_stages(200, 4, 3, 1), speed.whole(200, 4, 3)
    for row in (speed.setup_stages(200, 4, 3), check, whole):
        assert all(math.isfinite(value) and value > 0 for value in row.values())
    assert whole["peak MiB"] >= whole["MiB of imports"]
    assert {"forward", "U", "trust", "votes"} < set(check)
