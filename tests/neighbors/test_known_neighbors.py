"""Neighbours that another library has found."""

import numpy as np
import pytest
import torch
from sklearn.neighbors import NearestNeighbors

from bu_torch import BoundaryUncertainty, NeighborGraph, Signals

N, M = 60, 8
LABELS = torch.arange(N) % 3
FEATURES = torch.randn(N, 4, generator=torch.Generator().manual_seed(0)) + LABELS.unsqueeze(1)
POINTS = (FEATURES - FEATURES.mean(0)) / FEATURES.std(0, correction=0)  # as the estimators measure distances
SEARCH = NearestNeighbors(n_neighbors=M + 2).fit(POINTS.double().numpy())


def shuffled(matrix):
    """The same matrix; the entries of a row in another order."""
    matrix = matrix.copy()
    for start, stop in zip(matrix.indptr, matrix.indptr[1:], strict=False):
        matrix.indices[start:stop] = matrix.indices[start:stop][::-1].copy()
        matrix.data[start:stop] = matrix.data[start:stop][::-1].copy()
    return matrix


KNOWN = {
    "rows without the sample": SEARCH.kneighbors(return_distance=False),
    "rows with the sample": SEARCH.kneighbors(POINTS.double().numpy(), return_distance=False),
    "a tensor of small integers": torch.as_tensor(SEARCH.kneighbors(return_distance=False)).to(torch.int16),
    "a sparse matrix": SEARCH.kneighbors_graph(mode="distance"),
    "a sparse matrix, shuffled": shuffled(SEARCH.kneighbors_graph(mode="distance")),
    "a sparse matrix with the samples": SEARCH.kneighbors_graph(POINTS.double().numpy(), mode="distance"),
    "a graph": NeighborGraph(M).fit(POINTS),
}


@pytest.mark.parametrize("known", list(KNOWN.values()), ids=list(KNOWN))
def test_neighbors_that_are_known_measure_as_those_that_are_searched(known):
    expected, found = (BoundaryUncertainty(M, n_draws=2) for _ in range(2))
    expected.fit(FEATURES, LABELS)
    found.fit(FEATURES, LABELS, neighbors=known)
    assert torch.equal(found.neighbors, expected.neighbors)
    torch.testing.assert_close(found.nearest_distance, expected.nearest_distance)
    model = torch.nn.Linear(4, 3)
    assert found.score(model) == pytest.approx(expected.score(model))


def test_a_sample_among_its_own_neighbors_counts_once_wherever_it_stands():
    rows = np.array([[1, 0, 2], [2, 0, 1], [2, 1, 0], [2, 1, 0]])
    graph = NeighborGraph(3).take(torch.tensor([[0.0], [1.0], [3.0], [3.0]]), rows)
    assert graph.neighbors.tolist() == [[0, 1, 2], [1, 2, 0], [2, 1, 0], [3, 2, 1]]
    assert graph.nearest_distance.tolist() == [1, 1, 2, 2]


def test_signals_of_known_neighbors_are_measured():
    signals = Signals(M, n_draws=1).fit(FEATURES, LABELS, neighbors=KNOWN["a sparse matrix"])
    logits = torch.nn.Linear(4, 3)(signals.perturbed_inputs)
    expected = Signals(M, n_draws=1).fit(FEATURES, LABELS)
    found, searched = signals.measure(logits).values, expected.measure(logits).values
    assert all(float(found[name]) == pytest.approx(float(searched[name])) for name in Signals.NAMES)


@pytest.mark.parametrize(
    ("neighbors", "error", "message"),
    [
        (KNOWN["rows without the sample"][:, : M - 2], ValueError, "at least 7 others of each sample, .* got 6"),
        (KNOWN["rows with the sample"][:, : M - 1], ValueError, "at least 7 others of each sample, .* got 6"),
        (KNOWN["rows without the sample"][1:], ValueError, r"`neighbors` must have shape \(60, k\)|`neighbors`"),
        (KNOWN["rows without the sample"] + 55, ValueError, "`neighbors` .*rows of `features`"),
        (KNOWN["rows without the sample"].astype(float), TypeError, "`neighbors`"),
        (SEARCH.radius_neighbors_graph(radius=1.0, mode="distance"), ValueError, "as many entries in each row, got"),
        (NeighborGraph(M), RuntimeError, "NeighborGraph is not fitted"),
    ],
)
def test_neighbors_that_do_not_fit_are_refused_by_name(neighbors, error, message):
    with pytest.raises(error, match=message):
        BoundaryUncertainty(M).fit(FEATURES, LABELS, neighbors=neighbors)
