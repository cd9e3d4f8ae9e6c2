"""Seeds from one end of their range to the other, wherever one is taken."""

from functools import partial

import numpy as np
import pytest
import torch
from problems import blobs

import bu_torch
from bu_torch import evaluation

X, Y = blobs()
IDS = (X.abs() * 5).long()
TEXTS = torch.randint(300, (400, 20), generator=torch.Generator().manual_seed(0))  # more words than axes


# What takes a seed, and what comes out.
TAKING = {
    "BoundaryUncertainty": (partial(bu_torch.BoundaryUncertainty, 10), lambda made: made.fit(X, Y).perturbed_inputs),
    "Signals": (partial(bu_torch.Signals, 10), lambda made: made.fit(X, Y).probabilities),
    "PrototypeClassifier": (bu_torch.PrototypeClassifier, lambda made: made.fit(X, Y).class_distances(X)),
    "FeatureSpace": (partial(bu_torch.FeatureSpace, "tokens"), lambda made: made.fit(TEXTS).transform(TEXTS)),
    "TokenFeatures": (partial(bu_torch.TokenFeatures, 2), lambda made: made.fit(IDS).transform(IDS)),
    "LabelRegression": (bu_torch.LabelRegression, lambda made: made.fit(X, Y).left_out),
    "Bisection": (bu_torch.BisectionAnchorUncertainty, lambda made: made.fit(X, Y).score(lambda x: x[:, :3])),
    "generalization_interval": (
        partial(evaluation.generalization_interval, X, Y > 0, method="yang", n_bootstrap=5),
        torch.tensor,
    ),
    "select_alpha": (partial(evaluation.select_alpha, X, Y, (Y + 1) % 3), lambda made: made.precisions),
}


@pytest.mark.parametrize(("take", "find"), TAKING.values(), ids=TAKING)
@pytest.mark.parametrize("seed", [2**32 - 1, 2**32, np.uint64(2**64 - 1)])
def test_a_seed_in_range_says_what_comes_out_and_global_random_states_stay(take, find, seed, random_states):
    before = random_states()
    first, second = (find(take(seed=seed)) for _ in range(2))
    assert random_states() == before
    assert bool(first.isfinite().all())
    assert torch.equal(first, second)
