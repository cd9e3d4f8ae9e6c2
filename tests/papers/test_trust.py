import math

import numpy as np
import pytest
import torch
from oracles import trust as oracle
from sklearn.model_selection import StratifiedKFold

from bu_torch import TrustScore
from bu_torch.evaluation import select_alpha, suspicious_precision, trustworthy_precision


def scored(n=200, seed=0):
    g = torch.Generator().manual_seed(seed)
    scores = torch.randn(n, generator=g, dtype=torch.float64)
    return scores, scores + torch.randn(n, generator=g, dtype=torch.float64) > -0.5


def test_curves_are_shares_above_each_percentile(dtype, device):
    scores, is_correct = scored()
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
    expected = oracle.precision(scores, is_hit, percentile)
    given = torch.tensor(scores), torch.tensor(is_hit)
    assert float(trustworthy_precision(*given, [percentile])) == pytest.approx(expected, rel=1e-12)
    assert float(suspicious_precision(-given[0], ~given[1], [percentile])) == pytest.approx(expected, rel=1e-12)


def noisy_classes(n=400, seed=0):
    """Two classes far apart, one label in twenty flipped; a classifier that errs on samples of its own."""
    g = torch.Generator().manual_seed(seed)
    truth = torch.arange(n) % 2
    features = torch.randn(n, 2, generator=g) + 6 * truth.unsqueeze(1)
    labels = torch.where(torch.rand(n, generator=g) < 0.05, 1 - truth, truth)
    predictions = torch.where(torch.rand(n, generator=g) < 0.3, 1 - truth, truth)
    return features, labels, predictions


@pytest.mark.parametrize("filtering", ["density", "disagreement"])
def test_alpha_is_the_best_of_a_loop_over_folds(filtering, monkeypatch):
    features, labels, predictions = noisy_classes()
    alphas = (0.0, 0.125, 0.25)
    monkeypatch.setattr("bu_torch.papers.trust._ALPHAS", alphas)
    expected = []
    for alpha in alphas:
        hits = 0.0
        folds = StratifiedKFold(3, shuffle=True, random_state=7)
        for kept, held_out in folds.split(features, labels):
            trust = TrustScore(filtering, alpha).fit(features[kept], labels[kept])
            scores = trust.score(features[held_out], predictions[held_out]).tolist()
            is_wrong = (predictions != labels)[held_out].tolist()
            n_wrong = sum(is_wrong)
            percentile = 100 * (1 - n_wrong / len(scores))
            negated = [-s for s in scores]
            hits += n_wrong * oracle.precision(negated, is_wrong, percentile, n_orders=1)
        expected.append(hits / int((predictions != labels).sum()))
    choice = select_alpha(features, labels, predictions, filtering=filtering, n_folds=3, seed=7)
    assert choice.precisions.tolist() == pytest.approx(expected, rel=1e-12)
    assert choice.alpha == alphas[int(np.argmax(expected))]
