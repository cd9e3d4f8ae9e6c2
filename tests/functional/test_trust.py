import math

import pytest
import torch

from bu_torch.functional import mean_trust_score, neighbor_agreement, trust_score


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


def test_agreement_with_the_neighbours_is_a_share_of_distances():
    distances = torch.tensor([[1.0, 3.0], [2.0, 2.0], [0.0, 1.0], [1.0, math.inf], [math.inf, 1.0], [0.0, 0.0]])
    scores = trust_score(distances, torch.zeros(6).long())
    shares = [0.75, 0.5, 1.0, 1.0, 0.0, 0.5]
    assert [float(neighbor_agreement(s.reshape(1))) for s in scores] == pytest.approx(shares)
    assert float(neighbor_agreement(scores)) == pytest.approx(sum(shares) / 6)
