import math

import pytest
import torch

from bu_torch.functional import mean_trust_score, neighbor_agreement, trust_score
from bu_torch.functional.trust import trust_with_own


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


def test_one_sample_more_brings_its_class_nearer_and_no_other(dtype, device, generator):
    distances = torch.randint(0, 5, (500, 4), generator=generator).to(dtype)  # with ties
    distances[distances == 4] = math.inf
    labels, predictions = torch.randint(0, 4, (2, 500, 1), generator=generator)
    nearest = torch.minimum(distances.gather(1, labels), torch.randint(0, 5, (500, 1), generator=generator).to(dtype))
    given = (distances, predictions.squeeze(1), labels.squeeze(1), nearest.squeeze(1))
    found, without = trust_with_own(*(tensor.to(device) for tensor in given))
    assert torch.equal(without.cpu(), trust_score(distances, given[1]))
    assert torch.equal(found.cpu(), trust_score(distances.scatter(1, labels, nearest), given[1]))


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
