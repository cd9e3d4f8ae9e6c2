"""What `Signals` leave in the state of a run: taken back to the bit, or refused for other samples or settings."""

import pytest
import torch
from problems import blobs, weights_at_random

from bu_torch import Signals

X, Y = blobs()
N, M, D = 120, 10, 2


def unfitted(**settings):
    return Signals(**{"n_neighbors": M, "n_draws": D, **settings})


def moved(inputs, distance, generator):
    return inputs.flip(0)


KINDS = {
    "integers": ((X * 100).long(), Y, {}),
    "images": (X.view(N, 1, 2, 2), Y, {}),
    "images that are moved at random, in a space that is chosen": (X.view(N, 1, 2, 2), Y, {"perturbation": "random"}),
    "tokens": ((X * 5 + 50).long().clamp(min=0), Y, {"perturbation": "tokens"}),
}


@pytest.mark.parametrize(("features", "labels", "settings"), KINDS.values(), ids=KINDS)
def test_whatever_is_fitted_is_taken_back_to_the_bit(features, labels, settings):
    signals = unfitted(**settings).fit(features, labels)
    again = unfitted(**settings).restore(signals.state(), features, labels)
    assert torch.equal(again.probabilities, signals.probabilities)
    assert torch.equal(again.prepared.distances, signals.prepared.distances)
    for name in ("perturbed_inputs", "votes", "labels", "neighbors", "nearest_distance"):
        found, expected = getattr(again.boundary, name), getattr(signals.boundary, name)
        assert found.dtype == expected.dtype
        assert torch.equal(found, expected)
    assert again.boundary.space_name_ == signals.boundary.space_name_
    assert (again.vote_skill, again.regression_skill) == (signals.vote_skill, signals.regression_skill)


OF = {"features": X, "labels": Y, "weights": (WEIGHTS := weights_at_random())}
WRITTEN_BY = {"feature_extractor": lambda x: x[:, :2], "perturbation": moved, "class_weight": "balanced"}
OTHERS = {
    "features": {"features": X + 1e-6},
    "labels": {"labels": Y.flip(0)},
    "weights": {"weights": WEIGHTS.flip(0)},
    "a seed": {"seed": 4},
    "an extractor": {"feature_extractor": None},
    "a perturbation": {"perturbation": None},
    "weights of classes": {"class_weight": {0: 2.0}},
}


@pytest.fixture(scope="module")
def written():
    return unfitted(**WRITTEN_BY).fit(*OF.values()).state()


@pytest.mark.parametrize("metric", ["accuracy", "auroc"])
def test_of_weighted_samples_it_is_taken_back(metric):
    signals = unfitted(**WRITTEN_BY, metric=metric).fit(*OF.values())
    again = unfitted(**WRITTEN_BY, metric=metric).restore(signals.state(), *OF.values())
    logits = torch.randn(D * N, 3)
    assert signals.measure(logits).values == again.measure(logits).values
    assert torch.equal(signals.boundary.weights, again.boundary.weights)
    found = [signals.fingerprint_of(X, Y, weights) for weights in (WEIGHTS, WEIGHTS * 2.0**-7, None)]
    assert [one == signals.prepared.fingerprint for one in found] == [True, True, False]


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_of_other_samples_or_settings_it_is_refused(written, other):
    given, settings = ({name: other[name] for name in other if (name in OF) == of_samples} for of_samples in (1, 0))
    with pytest.raises(ValueError, match="`state`"):
        unfitted(**WRITTEN_BY | settings).restore(written, *(OF | given).values())
