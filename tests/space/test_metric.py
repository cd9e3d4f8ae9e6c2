import pytest
import torch

from bu_torch import BoundaryUncertainty, FeatureSpace, NeighborGraph, ParzenUncertainty, Signals
from bu_torch.estimators.label_probabilities import LabelRegression, LabelVotes
from bu_torch.estimators.space_choice import MetricTrial, MixedRegression
from bu_torch.functional.probabilities import brier_score
from bu_torch.space.features import LabelMetric, average_gradient_outer_product, kernel_ridge, metric_root


def given(generator, n=30, n_landmarks=7, d=4, n_outputs=3):
    shapes = (n, d), (n_landmarks, d), (n_landmarks, n_outputs)
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]


def by_autograd(points, landmarks, coefficients, width, weights):
    """The mean over points of the outer products of the gradients."""

    def function(x):
        return torch.exp(-(x - landmarks).norm(dim=1) / width) @ coefficients

    gradients = torch.func.vmap(torch.func.jacrev(function))(points)
    return torch.einsum("n,noi,noj->ij", weights, gradients, gradients) / len(points)


def outer_product(points, landmarks, coefficients, width, weights=None):
    distances = torch.cdist(points, landmarks)
    return average_gradient_outer_product(points, landmarks, distances, coefficients, width, weights)


def test_the_average_outer_product_is_that_of_gradients_by_autograd(generator, device, monkeypatch):
    monkeypatch.setattr("bu_torch.space.features._BLOCK_ELEMENTS", 100)  # several blocks
    points, landmarks, coefficients = given(generator)
    weights = torch.rand(30, generator=generator, dtype=torch.float64) + 0.1
    weights /= weights.mean()
    moved = [tensor.to(device) for tensor in (points, landmarks, coefficients)]
    found = outer_product(*moved, 1.7, weights.to(device))
    torch.testing.assert_close(found.cpu(), by_autograd(points, landmarks, coefficients, 1.7, weights))
    # A landmark adds nothing at its own place.
    alone = outer_product(landmarks[:1], landmarks, coefficients, 1.0)
    torch.testing.assert_close(alone, outer_product(landmarks[:1], landmarks[1:], coefficients[1:], 1.0))


def test_ridge_solves_with_its_penalty_or_that_of_the_least_left_out_error(generator, monkeypatch):
    monkeypatch.setattr("bu_torch.space.features._JITTER", 1e-12)
    monkeypatch.setattr("bu_torch.space.features._PENALTIES", [0.01, 1.0, 10.0])
    points, _, _ = given(generator, n=40)
    targets = torch.randn(40, 2, generator=generator, dtype=torch.float64)
    weights = torch.rand(40, generator=generator, dtype=torch.float64) + 0.1
    weights /= weights.mean()
    kernel = torch.exp(-torch.cdist(points, points) / 2.0)
    errors = {}
    for penalty in (0.01, 1.0, 10.0):
        system = kernel + penalty * torch.diag(1 / weights)
        inverse = torch.linalg.inv(system)
        left_out = (inverse @ targets) / inverse.diagonal().unsqueeze(1)  # residuals of as many fits to the others
        errors[penalty] = (weights.unsqueeze(1) * left_out.square()).sum(), inverse @ targets
    expected = min(errors.values(), key=lambda pair: pair[0])[1]
    penalty = kernel_ridge(kernel, kernel, targets, weights=weights)[1]
    assert errors[penalty][1] is expected
    for own_penalty, (_, coefficients) in errors.items():
        found, kept = kernel_ridge(kernel, kernel, targets, own_penalty, weights)
        assert kept == own_penalty
        torch.testing.assert_close(kernel @ found, kernel @ coefficients, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("factor", [1e-6, 1.0, 1e6])
def test_root_has_the_trace_of_the_identity(generator, factor):
    matrix = torch.randn(5, 5, generator=generator, dtype=torch.float64)
    matrix = matrix @ matrix.T
    root = metric_root(factor * matrix)
    torch.testing.assert_close(root @ root, 5 * matrix / matrix.trace())
    torch.testing.assert_close(root, root.T)
    assert torch.equal(metric_root(torch.zeros(3, 3)), torch.eye(3))


def halves(n=300, d=12, seed=0):
    """Two classes that one of d features tells apart; the last is on another scale."""
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(n, d, generator=generator) * torch.cat((torch.ones(d - 1), torch.tensor([1000.0])))
    return features, (features[:, 0] > 0).long()


def test_a_metric_finds_the_features_that_change_the_class():
    features, labels = halves()
    points = FeatureSpace().fit(features).transform(features)
    root = LabelMetric().fit(points, labels).root_
    assert root.square().sum() == pytest.approx(12, rel=1e-4)
    assert root[0].square().sum() > 0.8 * root.square().sum()
    again = LabelMetric().fit(points, labels)
    assert torch.equal(again.root_, root)
    assert torch.equal(again.transform(points), points @ root)


def test_weights_are_those_of_samples_that_are_repeated(monkeypatch):
    monkeypatch.setattr("bu_torch.space.features._ITERATIONS", 1)
    features, labels = halves(100)
    weights = torch.ones(100, dtype=torch.float64)
    weights[::2] = 3
    landmarks_are_all = {"n_landmarks": 300}
    weighted = LabelMetric(**landmarks_are_all).fit(features[:, :-1], labels, weights).root_
    plain = LabelMetric(**landmarks_are_all).fit(features[:, :-1], labels).root_
    tripled = torch.cat((features, features[::2], features[::2]))[:, :-1]
    repeated = LabelMetric(**landmarks_are_all).fit(tripled, torch.cat((labels, labels[::2], labels[::2]))).root_
    assert (weighted - repeated).norm() < 0.5 * (plain - repeated).norm()


def test_a_class_of_one_sample_leaves_a_fold_of_one_class_which_teaches_no_metric():
    features, labels = halves(160)[0], torch.zeros(160, dtype=torch.int64)
    assert torch.equal(LabelMetric().fit(features, labels).root_, torch.eye(12))
    labels[7] = 1
    assert 0 <= BoundaryUncertainty().fit(features, labels).score(lambda inputs: inputs[:, 0]) <= 1


def test_more_samples_than_the_limit_teach_by_a_stratified_part():
    features, labels = halves(400)
    labels[:20] = 2
    metric = LabelMetric(max_samples=100).fit(features[:, :-1], labels)
    assert len(metric.rows_) == 100
    assert torch.bincount(labels[metric.rows_])[2] == 6
    alone = LabelMetric().fit(features[metric.rows_, :-1], labels[metric.rows_])
    torch.testing.assert_close(metric.root_, alone.root_)


def test_the_space_is_not_standardised_again_and_neighbours_are_found_there():
    features, labels = halves()
    found = BoundaryUncertainty(10, feature_extractor="metric").fit(features, labels)
    base = FeatureSpace().fit(features).transform(features)
    points = LabelMetric().fit(base, labels).transform(base)
    assert found.space_name_ == "metric"
    assert points.std(dim=0)[0] > 2 * points.std(dim=0)[1]
    assert torch.equal(found.neighbors, NeighborGraph(10).fit(points).neighbors)
    moved = (FeatureSpace().fit(features).transform(found.perturbed_inputs[0]) - base).norm(dim=1)
    torch.testing.assert_close(moved, found.nearest_distance, rtol=1e-3, atol=1e-4)


def test_signals_take_the_metric_where_it_is_clearly_better_and_not_without_labels_that_mean_something():
    features, labels = halves()
    signals = Signals(10, 1).fit(features, labels)
    assert signals.boundary.space_name_ == "metric"
    skills = signals.boundary.skills_
    assert skills["metric"] > skills["inputs"] + 0.1
    assert signals.vote_skill == skills["metric"]
    random = labels[torch.randperm(300, generator=torch.Generator().manual_seed(5))]
    with pytest.warns(UserWarning, match="`feature_extractor`"):
        assert Signals(10, 1).fit(features, random).boundary.space_name_ == "inputs"
    assert BoundaryUncertainty(10).fit(features, labels).space_name_ == "metric"
    assert ParzenUncertainty(10).fit(features, labels).space_name_ == "inputs"
    assert Signals(10, 1, feature_extractor="inputs").fit(features, labels).boundary.space_name_ == "inputs"


@pytest.mark.parametrize("shape", [(80, 1, 6, 6), (200, 30)])
def test_images_and_texts_have_a_metric_of_their_features(shape):
    generator = torch.Generator().manual_seed(0)
    inputs = torch.rand(shape, generator=generator)
    labels = (inputs.flatten(1)[:, 0] > 0.5).long()
    options = {}
    if len(shape) == 2:
        inputs, options = (inputs * 20).long(), {"perturbation": "tokens"}
    found = BoundaryUncertainty(10, feature_extractor="metric", **options).fit(inputs, labels)
    assert (found.space_name_, found.space.name) == ("metric", "patches" if len(shape) == 4 else "tokens")


# Whether the metric is taken.


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
    mixture = MixedRegression(trial, metric).fit(points, labels)
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
