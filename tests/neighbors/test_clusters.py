import pytest
import torch

from bu_torch.neighbors.k_means import divisive_clusters


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
