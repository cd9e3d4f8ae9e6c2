import math

import pytest
import torch
from oracles import proposal2

from bu_torch import TrustScore


def test_distances_and_scores_agree_with_loops(dtype):
    g = torch.Generator().manual_seed(0)
    features = torch.randn(80, 3, generator=g).to(dtype)
    labels = torch.randint(0, 4, (80,), generator=g)
    points = torch.cat((torch.randn(40, 3, generator=g).to(dtype), features[:10]))
    predictions = torch.randint(0, 4, (50,), generator=g)
    trust = TrustScore().fit(features, labels)
    expected = [
        [
            min(math.dist(p, f) for f, y in zip(features.tolist(), labels.tolist(), strict=True) if y == c)
            for c in range(4)
        ]
        for p in points.tolist()
    ]
    tolerance = {"atol": 1e-6, "rtol": 1e-6}
    distances = trust.class_distances(points)
    assert distances.dtype == dtype
    torch.testing.assert_close(distances.double(), torch.tensor(expected, dtype=torch.float64), **tolerance)
    scores = [proposal2.trust_score(d, p) for d, p in zip(distances.tolist(), predictions.tolist(), strict=True)]
    assert trust.score(points.numpy(), predictions.numpy()).tolist() == pytest.approx(scores, rel=1e-6)


def test_a_sample_left_out_is_not_found():
    g = torch.Generator().manual_seed(0)
    features = torch.randn(40, 2, generator=g, dtype=torch.float64)
    labels = torch.tensor([0] * 25 + [1] * 14 + [2])
    trust = TrustScore().fit(features, labels)
    rows = torch.arange(40)
    expected = [
        [
            min((math.dist(features[n], features[m]) for m in range(40) if labels[m] == c and m != n), default=math.inf)
            for c in range(3)
        ]
        for n in range(40)
    ]
    found = trust.class_distances(features, left_out=rows)
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64))
    assert (trust.class_distances(features).gather(1, labels.unsqueeze(1)) == 0).all()


def test_distances_to_ones_own_class_are_as_good_among_very_many(monkeypatch):
    """They divide the others, and are few of all: the recall of all says little of them."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 5, (15_000,), generator=generator)
    features = 3 * torch.randn(5, 5, generator=generator)[labels] + torch.randn(15_000, 5, generator=generator)
    points = torch.arange(0, 15_000, 10)
    exact = TrustScore().fit(features, labels).class_distances(features[points], points)
    monkeypatch.setattr("bu_torch.neighbors.search._EXACT_PRODUCTS", 1e6)
    found = TrustScore().fit(features, labels).class_distances(features, torch.arange(15_000))[points]
    excess = (found / exact - 1).gather(1, labels[points].unsqueeze(1))
    assert float((excess <= 0.05).double().mean()) > 0.9


def test_points_too_far_for_float32_find_the_nearest_class(monkeypatch):
    features = torch.randn(6000, 4, generator=torch.Generator().manual_seed(0))
    trust = TrustScore().fit(features, (features[:, 0] > 0).long())
    points = features + 0.01
    points[7] = 1e20
    monkeypatch.setattr("bu_torch.neighbors.search._EXACT_PRODUCTS", 1e6)
    for asked in (points, points[:100]):
        distances = trust.class_distances(asked)
        assert bool(distances.isfinite().all())
        torch.testing.assert_close(distances[7], torch.full((2,), 2e20))


def test_distances_among_very_many_are_nearly_the_true_ones(monkeypatch):
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(9000, 6, generator=generator)
    labels = (torch.rand(9000, generator=generator) < 0.5).long()
    labels[:100] = 2  # a class of few, all of which are asked
    points, own = features[::3] + 0.01, torch.arange(0, 9000, 3)
    exact = TrustScore().fit(features, labels).class_distances(points, own)
    monkeypatch.setattr("bu_torch.neighbors.search._EXACT_PRODUCTS", 1e6)
    found = TrustScore().fit(features, labels).class_distances(points, own)
    excess = found / exact - 1
    assert float(excess.min()) >= -1e-6
    assert float(excess[:, 2].abs().max()) == 0
    assert 0.93 < float((excess[:, :2] <= 0.05).double().mean()) < 1


def test_absent_and_unseen_classes_are_infinitely_far():
    trust = TrustScore().fit(torch.tensor([[0.0], [1.0]]), torch.tensor([0, 2]))
    assert trust.class_distances(torch.tensor([[0.0]])).tolist() == [[0.0, math.inf, 1.0]]
    assert trust.score(torch.tensor([[0.5], [0.5]]), torch.tensor([1, 7])).tolist() == [0.0, 0.0]
    alone = TrustScore().fit(torch.randn(5, 2), torch.zeros(5).long())
    assert alone.score(torch.randn(3, 2), torch.zeros(3).long()).tolist() == [math.inf] * 3
