import warnings

import pytest
import torch
from emulation import came_back
from sklearn.cluster import KMeans

from bu_torch import LabelRegression, PrototypeClassifier
from bu_torch.neighbors.k_means import divisive_clusters, grown, lloyd


def points(n=200, d=3):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(n, d, generator=generator) + 4 * torch.randint(0, 4, (n, 1), generator=generator)


def inertia(samples, centers):
    return float(torch.cdist(samples, centers).amin(dim=1).square().sum())


@pytest.mark.parametrize("n_steps", [1, 3, 50])
def test_centres_are_those_of_another_library(n_steps, device):
    samples = points()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns of convergence
        theirs = KMeans(7, init=samples[:7].numpy(), n_init=1, max_iter=n_steps, tol=0).fit(samples.numpy())
    centers, error = lloyd(samples.to(device), samples[:7].to(device), n_steps)
    assert centers.dtype == torch.float32
    torch.testing.assert_close(centers.cpu(), torch.from_numpy(theirs.cluster_centers_), atol=1e-4, rtol=0)
    if n_steps == 50:
        assert error == pytest.approx(theirs.inertia_, rel=1e-4)


@pytest.mark.parametrize("d", [1, 3, 40])
def test_centres_that_grow_are_nearly_as_good_as_the_best_of_several_starts(d, device):
    samples = points(400, d)
    samples -= samples.mean(dim=0)
    numbers = range(1, 40, 2)
    found = list(grown(samples.to(device), numbers, 2))
    assert [len(centers) for centers, _ in found] == list(numbers)
    assert found[0][1] == pytest.approx(float(samples.square().sum()), 1e-4)
    for k in (3, 9, 39):
        centers, _ = lloyd(samples, found[numbers.index(k)][0].cpu(), 25)
        theirs = KMeans(k, n_init=3, random_state=0).fit(samples.numpy())
        assert inertia(samples, centers) <= 1.25 * theirs.inertia_
    again = list(grown(samples.to(device), numbers, 2))
    assert all(torch.equal(one.cpu(), other.cpu()) for (one, _), (other, _) in zip(found, again, strict=True))


def test_as_many_centres_as_distinct_points_are_those_points(device):
    samples = torch.tensor([[-3.0], [-1.0], [0.0], [4.0]]).repeat_interleave(torch.tensor([1, 5, 2, 1]), dim=0)
    centers, error = list(grown(samples.to(device), (2, 4), 2))[-1]
    assert centers.flatten().sort().values.tolist() == [-3, -1, 0, 4]
    assert error == 0


def test_centres_depend_neither_on_blocks_nor_on_the_order_of_samples(monkeypatch, accelerator):
    samples = points().to(accelerator)
    centers, error = lloyd(samples, samples[:9], 10)
    shuffled, _ = lloyd(samples.flip(0), samples[:9], 10)
    monkeypatch.setattr("bu_torch.neighbors.k_means._BLOCK_ELEMENTS", 100)
    in_blocks, in_blocks_error = lloyd(samples, samples[:9], 10)
    torch.testing.assert_close(shuffled.cpu(), centers.cpu())
    torch.testing.assert_close(in_blocks.cpu(), centers.cpu())
    assert in_blocks_error == pytest.approx(error)


def test_a_centre_without_points_is_moved_to_some(device):
    samples = torch.tensor([[0.0], [0.1], [5.0], [5.1], [90.0]], device=device)
    centers, _ = lloyd(samples, samples[torch.tensor([0, 2, 2, 2])], 20)
    assert centers.flatten().sort().values.tolist()[-1] == pytest.approx(90)
    assert len(set(centers.flatten().tolist())) == 4


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_samples_stay_on_an_accelerator(dtype, accelerator):
    generator = torch.Generator().manual_seed(0)
    features = torch.cat([torch.randn(200, 2, generator=generator) * 0.1 + c for c in (0.0, 3.0, 6.0)]).to(dtype)
    labels = torch.arange(600) % 2
    expected, there = PrototypeClassifier(seed=3).fit(features, labels), features.to(accelerator)
    came_back.clear()
    found = PrototypeClassifier(seed=3).fit(there, labels.to(accelerator))
    assert max(came_back, default=0) <= 20  # the error of one number of prototypes
    assert found.n_prototypes_.tolist() == expected.n_prototypes_.tolist() == [3, 3]
    for ours, theirs in zip(found.prototypes_, expected.prototypes_, strict=True):
        assert ours.device.type == accelerator.type
        torch.testing.assert_close(ours.cpu(), theirs, atol=1e-5, rtol=0)
    came_back.clear()
    LabelRegression(n_landmarks=20).fit(there, labels.to(accelerator))
    assert max(came_back, default=0) <= 20


def sizes(clusters):
    return torch.bincount(clusters.flatten(), minlength=int(clusters.max()) + 1)


@pytest.mark.parametrize(("n", "max_size", "n_repeats"), [(1, 12, 2), (12, 12, 3), (300, 12, 4), (97, 1, 2)])
def test_no_cluster_is_too_large_and_repeats_share_none(n, max_size, n_repeats, device):
    points = torch.randn(n, 3, generator=torch.Generator().manual_seed(0)).to(device)
    clusters = divisive_clusters(points, max_size, n_repeats, seed=0)
    assert clusters.shape == (n_repeats, n)
    assert clusters.device.type == device.type
    assert 1 <= int(sizes(clusters).min()) <= int(sizes(clusters).max()) <= max_size
    assert len(clusters.unique()) == sum(len(row.unique()) for row in clusters)


def test_groups_far_apart_are_found():
    """Whatever the centres: k-means++ and Lloyd split four far groups between groups and never through one."""
    g = torch.Generator().manual_seed(0)
    group = torch.arange(40) % 4
    points = 0.1 * torch.randn(40, 2, generator=g) + torch.tensor([[0.0, 0.0], [50, 0], [0, 1e3], [50, 1e3]])[group]
    for row in divisive_clusters(points, 12, 6, seed=3):
        assert [len(row[group == k].unique()) for k in range(4)] == [1] * 4
        assert len(row.unique()) == 4


def test_equal_points_stay_together():
    points = torch.cat((torch.zeros(30, 2), torch.ones(5, 2)))
    clusters = divisive_clusters(points, 12, 2, seed=0)
    for row in clusters:
        assert sorted(torch.unique(row, return_counts=True)[1].tolist()) == [5, 30]
