"""What the speed benchmark compares gives the same results."""

import math


def test_stages_are_all_there(speed):
    setup = speed.setup_stages(200, 4, 3)
    stages = {"neighbours", "perturbation", "class distances", "votes", "regression", "expected"}
    assert set(setup) == {"N", "d", "J", *stages}
    whole = speed.whole(200, 4, 3)
    assert whole["peak MiB"] >= whole["MiB of imports"] > 0
    check = speed.check_stages(200, 4, 3, 1)
    assert {"forward", "U", "trust", "votes", "(U + trust) / forward"} < set(check)
    assert all(math.isfinite(value) and value > 0 for row in (setup, check, whole) for value in row.values())
