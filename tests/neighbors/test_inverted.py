"""An inverted file: what queries find in its lists."""

import pytest
import torch

from bu_torch import NeighborGraph
from bu_torch.neighbors.inverted import InvertedFile, few_axes


def normal(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def search_all(base, queries, k):
    lists = InvertedFile(base)
    return lists.search(queries, k, lists.n_lists)


@pytest.mark.parametrize("k", [1, 2, 10])
def test_all_lists_hold_the_nearest(k):
    base, queries = normal(3000, 5), 2 * normal(70, 5)
    expected = torch.cdist(queries.double(), base.double()).topk(k, largest=False).indices
    assert torch.equal(search_all(base, queries, k), expected)


def test_what_is_near_is_told_apart_far_from_the_rest():
    """Squares of the coordinates differ by less than float32 tells."""
    base = torch.cat((normal(500, 3), 300 + 0.01 * normal(500, 3)))
    assert torch.equal(search_all(base, base[500:540], 1)[:, 0], torch.arange(500, 540))


def test_fewer_rows_than_are_asked_for_are_filled_up():
    found = search_all(normal(3, 2), normal(5, 2), 4)
    assert all(sorted(row) == [-1, 0, 1, 2] for row in found.tolist())


def test_few_axes_hold_the_variance():
    factors = normal(4000, 3) @ normal(3, 20)
    axes = few_axes(factors + 0.01 * normal(4000, 20))
    assert axes.shape == (3, 20)
    torch.testing.assert_close(axes @ axes.T, torch.eye(3), atol=1e-5, rtol=0)
    assert few_axes(normal(4000, 20)) is None
    assert few_axes(normal(10, 20)) is None


def test_the_list_of_a_query_holds_what_one_probe_finds():
    base = normal(3000, 4)
    lists = InvertedFile(base, torch.eye(4)[:2])
    squared, near = lists.nearest_list(base)
    assert bool((squared >= 0).all())
    found = lists.search(base, 1, 1)[:, 0]
    assert torch.equal(near[found], near)
    assert len(near.unique()) == lists.n_lists == 150


def test_many_samples_are_searched_in_lists_and_nearly_all_neighbours_found(monkeypatch):
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(6000, 4, generator=generator)
    exact = NeighborGraph(20).fit(features)
    monkeypatch.setattr("bu_torch.neighbors.search._EXACT_PAIRS", 1e6)
    found = NeighborGraph(20).fit(features)
    assert exact.recall_ == 1
    assert found.recall_ >= 0.99
    shared = (found.neighbors.unsqueeze(2) == exact.neighbors.unsqueeze(1)).any(dim=2).double().mean()
    assert 0.98 < float(shared) < 1
