import math

import pytest
import torch

from bu_torch.functional import mean_trust_score, trust_score


@pytest.mark.parametrize(
    ("distances", "prediction", "expected"),
    [
        ([2.0, 6.0], 0, 3.0),
        ([0.0, 0.0], 0, 1.0),
        ([0.0, 1.0], 0, math.inf),
        ([0.0, 1.0], 1, 0.0),
        ([1.0, math.inf], 1, 0.0),
        ([math.inf, math.inf], 1, 0.0),
        ([1.0, math.inf], 0, math.inf),
        ([1.0], 0, math.inf),
    ],
)
def test_corner_cases(distances, prediction, expected, dtype, device):
    found = trust_score(torch.tensor([distances], dtype=dtype).to(device), torch.tensor([prediction]).to(device))
    assert (found.dtype, found.device.type, found.tolist()) == (dtype, device.type, [expected])


def test_mean_is_taken_of_clipped_logarithms():
    scores = torch.tensor([0.0, math.inf, 1.0, 8.0])
    assert float(mean_trust_score(scores)) == pytest.approx((1e-3 * 1e3 * 1 * 8) ** 0.25, rel=1e-6)
    assert mean_trust_score(scores).dtype == torch.float64
