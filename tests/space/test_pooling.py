"""Distances of large images are measured at a size that does not grow with their pixels."""

import pytest
import torch

from bu_torch import BoundaryUncertainty, FeatureSpace

IMAGES = torch.rand(30, 3, 96, 64, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", ["inputs", "patches"])
def test_large_images_have_the_points_of_their_pooled_copies(name):
    pooled = torch.nn.functional.adaptive_avg_pool2d(IMAGES, (39, 26))  # about 1024 pixels in the same shape
    of_large, of_pooled = FeatureSpace(name).fit_transform(IMAGES), FeatureSpace(name).fit_transform(pooled)
    assert torch.equal(of_large, of_pooled)


@pytest.mark.parametrize("name", ["inputs", "patches"])
def test_points_of_images_seen_later_are_pooled_alike(name):
    space = FeatureSpace(name)
    points = space.fit_transform(IMAGES)
    torch.testing.assert_close(space.transform(IMAGES[7:9]), points[7:9])


def test_small_images_are_taken_as_they_are():
    images = IMAGES[..., :32, :32]
    assert FeatureSpace("inputs").fit_transform(images).shape == (30, 3 * 32 * 32)


def test_a_random_step_of_a_large_image_is_measured_in_its_own_pixels():
    labels = torch.arange(30) % 2
    uncertainty = BoundaryUncertainty(5, perturbation="random", feature_extractor="inputs").fit(IMAGES, labels)
    points, moved = uncertainty.standardize(IMAGES), uncertainty.standardize(uncertainty.perturbed_inputs[0])
    distances = torch.stack([points[uncertainty.neighbors[:, place]] - points for place in range(1, 5)]).norm(dim=2)
    torch.testing.assert_close((moved - points).norm(dim=1), distances.amin(dim=0), rtol=1e-3, atol=1e-3)
