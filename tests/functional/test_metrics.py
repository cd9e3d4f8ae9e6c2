"""Expected metrics, beside scikit-learn's on rows that are repeated with each label."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics as sklearn_metrics

from bu_torch.functional import metrics
from bu_torch.functional.probabilities import best_sharpness
from bu_torch.signals.metrics import METRICS

NAMES = tuple(METRICS)
COSTS = torch.randn(6, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def problem(j, *, has_ties=False, seed=0, n=70, dtype=torch.float64):
    g = torch.Generator().manual_seed(seed)
    logits = torch.randn(n, j, generator=g, dtype=torch.float64)
    logits = logits.round() if has_ties else logits
    probabilities = (2 * torch.randn(n, j, generator=g, dtype=torch.float64)).softmax(dim=1)
    return logits.to(dtype), probabilities.to(dtype), torch.rand(n, generator=g, dtype=torch.float64) + 0.1


def by_scikit_learn(name, logits, probabilities, weights):
    """Each row stands once for each label, and counts as often as that label is likely."""
    j = logits.shape[1]
    rows, labels = logits.repeat_interleave(j, dim=0), np.tile(np.arange(j), len(logits))
    counted = {"sample_weight": (probabilities * weights.unsqueeze(1)).flatten().numpy()}
    likely, predicted = rows.softmax(dim=1).numpy(), rows.argmax(dim=1).numpy()
    if name == "cost":
        return np.average(COSTS[labels, predicted], weights=counted["sample_weight"])
    if name == "log_loss":
        return sklearn_metrics.log_loss(labels, likely, **counted)
    if name == "brier_score":
        return np.average(((likely - np.eye(j)[labels]) ** 2).sum(axis=1), weights=counted["sample_weight"])
    if name == "balanced_accuracy":
        return sklearn_metrics.balanced_accuracy_score(labels, predicted, **counted)
    if name == "f1":
        return sklearn_metrics.f1_score(labels, predicted, average="binary" if j == 2 else "macro", **counted)
    areas = {"auroc": sklearn_metrics.roc_auc_score, "average_precision": sklearn_metrics.average_precision_score}
    assert name in areas, f"by_scikit_learn has no reference for {name}"
    if j == 2:
        return areas[name](labels, (rows[:, 1] - rows[:, 0]).numpy(), **counted)
    return np.mean([areas[name](labels == k, likely[:, k].astype(np.float32), **counted) for k in range(j)])


def found(name, logits, probabilities, weights=None):
    costs = [COSTS[: logits.shape[1], : logits.shape[1]]] if name == "cost" else []
    return getattr(metrics, f"expected_{name}")(logits, probabilities, *costs, weights)


@given(st.integers(0, 2**32), st.sampled_from([*NAMES, "cost"]), st.sampled_from([2, 4]), st.booleans(), st.booleans())
def test_it_is_scikit_learn_s_metric_of_rows_with_each_label(seed, name, j, has_ties, is_weighted):
    logits, probabilities, weights = problem(j, has_ties=has_ties, seed=seed)
    counted = weights if is_weighted else torch.ones_like(weights)
    value = found(name, logits, probabilities, weights if is_weighted else None)
    assert (value.dtype, value.shape) == (torch.float64, ())
    assert float(value) == pytest.approx(by_scikit_learn(name, logits, probabilities, counted), abs=1e-12)
    certain = torch.nn.functional.one_hot(probabilities.argmax(dim=1), j).double()
    if (certain.sum(dim=0) > 0).all():
        expected = by_scikit_learn(name, logits, certain, counted)
        assert float(found(name, logits, certain, counted)) == pytest.approx(expected, abs=1e-12)
    # Classes without labels leave it.
    wider = (torch.nn.functional.pad(logits, (0, 2), value=-99.0), torch.nn.functional.pad(probabilities, (0, 2)))
    assert float(found(name, *wider, counted)) == pytest.approx(float(value), abs=1e-12)


@pytest.mark.parametrize("has_ties", [False, True])
@pytest.mark.parametrize("name", [name for name in NAMES if METRICS[name].of_counts])
def test_no_threshold_is_better_than_the_best(name, has_ties):
    logits, probabilities, _ = problem(2, has_ties=has_ties, seed=3)

    def at(threshold):
        is_positive = logits.softmax(dim=1)[:, 1] >= threshold
        return float(found(name, torch.stack((~is_positive, is_positive), dim=1).double(), probabilities))

    best, value = map(float, metrics.best_threshold(METRICS[name].of_counts, logits, probabilities))
    assert 0 < best < 1
    assert value == pytest.approx(at(best), abs=1e-12)
    assert value >= max(at(threshold) for threshold in np.linspace(0, 1, 301)) - 1e-12


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("j", [2, 4])
def test_the_influence_of_a_sample_is_the_metric_s_change_with_its_weight(name, j):
    logits, probabilities, _ = problem(j, has_ties=True, n=60)
    probabilities[:, -1] = 0.0 if j == 4 else probabilities[:, -1]  # a class that no label has
    probabilities = probabilities / probabilities.sum(dim=1, keepdim=True)
    formula = getattr(metrics, f"expected_{name}")
    influence = metrics.influence(formula, logits, probabilities, n_draws=3)
    assert (influence.shape, influence.dtype) == ((20,), torch.float64)
    assert float(influence.mean()) == pytest.approx(0, abs=1e-12)
    for sample in (0, 7, 19):
        more, less = torch.ones(60, dtype=torch.float64), torch.ones(60, dtype=torch.float64)
        more[sample::20] += 1e-4
        less[sample::20] -= 1e-4
        slope = (formula(logits, probabilities, more) - formula(logits, probabilities, less)) / 2e-4
        assert float(influence[sample]) == pytest.approx(20 * float(slope), abs=1e-6)
    with torch.inference_mode():
        assert torch.equal(metrics.influence(formula, logits + 0, probabilities + 0, n_draws=3), influence)


def test_probabilities_are_sharpened_as_far_as_left_out_labels_allow():
    g = torch.Generator().manual_seed(0)
    certain = (3 * torch.randn(4000, 3, generator=g, dtype=torch.float64)).softmax(dim=1)
    labels = torch.multinomial(certain, 1, generator=g).squeeze(1)
    flat = certain.sqrt() / certain.sqrt().sum(dim=1, keepdim=True)
    assert best_sharpness(flat, labels, None) == pytest.approx(2, abs=0.21)
    assert best_sharpness(certain, labels, None) == pytest.approx(1, abs=0.21)
    sharp = certain.square() / certain.square().sum(dim=1, keepdim=True)
    assert best_sharpness(sharp, labels, None) == 1  # they are never flattened
    assert math.isfinite(best_sharpness(torch.eye(3)[labels], labels, torch.ones(4000)))
