"""Seeds from one end of their range to the other, wherever one is taken."""

import numpy as np
import pytest
import torch
from problems import blobs

from bu_torch import (
    BisectionAnchorUncertainty,
    BoundaryUncertainty,
    FeatureSpace,
    LabelRegression,
    PrototypeClassifier,
    Signals,
)
from bu_torch._inputs import check_seed, scikit_learn_seed
from bu_torch.evaluation import cross_validation_error, generalization_interval, holdout_error, select_alpha

X, Y = blobs()


class Majority:
    def fit(self, features, labels):
        return self

    def predict(self, features):
        return np.zeros(len(features), dtype=int)


def linear(inputs):
    return inputs[:, :3]


TAKING = {
    "BoundaryUncertainty": lambda seed: BoundaryUncertainty(10, seed=seed),
    "Signals": lambda seed: Signals(10, seed=seed),
    "PrototypeClassifier": lambda seed: PrototypeClassifier(seed=seed),
    "FeatureSpace": lambda seed: FeatureSpace(n_components=2, seed=seed),
    "LabelRegression": lambda seed: LabelRegression(seed=seed),
    "BisectionAnchorUncertainty": lambda seed: BisectionAnchorUncertainty(seed=seed),
    "cross_validation_error": lambda seed: cross_validation_error(Majority(), X, Y, seed=seed),
    "holdout_error": lambda seed: holdout_error(Majority(), X, Y, seed=seed),
    "generalization_interval": lambda seed: generalization_interval(X, Y > 0, method="yang", n_bootstrap=5, seed=seed),
    "select_alpha": lambda seed: select_alpha(X, Y, (Y + 1) % 3, alphas=[0.0], seed=seed),
}
FOUND = {
    "BoundaryUncertainty": lambda made: made.fit(X, Y).perturbed_inputs,
    "Signals": lambda made: made.fit(X, Y).probabilities,
    "PrototypeClassifier": lambda made: made.fit(X, Y).class_distances(X),
    "FeatureSpace": lambda made: made.fit(X).transform(X),
    "LabelRegression": lambda made: made.fit(X, Y).left_out,
    "BisectionAnchorUncertainty": lambda made: made.fit(X, Y).score(linear),
    "cross_validation_error": lambda made: made.errors,
    "holdout_error": lambda made: made.errors,
    "generalization_interval": torch.tensor,
    "select_alpha": lambda made: made.precisions,
}


@pytest.mark.parametrize("name", list(TAKING))
@pytest.mark.parametrize("seed", [2**64, 2**70, -1])
def test_a_seed_out_of_range_is_refused_at_once(name, seed):
    said = r"from 0 to 2\*\*64 - 1" if seed > 0 else ">= 0"
    with pytest.raises(ValueError, match=rf"^`seed` must be an integer {said}, got {seed}\.$"):
        TAKING[name](seed)


@pytest.mark.parametrize("name", list(TAKING))
@pytest.mark.parametrize("seed", [2**32 - 1, 2**32, np.uint64(2**64 - 1)])
def test_a_seed_in_range_says_what_comes_out(name, seed):
    first, second = (FOUND[name](TAKING[name](seed)) for _ in range(2))
    assert bool(first.isfinite().all())
    assert torch.equal(first, second)


@pytest.mark.parametrize("name", ["PrototypeClassifier", "FeatureSpace"])
def test_scikit_learn_takes_the_last_32_bits(name):
    found, expected = (FOUND[name](TAKING[name](seed)) for seed in (2**32 + 3, 3))
    assert torch.equal(found, expected)
    assert scikit_learn_seed(2**64 - 1) == 2**32 - 1
    assert scikit_learn_seed(2**32 - 1) == 2**32 - 1


@pytest.mark.parametrize("seed", [True, 1.0, "1", None])
def test_a_seed_of_another_kind_is_refused(seed):
    with pytest.raises(TypeError, match=f"`seed` must be an integer >= 0, got {seed!r}"):
        check_seed(seed)
