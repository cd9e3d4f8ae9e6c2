"""Features of images, of texts and of a network's layer."""

import pytest
import scenarios
import torch
from problems import same, weights_of
from sklearn.feature_extraction.text import TfidfTransformer
from torch import nn

from bu_torch import LayerFeatures, PatchFeatures, TokenFeatures

N_TOKENS = 60
TEXTS = scenarios.tokens(200)[0]


def slow_features(patches, images, n_cells):
    """By torch's own windows and pooling, from the fitted filters."""
    filters, offsets = patches._filters.double(), patches._offsets.double()
    places = images.shape[2] - filters.shape[-1] + 1
    windows = nn.functional.unfold((images.double() - patches._center) / patches._scale, filters.shape[-1])
    variance, mean = torch.var_mean(windows, dim=1, correction=0, keepdim=True)
    windows = (windows - mean) / (variance + 0.01).sqrt()
    maps = (filters.flatten(1) @ windows - offsets.view(-1, 1)).unflatten(2, (places, places))
    halves = (torch.cat((maps, -maps), dim=1) - 0.25).relu()
    return nn.functional.adaptive_avg_pool2d(halves, n_cells).flatten(1).float()


@pytest.mark.parametrize("channels", [1, 3])
def test_each_feature_is_what_windows_give_whatever_the_block(monkeypatch, channels, generator):
    """Of bright images: the mean of a patch is taken off within the filters."""
    images = torch.randn(20, channels, 9, 9, generator=generator) + 3
    patches = PatchFeatures(n_patches=5, size=4).fit(images)
    found, expected = patches.transform(images), slow_features(patches, images, 2)
    assert found.shape == (20, 5 * 2 * 4)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
    monkeypatch.setattr("bu_torch.space.extractors._BLOCK_ELEMENTS", 1)
    torch.testing.assert_close(patches.transform(images), found, atol=1e-6, rtol=1e-6)


def test_brightness_and_contrast_change_little_and_the_seed_decides(generator):
    def features(images, **kwargs):
        return PatchFeatures(n_patches=8, **kwargs).fit(images).transform(images)

    images = torch.randn(60, 1, 20, 20, generator=generator)
    found = features(images)
    torch.testing.assert_close(features(images), found)
    for changed in (images + 5, images * 9):
        torch.testing.assert_close(features(changed), found, atol=1e-3, rtol=1e-3)
    assert not torch.equal(features(images, seed=1), found)
    for odd in (torch.zeros(9, 1, 7, 7), images[:, :, :4, :3]):
        assert torch.isfinite(features(odd)).all()


def test_without_reduction_they_are_weighted_counts():
    """As by scikit-learn, of log counts and without its smoothing, which adds 1 to each weight."""
    counts = nn.functional.one_hot(TEXTS, N_TOKENS).sum(dim=1)
    theirs = TfidfTransformer(smooth_idf=False).fit(counts.numpy())
    theirs.idf_ = theirs.idf_ - 1
    expected = torch.from_numpy(theirs.transform(counts.log1p().numpy()).toarray())
    found = TokenFeatures(n_components=N_TOKENS).fit(TEXTS).transform(TEXTS)
    torch.testing.assert_close(found, expected.float(), atol=1e-6, rtol=0)


def test_the_axes_keep_the_angles_that_there_are():
    """Texts of two kinds without a common token lie on two axes."""
    tokens = torch.tensor([[1, 2, 3, 9], [1, 2, 3, 9], [1, 3, 2, 9], [5, 6, 7, 9], [5, 6, 7, 9], [7, 6, 5, 9]])
    found = TokenFeatures(n_components=2).fit(tokens).transform(tokens)
    cosines = found @ found.T
    expected = torch.block_diag(torch.ones(3, 3), torch.ones(3, 3))
    torch.testing.assert_close(cosines, expected, atol=1e-6, rtol=0)


def test_neither_the_names_of_tokens_nor_the_type_of_integers_matter():
    names = torch.randperm(1000)[:N_TOKENS]
    types = [TEXTS.to(dtype) for dtype in (torch.int16, torch.uint8, torch.uint16, torch.uint64)]
    whole, renamed, *others = (TokenFeatures(60).fit(x).transform(x) for x in (TEXTS, names[TEXTS], *types))
    torch.testing.assert_close(renamed @ renamed.T, whole @ whole.T)
    assert all(torch.equal(other, whole) for other in others)


def test_tokens_that_tell_nothing_are_left_out():
    tokens = torch.arange(40).view(10, 4)
    tokens[:, 0] = 7
    assert torch.equal(TokenFeatures().fit(tokens).transform(tokens), torch.zeros(10, 1))
    fitted = TokenFeatures(10).fit(TEXTS)
    assert torch.equal(fitted.transform(TEXTS + N_TOKENS), torch.zeros(len(TEXTS), 10))


class Network(nn.Module):
    """A body, a head, and a linear layer that is listed last but runs first."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5))
        self.head = nn.Linear(8, 3)
        self.first = nn.Linear(4, 6)
        self.unused = nn.Linear(2, 2)
        self.pairs = nn.Identity()

    def forward(self, x):
        hidden = self.body(self.first(x.flatten(1)))
        self.pairs((hidden, hidden))
        return self.head(hidden)


def network():
    torch.manual_seed(1)
    model = Network()
    model(torch.randn(50, 4))  # moves the running means
    return model


@pytest.mark.parametrize("layer", ["logits", "penultimate", "first", "body.1"])
def test_activations_are_those_of_the_layer_and_the_network_is_left_as_it_was(layer, device, random_states):
    model, inputs, seen = network(), torch.randn(20, 4), []
    part = model.get_submodule({"logits": "head", "penultimate": "body"}.get(layer, layer))
    with torch.no_grad(), part.register_forward_hook(lambda *given: seen.append(given[2])):
        model.eval()(inputs)
    model.train()
    weights, states = weights_of(model.to(device)), random_states()
    found = LayerFeatures(model, layer, batch_size=7).transform(inputs)
    assert found.device == inputs.device
    torch.testing.assert_close(found, *seen)
    assert all(module.training and not module._forward_hooks for module in model.modules())
    assert same(weights_of(model), weights)
    assert random_states() == states


def test_a_layer_that_gives_no_row_a_sample_is_refused():
    rows = ((network(), "unused"), (network(), "pairs"), (nn.ReLU(), "penultimate"), (nn.Flatten(0), "logits"))
    for model, layer in rows:
        with pytest.raises((TypeError, ValueError), match=f"'{layer}'|one row per sample"):
            LayerFeatures(model, layer).transform(torch.randn(10, 4))
