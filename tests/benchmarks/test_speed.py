"""What the speed benchmark compares gives the same results."""

import math
from functools import partial

import pytest
import torch


def test_stages_are_all_there(speed):
    setup = speed.setup_stages(200, 4, 3)
    stages = {"neighbours", "perturbation", "prototypes", "pairs", "class distances", "votes", "regression", "expected"}
    assert set(setup) == {"N", "d", "J", *stages}
    whole = speed.whole(200, 4, 3)
    assert whole["peak MiB"] >= whole["MiB of imports"] > 0
    check = speed.check_stages(200, 4, 3, 1)
    assert {"forward", "U", "trust", "votes", "(U + trust) / forward"} < set(check)
    assert all(math.isfinite(value) and value > 0 for row in (setup, check, whole) for value in row.values())


def test_kd_trees_say_what_the_cache_says(speed, monkeypatch):
    asked, own = [], speed.functional.trust_score
    monkeypatch.setattr(speed.functional, "trust_score", lambda *a, **k: asked.append(own(*a, **k)) or asked[-1])
    row = speed.other_ways(300, 4, 3, 1)
    torch.testing.assert_close(asked[-1].float(), asked[0], rtol=1e-4, atol=1e-5)
    assert min(row["torch / FAISS"], row["scikit-learn / FAISS"], row["KD-trees / cache"]) > 0


def test_an_epoch_with_checks_is_told_from_one_without(speed):
    one = partial(speed.epoch_seconds, lambda: speed.mlp(4, 3), speed.table(150, 4, 3), 1, held_out=False)
    plain, ours = one(stopping=False), one(stopping=True)
    assert plain[1] == plain[2] == 0.0
    assert 0 < ours[1] < ours[0]
    assert ours[2] > 0


def test_a_whole_check_is_timed_on_a_device(speed, device):
    row = speed.whole_check(device.type, 300, 5, 1)
    assert row["least bytes, GB"] == 4 * 300 * (5 + 160) / 1e9
    assert row["GB/s"] == pytest.approx(row["least bytes, GB"] / (row["U and trust, ms"] / 1e3))
