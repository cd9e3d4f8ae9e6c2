"""Expected accuracy and trust in one number."""

import math

import pytest
import torch

from bu_torch import functional

GENERATOR = torch.Generator().manual_seed(0)
PROBABILITIES = torch.rand(50, 4, generator=GENERATOR).softmax(dim=1)
DISTANCES = torch.rand(50, 4, generator=GENERATOR) + 0.1


def score(predictions, probabilities=PROBABILITIES, distances=DISTANCES):
    accuracy = functional.expected_accuracy(probabilities, predictions)
    trust = functional.mean_trust_score(functional.trust_score(distances, predictions))
    best = functional.best_accuracy_and_trust(probabilities, distances)
    return float(functional.accuracy_and_trust(accuracy, trust, *best))


def test_it_is_one_where_the_most_probable_class_is_the_nearest_and_less_elsewhere():
    nearest = DISTANCES.argmin(dim=1)
    probabilities = torch.nn.functional.one_hot(nearest, 4) * 0.6 + 0.1
    assert score(nearest, probabilities) == pytest.approx(1)
    assert all(score((nearest + shift) % 4, probabilities) < 0.5 for shift in (1, 2, 3))
    assert score(PROBABILITIES.argmax(dim=1)) < 1


def test_the_shares_are_those_of_a_loop():
    predictions = torch.randint(4, (50,), generator=GENERATOR)
    logs, reached, accuracy, most = 0.0, 0.0, 0.0, 0.0
    for probability, distance, prediction in zip(PROBABILITIES, DISTANCES, predictions, strict=True):
        ordered = distance.sort().values
        other = min(float(d) for place, d in enumerate(distance) if place != prediction)
        logs += math.log(other / float(distance[prediction]))
        reached += math.log(float(ordered[1] / ordered[0]))
        accuracy, most = accuracy + float(probability[prediction]), most + float(probability.max())
    assert score(predictions) == pytest.approx((accuracy / most + logs / reached) / 2, rel=1e-5)


def test_it_does_not_depend_on_the_unit_of_distance_or_on_the_order():
    predictions, order = torch.randint(4, (50,), generator=GENERATOR), torch.randperm(50, generator=GENERATOR)
    expected = score(predictions)
    assert score(predictions, distances=3 * DISTANCES) == pytest.approx(expected, rel=1e-6)
    assert score(predictions[order], PROBABILITIES[order], DISTANCES[order]) == pytest.approx(expected, rel=1e-6)


def test_trust_counts_by_skill():
    accuracy, trust, best = torch.tensor(0.4), torch.tensor(3.0), (torch.tensor(0.8), torch.tensor(9.0))
    for skill, expected in ((0.0, 0.5), (0.5, (0.5 + 0.5 * 0.5) / 1.5), (1.0, 0.5)):
        assert float(functional.accuracy_and_trust(accuracy, trust, *best, skill)) == pytest.approx(expected)
    higher = functional.accuracy_and_trust(accuracy, torch.tensor(9.0), *best, 0.25)
    assert float(higher) == pytest.approx((0.5 + 0.25) / 1.25)


def test_without_a_nearer_class_accuracy_decides_alone():
    equal, predictions = torch.ones(50, 4), torch.zeros(50, dtype=torch.int64)
    accuracy, most = PROBABILITIES[:, 0].mean(), PROBABILITIES.amax(dim=1).mean()
    assert score(predictions, distances=equal) == pytest.approx(float(accuracy / most) / 2, rel=1e-6)
