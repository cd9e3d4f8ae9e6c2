"""The functional core against references that count one by one, at any shape, dtype and scale.

Each test tries the number of examples of the hypothesis profile; `make test-slow` takes the profile of ten thousand.
Values are small whole numbers times a power of two: their differences are exact in every dtype, so that both sides see
the same ties, down to the smallest and up to the largest numbers that the dtype has.
"""

import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from oracles import anchors, proposal2
from oracles.labels import votes

from bu_torch import functional as F

# Smallest and largest power of two by which a whole number of up to 7 bits stays exact.
UNITS = {torch.float16: (-24, 8), torch.bfloat16: (-133, 120), torch.float32: (-149, 120), torch.float64: (-1074, 1016)}
SEEDS = st.integers(0, 2**32)
WEIGHING = st.none() | SEEDS  # of the samples: alike, or by a seed
DTYPES = st.sampled_from(list(UNITS))
KINDS = st.sampled_from(["spread", "ties", "equal", "zeros", "outlier"])


@st.composite
def scales(draw, dtype):
    low, high = UNITS[dtype]
    return draw(st.sampled_from([low, low + 1, -3, 0, high]) | st.integers(low, high))


def whole_numbers(shape, kind, g):
    """Float64 whole numbers in [-127, 127]."""
    reach = {"spread": 127, "ties": 2, "equal": 0, "zeros": 0, "outlier": 3}[kind]
    values = torch.randint(-reach, reach + 1, shape, generator=g).double()
    if kind == "equal":
        values += torch.randint(-127, 128, shape[:1], generator=g).double().unsqueeze(1)
    if kind == "outlier":
        values.view(-1)[torch.randint(values.numel(), (1,), generator=g)] = 127.0
    return values


def in_units(found, exponent):
    """`found` / 2^exponent in float64; in two steps, for the power may be out of range."""
    half = exponent // 2
    return found.double() * 2.0**-half * 2.0 ** -(exponent - half)


@st.composite
def values(draw, max_rows, min_columns, max_columns):
    """A tensor (N, M), and the same without a unit in float64 with the power of two that is its unit."""
    dtype = draw(DTYPES)
    shape = (draw(st.integers(1, max_rows)), draw(st.integers(min_columns, max_columns)))
    exponent = draw(scales(dtype))
    exact = whole_numbers(shape, draw(KINDS), torch.Generator().manual_seed(draw(SEEDS)))
    tensor = in_units(exact, -exponent).to(dtype)
    assert torch.equal(in_units(tensor, exponent), exact)
    return tensor, exact, exponent


@st.composite
def problems(draw):
    logits, exact, _ = draw(values(25, 2, 6))
    n, j = logits.shape
    g = torch.Generator().manual_seed(draw(SEEDS))
    labels = torch.randint(0, draw(st.integers(1, j)), (n,), generator=g)
    neighbors = torch.randint(0, n, (n, draw(st.integers(2, 41))), generator=g)
    neighbors[:, 0] = torch.arange(n)
    pairs = torch.rand(n, j, generator=g).argsort(dim=1)[:, :2].sort(dim=1).values
    likely = torch.tensor([proposal2.two_largest(row) for row in exact.tolist()])
    return logits, exact, labels, neighbors, torch.where(torch.rand(n, 1, generator=g) < 0.7, likely, pairs)


def weights_of(n, seed):
    """Weights of the samples by a seed; none without one."""
    drawn = torch.rand(n, generator=torch.Generator().manual_seed(seed or 0), dtype=torch.float64)
    return None if seed is None else (4 * drawn - 2).exp()


@given(problems(), WEIGHING, st.booleans())
def test_parzen_uncertainty(problem, seed, reads_samples):
    """With the pairs of the perturbed samples, or with those that the network predicts at the samples themselves."""
    logits, exact, *samples = problem
    weights = weights_of(len(logits), seed)
    listed = [exact.tolist(), *(part.tolist() for part in samples)]
    given, pairs = {"weights": None if weights is None else weights.tolist()}, {}
    if reads_samples:
        given["at_samples"] = exact.flip(0).tolist()
        pairs["predicted_pairs"] = torch.tensor([proposal2.two_largest(row) for row in given["at_samples"]])
    u, k = proposal2.local_uncertainty(*listed[:3], list(map(tuple, listed[3])), **given)
    assume(not any(1e-10 < count < 1e-3 for count in k))  # so near `min_weight` a pair may fall on either side of it
    found = F.parzen_uncertainty(logits, *samples, weights=weights, **pairs)
    assert found.dtype == (torch.float64 if logits.dtype == torch.float64 else torch.float32)
    tolerance = 1e-6 if logits.dtype == torch.float64 else 2e-4 if weights is None else 1e-3
    assert float(found) == pytest.approx(proposal2.parzen_uncertainty(*listed, **given), abs=tolerance)
    local, counts = F.local_uncertainty(logits, *samples, weights=weights, **pairs)
    np.testing.assert_allclose(counts, k, rtol=tolerance, atol=tolerance)
    is_counted = np.asarray(k) > 1e-3
    np.testing.assert_allclose(local.numpy()[is_counted], np.asarray(u)[is_counted], atol=tolerance)


@given(values(6, 2, 41))
def test_silverman_bandwidth(problem):
    rows, exact, exponent = problem
    found = in_units(F.silverman_bandwidth(rows), exponent)
    expected = torch.tensor([proposal2.bandwidth(row) for row in exact.tolist()], dtype=torch.float64)
    dtype = torch.float64 if rows.dtype == torch.float64 else torch.float32
    # The last bit of a subnormal number is as large as a unit.
    smallest = 2.0 ** max(UNITS[dtype][0] - exponent, -60)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5 + smallest)
    assert torch.equal(found == 0, expected == 0) or smallest > 1e-3


@given(values(8, 1, 5), SEEDS)
def test_trust_score(problem, seed):
    distances, g = problem[0].abs(), torch.Generator().manual_seed(seed)
    distances[torch.rand(distances.shape, generator=g) < 0.2] = math.inf
    predictions = torch.randint(0, distances.shape[1], distances.shape[:1], generator=g)
    found = F.trust_score(distances, predictions)
    expected = [proposal2.trust_score(row, int(p)) for row, p in zip(distances.tolist(), predictions, strict=True)]
    assert found.dtype == distances.dtype
    eps = torch.finfo(found.dtype).eps
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64).to(found.dtype), rtol=2 * eps, atol=0)


@st.composite
def clusters(draw):
    n, j = draw(st.integers(2, 25)), draw(st.integers(2, 5))
    g = torch.Generator().manual_seed(draw(SEEDS))
    dtype = draw(st.sampled_from([torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]))
    labels = torch.randint(0, draw(st.integers(1, j)), (n,), generator=g)
    neighbors = torch.rand(n, n, generator=g).fill_diagonal_(-1).argsort(dim=1)[:, : draw(st.integers(2, n))]
    n_draws = draw(st.integers(1, 3))
    predictions = torch.randint(0, draw(st.integers(1, j + 1)), (n_draws * n,), generator=g)
    return labels.to(dtype), neighbors.to(dtype), predictions.to(dtype), j


@given(clusters(), st.sampled_from([0.0, 0.3, 0.6, 1.0]), DTYPES, WEIGHING)
def test_omission(problem, part_of_the_most, dtype, seed):
    labels, neighbors, predictions, j = problem
    predictions[: len(labels)] = predictions[0]  # of the first draw all clusters are predicted alike
    significance = part_of_the_most * math.sqrt(neighbors.shape[1]) * 0.99
    weights = weights_of(len(labels), seed)
    shares = F.label_votes(labels, neighbors, 0.0, n_classes=j, weights=weights)
    shares = shares.to(dtype) if weights is None else shares  # without weights, counts of labels are whole
    listed = labels.tolist(), predictions.tolist(), neighbors.tolist()
    expected = anchors.omission(*listed, significance, None if weights is None else weights.tolist())
    found = F.omission(shares, predictions, neighbors, significance=significance, weights=weights)
    assert float(found) == pytest.approx(expected)


@given(clusters(), st.sampled_from([0.0, 1e-300, 0.5, 1.0, 30.0, 1e300, math.inf]), st.booleans(), WEIGHING)
def test_label_votes(problem, decay, leave_one_out, seed):
    labels, neighbors, _, j = problem
    given = {"weights": weights_of(len(labels), seed)}
    expected = votes(labels, neighbors, decay, j, first=leave_one_out, **given)
    found = F.label_votes(labels, neighbors, decay, n_classes=j, leave_one_out=leave_one_out, **given)
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=1e-5)
