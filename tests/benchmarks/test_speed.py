"""What the speed benchmark compares gives the same results."""

import math
from functools import partial


def test_stages_are_all_there(speed):
    setup = speed.setup_stages(200, 4, 3)
    stages = {"neighbours", "perturbation", "prototypes", "pairs", "class distances", "votes", "regression", "expected"}
    assert set(setup) == {"N", "d", "J", *stages}
    whole = speed.whole(200, 4, 3)
    assert whole["peak MiB"] >= whole["MiB of imports"] > 0
    check = speed.check_stages(200, 4, 3, 1)
    assert {"forward", "U", "trust", "votes", "(U + trust) / forward"} < set(check)
    assert all(math.isfinite(value) and value > 0 for row in (setup, check, whole) for value in row.values())


def test_an_epoch_with_checks_is_told_from_one_without(speed):
    one = partial(speed.epoch_seconds, lambda: speed.mlp(4, 3), speed.table(150, 4, 3), 1, held_out=False)
    plain, ours = one(stopping=False), one(stopping=True)
    assert plain[1] == plain[2] == 0.0
    assert 0 < ours[1] < ours[0]
    assert ours[2] > 0
