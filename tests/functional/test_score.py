"""Shares of what expected accuracy, boundary uncertainty and trust can reach, in one number; two of its parts."""

import math

import pytest
import torch
from oracles import boundary as oracle

from bu_torch import functional
from bu_torch.functional import Attainable

GENERATOR = torch.Generator().manual_seed(0)
PROBABILITIES = torch.rand(50, 4, generator=GENERATOR).softmax(dim=1)
DISTANCES = torch.rand(50, 4, generator=GENERATOR) + 0.1
LOGITS = torch.randn(50, 4, generator=GENERATOR)


def score(logits, probabilities=PROBABILITIES, distances=DISTANCES, skill=1.0, weights=None):
    predictions = logits.argmax(dim=1)
    measured = (
        functional.expected_accuracy(probabilities, predictions, weights=weights),
        functional.boundary_uncertainty(logits, probabilities, weights=weights),
        functional.mean_trust_score(functional.trust_score(distances, predictions), weights),
    )
    most = functional.attainable(probabilities, distances, weights)
    return float(functional.accuracy_uncertainty_trust(*measured, most, skill))


def test_it_is_one_where_all_three_are_as_high_as_they_can_be_and_less_elsewhere():
    nearest = PROBABILITIES.argmax(dim=1)
    distances = 1 - 0.9 * torch.nn.functional.one_hot(nearest, 4)
    first, second = PROBABILITIES.topk(2).indices.T.unsqueeze(2)
    doubt = 2 * PROBABILITIES.gather(1, second)
    logits = torch.zeros(50, 4).scatter(1, second, 9.0).scatter(1, first, 10 - doubt)
    assert score(logits, distances=distances) == pytest.approx(1)
    assert 0.9 < score(PROBABILITIES, distances=distances) < 1
    assert all(score(PROBABILITIES.roll(shift, dims=1), distances=distances) < 0.6 for shift in (1, 2, 3))
    assert score(PROBABILITIES) < 1


@pytest.mark.parametrize("skill", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("is_weighted", [False, True])
def test_the_shares_are_those_of_a_loop(skill, is_weighted):
    weights = torch.rand(50, generator=torch.Generator().manual_seed(1)).double() + 0.1 if is_weighted else None
    counted = [1.0] * 50 if weights is None else weights.tolist()
    logs, reached, accuracy, most = 0.0, 0.0, 0.0, 0.0
    rows = zip(PROBABILITIES, DISTANCES, LOGITS.argmax(dim=1).tolist(), counted, strict=True)
    for probability, distance, prediction, weight in rows:
        ordered = distance.sort().values
        other = min(float(d) for place, d in enumerate(distance) if place != prediction)
        logs += weight * math.log(other / float(distance[prediction]))
        reached += weight * math.log(float(ordered[1] / ordered[0]))
        accuracy, most = accuracy + weight * float(probability[prediction]), most + weight * float(probability.max())
    given = PROBABILITIES.tolist(), counted
    u, best = oracle.boundary_uncertainty(LOGITS.tolist(), *given), oracle.largest_boundary_uncertainty(*given)
    expected = (accuracy / most + u / best + skill * logs / reached) / (2 + skill)
    assert score(LOGITS, skill=skill, weights=weights) == pytest.approx(expected, rel=1e-5)


def test_where_all_classes_are_equally_near_trust_adds_nothing():
    both = [score(LOGITS, distances=torch.ones(50, 4), skill=skill) for skill in (0.0, 1.0)]
    assert both[1] == pytest.approx(both[0] * 2 / 3, rel=1e-6)


def test_where_all_labels_are_certain_every_boundary_is_as_good():
    certain = torch.nn.functional.one_hot(LOGITS.argmax(dim=1), 4).double()
    one = torch.ones(())
    most = functional.attainable(certain, DISTANCES)
    assert float(most.uncertainty) == 0
    found = functional.accuracy_uncertainty_trust(one, torch.zeros(()), one, most, 0.0)
    assert float(found) == 1


@pytest.mark.parametrize("skill", [-1.0, math.nan, "1"])
def test_a_skill_below_zero_is_refused_by_name(skill):
    one = torch.ones(())
    with pytest.raises((TypeError, ValueError), match="`skill` must"):
        functional.accuracy_uncertainty_trust(one, one, one, Attainable(one, one, one), skill)


def test_trust_is_the_mean_of_clipped_logarithms():
    scores = torch.tensor([0.0, math.inf, 1.0, 8.0])
    assert float(functional.mean_trust_score(scores)) == pytest.approx((1e-3 * 1e3 * 1 * 8) ** 0.25, rel=1e-6)
    assert functional.mean_trust_score(scores).dtype == torch.float64


def test_any_integers_are_taken_and_the_mean_is_of_double_precision():
    predictions = LOGITS.argmax(dim=1)
    expected = functional.expected_accuracy(PROBABILITIES, predictions)
    for kind in (torch.uint8, torch.int8, torch.int16, torch.int32):
        assert functional.expected_accuracy(PROBABILITIES, predictions.to(kind)) == expected
    for kind in (torch.float16, torch.bfloat16):
        halves = torch.full((5000, 2), 0.5, dtype=kind)
        assert float(functional.expected_accuracy(halves, torch.zeros(5000, dtype=torch.int64))) == 0.5
