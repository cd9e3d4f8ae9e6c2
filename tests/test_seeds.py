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
    TokenFeatures,
)
from bu_torch.evaluation import cross_validation_error, generalization_interval, holdout_error, select_alpha
from bu_torch.internal.inputs import scikit_learn_seed

X, Y = blobs()
IDS = (X.abs() * 5).long()


class Majority:
    def fit(self, features, labels):
        return self

    def predict(self, features):
        return np.zeros(len(features), dtype=int)


def linear(inputs):
    return inputs[:, :3]


# What takes a seed, and what comes out.
TAKING = {
    "BoundaryUncertainty": (lambda seed: BoundaryUncertainty(10, seed=seed), lambda m: m.fit(X, Y).perturbed_inputs),
    "Signals": (lambda seed: Signals(10, seed=seed), lambda m: m.fit(X, Y).probabilities),
    "PrototypeClassifier": (lambda seed: PrototypeClassifier(seed=seed), lambda m: m.fit(X, Y).class_distances(X)),
    "FeatureSpace": (lambda seed: FeatureSpace(n_components=2, seed=seed), lambda m: m.fit(X).transform(X)),
    "TokenFeatures": (lambda seed: TokenFeatures(2, seed=seed), lambda m: m.fit(IDS).transform(IDS)),
    "LabelRegression": (lambda seed: LabelRegression(seed=seed), lambda m: m.fit(X, Y).left_out),
    "Bisection": (lambda seed: BisectionAnchorUncertainty(seed=seed), lambda m: m.fit(X, Y).score(linear)),
    "cross_validation_error": (lambda seed: cross_validation_error(Majority(), X, Y, seed=seed), lambda m: m.errors),
    "holdout_error": (lambda seed: holdout_error(Majority(), X, Y, seed=seed), lambda m: m.errors),
    "generalization_interval": (
        lambda seed: generalization_interval(X, Y > 0, method="yang", n_bootstrap=5, seed=seed),
        torch.tensor,
    ),
    "select_alpha": (lambda seed: select_alpha(X, Y, (Y + 1) % 3, alphas=[0.0], seed=seed), lambda m: m.precisions),
}


@pytest.mark.parametrize("take", [take for take, _ in TAKING.values()], ids=TAKING)
def test_a_seed_out_of_range_is_refused_at_once(take):
    for seed, said in ((2**64, r"from 0 to 2\*\*64 - 1"), (2**70, r"from 0 to 2\*\*64 - 1"), (-1, ">= 0")):
        with pytest.raises(ValueError, match=rf"^`seed` must be an integer {said}, got {seed}\.$"):
            take(seed)


@pytest.mark.parametrize(("take", "find"), TAKING.values(), ids=TAKING)
@pytest.mark.parametrize("seed", [2**32 - 1, 2**32, np.uint64(2**64 - 1)])
def test_a_seed_in_range_says_what_comes_out(take, find, seed):
    first, second = (find(take(seed)) for _ in range(2))
    assert bool(first.isfinite().all())
    assert torch.equal(first, second)


@pytest.mark.parametrize("name", ["PrototypeClassifier", "FeatureSpace"])
def test_scikit_learn_takes_the_last_32_bits(name):
    take, find = TAKING[name]
    assert torch.equal(find(take(2**32 + 3)), find(take(3)))
    assert scikit_learn_seed(2**64 - 1) == scikit_learn_seed(2**32 - 1) == 2**32 - 1
