import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from oracles import continuum as oracle
from scipy.integrate import quad
from scipy.special import ndtr

from bu_torch import evaluation

OF_MEASUREMENTS = ["data_error_rate", "data_squared_error_rate", "minimal_error_rate", "minimal_squared_error_rate"]
COUNTS = ["error_count", "squared_error_count"]
NAMES = [*OF_MEASUREMENTS, *COUNTS, "adjusted_error_count", "error_rate"]
NAMES += ["adjusted_squared_error_count", "squared_error_rate"]
EDGES = torch.tensor([-1.0, 0.0, 0.6], dtype=torch.float64)


def call(name, predictions, z, edges, sigma):
    arguments = [z, edges] if name in OF_MEASUREMENTS else [predictions, z, edges]
    return getattr(evaluation, name)(*arguments, *([] if name in COUNTS else [sigma]))


@given(st.integers(0, 2**32), st.sampled_from(NAMES), st.sampled_from([0.0, 0.05, 0.7, 3.0]))
def test_agrees_with_quadrature_of_the_definitions(seed, name, sigma):
    g = torch.Generator().manual_seed(seed)
    predictions, z = torch.randint(0, 4, (8,), generator=g), 1.5 * torch.randn(8, generator=g, dtype=torch.float64)
    z[:3] = EDGES
    value = call(name, predictions, z, EDGES, sigma)
    expected = oracle.rate(name, predictions.tolist(), z.tolist(), EDGES.tolist(), sigma)
    assert (value.shape, value.dtype) == ((), torch.float64)
    assert float(value) == pytest.approx(expected, rel=1e-9, abs=1e-12)
    for scale in (1e-12, 1e12):
        scaled = float(call(name, predictions, z * scale, EDGES * scale, sigma * scale))
        unit = scale**2 if "squared" in name else 1
        assert scaled == pytest.approx(float(value) * unit, rel=1e-6, abs=1e-9 * unit)


def test_a_label_of_an_empty_class_is_wrong_and_infinitely_far():
    edges, z, empty = torch.tensor([0.0, math.inf]), torch.tensor([-1.0, 2.0]), torch.tensor([2, 2])
    for sigma in (0.0, 0.5):
        assert float(evaluation.error_rate(empty, z, edges, sigma)) == 1
        assert float(evaluation.squared_error_rate(empty, z, edges, sigma)) == math.inf
    assert float(evaluation.squared_error_count(empty, z, edges)) == math.inf


@pytest.mark.parametrize("t", [0.0, 0.3, 2.0, 5.0, 12.0, 25.0, 35.0])
def test_far_tails_keep_their_digits(t):
    """Two classes cut at 0 and a z that lies t standard deviations below, called as the class it lies in."""
    z, edge, sigma = torch.tensor([-t], dtype=torch.float64), torch.tensor([0.0], dtype=torch.float64), 1.0
    scaled = quad(lambda u: u**2 * math.exp(-u * t - u**2 / 2), 0, math.inf, epsabs=0, epsrel=1e-12)[0]
    expected = scaled * math.exp(-(t**2) / 2) / math.sqrt(2 * math.pi)
    assert float(evaluation.minimal_squared_error_rate(z, edge, sigma)) == pytest.approx(expected, rel=1e-8, abs=0)
    assert float(evaluation.minimal_error_rate(z, edge, sigma)) == pytest.approx(ndtr(-t), rel=1e-10, abs=0)
    assert float(evaluation.data_squared_error_rate(z, edge, sigma)) == pytest.approx(t**2 * ndtr(-t), rel=1e-10, abs=0)


def test_estimates_of_sigma_epsilon_agree_with_numpy():
    g = torch.Generator().manual_seed(1)
    z, features = torch.randn(40, generator=g).double(), torch.randn(40, 2, generator=g).double()
    design = np.c_[np.ones(40), features]
    coefficients, rest, *_ = np.linalg.lstsq(design, z.numpy(), rcond=None)
    fitted = torch.from_numpy(design @ coefficients)
    expected = math.sqrt(rest[0] / 37 - 0.04)
    assert float(evaluation.sigma_epsilon_of_residuals(z, fitted, 0.2, n_parameters=3)) == pytest.approx(expected)
    with pytest.raises(ValueError, match="`n_parameters`"):
        evaluation.sigma_epsilon_of_residuals(z, fitted, 0.2, n_parameters=40)
    variances = []
    for n in range(40):
        near = sorted((math.dist(features[n], features[m]), m) for m in range(40))[:6]
        weights = np.array([(1 - (r / near[-1][0]) ** 3) ** 3 for r, _ in near])
        variances.append(np.cov([float(z[m]) for _, m in near], aweights=weights))
    expected = math.sqrt(np.mean(variances) - 0.04)
    assert float(evaluation.sigma_epsilon_of_neighbors(z, features, 0.2, n_neighbors=5)) == pytest.approx(expected)
