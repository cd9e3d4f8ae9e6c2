import pytest
import torch
from problems import blobs, same, weights_of
from torch import nn

from bu_torch import (
    BoundaryUncertainty,
    BoundaryUncertaintyStopper,
    FeatureSpace,
    NeighborGraph,
    ParzenUncertainty,
    PrototypeClassifier,
)
from bu_torch.space.features import standardization, standardize


def distances(points):
    return torch.cdist(points, points, compute_mode="donot_use_mm_for_euclid_dist")


def test_inputs_alone_are_standardised(dtype):
    inputs = blobs()[0].to(dtype).view(-1, 2, 2)
    points, expected = FeatureSpace().fit(inputs).transform(inputs), inputs.flatten(1).double()
    expected = (expected - expected.mean(dim=0)) / expected.std(dim=0, correction=0)
    torch.testing.assert_close(points, expected.to(dtype))


def test_neighbours_are_those_of_the_features_and_samples_move_in_input_space():
    features, labels = blobs()
    inputs = torch.cat((features[:, :2], 100 * torch.rand(120, 2)), dim=1)  # two that say nothing
    found = ParzenUncertainty(10, feature_extractor=lambda x: x[:, :2]).fit(inputs, labels)
    points = FeatureSpace().fit(inputs[:, :2]).transform(inputs[:, :2])
    graph = NeighborGraph(10).fit(points)
    assert torch.equal(found.neighbors, graph.neighbors)
    assert torch.equal(found.bayes_pairs, PrototypeClassifier().fit(points, labels).top_pairs(points))
    space = FeatureSpace().fit(inputs)
    step = (space.transform(found.perturbed_inputs[0]) - space.transform(inputs)).norm(dim=1)
    among = distances(space.transform(inputs))[torch.arange(120).unsqueeze(1), graph.neighbors[:, 1:]]
    torch.testing.assert_close(step, among.amin(dim=1), atol=1e-4, rtol=1e-4)


def test_where_all_neighbours_are_duplicates_the_step_is_searched_among_all():
    inputs = torch.cat((torch.zeros(12, 3), torch.eye(3)))
    found = ParzenUncertainty(10, feature_extractor=lambda x: x[:, :2]).fit(inputs, torch.arange(15) % 2)
    space = FeatureSpace().fit(inputs)
    step = (space.transform(found.perturbed_inputs[0]) - space.transform(inputs)).norm(dim=1)
    apart = distances(space.transform(inputs))
    expected = torch.where(apart > 1e-6, apart, torch.inf).amin(dim=1)
    torch.testing.assert_close(step[:12], expected[:12], atol=1e-5, rtol=1e-5)


def test_a_module_extracts_in_eval_mode_and_stays_as_it_is():
    features, labels = blobs()
    net = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.5))
    before = weights_of(net)
    points = FeatureSpace(net).fit(features).transform(features)
    net.eval()
    with torch.no_grad():
        expected = FeatureSpace().fit(net(features)).transform(net(features))
    torch.testing.assert_close(points, expected)
    net.train()
    ParzenUncertainty(feature_extractor=net).fit(features, labels)
    assert net[2].training
    assert same(net.state_dict(), before)
    assert not points.requires_grad


def test_a_module_of_another_precision_extracts():
    inputs = torch.randn(50, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    module = nn.Linear(4, 3)
    torch.testing.assert_close(FeatureSpace(module).fit(inputs).extract(inputs), module(inputs.float()).detach())


@pytest.mark.parametrize("extract", [lambda x: x[:7], lambda x: x / 0, lambda x: x[:, 0], lambda x: None])
def test_what_an_extractor_must_give(extract):
    with pytest.raises((TypeError, ValueError), match="`feature_extractor"):
        ParzenUncertainty(feature_extractor=extract).fit(*blobs())


IMAGES = torch.rand(30, 3, 96, 64, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", ["inputs", "patches"])
def test_large_images_have_the_points_of_their_pooled_copies_and_small_ones_stay(name):
    pooled = torch.nn.functional.adaptive_avg_pool2d(IMAGES, (39, 26))  # about 1024 pixels in the same shape
    space = FeatureSpace(name)
    points = space.fit_transform(IMAGES)
    assert torch.equal(points, FeatureSpace(name).fit_transform(pooled))
    torch.testing.assert_close(space.transform(IMAGES[7:9]), points[7:9])
    if name == "inputs":
        assert FeatureSpace(name).fit_transform(IMAGES[..., :32, :32]).shape == (30, 3 * 32 * 32)


def test_a_random_step_of_a_large_image_is_measured_in_its_own_pixels():
    labels = torch.arange(30) % 2
    uncertainty = BoundaryUncertainty(5, perturbation="random", feature_extractor="inputs").fit(IMAGES, labels)
    units = standardization(IMAGES.flatten(1))
    points, moved = (standardize(images, *units) for images in (IMAGES, uncertainty.perturbed_inputs[0]))
    distances = torch.stack([points[uncertainty.neighbors[:, place]] - points for place in range(1, 5)]).norm(dim=2)
    torch.testing.assert_close((moved - points).norm(dim=1), distances.amin(dim=0), rtol=1e-3, atol=1e-3)


LABELS = torch.arange(60) % 2
NUMBERS = torch.randn(60, 3, generator=torch.Generator().manual_seed(0)) + LABELS.unsqueeze(1)
LARGE = 2**25 + 1  # an id that float32 does not hold
SEEN = set()  # not in the network, whose attributes are put back


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(3, 3), nn.Linear(3, 2)

    def features(self, numbers):
        return self.first(numbers)

    def features_of_both(self, both):
        SEEN.update(both["ids"].flatten().tolist())
        return self.first(both["numbers"])

    def forward(self, numbers, ids=None):
        return self.last(self.first(numbers))


@pytest.mark.gpu
def test_samples_come_to_the_device_of_the_network(accelerator):
    network = Network()
    there = FeatureSpace(network.features).fit_transform(NUMBERS)
    network.to(accelerator)
    points = FeatureSpace(network.features).fit_transform(NUMBERS)
    assert points.device.type == "cpu"
    torch.testing.assert_close(points, there)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_of_several_tensors_ids_stay_as_they_are(dtype):
    SEEN.clear()
    network = Network().to(dtype)
    both = {"numbers": NUMBERS, "ids": LARGE + torch.arange(60).unsqueeze(1) % 5}
    extract = network.features_of_both
    stopper = BoundaryUncertaintyStopper(both, LABELS, n_neighbors=10, feature_extractor=extract)
    stopper.check(network)
    assert set(range(LARGE, LARGE + 5)) == SEEN
