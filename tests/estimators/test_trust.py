import itertools
import math

import numpy as np
import pytest
import torch
from scipy.spatial.distance import cdist
from sklearn.model_selection import StratifiedKFold

from bu_torch import TrustScore
from bu_torch.evaluation import select_alpha, suspicious_precision, trustworthy_precision
from bu_torch.functional import trust_score


@pytest.mark.parametrize("is_left_out", [False, True])
def test_distances_and_scores_agree_with_loops(dtype, is_left_out):
    g = torch.Generator().manual_seed(0)
    features, labels = torch.randn(40, 3, generator=g).to(dtype), torch.tensor([0] * 25 + [1] * 14 + [2])
    points = features if is_left_out else torch.cat((torch.randn(30, 3, generator=g).to(dtype), features[:10]))
    predictions = torch.randint(0, 3, (40,), generator=g)
    trust, apart = TrustScore().fit(features, labels), cdist(points, features)
    if is_left_out:
        np.fill_diagonal(apart, np.inf)
    expected = np.stack([apart[:, labels == c].min(axis=1) for c in range(3)], axis=1)
    distances = trust.class_distances(points, torch.arange(40) if is_left_out else None)
    assert distances.dtype == dtype
    torch.testing.assert_close(distances.double(), torch.from_numpy(expected), atol=1e-6, rtol=1e-6)
    if not is_left_out:
        assert torch.equal(trust.score(points.numpy(), predictions.numpy()), trust_score(distances, predictions))


def test_absent_and_unseen_classes_are_infinitely_far():
    trust = TrustScore().fit(torch.tensor([[0.0], [1.0]]), torch.tensor([0, 2]))
    assert trust.class_distances(torch.tensor([[0.0]])).tolist() == [[0.0, math.inf, 1.0]]
    assert trust.score(torch.tensor([[0.5], [0.5]]), torch.tensor([1, 7])).tolist() == [0.0, 0.0]
    alone = TrustScore().fit(torch.randn(5, 2), torch.zeros(5).long())
    assert alone.score(torch.randn(3, 2), torch.zeros(3).long()).tolist() == [math.inf] * 3


def noisy_blobs(n=200, flipped=0.1, seed=0):
    g, truth = torch.Generator().manual_seed(seed), torch.arange(n) % 2
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
        members = features[labels == label]
        radius = np.sort(cdist(members, members), axis=1)[:, k - 1]
        allowed = [r for r in radius if np.sum(radius > r) <= alpha * len(members)]
        assert ((radius <= min(allowed)) == kept[labels == label].numpy()).all()


def test_disagreement_removes_the_flipped_labels_and_no_sample_whose_neighbours_agree():
    features, labels, is_flipped = noisy_blobs()
    kept = TrustScore("disagreement", float(is_flipped.float().mean())).fit(features, labels).kept_
    assert torch.equal(~kept, is_flipped)
    features, labels, _ = noisy_blobs(flipped=0)
    assert TrustScore("disagreement", 0.5).fit(features + 20 * labels.unsqueeze(1), labels).kept_.all()


def test_an_emptied_class_is_named_and_counts_as_far_and_one_too_small_for_a_density_is_kept():
    features, labels = torch.randn(61, 2), torch.tensor([0] * 60 + [1])
    features[60] = 0
    with pytest.warns(UserWarning, match=r"left no sample of classes \[1\]"):
        trust = TrustScore("disagreement", 0.1, n_neighbors=5).fit(features, labels)
    assert trust.class_sizes_.tolist()[1] == 0
    assert trust.class_distances(features)[:, 1].isinf().all()
    with pytest.warns(UserWarning, match=r"Classes \[1\] have fewer than n_neighbors=5"):
        assert TrustScore("density", 0.2, n_neighbors=5).fit(features, labels).class_sizes_.tolist() == [48, 1]


# Curves of precision, and the share to filter out.


def test_curves_are_shares_above_each_percentile(dtype, device):
    g = torch.Generator().manual_seed(0)
    scores = torch.randn(200, generator=g, dtype=torch.float64)
    is_correct = scores + torch.randn(200, generator=g, dtype=torch.float64) > -0.5
    order = scores.argsort().tolist()
    right = [float(is_correct[order[2 * p :]].double().mean()) for p in range(100)]
    wrong = [float((~is_correct)[order[: 200 - 2 * p]].double().mean()) for p in range(100)]
    scores, is_correct = scores.to(device, dtype), is_correct.to(device)
    for curve, expected in ((trustworthy_precision, right), (suspicious_precision, wrong)):
        value = curve(scores, is_correct)
        assert (value.dtype, value.device.type) == (torch.float64, device.type)
        assert value.tolist() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("percentile", [0, 10, 20, 33, 50, 67, 85, 99.9])
def test_equal_scores_count_as_in_random_order(percentile):
    scores, is_hit = [1.0, 0.0, 1.0, math.inf, 1.0, 0.0], [True, True, False, True, False, False]
    n_kept = 6 - math.floor(percentile * 6 / 100)
    kept = [sorted(order, key=lambda n: -scores[n])[:n_kept] for order in itertools.permutations(range(6))]
    expected = np.mean([[is_hit[n] for n in rows] for rows in kept])
    given = torch.tensor(scores), torch.tensor(is_hit)
    assert float(trustworthy_precision(*given, [percentile])) == pytest.approx(expected, rel=1e-12)
    assert float(suspicious_precision(-given[0], ~given[1], [percentile])) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("filtering", ["density", "disagreement"])
def test_alpha_is_the_best_of_a_loop_over_folds(filtering, monkeypatch):
    """Of two classes far apart, one label in twenty flipped; a classifier that errs on samples of its own."""
    features, labels, _ = noisy_blobs(400, 0.05)
    truth, errs = torch.arange(400) % 2, torch.rand(400, generator=torch.Generator().manual_seed(1)) < 0.3
    predictions = torch.where(errs, 1 - truth, truth)
    alphas = (0.0, 0.125, 0.25)
    monkeypatch.setattr("bu_torch.papers.trust._ALPHAS", alphas)
    expected = []
    for alpha in alphas:
        hits = 0
        folds = StratifiedKFold(3, shuffle=True, random_state=7)
        for kept, held_out in folds.split(features, labels):
            trust = TrustScore(filtering, alpha).fit(features[kept], labels[kept])
            lowest = trust.score(features[held_out], predictions[held_out]).argsort()
            is_wrong = (predictions != labels)[held_out]
            hits += int(is_wrong[lowest[: is_wrong.sum()]].sum())
        expected.append(hits / int((predictions != labels).sum()))
    choice = select_alpha(features, labels, predictions, filtering=filtering, n_folds=3, seed=7)
    assert choice.precisions.tolist() == pytest.approx(expected, rel=1e-12)
    assert choice.alpha == alphas[int(np.argmax(expected))]
