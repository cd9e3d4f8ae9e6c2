"""Expected accuracy, and the mean of trust."""

import math

import pytest
import torch

from bu_torch import functional
from bu_torch.functional import expected_accuracy
from bu_torch.functional.accuracy import standard_error_of_gain


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
