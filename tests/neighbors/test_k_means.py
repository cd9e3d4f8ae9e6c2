import warnings

import pytest
import torch
from emulation import came_back
from sklearn.cluster import KMeans

from bu_torch import LabelRegression, PrototypeClassifier
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


def test_centres_do_not_depend_on_the_order_of_samples(accelerator):
    samples = points().to(accelerator)
    centers, _ = lloyd(samples, samples[:9], 10)
    shuffled, _ = lloyd(samples.flip(0), samples[:9], 10)
    torch.testing.assert_close(shuffled.cpu(), centers.cpu())


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
