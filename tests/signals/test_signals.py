"""All that a check measures, beside loops and oracles; with weights of samples and classes."""

import warnings

import numpy as np
import pytest
import torch
from problems import blobs, weights_at_random
from torch import nn

from bu_torch import BoundaryUncertaintyStopper, FeatureSpace, ParzenUncertainty, Signals, TrustScore, functional
from bu_torch.estimators.label_probabilities import LabelProbabilities, LabelRegression, LabelVotes
from bu_torch.perturbation.draws import Readings
from bu_torch.samples.samples import weights_of
from bu_torch.signals.catalogue import SIGNALS

X, Y = blobs()
NOISY = torch.where(torch.rand(120, generator=torch.Generator().manual_seed(7)) < 0.2, 0, Y)  # some are wrong
OWN = weights_at_random()


def unfitted(**settings):
    return Signals(**{"n_neighbors": 20, "n_draws": 3, "seed": 3, **settings})


def fitted(sample_weight=None, labels=NOISY, **settings):
    return unfitted(**settings).fit(X, labels, sample_weight)


def read(signals, seed=0):
    torch.manual_seed(seed)
    with torch.no_grad():
        return nn.Linear(4, 3)(signals.perturbed_inputs)


@pytest.mark.parametrize("weights", [None, OWN], ids=["alike", "weighted"])
def test_each_signal_is_a_mean_in_which_samples_count_by_their_weights(weights):
    signals = fitted(weights)
    first, before = signals.measure(read(signals, 0))
    assert float(first["prediction_changes"]) == 1
    logits = read(signals, 1)
    values, predictions = signals.measure(logits, before)
    boundary = signals.boundary

    def mean(of_each):
        return np.average(np.asarray(of_each, dtype=np.float64).reshape(3, 120).mean(axis=0), weights=weights)

    samples, points = (boundary.space.transform(inputs) for inputs in (X, signals.perturbed_inputs))
    probabilities = LabelProbabilities().fit(samples, NOISY, boundary.neighbors, weights)
    np.testing.assert_allclose(signals.probabilities, probabilities.predict_proba(points), atol=1e-5)
    distances = signals.distances[:, :-1]
    of_others = TrustScore().fit(samples, NOISY).class_distances(points, torch.arange(120).repeat(3))
    torch.testing.assert_close(distances, of_others)
    counted = {"weights": None if weights is None else weights.repeat(3)}
    likely, votes = signals.probabilities, LabelVotes().fit(NOISY, boundary.neighbors, weights).votes
    accuracy = functional.expected_accuracy(likely, predictions, **counted)
    u = functional.boundary_uncertainty(logits, likely, **counted)
    trust = functional.mean_trust_score(functional.trust_score(distances, predictions), **counted)
    most = functional.attainable(likely, distances, **counted)
    expected = {
        "boundary_uncertainty": u,
        "trust_score": trust,
        "label_agreement": mean(predictions == NOISY.repeat(3)),
        "vote_agreement": mean(votes.repeat(3, 1)[range(360), predictions]),
        "expected_accuracy": accuracy,
        "accuracy_uncertainty_trust": functional.accuracy_uncertainty_trust(accuracy, u, trust, most, signals.skill),
        "prediction_changes": mean(predictions != before),
    }
    assert tuple(values) == Signals.NAMES == signals.names
    assert set(expected) == set(values), "a signal has no oracle here"
    for name, value in expected.items():
        assert values[name].dtype == torch.float64
        assert float(values[name]) == pytest.approx(float(value), rel=1e-5), name
        assert float(value) != 0, name


@pytest.mark.parametrize(
    ("given", "same"),
    [
        ((torch.full((120,), 0.1), None), (None, None)),
        ((None, [3.0, 3.0, 3.0]), (None, None)),
        ((None, {0: 1.0}), (None, None)),
        ((OWN, "balanced"), (weights_of(NOISY, "balanced", OWN), None)),
    ],
)
def test_weights_of_classes_are_weights_of_their_samples_and_equal_ones_are_none(given, same):
    one, other = (fitted(weights, class_weight=by_class) for weights, by_class in (given, same))
    first, second = one.measure(read(one)).values, other.measure(read(other)).values
    assert list(map(float, first.values())) == pytest.approx(list(map(float, second.values())), rel=1e-9)
    assert (one.boundary.weights is None) == (same[0] is None)


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


def test_signals_of_the_papers_are_measured_where_they_are_asked_for_and_change_no_other():
    signals, also = fitted(labels=Y), ("parzen_uncertainty", "omission")
    other = fitted(labels=Y, also=also)
    with pytest.raises(ValueError, match="`state`"):
        Signals(also=also).restore(other.state(), X, Y)
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 20), nn.Tanh(), nn.Linear(20, 3)).requires_grad_(False)
    values, predictions = signals.measure(model(signals.perturbed_inputs))
    others, same = other.measure(model(other.perturbed_inputs))
    assert torch.equal(same, predictions)
    assert others == {**values, **{name: others[name] for name in also}}
    parzen = ParzenUncertainty(20, 3, 3, pairs_at="sample", feature_extractor=signals.boundary.space_name_).fit(X, Y)
    assert float(others["parzen_uncertainty"]) == pytest.approx(float(parzen.score(model)), abs=1e-6)
    assert float(others["omission"]) == pytest.approx(float(parzen.omission(model)), abs=1e-12)
    logits = model(other.perturbed_inputs)
    logits[-1, 0] = torch.nan  # at a sample itself
    assert all(value.isnan() for value in other.measure(logits).values.values())


def test_each_signal_is_better_for_the_nearest_mean_of_a_class_than_for_another_class():
    signals = fitted(also=[name for name in SIGNALS if name not in (*Signals.NAMES, "parzen_uncertainty")])
    means = torch.stack([X[label == Y].mean(dim=0) for label in range(3)])
    near = -torch.cdist(signals.perturbed_inputs, means)
    before = near[:360].argmax(dim=1)
    better, worse = (signals.measure(logits, before).values for logits in (near, near.roll(1, dims=1)))
    larger = {name for name in better if better[name] > worse[name]}
    assert larger == {name for name in better if SIGNALS[name].is_larger_better}


@pytest.mark.parametrize("are_augmented", [False, True])
def test_images_are_scored_by_accuracy_and_if_augmented_by_their_labels_too(are_augmented):
    images = X.view(120, 1, 2, 2)
    moved = Readings(images + 0.1 * torch.randn(3, *images.shape)) if are_augmented else None
    signals = Signals(20, 3, perturbation=moved).fit(images, NOISY)
    values, _ = signals.measure(nn.Linear(4, 3)(signals.perturbed_inputs.flatten(1)).detach())
    most = float(signals.probabilities.amax(dim=1).double().mean())
    weight = (most - (1 - most) / 2) / 2 if are_augmented else 0.0
    score = (values["expected_accuracy"] + weight * values["label_agreement"]) / (most + weight)
    assert float(values["accuracy_uncertainty_trust"]) == pytest.approx(float(score))


@pytest.mark.filterwarnings("error")
def test_labels_that_the_others_or_the_nearest_do_not_tell_are_warned_of():
    signals = fitted()
    assert signals.vote_skill == LabelVotes().fit(NOISY, signals.boundary.neighbors).skill_ > 0.3
    assert signals.regression_skill == LabelRegression(seed=3).fit(FeatureSpace().fit_transform(X), NOISY).skill_ > 0.3
    generator = torch.Generator().manual_seed(0)
    inputs, noise = torch.randn(500, 20, generator=generator), torch.randint(2, (500,), generator=generator)
    with pytest.warns(UserWarning, match="`feature_extractor`"):
        signals = Signals(n_draws=1).fit(inputs, noise)
    with pytest.warns(UserWarning, match="`feature_extractor`"):
        again = Signals(n_draws=1).restore(signals.state(), inputs, noise)
    for name in ("vote_skill", "regression_skill"):
        assert getattr(again, name) == getattr(signals, name) < 0.01
    # A narrow class within a wide one: what is nearest is nearly always of the narrow one.
    labels = torch.arange(500) % 2
    ring = torch.randn(500, 20, generator=torch.Generator().manual_seed(0)) * (1 + labels.unsqueeze(1))
    with pytest.warns(UserWarning, match="rely on expected accuracy"):
        signals = Signals(n_draws=1).fit(ring, labels)
    assert signals.vote_skill < 0.01 < 0.1 < signals.regression_skill


@pytest.mark.parametrize(
    ("n_copied", "offsets", "said"),
    [(100, [0], "100%"), (60, [0], "75%"), (30, [0], None), (100, [1], None), (100, [1, 0, 1], "100%")],
)
def test_samples_that_are_there_twice_are_warned_of(n_copied, offsets, said):
    features, labels = blobs(n=100)
    copies = [(features[:n_copied], (labels[:n_copied] + offset) % 3) for offset in offsets]
    several = [torch.cat(parts) for parts in zip((features, labels), *copies, strict=True)]
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        Signals(n_draws=1).fit(*several)
    found = [str(warning.message) for warning in warned if "exact copy" in str(warning.message)]
    assert [message.split()[0] for message in found] == ([said] if said else [])


# What `Signals` leave in the state of a run.


def moved(inputs, distance, generator):
    return inputs.flip(0)


OF = {"features": X, "labels": Y, "weights": OWN}
WRITTEN_BY = {"feature_extractor": lambda x: x[:, :2], "perturbation": moved, "class_weight": "balanced"}


@pytest.mark.parametrize(
    ("features", "weights", "settings"),
    [((X * 100).long(), None, {}), (X, OWN, WRITTEN_BY | {"metric": "auroc"})],
    ids=["integers", "weighted, for a metric"],
)
def test_whatever_is_fitted_is_taken_back_to_the_bit(features, weights, settings):
    signals = unfitted(**settings).fit(features, Y, weights)
    again = unfitted(**settings).restore(signals.state(), features, Y, weights)
    logits = torch.randn(360, 3)
    assert signals.measure(logits).values == again.measure(logits).values
    for name in ("perturbed_inputs", "labels", "neighbors", "nearest_distance", "weights"):
        found, expected = getattr(again.boundary, name), getattr(signals.boundary, name)
        assert found is expected is None or (found.dtype == expected.dtype and torch.equal(found, expected))
    assert again.boundary.space_name_ == signals.boundary.space_name_
    assert (again.vote_skill, again.regression_skill) == (signals.vote_skill, signals.regression_skill)


OTHERS = {
    "features": {"features": X + 1e-6},
    "labels": {"labels": Y.flip(0)},
    "weights": {"weights": OWN.flip(0)},
    "no weights": {"weights": None},
    "a seed": {"seed": 4},
    "an extractor": {"feature_extractor": None},
    "a perturbation": {"perturbation": None},
    "weights of classes": {"class_weight": {0: 2.0}},
}


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_of_other_samples_or_settings_it_is_refused(other):
    written = unfitted(**WRITTEN_BY).fit(*OF.values()).state()
    unfitted(**WRITTEN_BY).restore(written, X, Y, OWN * 2.0**-7)  # another unit is no other weights
    given, settings = ({name: other[name] for name in other if (name in OF) == of_samples} for of_samples in (1, 0))
    with pytest.raises(ValueError, match="`state`"):
        unfitted(**WRITTEN_BY | settings).restore(written, *(OF | given).values())
