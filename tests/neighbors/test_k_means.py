import logging
import warnings

import numpy as np
import pytest
import torch
from sklearn.cluster import KMeans

from bu_torch.neighbors.k_means import lloyd, log_device


def points(n=200):
    generator = np.random.default_rng(0)
    return (generator.normal(size=(n, 3)) + 4 * generator.integers(0, 4, size=(n, 1))).astype(np.float32)


@pytest.mark.parametrize("n_steps", [1, 3, 50])
def test_centres_are_those_of_another_library(n_steps):
    samples = points()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of convergence
        theirs = KMeans(7, init=samples[:7], n_init=1, max_iter=n_steps, tol=0).fit(samples)
    centers, error = lloyd(samples, samples[:7], n_steps)
    assert centers.dtype == np.float32
    np.testing.assert_allclose(centers, theirs.cluster_centers_, atol=1e-4)
    if n_steps == 50:
        assert error == pytest.approx(theirs.inertia_, rel=1e-4)


def test_more_steps_are_no_worse():
    errors = [lloyd(points(), points()[:9], n_steps)[1] for n_steps in (1, 2, 5, 20)]
    assert errors == sorted(errors, reverse=True)
    assert errors[0] > errors[-1]


def test_no_input_is_changed():
    samples = points()
    starts = samples[:5].copy()
    lloyd(samples, starts, 3)
    assert np.array_equal(samples, points())
    assert np.array_equal(starts, points()[:5])


def test_a_line_says_that_it_runs_on_the_cpu(caplog):
    with caplog.at_level(logging.INFO, logger="bu_torch"):
        log_device(torch.device("cpu"))
        assert caplog.text == ""
        log_device(torch.device("cuda:1"))
    assert "K-means runs on the CPU, not on cuda:1" in caplog.text
