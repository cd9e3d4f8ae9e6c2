"""Expected accuracy, alone and with trust in one number."""

import math

import pytest
import torch

from bu_torch import functional
from bu_torch.functional import expected_accuracy
from bu_torch.functional.accuracy import standard_error_of_gain

GENERATOR = torch.Generator().manual_seed(0)
PROBABILITIES = torch.rand(50, 4, generator=GENERATOR).softmax(dim=1)
DISTANCES = torch.rand(50, 4, generator=GENERATOR) + 0.1


def score(predictions, probabilities=PROBABILITIES, distances=DISTANCES):
    accuracy = functional.expected_accuracy(probabilities, predictions)
    trust = functional.mean_trust_score(functional.trust_score(distances, predictions))
    best = functional.best_accuracy_uncertainty_trust(probabilities, distances)
    return float(functional.accuracy_uncertainty_trust(accuracy, trust, *best))


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
        assert float(functional.accuracy_uncertainty_trust(accuracy, trust, *best, skill)) == pytest.approx(expected)
    higher = functional.accuracy_uncertainty_trust(accuracy, torch.tensor(9.0), *best, 0.25)
    assert float(higher) == pytest.approx((0.5 + 0.25) / 1.25)


def test_without_a_nearer_class_accuracy_decides_alone():
    equal, predictions = torch.ones(50, 4), torch.zeros(50, dtype=torch.int64)
    accuracy, most = PROBABILITIES[:, 0].mean(), PROBABILITIES.amax(dim=1).mean()
    assert score(predictions, distances=equal) == pytest.approx(float(accuracy / most) / 2, rel=1e-6)


def test_trust_is_the_mean_of_clipped_logarithms():
    scores = torch.tensor([0.0, math.inf, 1.0, 8.0])
    assert float(functional.mean_trust_score(scores)) == pytest.approx((1e-3 * 1e3 * 1 * 8) ** 0.25, rel=1e-6)
    assert functional.mean_trust_score(scores).dtype == torch.float64


def problem(n=40, j=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    probabilities = torch.randn(n, j, generator=generator, dtype=torch.float64).softmax(dim=1)
    return probabilities, torch.randint(j, (n,), generator=generator)


def test_any_integers_are_taken_and_the_mean_is_of_double_precision():
    probabilities, predictions = problem()
    expected = expected_accuracy(probabilities, predictions)
    assert expected_accuracy(probabilities, predictions, validate_args=False) == expected
    for kind in (torch.uint8, torch.int8, torch.int16, torch.int32):
        assert expected_accuracy(probabilities, predictions.to(kind)) == expected
    for kind in (torch.float16, torch.bfloat16):
        halves = torch.full((5000, 2), 0.5, dtype=kind)
        assert float(expected_accuracy(halves, torch.zeros(5000, dtype=torch.int64))) == 0.5


@pytest.mark.parametrize("weights", [None, torch.tensor([3.0, 1.0, 0.5, 0.5, 0.5, 0.5])], ids=["alike", "weighted"])
def test_the_standard_error_of_a_gain_is_that_of_paired_means(weights, device):
    probabilities, predictions = problem(n=12)  # two draws of six samples
    others = torch.cat((predictions[:7], torch.tensor([3, 100, 0, 1, 2])))  # two of them of classes without samples
    weights = None if weights is None else (weights / weights.mean()).double()

    def gain(row):
        one, other = (float(probabilities[row, p]) if p < 3 else 0.0 for p in (int(predictions[row]), int(others[row])))
        return one - other

    each = [(gain(n) + gain(6 + n)) / 2 for n in range(6)]
    counts = [1.0] * 6 if weights is None else weights.tolist()
    mean = sum(count * one for count, one in zip(counts, each, strict=True)) / 6
    variance = sum((count * (one - mean)) ** 2 for count, one in zip(counts, each, strict=True)) / 6**2
    given = (tensor.to(device) for tensor in (probabilities, predictions, others))
    found = standard_error_of_gain(*given, 2, None if weights is None else weights.to(device))
    assert (found.dtype, found.shape) == (torch.float64, ())
    assert float(found) == pytest.approx(variance**0.5, rel=1e-12)
    assert float(found) > 0
    assert float(standard_error_of_gain(probabilities, predictions, predictions, 2)) == 0
