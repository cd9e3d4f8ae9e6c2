import itertools
import math

import numpy as np
import pytest
import torch
from sklearn.model_selection import StratifiedKFold

from bu_torch import TrustScore
from bu_torch.evaluation import select_alpha, suspicious_precision, trustworthy_precision


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
    g, truth = torch.Generator().manual_seed(0), torch.arange(400) % 2
    features = torch.randn(400, 2, generator=g) + 6 * truth.unsqueeze(1)
    labels = torch.where(torch.rand(400, generator=g) < 0.05, 1 - truth, truth)
    predictions = torch.where(torch.rand(400, generator=g) < 0.3, 1 - truth, truth)
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
