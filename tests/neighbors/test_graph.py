import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import proposal2

from bu_torch import NeighborGraph
from bu_torch.neighbors import search as implementation
from bu_torch.neighbors.graph import nearest_of_groups


def check_against_sorting(features, size, device="cpu"):
    """Distances must be those of the oracle; samples must be too, except among duplicates at distance 0."""
    graph = NeighborGraph(size).fit(features.to(device))
    clusters, nearest = proposal2.neighbors_of(features.tolist(), size)
    values = features.double()
    for n, (found, expected) in enumerate(zip(graph.neighbors.tolist(), clusters, strict=True)):
        assert found[0] == n
        assert len(set(found)) == size
        found_at = (values[found] - values[n]).norm(dim=1)
        expected_at = (values[expected] - values[n]).norm(dim=1)
        torch.testing.assert_close(found_at, expected_at, atol=0, rtol=1e-12)
        assert [m for m, d in zip(found[1:], found_at[1:], strict=True) if d > 0] == [
            m for m, d in zip(expected[1:], expected_at[1:], strict=True) if d > 0
        ]
    rtol = 1e-6 if features.dtype == torch.float32 else 1e-12
    nearest = torch.tensor(nearest, dtype=torch.float64)
    torch.testing.assert_close(graph.nearest_distance.cpu().double(), nearest, atol=0, rtol=rtol)


@pytest.mark.parametrize("kind", ["at random", "a lattice", "far from the origin", "farther", "with an outlier"])
def test_agrees_with_sorting(kind, dtype, device):
    """Far from the origin, float32 arithmetic on squares loses every digit."""
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(120, 4, dtype=torch.float64, generator=generator)
    if kind == "a lattice":  # with duplicates and equal distances
        features = torch.randint(0, 3, (200, 3), generator=generator).double()
    elif kind != "at random":
        dtype = torch.float64
        features = 1e-3 * features + {"far from the origin": 1e3, "farther": 1e6}.get(kind, 0)
    if kind == "with an outlier":
        features[5] = 1e9
    check_against_sorting(features.to(dtype), 10, device)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    n=st.integers(2, 40),
    d=st.integers(1, 5),
    values=st.integers(1, 6),
    scale=st.sampled_from([2.0**-60, 1.0, 2.0**60]),  # exact, so that equal distances stay equal
    data=st.data(),
)
def test_any_shape_and_scale(seed, n, d, values, scale, data):
    size = data.draw(st.integers(2, n))
    features = torch.randint(0, values, (n, d), generator=torch.Generator().manual_seed(seed)).double() * scale
    check_against_sorting(features, size)


def test_the_search_goes_on_past_duplicates_and_where_all_are_equal_nothing_is_near():
    features = torch.cat((torch.zeros(20, 2), torch.tensor([[3.0, 4.0]])))
    assert NeighborGraph(5).fit(features).nearest_distance.tolist() == [5.0] * 21
    graph = NeighborGraph(5).fit(torch.ones(30, 2))
    assert graph.nearest_distance.tolist() == [0.0] * 30
    assert all(len(set(row)) == 5 for row in graph.neighbors.tolist())


@pytest.mark.parametrize("name", ["_BLOCK_ELEMENTS", "_SEARCHED_ELEMENTS", "_RANKED_ELEMENTS"])
def test_block_size_does_not_matter(monkeypatch, name, device):
    features = torch.randint(9, (200, 4), generator=torch.Generator().manual_seed(0)).float()  # with ties
    whole = NeighborGraph(10).fit(features)
    monkeypatch.setattr(implementation, name, 300)
    graph = NeighborGraph(10).fit(features.to(device))
    assert graph.neighbors.device.type == device.type
    assert torch.equal(graph.neighbors.cpu(), whole.neighbors)
    assert torch.equal(graph.nearest_distance.cpu(), whole.nearest_distance)


def test_features_are_left_as_they_were_and_the_search_is_logged(caplog):
    features = torch.randn(50, 3)
    copy = features.clone()
    with caplog.at_level("DEBUG", logger="bu_torch"):
        NeighborGraph(5).fit(features)
    assert torch.equal(features, copy)
    assert "50 samples on cpu" in caplog.text


class TestLists:
    """A search that need not be exact."""

    def fit(self, features, **kwargs):
        return NeighborGraph(20, exact=False, **kwargs).fit(features)

    def widths(self, monkeypatch):
        """Numbers of the axes that lists are made on, None for all features."""
        found, made = [], implementation._InvertedFile

        def note(base, axes):
            found.append(axes if axes is None else len(axes))
            return made(base, axes)

        monkeypatch.setattr(implementation, "_InvertedFile", note)
        return found

    def share_found(self, graph, features):
        """Share of the true neighbours."""
        exact = NeighborGraph(20, exact=True).fit(features)
        return float((graph.neighbors.unsqueeze(2) == exact.neighbors.unsqueeze(1)).any(dim=2).double().mean())

    def test_finds_most_with_true_distances(self):
        generator = torch.Generator().manual_seed(0)
        centres = 4 * torch.randn(30, 8, generator=generator)
        features = centres.repeat(100, 1) + torch.randn(3000, 8, generator=generator)
        graph = self.fit(features)
        assert torch.equal(self.fit(features).neighbors, graph.neighbors)
        assert 0.95 <= graph.recall_ < 1.0
        assert self.share_found(graph, features) == pytest.approx(graph.recall_, abs=0.02)
        assert NeighborGraph(20, exact=True).fit(features).recall_ == 1.0
        assert torch.equal(graph.neighbors[:, 0], torch.arange(3000))
        assert all(len(set(row)) == 20 for row in graph.neighbors.tolist())
        distances = (features.unsqueeze(1) - features[graph.neighbors]).norm(dim=2)
        assert bool((distances.diff(dim=1) >= -1e-5).all())
        torch.testing.assert_close(graph.nearest_distance, distances[:, 1])

    def test_short_lists_and_duplicates_leave_no_gap(self):
        scattered = torch.randn(5000, 3, generator=torch.Generator().manual_seed(0)) * 50
        features = torch.cat((torch.zeros(300, 3), scattered))
        graph = self.fit(features)
        assert graph.recall_ < 1
        assert bool((graph.neighbors >= 0).all())
        assert all(len(set(row)) == 20 for row in graph.neighbors.tolist())
        assert bool((graph.nearest_distance > 0).all())
        for n_samples in (20, 25, 41):
            few = torch.randn(n_samples, 3, generator=torch.Generator().manual_seed(0))
            assert torch.equal(self.fit(few).neighbors, NeighborGraph(20).fit(few).neighbors)

    def test_few_factors_are_searched_on_their_axes(self, monkeypatch):
        """32 features of 4 factors and a little noise: candidates from few axes, distances of all features."""
        generator = torch.Generator().manual_seed(0)
        factors = torch.randn(6000, 4, generator=generator) @ torch.randn(4, 32, generator=generator)
        features = factors + 0.05 * torch.randn(6000, 32, generator=generator)
        widths = self.widths(monkeypatch)
        graph = self.fit(features)
        assert widths == [4]
        assert 0.95 <= graph.recall_ <= 1.0
        assert self.share_found(graph, features) > 0.93
        distances = (features[graph.neighbors[:, 1]] - features).norm(dim=1)
        torch.testing.assert_close(graph.nearest_distance, distances)

    def test_axes_that_do_not_tell_neighbours_are_given_up(self, monkeypatch):
        """One wide axis holds the variance, sixteen narrow ones say who is near."""
        features = 0.01 * torch.randn(4000, 16, generator=torch.Generator().manual_seed(0))
        features[:, 0] = 3 * features[:, 0].sign() + features[:, 0]
        widths = self.widths(monkeypatch)
        graph = self.fit(features)
        assert widths == [1, None]
        assert self.share_found(graph, features) > 0.93

    @pytest.mark.parametrize(("n_samples", "n_features"), [(45, 64), (64, 64), (300, 1500)])
    def test_of_more_features_than_samples_no_axes_are_found(self, n_samples, n_features):
        features = torch.randn(n_samples, n_features, generator=torch.Generator().manual_seed(0))
        assert torch.equal(self.fit(features).neighbors, NeighborGraph(20).fit(features).neighbors)

    def test_equal_samples_have_no_axes(self):
        graph = self.fit(torch.ones(3000, 8))
        assert graph.recall_ == 1
        assert bool((graph.nearest_distance == 0).all())

    def test_the_recall_of_some_queries_is_that_of_all(self):
        generator = torch.Generator().manual_seed(0)
        base = torch.randn(6000, 6, generator=generator) * torch.rand(6000, 1, generator=generator)
        queries = torch.randn(4000, 6, generator=generator)
        found = implementation.nearest(base, queries, 1, exact=False)
        true = implementation.nearest(base, queries, 1)
        recall = float((found.distances <= true.distances * (1 + 1e-5)).double().mean())
        assert 0.9 < recall == pytest.approx(found.recall, abs=0.03)

    def test_all_samples_are_compared_if_many_lists_would_be(self):
        features = torch.randn(4000, 64, generator=torch.Generator().manual_seed(0))
        graph = self.fit(features)
        assert graph.recall_ == 1
        assert torch.equal(graph.neighbors, NeighborGraph(20, exact=True).fit(features).neighbors)

    def test_is_made_in_float32_whatever_the_default_dtype(self):
        features = torch.randn(3000, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float32)
        expected = self.fit(features).neighbors
        torch.set_default_dtype(torch.float64)
        try:
            assert torch.equal(self.fit(features).neighbors, expected)
        finally:
            torch.set_default_dtype(torch.float32)

    @pytest.mark.parametrize("limit", ["_EXACT_PAIRS", "_EXACT_PRODUCTS"])
    def test_is_taken_where_an_exact_search_takes_long_and_finds_nearly_all(self, monkeypatch, limit):
        features = torch.randn(6000, 4, generator=torch.Generator().manual_seed(0))
        assert NeighborGraph(20).fit(features).recall_ == 1
        monkeypatch.setattr(f"bu_torch.neighbors.search.{limit}", 1e6)
        found = NeighborGraph(20).fit(features)
        assert found.recall_ >= 0.99
        assert 0.98 < self.share_found(found, features) < 1


def members_and_points(dtype=torch.float64, offset=0.0):
    """Groups of other sizes than the blocks, and points of which some are copies of members, or nearly so."""
    generator = torch.Generator().manual_seed(0)
    groups = [offset + torch.randn(size, 5, generator=generator, dtype=torch.float64) for size in (700, 1, 40, 600)]
    copies = torch.cat(groups)[::50]
    near = copies + 1e-6 * torch.randn(copies.shape, generator=generator, dtype=torch.float64)
    others = offset + torch.randn(300, 5, generator=generator, dtype=torch.float64)
    return torch.cat((copies, near, others)).to(dtype), [group.to(dtype) for group in groups]


def by_differences(points, groups):
    return torch.stack([(points.unsqueeze(1) - group).double().norm(dim=2).amin(dim=1) for group in groups], dim=1)


@pytest.mark.parametrize("offset", [0.0, 1e4])
def test_distances_are_those_of_all_differences(device, offset):
    points, groups = members_and_points(offset=offset)
    found = nearest_of_groups(points.to(device), [group.to(device) for group in groups])
    assert found.dtype == torch.float64
    torch.testing.assert_close(found.cpu(), by_differences(points, groups), rtol=1e-7, atol=0)


def test_single_precision_loses_no_small_distance():
    points, groups = members_and_points(torch.float32)
    points[-1] = 1e20  # its square is none of float32
    expected = by_differences(points.double(), [group.double() for group in groups])
    torch.testing.assert_close(nearest_of_groups(points, groups), expected, rtol=1e-7, atol=0)


def test_a_member_far_away_blurs_no_distance():
    points, groups = members_and_points()
    groups[1] += 1e9
    torch.testing.assert_close(nearest_of_groups(points, groups), by_differences(points, groups), rtol=1e-7, atol=0)
