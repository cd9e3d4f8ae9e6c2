from functools import partial

import pytest
import scenarios
import torch
from scipy.stats import kstest, uniform

from bu_torch import BoundaryUncertainty, ParzenUncertainty, exchange_tokens, perturb, perturb_toward_neighbors
from bu_torch.perturbation import draws


def test_each_sample_moves_by_exactly_its_distance_and_a_constant_feature_stays(dtype):
    features = torch.randn(300, 16, dtype=dtype)
    features[:, 2] = 7.0
    distance = torch.rand(300, dtype=dtype)
    moved = perturb(features, distance)
    assert (moved.dtype, moved.shape) == (dtype, features.shape)
    assert (moved[:, 2] == 7.0).all()
    torch.testing.assert_close((moved - features).norm(dim=1), distance)
    assert torch.equal(perturb(features, torch.zeros(300)), features)
    assert torch.equal(perturb(torch.ones(5, 3), torch.ones(5)), torch.ones(5, 3))


@pytest.mark.parametrize("law", ["sphere", "uniform"])
def test_each_coordinate_of_a_direction_is_uniform(generator, law):
    """By Archimedes so is that of a uniform direction in three dimensions; its coordinates depend on each other."""
    features = torch.randn(20_000, 3, dtype=torch.float64, generator=generator)
    distance = torch.rand(20_000, generator=generator) + 0.1
    step = (perturb(features, distance, generator, law=law) - features) / distance.unsqueeze(1)
    for coordinate in step.unbind(1):
        assert kstest(coordinate, uniform(-1, 2).cdf).pvalue > 0.01
    assert abs(float(step[:, 0] @ step[:, 1])) / 20_000 < 0.01
    squares = step.square()
    assert (float(((squares[:, 0] - 1 / 3) * (squares[:, 1] - 1 / 3)).mean()) < -0.02) == (law == "sphere")


def test_each_sample_goes_a_part_of_the_way_to_one_of_its_nearest(generator):
    inputs = torch.randn(300, 2, 3)
    clusters = (torch.arange(300).unsqueeze(1) + 7 * torch.arange(8)) % 300
    moved = perturb_toward_neighbors(inputs, clusters, generator)
    steps = (moved - inputs).flatten(1).unsqueeze(1)
    ways = inputs[clusters[:, 1:6]].flatten(2) - inputs.flatten(1).unsqueeze(1)
    parts = (steps * ways).sum(dim=2) / ways.square().sum(dim=2)
    is_target = (steps - parts.unsqueeze(2) * ways).norm(dim=2) < 1e-4
    assert is_target.any(dim=1).all()
    assert is_target.sum(dim=0).min() > 40
    assert 0.3 - 1e-5 < parts[is_target].min() < 0.32
    assert 0.68 < parts[is_target].max() < 0.7 + 1e-5


def numbered(n_texts=60, length=10):
    """Text n holds n * 100 + place."""
    return torch.arange(n_texts).unsqueeze(1) * 100 + torch.arange(length)


def ring(n_texts=60, n_neighbors=8):
    return (torch.arange(n_texts).unsqueeze(1) + torch.arange(n_neighbors)) % n_texts


@pytest.mark.parametrize(("share", "expected"), [(0.5, 5), (0.0, 0), (1.0, 10), (0.34, 3)])
def test_so_many_tokens_are_those_of_a_near_text(share, expected, monkeypatch):
    monkeypatch.setattr(draws, "_LOW", share)
    monkeypatch.setattr(draws, "_HIGH", share)
    tokens = numbered()
    moved = exchange_tokens(tokens, ring())
    assert torch.equal(moved % 100, tokens % 100)  # in their places
    assert ((moved != tokens).sum(dim=1) == expected).all()
    step = (moved // 100 - torch.arange(60).unsqueeze(1)) % 60
    assert (step <= 5).all()
    assert all(len(set(row.tolist()) - {0}) <= 1 for row in step)  # of one neighbour


def test_a_run_of_tokens_is_exchanged_wherever_it_begins():
    tokens = numbered(4000)
    is_moved = exchange_tokens(tokens, ring(4000)) != tokens
    n_ends = (is_moved != is_moved.roll(1, dims=1)).sum(dim=1)
    assert (n_ends == 2).all()
    assert [int(end) for end in is_moved.sum(dim=1).aminmax()] == [3, 7]
    assert float((is_moved.double().mean(dim=0) - 0.5).abs().max()) < 0.04  # four standard errors


@pytest.mark.parametrize(
    ("move", "given", "dtypes"),
    [
        (partial(perturb, nearest_distance=torch.ones(40)), torch.randn(40, 3), (torch.float32, torch.float64)),
        (partial(exchange_tokens, neighbors=ring()), numbered(), (torch.int64, torch.int32, torch.int16)),
    ],
)
def test_one_seed_gives_one_result_for_every_dtype_and_nothing_else_is_changed(move, given, dtypes, random_states):
    before, samples, seed = random_states(), given.clone(), torch.Generator().manual_seed(3)
    moved = move(given, generator=seed)
    for dtype in dtypes:
        again = move(given.to(dtype), generator=torch.Generator().manual_seed(3))
        assert again.dtype == dtype
        torch.testing.assert_close(again.to(moved.dtype), moved, atol=1e-6, rtol=1e-6)
    assert not torch.equal(move(given, generator=seed), moved)
    assert torch.equal(move(given), move(given.numpy()))
    assert random_states() == before
    assert torch.equal(given, samples)


def test_what_stands_beside_tokens_moves_with_them():
    both = exchange_tokens(torch.stack((numbered(), numbered() + 50), dim=1), ring())
    assert torch.equal(both[:, 0], exchange_tokens(numbered(), ring()))
    assert torch.equal(both[:, 1], both[:, 0] + 50)


@pytest.mark.parametrize("sides", [(0, 30), (30, 0), (7, 50)])
def test_padding_changes_nothing(sides):
    tokens = numbered() + 1
    padded = torch.nn.functional.pad(tokens, sides)
    expected = torch.nn.functional.pad(exchange_tokens(tokens, ring()), sides)
    assert torch.equal(exchange_tokens(padded, ring()), expected)


def test_one_s_own_gets_a_copy_each_time_and_the_next_numbers_of_the_generator():
    def drop_one(tokens, nearest_distance, generator):
        return tokens.scatter_(1, torch.randint(12, (len(tokens), 1), generator=generator), 999)

    tokens, labels = scenarios.tokens(240)
    moved = BoundaryUncertainty(20, n_draws=2, perturbation=drop_one).fit(tokens, labels).perturbed_inputs
    assert moved.dtype == torch.int64
    assert ((moved != tokens).sum(dim=2) == 1).all()
    assert not torch.equal(*moved)


@pytest.mark.parametrize("move", [lambda x, d, g: x[:, :2], lambda x, d, g: None, lambda x, d, g: x * torch.nan])
def test_what_one_s_own_must_give(move):
    with pytest.raises(ValueError, match="`perturbation` must give"):
        BoundaryUncertainty(20, perturbation=move).fit(*scenarios.tokens(240))


# Perturbed inputs that are made batch by batch are those that would be held.

GENERATOR = torch.Generator().manual_seed(0)
IMAGES = torch.rand(60, 2, 7, 5, generator=GENERATOR)
TOKENS = torch.randint(9, (60, 12), generator=GENERATOR)
LABELS = torch.arange(60) % 2


def fitted(inputs, perturbation=None, **options):
    options |= {"perturbation": perturbation, "feature_extractor": "inputs"}
    return ParzenUncertainty(10, n_draws=3, **options).fit(inputs, LABELS)


@pytest.mark.parametrize(
    ("inputs", "perturbation"),
    [
        *((images, None) for images in (IMAGES, IMAGES.double(), IMAGES.flatten(1), (255 * IMAGES).byte())),
        *((IMAGES, move) for move in ("random", lambda x, *_: -x)),
        *((TOKENS, move) for move in ("tokens", "random")),
    ],
    ids=["images", "float64", "vectors", "bytes", "held", "custom", "tokens", "integers"],
)
def test_batches_of_any_size_equal_the_whole_and_samples_follow_where_pairs_are_read_at_them(inputs, perturbation):
    perturbed = fitted(inputs, perturbation).perturbed
    whole = perturbed[:]
    assert (len(perturbed), perturbed.shape, perturbed.dtype) == (len(whole), whole.shape, whole.dtype)
    for size in (1, 7, 64, 1000):
        assert torch.equal(torch.cat(list(perturbed.split(size))), whole)
    with_samples = fitted(inputs, perturbation, pairs_at="sample").perturbed[:]
    assert torch.equal(with_samples, torch.cat((whole, inputs.to(whole.dtype))))


@pytest.mark.parametrize(
    ("inputs", "perturbation", "move"),
    [(IMAGES, None, perturb_toward_neighbors), (TOKENS, "tokens", exchange_tokens)],
    ids=["images", "tokens"],
)
def test_draws_are_those_of_the_public_functions(inputs, perturbation, move):
    uncertainty, generator = fitted(inputs, perturbation), torch.Generator().manual_seed(0)
    expected = torch.stack([move(inputs, uncertainty.neighbors, generator) for _ in range(3)])
    assert torch.equal(uncertainty.perturbed_inputs, expected)
