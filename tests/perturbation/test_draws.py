"""Perturbed inputs that are made batch by batch are those that would be held."""

import pytest
import torch

from bu_torch import ParzenUncertainty, exchange_tokens, perturb_toward_neighbors

GENERATOR = torch.Generator().manual_seed(0)
IMAGES = torch.rand(60, 2, 7, 5, generator=GENERATOR)
TOKENS = torch.randint(9, (60, 12), generator=GENERATOR)
LABELS = torch.arange(60) % 2


def fitted(inputs, perturbation=None):
    return ParzenUncertainty(10, n_draws=3, perturbation=perturbation, feature_extractor="inputs").fit(inputs, LABELS)


@pytest.mark.parametrize(
    ("inputs", "perturbation"),
    [(IMAGES, None), (IMAGES.double(), None), (IMAGES.flatten(1), None), (TOKENS, "tokens"), (IMAGES, "random")],
    ids=["images", "float64", "vectors", "tokens", "held"],
)
def test_batches_of_any_size_equal_the_whole(inputs, perturbation):
    perturbed = fitted(inputs, perturbation).perturbed
    whole = perturbed.whole()
    assert (len(perturbed), perturbed.shape, perturbed.dtype) == (len(whole), whole.shape, whole.dtype)
    for size in (1, 7, 64, 1000):
        assert torch.equal(torch.cat(list(perturbed.split(size))), whole)
    assert torch.equal(torch.cat(list(perturbed.blocks())), whole)


@pytest.mark.parametrize(
    ("inputs", "perturbation", "move"),
    [(IMAGES, None, perturb_toward_neighbors), (TOKENS, "tokens", exchange_tokens)],
    ids=["images", "tokens"],
)
def test_draws_are_those_of_the_public_functions(inputs, perturbation, move):
    uncertainty, generator = fitted(inputs, perturbation), torch.Generator().manual_seed(0)
    expected = torch.stack([move(inputs, uncertainty.neighbors, generator) for _ in range(3)])
    assert torch.equal(uncertainty.perturbed_inputs, expected)


@pytest.mark.parametrize(
    ("inputs", "perturbation"),
    [(IMAGES, None), ((255 * IMAGES).byte(), None), (TOKENS, "tokens"), (TOKENS, "random"), (IMAGES, lambda x, *_: -x)],
    ids=["images", "bytes", "tokens", "integers", "custom"],
)
def test_samples_follow_their_moves_where_pairs_are_read_at_them(inputs, perturbation):
    options = {"perturbation": perturbation, "feature_extractor": "inputs"}
    perturbed = ParzenUncertainty(10, n_draws=3, pairs_at="sample", **options).fit(inputs, LABELS).perturbed
    moved = fitted(inputs, perturbation).perturbed
    assert torch.equal(perturbed.whole(), torch.cat((moved.whole(), inputs.to(moved.dtype))))
