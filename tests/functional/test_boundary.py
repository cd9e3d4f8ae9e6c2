"""Boundary uncertainty from label probabilities."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from oracles import boundary as oracle

from bu_torch.functional import boundary_uncertainty


def problem(seed=0, n=61, j=4, dtype=torch.float64, n_values=None):
    """Logits, label probabilities and weights; of `n_values` different logits many rows have equal gaps."""
    g = torch.Generator().manual_seed(seed)
    logits = torch.randn(n, j, generator=g, dtype=torch.float64)
    if n_values is not None:
        logits = torch.randint(n_values, (n, j), generator=g).double()
    probabilities = (2 * torch.randn(n, j, generator=g, dtype=torch.float64)).softmax(dim=1)
    return logits.to(dtype), probabilities, (torch.rand(n, generator=g, dtype=torch.float64) * 4 - 2).exp()


@given(st.integers(0, 2**32), st.integers(1, 40), st.integers(2, 6), st.sampled_from([None, 1, 2, 3, 6]), st.booleans())
def test_agrees_with_a_loop(seed, n, j, n_values, is_weighted):
    logits, probabilities, weights = problem(seed, n, j, n_values=n_values)
    weights = weights if is_weighted else None
    expected = oracle.boundary_uncertainty(
        logits.tolist(), probabilities.tolist(), None if weights is None else weights.tolist()
    )
    found = boundary_uncertainty(logits, probabilities, weights=weights)
    assert (found.dtype, found.shape) == (torch.float64, ())
    assert float(found) == pytest.approx(expected, abs=1e-12)


def test_one_logit_stands_for_two_classes_and_classes_that_are_never_likely_change_nothing():
    logits, probabilities, _ = problem(n=50, j=2)
    difference = logits[:, 1] - logits[:, 0]
    both = torch.stack((torch.zeros(50), difference), dim=1)
    expected = boundary_uncertainty(both, probabilities)
    for same in (difference, difference.unsqueeze(1), torch.nn.functional.pad(both, (0, 3), value=-99.0)):
        assert boundary_uncertainty(same, probabilities) == expected


@pytest.mark.parametrize("is_weighted", [False, True])
def test_it_depends_on_the_ranks_of_the_samples_alone(is_weighted):
    logits, probabilities, weights = problem()
    weights = weights if is_weighted else None
    expected = boundary_uncertainty(logits, probabilities, weights=weights)
    for changed in (1e-300 * logits, 1e300 * logits, logits + 7):
        torch.testing.assert_close(boundary_uncertainty(changed, probabilities, weights=weights), expected)
    relabelled = boundary_uncertainty(logits.flip(1), probabilities.flip(1), weights=weights)
    torch.testing.assert_close(relabelled, expected)
    order = torch.randperm(len(logits), generator=torch.Generator().manual_seed(1))
    moved = None if weights is None else 5 * weights[order]
    torch.testing.assert_close(boundary_uncertainty(logits[order], probabilities[order], weights=moved), expected)


@pytest.mark.parametrize("shift", [1, 2, 3])
def test_it_is_lower_where_the_wrong_classes_meet(shift):
    _, probabilities, weights = problem(n=200)
    right = boundary_uncertainty(probabilities, probabilities, weights=weights)
    assert boundary_uncertainty(probabilities.roll(shift, dims=1), probabilities, weights=weights) < 0.8 * right


@given(st.integers(0, 2**32), st.integers(1, 40), st.booleans())
def test_for_two_classes_it_is_eq_38_to_the_bit(seed, n, is_weighted):
    logits, probabilities, weights = problem(seed, n, 2)
    weights = weights if is_weighted else None
    doubt = 1 - (probabilities[:, 0] - probabilities[:, 1]).abs()
    three = torch.cat((1 - doubt / 2, doubt / 2), dim=0).view(2, n).T  # whichever of the two is called likelier
    found = boundary_uncertainty(logits, probabilities, weights=weights)
    assert float(found) == pytest.approx(float(boundary_uncertainty(logits, three, weights=weights)), abs=1e-12)
    assert found == boundary_uncertainty(logits.flip(1), probabilities, weights=weights)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("j", [2, 4])
def test_logits_that_are_not_finite_give_nan(bad, j):
    logits, probabilities, _ = problem(j=j)
    logits[3, j - 1] = bad
    assert boundary_uncertainty(logits, probabilities).isnan()


@pytest.mark.parametrize("largest", [torch.finfo(torch.float64).max, 2.0**1000])
def test_the_largest_numbers_are_finite(largest):
    logits = torch.tensor([[largest, -largest], [0.0, 1.0], [largest, largest]], dtype=torch.float64)
    probabilities = torch.tensor([[1.0, 0.0], [0.75, 0.25], [0.5, 0.5]], dtype=torch.float64)
    assert boundary_uncertainty(logits, probabilities) == 1
    assert boundary_uncertainty(logits[:1], probabilities[:1]) == 0
