import math

import pytest
import torch

from bu_torch import TrustScore


def noisy_blobs(n=200, flipped=0.1, seed=0):
    g = torch.Generator().manual_seed(seed)
    truth = torch.arange(n) % 2
    features = torch.randn(n, 2, generator=g) + 6 * truth.unsqueeze(1)
    is_flipped = torch.rand(n, generator=g) < flipped
    return features, torch.where(is_flipped, 1 - truth, truth), is_flipped


def test_density_keeps_the_paper_s_high_density_set():
    """Algorithm 1 by sorting; the ball of radius r_k counts the sample at its centre."""
    g = torch.Generator().manual_seed(0)
    features = torch.randn(90, 2, generator=g, dtype=torch.float64)
    labels = torch.arange(90) % 3
    k, alpha = 5, 0.17
    kept = TrustScore("density", alpha, k).fit(features, labels).kept_
    for label in range(3):
        members = [n for n in range(90) if labels[n] == label]
        radius = {n: sorted(math.dist(features[n], features[m]) for m in members)[k - 1] for n in members}
        allowed = [r for r in radius.values() if sum(s > r for s in radius.values()) <= alpha * len(members)]
        assert {n for n in members if radius[n] <= min(allowed)} == {n for n in members if kept[n]}


def test_disagreement_removes_the_flipped_labels_and_no_sample_whose_neighbours_agree():
    features, labels, is_flipped = noisy_blobs()
    kept = TrustScore("disagreement", float(is_flipped.float().mean())).fit(features, labels).kept_
    assert torch.equal(~kept, is_flipped)
    features, labels, _ = noisy_blobs(flipped=0)
    assert TrustScore("disagreement", 0.5).fit(features + 20 * labels.unsqueeze(1), labels).kept_.all()


@pytest.mark.parametrize("filtering", [None, "density", "disagreement"])
def test_order_of_the_samples_does_not_matter(filtering):
    features, labels, _ = noisy_blobs()
    order = torch.randperm(len(labels))
    alpha = 0.1
    kept = TrustScore(filtering, alpha).fit(features, labels).kept_
    assert torch.equal(TrustScore(filtering, alpha).fit(features[order], labels[order]).kept_, kept[order])


def test_an_emptied_class_is_named_and_counts_as_far():
    features = torch.cat((torch.randn(60, 2), torch.zeros(1, 2)))
    labels = torch.cat((torch.zeros(60), torch.ones(1))).long()
    with pytest.warns(UserWarning, match=r"left no sample of classes \[1\]"):
        trust = TrustScore("disagreement", 0.1, n_neighbors=5).fit(features, labels)
    assert trust.class_sizes_.tolist()[1] == 0
    assert trust.class_distances(features)[:, 1].isinf().all()
    assert (trust.score(features, torch.ones(61).long()) == 0).all()


def test_a_class_too_small_for_a_density_is_named_and_kept():
    features, labels = torch.randn(40, 2), torch.tensor([0] * 37 + [1] * 3)
    with pytest.warns(UserWarning, match=r"Classes \[1\] have fewer than n_neighbors=10"):
        trust = TrustScore("density", 0.2).fit(features, labels)
    assert trust.class_sizes_.tolist()[1] == 3
