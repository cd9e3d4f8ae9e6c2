"""Cells of a base: what groups of queries find in them."""

import pytest
import torch

import bu_torch.neighbors.cells as implementation
from bu_torch.neighbors.cells import Cells, Groups, few_axes


def normal(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


class TestLeast:
    @pytest.mark.parametrize(
        ("n_values", "k"), [(1, 1), (64, 1), (64, 64), (640, 1), (4096, 1), (4160, 47), (28672, 47)]
    )
    def test_are_those_of_a_sort(self, n_values, k):
        values = normal(20, n_values)
        values[:, values.shape[1] // 2 :] = values[:, values.shape[1] // 2 :].round()  # ties
        values[3, 5:] = torch.inf
        columns = implementation._least(values, k)
        assert columns.shape == (20, k)
        assert all(len(set(row)) == k for row in columns.tolist())
        assert torch.equal(values.gather(1, columns).sort(dim=1).values, values.sort(dim=1).values[:, :k])


class TestCells:
    def search_all(self, base, queries, k, **kwargs):
        cells = Cells(base, **kwargs)
        cells.n_visited = cells.n_cells
        return cells.search(queries, queries.mean(dim=0), k)

    @pytest.mark.parametrize("k", [1, 2, 10])
    def test_all_of_them_hold_the_nearest(self, k):
        base, queries = normal(3000, 5), 2 * normal(70, 5)
        expected = torch.cdist(queries.double(), base.double()).topk(k, largest=False).indices
        assert torch.equal(self.search_all(base, queries, k).sort(dim=1).values, expected.sort(dim=1).values)

    def test_what_is_near_is_told_apart_far_from_the_rest(self):
        """Around the mean of the group: their squares differ by less than float32 tells of those of the coordinates."""
        base = torch.cat((normal(500, 3), 300 + 0.01 * normal(500, 3)))
        queries = base[500:540]
        cells = Cells(base)
        cells.n_visited = cells.n_cells // 2
        found = cells.search(queries, queries.mean(dim=0), 1)
        assert float((found[:, 0] == torch.arange(500, 540)).double().mean()) > 0.9

    def test_fewer_rows_than_are_asked_for_are_filled_up(self):
        found = self.search_all(normal(3, 2), normal(5, 2), 4)
        assert all(sorted(row) == [-1, 0, 1, 2] for row in found.tolist())

    def test_few_axes_hold_the_variance(self):
        factors = normal(4000, 3) @ normal(3, 20)
        axes = few_axes(factors + 0.01 * normal(4000, 20))
        assert axes.shape == (3, 20)
        torch.testing.assert_close(axes @ axes.T, torch.eye(3), atol=1e-5, rtol=0)
        assert few_axes(normal(4000, 20)) is None
        assert few_axes(normal(10, 20)) is None

    def test_more_candidates_than_fit_at_a_time(self, monkeypatch):
        base, queries = normal(3000, 4), normal(50, 4)
        expected = self.search_all(base, queries, 10)
        monkeypatch.setattr(implementation, "_PRODUCTS", 10_000)
        assert torch.equal(self.search_all(base, queries, 10).sort(dim=1).values, expected.sort(dim=1).values)
        monkeypatch.setattr(implementation, "_PRODUCTS", 100)
        assert torch.equal(self.search_all(base, queries, 10).sort(dim=1).values, expected.sort(dim=1).values)

    def test_rows_of_a_cell_are_a_group(self):
        base = normal(3000, 4)
        cells = Cells(base)
        groups = Groups.by(base, cells.of_rows)
        assert torch.equal(torch.cat(groups.rows).sort().values, torch.arange(3000))
        assert all(len(cells.of_rows[rows].unique()) == 1 for rows in groups.rows)
        assert len(groups.rows) <= cells.n_cells
        for rows, mean in zip(groups.rows, groups.means, strict=True):
            torch.testing.assert_close(base[rows].double().mean(dim=0), mean)


@pytest.mark.parametrize(("n_queries", "n_features"), [(1, 3), (999, 40), (1000, 2000)])
def test_each_query_is_in_one_group(n_queries, n_features):
    state = torch.random.get_rng_state()
    groups = Groups.of(normal(n_queries, n_features), lambda block: block, 100)
    assert torch.equal(torch.cat(groups.rows).sort().values, torch.arange(n_queries))
    assert torch.equal(torch.random.get_rng_state(), state)


def test_a_group_lies_near_together():
    queries = torch.cat([normal(100, 6) + 50 * i for i in range(5)])
    groups = Groups.of(queries, lambda block: block, 20)
    assert max(float((queries[group] - queries[group].mean(dim=0)).abs().max()) for group in groups.rows) < 10


def test_parts_of_groups_hold_their_shares_in_order():
    queries = torch.arange(1000.0).unsqueeze(1)
    groups = Groups.by(queries, torch.arange(1000) // 10)
    parts = list(groups.parts((0.1, 0.5), -groups.means[:, 0]))
    assert [sum(map(len, part.rows)) for part in parts] == [100, 400, 500]
    assert float(parts[0].means.min()) > float(parts[1].means.max()) > float(parts[2].means.max())
    assert len(list(groups.parts((0.1, 0.5), groups.means[:, 0] * 0))) == 3
