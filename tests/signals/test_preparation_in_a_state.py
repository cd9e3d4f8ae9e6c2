"""What `Signals` leave in the state of a run: taken back to the bit, or refused for other samples or settings."""

import pytest
import torch
from problems import blobs, weights_at_random

from bu_torch import Signals

X, Y = blobs()
WEIGHTS = weights_at_random()


def unfitted(**settings):
    return Signals(**{"n_neighbors": 10, "n_draws": 2, **settings})


def moved(inputs, distance, generator):
    return inputs.flip(0)


OF = {"features": X, "labels": Y, "weights": WEIGHTS}
WRITTEN_BY = {"feature_extractor": lambda x: x[:, :2], "perturbation": moved, "class_weight": "balanced"}
KINDS = {
    "integers": ((X * 100).long(), None, {}),
    "images": (X.view(120, 1, 2, 2), None, {}),
    "images that are moved at random": (X.view(120, 1, 2, 2), None, {"perturbation": "random"}),
    "tokens": ((X * 5 + 50).long().clamp(min=0), None, {"perturbation": "tokens"}),
    "weighted": (X, WEIGHTS, WRITTEN_BY),
    "weighted, for a metric": (X, WEIGHTS, WRITTEN_BY | {"metric": "auroc"}),
}


@pytest.mark.parametrize(("features", "weights", "settings"), KINDS.values(), ids=KINDS)
def test_whatever_is_fitted_is_taken_back_to_the_bit(features, weights, settings):
    signals = unfitted(**settings).fit(features, Y, weights)
    again = unfitted(**settings).restore(signals.state(), features, Y, weights)
    logits = torch.randn(240, 3)
    assert signals.measure(logits).values == again.measure(logits).values
    for name in ("perturbed_inputs", "labels", "neighbors", "nearest_distance", "weights"):
        found, expected = getattr(again.boundary, name), getattr(signals.boundary, name)
        assert found is expected is None or (found.dtype == expected.dtype and torch.equal(found, expected))
    assert again.boundary.space_name_ == signals.boundary.space_name_
    assert (again.vote_skill, again.regression_skill) == (signals.vote_skill, signals.regression_skill)


OTHERS = {
    "features": {"features": X + 1e-6},
    "labels": {"labels": Y.flip(0)},
    "weights": {"weights": WEIGHTS.flip(0)},
    "no weights": {"weights": None},
    "a seed": {"seed": 4},
    "an extractor": {"feature_extractor": None},
    "a perturbation": {"perturbation": None},
    "weights of classes": {"class_weight": {0: 2.0}},
}


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_of_other_samples_or_settings_it_is_refused(other):
    written = unfitted(**WRITTEN_BY).fit(*OF.values()).state()
    unfitted(**WRITTEN_BY).restore(written, X, Y, WEIGHTS * 2.0**-7)  # another unit is no other weights
    given, settings = ({name: other[name] for name in other if (name in OF) == of_samples} for of_samples in (1, 0))
    with pytest.raises(ValueError, match="`state`"):
        unfitted(**WRITTEN_BY | settings).restore(written, *(OF | given).values())
