"""All that a check measures, and the loop's stopper, with weights of samples and classes."""

from functools import partial

import numpy as np
import pytest
import torch
from oracles import boundary as oracle
from problems import blobs, weights_at_random
from torch import nn

from bu_torch import BoundaryUncertaintyStopper, LabelProbabilities, LabelVotes, Signals, TrustScore, functional
from bu_torch.functional.boundary import largest_uncertainty, top_pairs, uncertainty_between
from bu_torch.samples.balance import weights_of

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
    torch.testing.assert_close(signals.class_distances, own.class_distances(points, torch.arange(120).repeat(3)))
    rows, p = np.arange(360), predictions.numpy()
    trust = functional.trust_score(signals.class_distances, predictions).double()
    nearest = functional.trust_score(signals.class_distances, signals.class_distances.argmin(dim=1)).double()
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
    unweighted, _ = fitted().measure(logits, before)
    differs = [float(unweighted[name]) != pytest.approx(float(values[name]), abs=1e-6) for name in Signals.NAMES]
    assert differs == [is_weighted] * len(differs)


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


def test_balanced_expected_accuracy_of_one_class_alone_is_its_share():
    """Whoever always predicts the commonest class has its share; a third, if all classes count alike."""
    features, labels = blobs(n=240)
    kept = (labels != 1) | (torch.arange(240) % 8 == 1)
    features, labels = features[kept], labels[kept]
    for class_weight, expected in ((None, float((labels == 0).double().mean())), ("balanced", 1 / 3)):
        signals = Signals(**SETTINGS, class_weight=class_weight).fit(features, labels)
        values = signals.measure(torch.tensor([1.0, 0.0, 0.0]).repeat(len(signals.perturbed_inputs), 1)).values
        assert float(values["label_agreement"]) == pytest.approx(expected)
        assert float(values["expected_accuracy"]) == pytest.approx(expected, abs=0.05)


def test_details_of_weighted_samples():
    weights = weights_at_random()
    signals = fitted(weights, n_draws=1)
    logits, counted = read(signals), signals.boundary.weights
    measured = signals.measure(logits)
    details, local = measured.details(5), uncertainty_between(signals.probabilities, top_pairs(logits))
    most = largest_uncertainty(signals.probabilities)
    for part, of_each in zip(details.crossing, (local, most), strict=True):  # parts of nearly equal weight
        assert np.nanmean(part) == pytest.approx(float((counted * of_each).sum() / counted.sum()), abs=0.05)
    labels = signals.boundary.labels
    for recall in details.recalls:
        here = counted * (labels == recall.label)
        assert recall.share == pytest.approx(float(here.sum() / counted.sum()))
        hit = here[measured.predictions == recall.label].sum() / here.sum()
        assert recall.labelled == pytest.approx(float(hit))


class TestStopper:
    """The plain loop's."""

    @staticmethod
    def history(model, features=X, labels=Y, **kwargs):
        stopper = BoundaryUncertaintyStopper(features, labels, n_neighbors=20, n_draws=2, **kwargs)
        stopper.check(model, 0)
        return stopper.history

    @pytest.mark.parametrize("max_samples", [None, 60])
    def test_leaves_out_what_losses_ignore(self, max_samples):
        features, labels = blobs(n=150)
        kept = torch.arange(150) % 5 > 0
        marked, weights = torch.where(kept, labels, -100), weights_at_random(150)
        history = partial(self.history, nn.Linear(4, 3), max_samples=max_samples)
        with pytest.warns(UserWarning, match="30 samples have the label -100, which torch's losses ignore"):
            found = history(features, marked, sample_weight=weights)
        assert found == history(features[kept], labels[kept], sample_weight=weights[kept])
