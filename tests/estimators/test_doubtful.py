"""Labels that are unlikely by all other samples."""

import torch

from bu_torch import doubtful_labels


def flipped():
    labels = torch.arange(150) % 3
    features = torch.randn(150, 3, generator=torch.Generator().manual_seed(0)) + 5 * torch.eye(3)[labels]
    wrong = torch.arange(0, 150, 15)
    labels[wrong] = (labels[wrong] + 1) % 3
    return features, labels, wrong


def test_flipped_labels_come_first():
    features, labels, wrong = flipped()
    found = doubtful_labels(features, labels, n_neighbors=20)
    assert sorted(found.rows[:10].tolist()) == wrong.tolist()
    assert torch.equal(found.likeliest[:10], (labels[found.rows[:10]] - 1) % 3)
    assert torch.equal(found.probability, found.probability.sort().values)


def test_it_follows_the_order_and_the_names_of_the_samples():
    features, labels, _ = flipped()
    order = torch.randperm(150, generator=torch.Generator().manual_seed(0))
    first, second = doubtful_labels(features, labels), doubtful_labels(features[order], 5 * labels[order])
    for place, name in (("probability", 1), ("likeliest", 5)):
        before, after = (getattr(one, place)[one.rows.argsort()] for one in (first, second))
        torch.testing.assert_close(name * before[order], after)


def test_ones_own_label_does_not_count():
    features, labels, _ = flipped()
    changed = labels.clone()
    changed[3] = (labels[3] + 1) % 3
    settings = {"n_neighbors": 20, "feature_extractor": "inputs"}
    before, after = (doubtful_labels(features, one, **settings) for one in (labels, changed))
    first, second = (float(one.probability[one.rows == 3]) for one in (before, after))
    assert second < 0.3 < 0.7 < first
