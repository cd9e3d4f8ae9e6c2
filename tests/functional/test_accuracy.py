"""Expected accuracy, and the mean of trust."""

import math

import pytest
import torch

from bu_torch import functional
from bu_torch.functional import expected_accuracy


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
