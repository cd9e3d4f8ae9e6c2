import warnings

import pytest
import torch
from sklearn.cluster import KMeans

from bu_torch.neighbors.graph import lloyd


def points(n=200, d=3):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(n, d, generator=generator) + 4 * torch.randint(0, 4, (n, 1), generator=generator)


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


def test_a_centre_without_points_is_moved_to_some(device):
    samples = torch.tensor([[0.0], [0.1], [5.0], [5.1], [90.0]], device=device)
    centers, _ = lloyd(samples, samples[torch.tensor([0, 2, 2, 2])], 20)
    assert centers.flatten().sort().values.tolist()[-1] == pytest.approx(90)
    assert len(set(centers.flatten().tolist())) == 4
