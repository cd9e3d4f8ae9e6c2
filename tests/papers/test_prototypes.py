import math

import torch
from sklearn.cluster import KMeans

from bu_torch import PrototypeClassifier


def blobs(n=300, centres=((0, 0), (5, 0), (0, 5)), generator=None):
    labels = torch.arange(n) % len(centres)
    noise = torch.randn(n, 2, generator=generator)
    return torch.tensor(centres, dtype=torch.float32)[labels] + noise, labels


def test_prototypes_minimise_the_criterion(generator):
    """The formula term by term, on scikit-learn's K-means with the same seed."""
    features = torch.cat([torch.randn(40, 2, generator=generator) * 0.1 + c for c in (0.0, 3.0, 6.0, 9.0, 12.0)])
    labels = torch.tensor([0, 1]).repeat(100)
    fitted = PrototypeClassifier(seed=3).fit(features, labels)
    for label in (0, 1):
        members = features[labels == label].numpy()
        n, d = members.shape
        criterion = {}
        for k in range(1, 40, 2):
            if k > 1 and k > n / 2:
                break
            sse = KMeans(k, n_init=1, random_state=3).fit(members).inertia_
            variance = sse / (n * d)
            criterion[k] = n * d * math.log(2 * math.pi * variance) + n * d + 2 * n * math.log(k) + 2 * (k * d + 1)
        assert int(fitted.n_prototypes_[label]) == min(criterion, key=criterion.get)
    assert int(fitted.n_prototypes_[0]) == 5
    # K-means in single precision would lose the clusters beside so large an offset.
    expected, moved = (PrototypeClassifier(seed=3).fit(features.double() + far, labels) for far in (0, 1e6))
    assert torch.equal(moved.n_prototypes_, expected.n_prototypes_)


def test_pairs_are_the_two_nearest_classes(generator):
    features, labels = blobs(generator=generator)
    fitted = PrototypeClassifier(n_prototypes=1).fit(features, labels)
    means = torch.stack([features[labels == c].mean(dim=0) for c in range(3)])
    expected = torch.cdist(features, means).argsort(dim=1)[:, :2].sort(dim=1).values
    assert torch.equal(fitted.top_pairs(features), expected)


def test_an_absent_class_is_in_no_pair(generator):
    features, labels = blobs(generator=generator)
    labels = torch.tensor([0, 2, 4])[labels]
    fitted = PrototypeClassifier(n_prototypes=2).fit(features, labels)
    assert fitted.n_prototypes_.tolist() == [2, 0, 2, 0, 2]
    assert fitted.class_distances(features)[:, [1, 3]].isinf().all()
    assert set(fitted.top_pairs(features).flatten().tolist()) == {0, 2, 4}
