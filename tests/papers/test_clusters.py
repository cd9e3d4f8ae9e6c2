import pytest
import torch
from sklearn.cluster import KMeans

from bu_torch.neighbors.graph import lloyd
from bu_torch.papers.bisection import divisive_clusters
from bu_torch.papers.prototypes import grown


def points(n=200, d=3):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(n, d, generator=generator) + 4 * torch.randint(0, 4, (n, 1), generator=generator)


def inertia(samples, centers):
    return float(torch.cdist(samples, centers).amin(dim=1).square().sum())


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


def test_groups_far_apart_are_found_and_equal_points_stay_together():
    """Whatever the centres: k-means++ and Lloyd split four far groups between groups and never through one."""
    g = torch.Generator().manual_seed(0)
    group = torch.arange(40) % 4
    points = 0.1 * torch.randn(40, 2, generator=g) + torch.tensor([[0.0, 0.0], [50, 0], [0, 1e3], [50, 1e3]])[group]
    for row in divisive_clusters(points, 12, 6, seed=3):
        assert [len(row[group == k].unique()) for k in range(4)] == [1] * 4
        assert len(row.unique()) == 4
    for row in divisive_clusters(torch.cat((torch.zeros(30, 2), torch.ones(5, 2))), 12, 2, seed=0):
        assert sorted(torch.unique(row, return_counts=True)[1].tolist()) == [5, 30]
