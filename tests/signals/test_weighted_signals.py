"""All that a check measures, and the loop's stopper, with weights of samples and classes."""

import numpy as np
import pytest
import torch
from oracles import boundary as oracle
from problems import blobs, weights_at_random
from torch import nn

from bu_torch import BoundaryUncertaintyStopper, LabelProbabilities, LabelVotes, Signals, TrustScore, functional
from bu_torch.samples.samples import weights_of

X, Y = blobs()
LABELS = torch.where(torch.rand(120, generator=torch.Generator().manual_seed(7)) < 0.2, 0, Y)  # some are wrong
SETTINGS = {"n_neighbors": 20, "n_draws": 3, "seed": 3}


def fitted(sample_weight=None, **kwargs):
    return Signals(**{**SETTINGS, **kwargs}).fit(X, LABELS, sample_weight)


def read(signals, seed=0):
    torch.manual_seed(seed)
    with torch.no_grad():
        return nn.Linear(4, 3)(signals.perturbed_inputs)


@pytest.mark.parametrize("is_weighted", [False, True])
def test_each_signal_is_a_mean_in_which_samples_count_by_their_weights(is_weighted):
    weights = weights_at_random() if is_weighted else None
    signals = fitted(weights)
    first, before = signals.measure(read(signals, 0))
    assert float(first["prediction_changes"]) == 1
    logits = read(signals, 1)
    values, predictions = signals.measure(logits, before)
    boundary = signals.boundary

    def mean(of_each):
        return np.average(np.asarray(of_each, dtype=np.float64).reshape(3, 120).mean(axis=0), weights=weights)

    votes = LabelVotes().fit(LABELS, boundary.neighbors, weights)
    probabilities = LabelProbabilities().fit(boundary.space.transform(X), LABELS, boundary.neighbors, weights)
    expected = probabilities.predict_proba(boundary.space.transform(signals.perturbed_inputs))
    np.testing.assert_allclose(signals.probabilities, expected, atol=1e-5)
    own = TrustScore().fit(boundary.space.transform(X), LABELS)
    points = boundary.space.transform(signals.perturbed_inputs)
    distances = signals.prepared.distances[:, :-1]
    torch.testing.assert_close(distances, own.class_distances(points, torch.arange(120).repeat(3)))
    rows, p = np.arange(360), predictions.numpy()
    trust = functional.trust_score(distances, predictions).double()
    nearest = functional.trust_score(distances, distances.argmin(dim=1)).double()
    share = mean(trust.clamp(1e-3, 1e3).log()) / mean(nearest.clamp(1e-3, 1e3).log())
    accuracy = mean(signals.probabilities[rows, p]) / mean(signals.probabilities.amax(1))
    counted = np.tile(np.ones(120) if weights is None else weights.numpy(), 3).tolist()
    likely = signals.probabilities.tolist()
    u = oracle.boundary_uncertainty(logits.tolist(), likely, counted)
    most = oracle.largest_boundary_uncertainty(likely, counted)
    expected = {
        "boundary_uncertainty": u,
        "trust_score": np.exp(mean(trust.clamp(1e-3, 1e3).log())),
        "label_agreement": mean(predictions == LABELS.repeat(3)),
        "vote_agreement": mean(votes.votes.repeat(3, 1)[rows, p]),
        "expected_accuracy": mean(signals.probabilities[rows, p]),
        "accuracy_uncertainty_trust": (accuracy + u / most + signals.skill * share) / (2 + signals.skill),
        "prediction_changes": mean(predictions != before),
    }
    assert tuple(values) == Signals.NAMES
    assert set(expected) == set(values), "a signal has no oracle here"
    for name, value in expected.items():
        assert values[name].dtype == torch.float64
        assert float(values[name]) == pytest.approx(float(value), rel=1e-5), name
        assert float(value) != 0, name


def test_equal_weights_change_no_digit():
    signals = fitted()
    expected, _ = signals.measure(read(signals))
    for weights, class_weight in ((torch.full((120,), 0.1), None), (None, [3.0, 3.0, 3.0]), (None, {0: 1.0})):
        others = fitted(weights, class_weight=class_weight)
        assert others.measure(read(others)).values == expected
    assert len(set(torch.bincount(LABELS).tolist())) > 1  # so that "balanced" would change them


def test_weights_come_from_classes_too():
    own = weights_at_random()
    by_class = fitted(own, class_weight="balanced")
    by_sample = fitted(weights_of(LABELS, "balanced", own))
    first, second = by_class.measure(read(by_class)).values, by_sample.measure(read(by_sample)).values
    for name in Signals.NAMES:
        assert float(first[name]) == pytest.approx(float(second[name]), rel=1e-9), name


@pytest.mark.parametrize("max_samples", [None, 60])
def test_a_loop_leaves_out_what_losses_ignore(max_samples):
    def history(features, labels, sample_weight):
        settings = {"n_neighbors": 20, "n_draws": 2, "max_samples": max_samples, "sample_weight": sample_weight}
        stopper = BoundaryUncertaintyStopper(features, labels, **settings)
        stopper.check(model, 0)
        return stopper.history

    model, (features, labels) = nn.Linear(4, 3), blobs(n=150)
    kept, weights = torch.arange(150) % 5 > 0, weights_at_random(150)
    with pytest.warns(UserWarning, match="30 samples have the label -100"):
        found = history(features, torch.where(kept, labels, -100), weights)
    assert found == history(features[kept], labels[kept], weights[kept])
