import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import cdist
from sklearn.cluster import KMeans
from sklearn.neighbors import NearestNeighbors

from bu_torch import NeighborGraph
from bu_torch.neighbors import graph as implementation
from bu_torch.neighbors.graph import class_distances, lloyd


def check_against_sorting(features, size, device="cpu"):
    """Eq. 26 of Ha et al. (2021): distances are those of sorting all; of equally far samples any may be found."""
    given = features.to(device).clone()
    graph = NeighborGraph(size).fit(given)
    assert torch.equal(given.cpu(), features)
    apart, neighbors = torch.from_numpy(cdist(features, features)), graph.neighbors.cpu()
    assert torch.equal(neighbors[:, 0], torch.arange(len(features)))
    assert all(len(set(row)) == size for row in neighbors.tolist())
    found = apart.gather(1, neighbors)
    torch.testing.assert_close(found, apart.sort(dim=1).values[:, :size], atol=0, rtol=1e-12)
    nearest = torch.where(apart > 0, apart, torch.inf).amin(dim=1)
    nearest[nearest.isinf()] = 0
    assert graph.neighbors.device.type == torch.device(device).type
    rtol = 1e-6 if features.dtype == torch.float32 else 1e-12
    torch.testing.assert_close(graph.nearest_distance.cpu().double(), nearest, atol=0, rtol=rtol)


@pytest.mark.parametrize("block", [None, "_BLOCK_ELEMENTS", "_SEARCHED_ELEMENTS", "_RANKED_ELEMENTS"])
@pytest.mark.parametrize("kind", ["at random", "a lattice", "far from the origin", "farther", "with an outlier"])
def test_agrees_with_sorting(kind, block, dtype, device, monkeypatch):
    """Far from the origin, float32 arithmetic on squares loses every digit."""
    if block is not None:
        monkeypatch.setattr(implementation, block, 300)
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
def test_any_shape_and_scale_also_of_duplicates(seed, n, d, values, scale, data):
    size = data.draw(st.integers(2, n))
    features = torch.randint(0, values, (n, d), generator=torch.Generator().manual_seed(seed)).double() * scale
    check_against_sorting(features, size)


class TestLists:
    @pytest.fixture(autouse=True)
    def use_lists(self, monkeypatch):
        monkeypatch.setattr(implementation, "_EXACT_PAIRS", 1)

    @pytest.mark.parametrize("n_features", [2, 8, 64])
    def test_finds_nearly_all_with_true_distances(self, n_features):
        generator = torch.Generator().manual_seed(0)
        centres = 4 * torch.randn(30, n_features, generator=generator)
        features = centres.repeat(200, 1) + torch.randn(6000, n_features, generator=generator)
        graph = NeighborGraph(20).fit(features)
        assert torch.equal(NeighborGraph(20).fit(features).neighbors, graph.neighbors)
        assert torch.equal(graph.neighbors[:, 0], torch.arange(6000))
        assert all(len(set(row)) == 20 for row in graph.neighbors.tolist())
        distances = (features.unsqueeze(1) - features[graph.neighbors]).norm(dim=2)
        assert bool((distances.diff(dim=1) >= -1e-5).all())
        torch.testing.assert_close(graph.nearest_distance, distances[:, 1])
        exact = NearestNeighbors(n_neighbors=20).fit(features).kneighbors(features)[1]
        assert (graph.neighbors.numpy()[:, :, None] == exact[:, None]).any(axis=2).mean() > 0.98

    def test_short_lists_and_duplicates_leave_no_gap(self):
        scattered = torch.randn(5000, 3, generator=torch.Generator().manual_seed(0)) * 50
        for features in (torch.cat((torch.zeros(300, 3), scattered)), scattered[:25]):
            graph = NeighborGraph(20).fit(features)
            assert all(len(set(row)) == 20 for row in graph.neighbors.tolist())
            assert bool((graph.nearest_distance > 0).all())
        assert bool((NeighborGraph(20).fit(torch.ones(3000, 8)).nearest_distance == 0).all())

    def test_is_made_in_float32_whatever_the_default_dtype(self):
        features = torch.randn(3000, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float32)
        expected = NeighborGraph(20).fit(features).neighbors
        torch.set_default_dtype(torch.float64)
        try:
            assert torch.equal(NeighborGraph(20).fit(features).neighbors, expected)
        finally:
            torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("kind", ["near", "many", "far from the origin", "a group far away", "single precision"])
def test_distances_to_classes_are_those_of_all_differences(kind, device, monkeypatch):
    """To classes of other sizes than the blocks; some points are copies of members, or nearly so."""
    generator = torch.Generator().manual_seed(0)
    monkeypatch.setattr(implementation, "_EXACT_PAIRS", 300_000 if kind == "many" else 1e9)  # more than of one class
    offset = 1e4 if kind == "far from the origin" else 0.0
    groups = [offset + torch.randn(size, 5, generator=generator, dtype=torch.float64) for size in (700, 1, 40, 600)]
    copies = torch.cat(groups)[::50]
    near = copies + 1e-6 * torch.randn(copies.shape, generator=generator, dtype=torch.float64)
    points = torch.cat((copies, near, offset + torch.randn(300, 5, generator=generator, dtype=torch.float64)))
    if kind == "a group far away":
        groups[1] += 1e9
    if kind == "single precision":
        points[-1] = 1e20  # its square is none of float32
        points, groups = points.float(), [group.float() for group in groups]
    labels = torch.repeat_interleave(torch.tensor([len(group) for group in groups]))
    apart = (points.double().unsqueeze(1) - torch.cat(groups).double()).norm(dim=2).split([len(g) for g in groups], 1)
    left_out = torch.stack((apart[0].argmin(dim=1), 701 + apart[2].argmin(dim=1)), dim=1)
    found = class_distances(*(part.to(device) for part in (points, torch.cat(groups), labels)), 4, left_out.to(device))
    expected = [part.sort(dim=1).values[:, n] for part, n in zip(apart, (1, 0, 1, 0), strict=True)]
    torch.testing.assert_close(found.cpu(), torch.stack(expected, dim=1), rtol=1e-7, atol=0)


@pytest.mark.parametrize("n_steps", [1, 3, 50])
def test_centres_are_those_of_another_library(n_steps, device):
    generator = torch.Generator().manual_seed(0)
    samples = torch.randn(200, 3, generator=generator) + 4 * torch.randint(0, 4, (200, 1), generator=generator)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns of convergence
        theirs = KMeans(7, init=samples[:7].numpy(), n_init=1, max_iter=n_steps, tol=0).fit(samples.numpy())
    centers, error = lloyd(samples.to(device), samples[:7].to(device), n_steps)
    assert centers.dtype == torch.float32
    torch.testing.assert_close(centers.cpu(), torch.from_numpy(theirs.cluster_centers_), atol=1e-4, rtol=0)
    if n_steps == 50:
        assert error == pytest.approx(theirs.inertia_, rel=1e-4)


def test_a_centre_without_points_is_moved_to_some(device):
    samples = torch.tensor([[0.0], [0.1], [5.0], [5.1], [90.0]], device=device)
    centers, _ = lloyd(samples, samples[torch.tensor([0, 2, 2, 2])], 20)
    assert centers.flatten().sort().values.tolist()[-1] == pytest.approx(90)
    assert len(set(centers.flatten().tolist())) == 4
