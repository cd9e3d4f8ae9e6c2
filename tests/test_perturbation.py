import pytest
import torch

from bu_torch import perturb


def test_each_sample_moves_by_exactly_its_distance(dtype):
    features = torch.randn(300, 16, dtype=dtype)
    distance = torch.rand(300, dtype=dtype)
    moved = perturb(features, distance)
    assert moved.dtype == dtype
    assert moved.shape == features.shape
    torch.testing.assert_close((moved - features).norm(dim=1), distance)


def test_directions_are_uniform_on_the_sphere(generator):
    """Archimedes: in three dimensions each coordinate of a uniform direction is uniform on [-1, 1]."""
    features = torch.randn(20_000, 3, dtype=torch.float64, generator=generator)
    step = perturb(features, torch.ones(20_000), generator) - features
    for coordinate in step.unbind(1):
        empirical = coordinate.sort().values
        uniform = torch.linspace(-1, 1, 20_000, dtype=torch.float64)
        assert float((empirical - uniform).abs().max()) / 2 < 1.63 / 20_000**0.5  # Kolmogorov-Smirnov at 1 %


def test_a_constant_feature_stays_and_the_distance_is_kept():
    features = torch.randn(50, 4)
    features[:, 2] = 7.0
    moved = perturb(features, torch.ones(50))
    assert (moved[:, 2] == 7.0).all()
    torch.testing.assert_close((moved - features).norm(dim=1), torch.ones(50))


def test_nothing_varies_or_no_distance_moves_nothing():
    assert torch.equal(perturb(torch.ones(5, 3), torch.ones(5)), torch.ones(5, 3))
    features = torch.randn(5, 3)
    assert torch.equal(perturb(features, torch.zeros(5)), features)


def test_one_seed_gives_one_result_for_every_dtype():
    features = torch.randn(40, 3)
    single = perturb(features, torch.ones(40), torch.Generator().manual_seed(4))
    double = perturb(features.double(), torch.ones(40), torch.Generator().manual_seed(4))
    torch.testing.assert_close(single.double(), double, atol=1e-6, rtol=1e-6)
    assert not torch.equal(single, perturb(features, torch.ones(40), torch.Generator().manual_seed(5)))


def test_global_random_state_is_left_alone(random_states):
    before = random_states()
    features = torch.zeros(5, 3) + torch.arange(5).unsqueeze(1)
    assert torch.equal(perturb(features, torch.ones(5)), perturb(features, torch.ones(5)))
    assert random_states() == before


@pytest.mark.parametrize(
    ("distance", "message"),
    [
        (torch.ones(4), r"`nearest_distance` must have shape \(5,\), got \(4,\)"),
        (torch.tensor([1.0, 1, 1, 1, -1]), "`nearest_distance` must be finite and >= 0, got a minimum of -1.0"),
        (torch.tensor([1.0, 1, 1, 1, float("nan")]), "`nearest_distance` must be finite"),
    ],
)
def test_bad_distances_are_named(distance, message):
    with pytest.raises(ValueError, match=message):
        perturb(torch.zeros(5, 2), distance)
