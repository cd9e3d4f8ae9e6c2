"""Features of patches, and the choice of a space."""

import numpy as np
import pytest
import torch
from torch import nn

from bu_torch import ParzenUncertainty, Signals
from bu_torch.estimators.space_choice import best_space
from bu_torch.space.extractors import LayerFeatures, PatchFeatures
from bu_torch.space.features import FeatureSpace


def textures(n=240, size=20, channels=1):
    """Noise that is smooth down or across: patches tell the two apart, distances between pixels do not."""
    g = torch.Generator().manual_seed(0)
    labels = torch.arange(n) % 2
    smooth = torch.randn(n, size, size + 1, generator=g).unfold(2, 2, 1).mean(dim=3)
    images = torch.where(labels.view(-1, 1, 1) == 0, smooth, smooth.transpose(1, 2))
    return images.unsqueeze(1).repeat(1, channels, 1, 1), labels


X, Y = textures()


def slow_features(patches, images, n_cells):
    """Each filter at each place by hand, from the fitted filters."""
    filters, offsets = patches._filters.double().numpy(), patches._offsets.double().numpy()
    size = filters.shape[-1]
    rows = []
    for image in (images.double().numpy() - patches._center) / patches._scale:
        places = image.shape[1] - size + 1
        maps = np.zeros((len(filters), places, places))
        for i in range(places):
            for j in range(places):
                patch = image[:, i : i + size, j : j + size]
                patch = (patch - patch.mean()) / np.sqrt(patch.var() + 0.01)
                maps[:, i, j] = (filters * patch).sum(axis=(1, 2, 3)) - offsets
        features = []
        for sign in (1, -1):
            halves = np.maximum(sign * maps - 0.25, 0)
            edges = [(places * c // n_cells, -(-places * (c + 1) // n_cells)) for c in range(n_cells)]
            features += [halves[f, a:b, c:d].mean() for f in range(len(filters)) for a, b in edges for c, d in edges]
        rows.append(features)
    return torch.tensor(np.array(rows), dtype=torch.float32)


@pytest.mark.parametrize("channels", [1, 3])
def test_each_feature_is_what_the_loops_give_whatever_the_block(monkeypatch, channels):
    """Of bright images: the mean of a patch is taken off within the filters."""
    images = textures(20, 9, channels)[0] + 3
    patches = PatchFeatures(n_patches=5, size=4).fit(images)
    found, expected = patches.transform(images), slow_features(patches, images, 2)
    assert found.shape == (20, 5 * 2 * 4)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
    monkeypatch.setattr("bu_torch.space.extractors._BLOCK_ELEMENTS", 1)
    torch.testing.assert_close(patches.transform(images), found, atol=1e-6, rtol=1e-6)


def test_brightness_and_contrast_change_little_and_the_seed_decides():
    def features(images, **kwargs):
        return PatchFeatures(n_patches=8, **kwargs).fit(images).transform(images)

    images, _ = textures(60)
    found = features(images)
    torch.testing.assert_close(features(images), found)
    for changed in (images + 5, images * 9):
        torch.testing.assert_close(features(changed), found, atol=1e-3, rtol=1e-3)
    assert not torch.equal(features(images, seed=1), found)
    for odd in (torch.zeros(9, 1, 7, 7), images[:, :, :4, :3]):
        assert torch.isfinite(features(odd)).all()


def test_what_it_must_be():
    with pytest.raises(ValueError, match="`images`"):
        PatchFeatures().fit(torch.zeros(5, 4))
    with pytest.raises(ValueError, match="`module`"):
        ParzenUncertainty(feature_extractor="module").fit(X, Y)


class Net(nn.Module):
    """How much pixels change down and across, before its last layer: all that tells these textures apart."""

    def __init__(self, is_useful=True):
        super().__init__()
        self.is_useful, self.last = is_useful, nn.Linear(2, 2)

    def forward(self, x):
        spread = torch.stack((x.diff(dim=2).flatten(1).std(dim=1), x.diff(dim=3).flatten(1).std(dim=1)), dim=1)
        return self.last(spread if self.is_useful else torch.sin(1e4 * spread))


def test_the_space_that_tells_most_of_the_labels_is_chosen():
    candidates = {"inputs": FeatureSpace(), "patches": FeatureSpace("patches")}
    name, skills, points = best_space(X, Y, candidates)
    assert name == "patches"
    assert torch.equal(points, FeatureSpace("patches").fit_transform(X))
    assert skills["patches"] > skills["inputs"]
    for is_useful, expected in ((True, "module"), (False, "patches")):
        fitted = ParzenUncertainty(20, module=Net(is_useful)).fit(X, Y)
        assert fitted.space_name_ == expected
        assert list(fitted.skills_) == ["inputs", "patches", "module"]
    asked = ParzenUncertainty(20, feature_extractor="patches", module=Net()).fit(X, Y)
    assert (asked.space_name_, asked.skills_) == ("patches", {})


def test_patches_are_extracted_once_where_all_samples_are_compared(monkeypatch):
    images, labels = textures(120)
    seen, transform = [], PatchFeatures.transform
    monkeypatch.setattr(PatchFeatures, "transform", lambda self, x: seen.append(len(x)) or transform(self, x))
    once = ParzenUncertainty(20).fit(images, labels)
    for name in ("_COMPARED", "_ALL_COMPARED"):
        monkeypatch.setattr(f"bu_torch.estimators.space_choice.{name}", 119)
    part = ParzenUncertainty(20).fit(images, labels)
    assert seen == [120, 119, 120]
    assert part.space_name_ == once.space_name_ == "patches"
    assert torch.equal(part.neighbors, once.neighbors)


def test_a_state_is_of_the_space_that_it_was_made_in_whatever_was_chosen_since():
    written, read = Signals(20, n_draws=1), Signals(20, n_draws=1)
    written.boundary.known_space = "inputs"
    written.fit(X, Y)
    assert Signals(20, n_draws=1).fit(X, Y).boundary.space_name_ == "patches"
    assert read.restore(written.state(), X, Y).boundary.space_name_ == "inputs"


def test_integers_reach_a_network_that_takes_them():
    net = nn.Sequential(nn.EmbeddingBag(9, 4), nn.Linear(4, 2))
    tokens = torch.randint(9, (6, 5))
    torch.testing.assert_close(LayerFeatures(net, keep_integers=True).transform(tokens), net[0](tokens))


def test_random_labels_are_told_by_no_space():
    """Each sample counts once, however few there are: a copy would tell its own label."""
    labels = torch.randint(3, (240,), generator=torch.Generator().manual_seed(0))
    _, skills, _ = best_space(X, labels, {"inputs": FeatureSpace(), "patches": FeatureSpace("patches")})
    assert max(skills.values()) < 0.1


def test_a_network_whose_features_cannot_be_read_is_no_candidate():
    without_linear = nn.Sequential(nn.Conv2d(1, 2, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    rows_are_no_samples = nn.Sequential(nn.Flatten(0, 2), nn.Linear(20, 2), nn.Flatten(0), nn.Unflatten(0, (-1, 40)))
    for net in (without_linear, rows_are_no_samples, nn.Module()):  # the last has no `forward`
        assert list(ParzenUncertainty(20, module=net).fit(*textures(120)).skills_) == ["inputs", "patches"]
