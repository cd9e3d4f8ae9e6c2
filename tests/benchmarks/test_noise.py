"""Noise as people make it."""

import pytest
import torch


def samples(n_classes=3):
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(n_classes, (2000,), generator=generator)
    centres = torch.tensor([[0.0, 0.0], [2.0, 0.0], [9.0, 0.0], [9.0, 1.0]])
    return centres[labels] + torch.randn(2000, 2, generator=generator), labels


def corrupted(noise, kind, n_classes=3):
    features, labels = samples(n_classes)
    return features, labels, noise.corrupt(labels, features, n_classes, kind, torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("kind", "share"), [("none", 0), ("uniform-0.2", 2 / 15), ("pairs-0.4", 0.4), ("hard-0.2", 0.2)]
)
def test_so_many_labels_change(noise, kind, share):
    _, before, after = corrupted(noise, kind)
    assert float((before != after).double().mean()) == pytest.approx(share, abs=0.03)
    assert torch.equal(after, corrupted(noise, kind)[2])
    assert torch.equal(before, samples()[1])


def test_pairs_are_classes_with_near_means(noise):
    _, before, after = corrupted(noise, "pairs-0.2", n_classes=4)
    for own, other in ((0, 1), (1, 0), (2, 3), (3, 2)):
        assert set(after[before == own].tolist()) == {own, other}
