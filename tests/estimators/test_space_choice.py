import torch

from bu_torch import BoundaryUncertainty, FeatureSpace
from bu_torch.estimators.label_probabilities import LabelRegression, LabelVotes
from bu_torch.estimators.space_choice import MetricRegression, MetricTrial
from bu_torch.functional.probabilities import brier_score
from bu_torch.neighbors.graph import NeighborGraph
from bu_torch.space.metric import LabelMetric


def noisy(n, d=20, seed=0):
    """A class that one of many features tells, and a fifth of the labels wrong."""
    generator = torch.Generator().manual_seed(seed)
    points = torch.randn(n, d, generator=generator)
    labels = ((points[:, 0] > 0) ^ (torch.rand(n, generator=generator) < 0.2)).long()
    return points, labels


def test_a_trial_is_honest_where_leaving_one_out_is_not():
    points, labels = noisy(200, 60)
    new, of_new = noisy(2000, 60, seed=1)
    metric = LabelMetric().fit(points, labels)
    regression = LabelRegression().fit(metric.transform(points), labels)
    left_out = float(brier_score(regression.left_out, labels))
    true = float(brier_score(regression.predict_proba(metric.transform(new)), of_new))
    trial = MetricTrial.of(points, labels)
    honest = float(brier_score(trial.regressions[1], labels))
    assert left_out < true - 0.1
    assert abs(honest - true) < 0.08


def test_equal_weights_are_none_and_labels_may_have_gaps():
    points, labels = noisy(200)
    plain = MetricTrial.of(points, labels)
    gaps = MetricTrial.of(points, 5 * labels + 2, torch.ones(200, dtype=torch.float64))
    pairs = zip(plain.votes + plain.regressions, gaps.votes + gaps.regressions, strict=True)
    assert all(torch.equal(*pair) for pair in pairs)


def test_the_mixture_is_that_of_both_spaces_and_judged_by_labels_the_metric_has_not_seen(monkeypatch):
    monkeypatch.setattr("bu_torch.estimators.space_choice._LEAST_UNTAUGHT", 100)
    points, labels = noisy(400)
    trial = MetricTrial.of(points, labels)
    metric = LabelMetric(max_samples=250).fit(points, labels)
    mixture = MetricRegression(trial, metric).fit(points, labels)
    first = LabelRegression().fit(points, labels).predict_proba(points)
    second = LabelRegression().fit(metric.transform(points), labels).predict_proba(metric.transform(points))
    torch.testing.assert_close(mixture.predict_proba(points), torch.lerp(first, second, mixture.weight_))
    assert 0.1 < mixture.weight_ < 0.9
    torch.testing.assert_close(mixture.predict_proba(points, points, labels), mixture.left_out, atol=1e-5, rtol=0)
    votes = LabelVotes().fit(labels, NeighborGraph(10).fit(metric.transform(points)).neighbors)
    of_votes, _, of_rows, *_ = mixture.held_out(votes, labels, None)
    untaught = ~torch.isin(torch.arange(400), metric.rows_)
    assert torch.equal(of_rows, labels[untaught])
    assert torch.equal(of_votes, votes.left_out[untaught])


def test_a_regression_is_in_the_metric_that_is_asked_for_of_samples_too_few_for_a_trial():
    inputs, labels = noisy(100)
    points = FeatureSpace().fit_transform(inputs)
    moved = LabelMetric().fit(points, labels).transform(points)
    found = BoundaryUncertainty(10, feature_extractor="metric").fit(inputs, labels)
    assert found.regression_skill == LabelRegression().fit(moved, labels).skill_
