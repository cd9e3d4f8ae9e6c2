"""The comparison of ways to perturb images."""

import pytest
import torch


@pytest.fixture
def samples():
    """Images of one grey each, in two classes, and their clusters."""
    generator = torch.Generator().manual_seed(0)
    values = torch.rand(60, generator=generator)
    neighbors = (values.unsqueeze(0) - values.unsqueeze(1)).abs().argsort(dim=1)[:, :12]
    return (values.view(-1, 1, 1, 1).repeat(1, 1, 2, 2), torch.arange(60) % 2), neighbors


def test_every_operation_gives_images_and_repeats(image_variants, samples):
    (inputs, labels), neighbors = samples
    for operation in image_variants.OPERATIONS.values():
        first, again = (operation((inputs, labels), neighbors, torch.Generator().manual_seed(3)) for _ in range(2))
        assert torch.equal(first, again)
        assert first.shape == inputs.shape
        assert first.dtype == inputs.dtype
        assert not torch.equal(first, inputs)


def test_own_class_alone(image_variants, samples):
    """With classes far apart, none is left; a sample alone in its class stays."""
    (inputs, labels), neighbors = samples
    apart = inputs + 100 * labels.view(-1, 1, 1, 1)
    moved = image_variants.toward_own_class((apart, labels), neighbors, torch.Generator().manual_seed(0))
    assert torch.equal(moved > 50, apart > 50)
    assert bool(((moved < 1) | (moved >= 100)).all())
    lonely = torch.arange(60)
    assert torch.equal(
        image_variants.toward_own_class((inputs, lonely), neighbors, torch.Generator().manual_seed(0)), inputs
    )


def test_a_random_step_is_as_long_as_to_the_nearest(image_variants):
    inputs = torch.randn(80, 1, 3, 3, generator=torch.Generator().manual_seed(1))
    scale, flat = inputs.flatten(1).double().std(dim=0, correction=0), inputs.flatten(1)
    distances = torch.cdist(flat / scale, flat / scale)
    neighbors = distances.argsort(dim=1)[:, :5]
    moved = image_variants.at_random((inputs, torch.zeros(80)), neighbors, torch.Generator().manual_seed(1))
    steps = ((moved - inputs).flatten(1) / scale).norm(dim=1)
    torch.testing.assert_close(steps, distances.topk(2, largest=False).values[:, 1], atol=1e-4, rtol=1e-4)


def test_a_training_gives_a_row_for_each_variant(image_variants):
    case = image_variants.Case("digits", 0.2, 0, "digits", 2)
    record = image_variants.run(case, None)
    rows = image_variants.judge(record, case)
    assert len(rows) == 1 + 6 + 6
    assert all(row["excess"] >= 0 and row["kept"] in (0, 1) for row in rows)
    by_variant = {row["variant"]: row for row in rows}
    chosen = max(image_variants.CHOICE, key=record["skills"].get)
    assert by_variant["the default"]["excess"] == by_variant[f"in {chosen}"]["excess"]
    assert record["expected"]["the default"] == record["expected"][f"in {chosen}"]
    assert by_variant["in module"]["skill"] == record["skills"]["module"]
