import math

import pytest
import torch
from oracles import proposal2

from bu_torch.functional import mean_trust_score, neighbor_agreement, trust_score


def test_agrees_with_one_point_at_a_time(dtype, device):
    g = torch.Generator().manual_seed(0)
    distances = torch.randint(0, 4, (200, 5), generator=g).to(dtype)
    distances[torch.rand(200, 5, generator=g) < 0.2] = math.inf
    predictions = torch.randint(0, 5, (200,), generator=g)
    scores = trust_score(distances.to(device), predictions.to(device))
    expected = [proposal2.trust_score(d, p) for d, p in zip(distances.tolist(), predictions.tolist(), strict=True)]
    assert scores.dtype == dtype
    assert scores.device.type == device.type
    torch.testing.assert_close(scores.cpu().double(), torch.tensor(expected, dtype=torch.float64), atol=1e-6, rtol=1e-6)


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
def test_corner_cases(distances, prediction, expected):
    assert trust_score(torch.tensor([distances]), torch.tensor([prediction])).tolist() == [expected]


def test_mean_is_taken_of_clipped_logarithms():
    scores = torch.tensor([0.0, math.inf, 1.0, 8.0])
    assert float(mean_trust_score(scores)) == pytest.approx((1e-3 * 1e3 * 1 * 8) ** 0.25, rel=1e-6)
    assert mean_trust_score(scores).dtype == torch.float64
    for mean in (mean_trust_score, neighbor_agreement):
        with pytest.raises(ValueError, match="`scores` must hold at least one"):
            mean(torch.zeros(0))


@pytest.mark.parametrize(
    ("distances", "predictions", "error", "message"),
    [
        (torch.zeros(3, 2), torch.tensor([0, 1, 2]), ValueError, r"`predictions` must hold classes in \[0, 2\)"),
        (torch.zeros(3, 2), torch.tensor([0, 1]), ValueError, r"`predictions` must have shape \(3,\)"),
        (torch.zeros(3, 2), torch.zeros(3), TypeError, "`predictions` must have an integer dtype"),
        (torch.zeros(3), torch.zeros(3, dtype=torch.int64), ValueError, "`class_distances` must have shape"),
        (torch.zeros(3, 2).long(), torch.zeros(3).long(), TypeError, "`class_distances` must be"),
    ],
)
def test_bad_arguments_are_named(distances, predictions, error, message):
    with pytest.raises(error, match=message):
        trust_score(distances, predictions)


def test_agreement_with_the_neighbours_is_a_share_of_distances():
    distances = torch.tensor([[1.0, 3.0], [2.0, 2.0], [0.0, 1.0], [1.0, math.inf], [math.inf, 1.0], [0.0, 0.0]])
    scores = trust_score(distances, torch.zeros(6).long())
    shares = [0.75, 0.5, 1.0, 1.0, 0.0, 0.5]
    assert [float(neighbor_agreement(s.reshape(1))) for s in scores] == pytest.approx(shares)
    assert float(neighbor_agreement(scores)) == pytest.approx(sum(shares) / 6)
