import pytest
import scenarios
import torch
from problems import blobs, same, weights_of
from torch import nn

from bu_torch import BoundaryUncertainty, BoundaryUncertaintyStopper, FeatureSpace, NeighborGraph, ParzenUncertainty
from bu_torch.estimators.space_choice import best_space
from bu_torch.papers.prototypes import PrototypeClassifier
from bu_torch.space.features import standardization, standardize


def distances(points):
    return torch.cdist(points, points, compute_mode="donot_use_mm_for_euclid_dist")


def test_inputs_alone_are_standardised(dtype):
    inputs = blobs()[0].to(dtype).view(-1, 2, 2)
    points, expected = FeatureSpace().fit(inputs).transform(inputs), inputs.flatten(1).double()
    expected = (expected - expected.mean(dim=0)) / expected.std(dim=0, correction=0)
    torch.testing.assert_close(points, expected.to(dtype))


def test_neighbours_are_those_of_the_features_and_samples_move_in_input_space(dtype):
    features, labels = blobs()
    inputs = torch.cat((features[:, :2], 100 * torch.rand(120, 2)), dim=1).to(dtype)  # two that say nothing
    found = ParzenUncertainty(10, n_draws=2, seed=5, feature_extractor=lambda x: x[:, :2]).fit(inputs, labels)
    points = FeatureSpace().fit_transform(inputs[:, :2])
    graph = NeighborGraph(10).fit(points)
    assert torch.equal(found.neighbors, graph.neighbors)
    assert torch.equal(found.bayes_pairs, PrototypeClassifier(seed=5).fit(points, labels).top_pairs(points))
    assert found.perturbed_inputs.dtype == dtype
    space = FeatureSpace().fit(inputs)
    steps = torch.stack([space.transform(draw) - space.transform(inputs) for draw in found.perturbed_inputs])
    among = distances(space.transform(inputs))[torch.arange(120).unsqueeze(1), graph.neighbors[:, 1:]]
    torch.testing.assert_close(steps.norm(dim=2), among.amin(dim=1).expand(2, -1), atol=1e-4, rtol=1e-4)
    assert not torch.equal(*steps)


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


def test_a_module_of_another_precision_and_on_another_device_extracts(device):
    inputs = torch.randn(50, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    module = nn.Linear(4, 3)
    expected = module(inputs.float()).detach()
    found = FeatureSpace(module.to(device).forward).fit(inputs).extract(inputs)
    assert found.device.type == "cpu"
    torch.testing.assert_close(found, expected)


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


def test_of_several_tensors_ids_stay_as_they_are():
    seen = set()  # not in the network, whose attributes are put back

    class Network(nn.Linear):
        def features(self, both):
            seen.update(both["ids"].flatten().tolist())
            return self(**both)

        def forward(self, numbers, ids):
            return super().forward(numbers)

    network, (numbers, labels) = Network(4, 3, dtype=torch.bfloat16), blobs()
    ids = 2**25 + 1 + torch.arange(120).unsqueeze(1) % 5  # float32 does not hold them
    both = {"numbers": numbers, "ids": ids}
    BoundaryUncertaintyStopper(both, labels, n_neighbors=10, feature_extractor=network.features).check(network)
    assert seen == set(ids.flatten().tolist())


# Which space is chosen.


def textures(n=240, size=20):
    """Noise that is smooth down or across: patches tell the two apart, distances between pixels do not."""
    g, labels = torch.Generator().manual_seed(0), torch.arange(n) % 2
    smooth = torch.randn(n, size, size + 1, generator=g).unfold(2, 2, 1).mean(dim=3)
    images = torch.where(labels.view(-1, 1, 1) == 0, smooth, smooth.transpose(1, 2))
    return images.unsqueeze(1), labels


X, Y = textures()
TEXTS, SUBJECTS = scenarios.tokens(200)


class Spread(nn.Module):
    """How much pixels change down and across, before its last layer: all that tells these textures apart."""

    def __init__(self, is_useful=True):
        super().__init__()
        self.is_useful, self.last = is_useful, nn.Linear(2, 2)

    def forward(self, x):
        spread = torch.stack((x.diff(dim=2).flatten(1).std(dim=1), x.diff(dim=3).flatten(1).std(dim=1)), dim=1)
        return self.last(spread if self.is_useful else torch.sin(1e4 * spread))


def of_subjects(is_useful=False):
    """Into the last layer of a useful one goes the subject."""
    embedding = nn.EmbeddingBag(60, 4)
    if is_useful:
        with torch.no_grad():
            embedding.weight.zero_()
            embedding.weight[60 // 2 :, 0] = 1.0
    return nn.Sequential(embedding, nn.Linear(4, 2))


WITHOUT_LINEAR = nn.Sequential(nn.Conv2d(1, 2, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
ROWS_ARE_NO_SAMPLES = nn.Sequential(nn.Flatten(0, 2), nn.Linear(20, 2), nn.Flatten(0), nn.Unflatten(0, (-1, 40)))
OF_IMAGES, OF_TEXTS = ["inputs", "patches", "module"], ["tokens", "module"]
# What is given, the space that is taken, and those that were tried.
CHOICES = [
    ({"module": Spread()}, "module", OF_IMAGES),
    ({"module": Spread(is_useful=False)}, "patches", OF_IMAGES),
    *(({"module": net}, "patches", OF_IMAGES[:2]) for net in (WITHOUT_LINEAR, ROWS_ARE_NO_SAMPLES, nn.Module())),
    ({"module": Spread(), "feature_extractor": "patches"}, "patches", []),
    ({"module": Spread(), "known_space": "inputs"}, "inputs", []),
    ({"module": Spread(), "known_space": "inputs", "feature_extractor": "module"}, "module", []),
    ({"module": of_subjects(), "perturbation": "tokens"}, "tokens", OF_TEXTS),
    ({"module": of_subjects(is_useful=True), "perturbation": "tokens"}, "module", OF_TEXTS),
    ({"perturbation": "tokens"}, "tokens", []),
]


@pytest.mark.parametrize(("given", "name", "tried"), CHOICES)
def test_the_space_that_tells_most_of_the_labels_is_chosen_unless_one_is_asked_for_or_known(given, name, tried):
    samples, known = (TEXTS, SUBJECTS) if "perturbation" in given else (X, Y), given.pop("known_space", None)
    fitted = ParzenUncertainty(20, **given)
    fitted.known_space = known
    fitted.fit(*samples)
    assert (fitted.space_name_, list(fitted.skills_)) == (name, tried)


def test_the_points_of_the_best_space_are_given():
    name, skills, points = best_space(X, Y, {"inputs": FeatureSpace(), "patches": FeatureSpace("patches")})
    assert name == max(skills, key=skills.get) == "patches"
    assert torch.equal(points, FeatureSpace("patches").fit_transform(X))


def test_the_space_has_one_scale_for_all_axes():
    space = FeatureSpace("tokens")
    points = space.fit_transform(TEXTS)
    torch.testing.assert_close(space.transform(TEXTS), points)
    assert float(points.square().mean()) == pytest.approx(1, abs=1e-5)
    deviations = points.std(dim=0)
    assert float(deviations.max() / deviations.min()) > 1.1
    assert space.name == "tokens"


def test_samples_that_a_space_cannot_take_are_refused():
    with pytest.raises(TypeError, match="`features` must be token ids"):
        ParzenUncertainty(10, perturbation="tokens").fit(torch.randn(30, 4), torch.arange(30) % 2)
    with pytest.raises(ValueError, match="`module`"):
        ParzenUncertainty(feature_extractor="module").fit(X, Y)
