"""States that others have written or changed: whatever an entry is, training goes on."""

import math
import warnings
from contextlib import suppress

import pytest
import torch
from problems import Given, blobs
from torch import nn

from bu_torch import BoundaryUncertaintyStopper

X, Y = blobs(60)


@pytest.fixture(scope="module")
def run():
    """A function that makes a stopper, a network, and the state after some checks."""

    def make(**settings):
        settings = {"n_neighbors": 10, "n_draws": 1, "patience": 50, "averaging": 0.5} | settings
        return BoundaryUncertaintyStopper(X, Y, **settings)

    stopper, network = make(), nn.Linear(4, 3)
    means = torch.stack([X[label == Y].mean(dim=0) for label in range(3)])
    for step in range(3):
        network.load_state_dict({"weight": step * means, "bias": -step * means.square().sum(dim=1) / 2})
        stopper.check(network)
    return make, network, stopper.state_dict(), set()


OTHERS = {
    "None": None,
    "a flag": True,
    "below zero": -1,
    "huge": 10**30,
    "NaN": float("nan"),
    "infinity": float("inf"),
    "text": "\x1b]0;x\x07",
    "a list": [1.0],
    "an empty list": [],
    "a dict": {"x": 1},
    "numbers by number": {1: 2},
    "a pair": (1, 2),
    "a scalar": torch.tensor(1),
    "NaN in a tensor": torch.tensor([torch.nan]),
    "a matrix": torch.zeros(2, 2),
    "an object": object(),
}


def places(tree, place=()):
    yield place
    if isinstance(tree, dict | list | tuple):
        for key in tree if isinstance(tree, dict) else range(len(tree)):
            yield from places(tree[key], (*place, key))


def put(tree, place, value):
    """The same tree with another value in one place."""
    if not place:
        return value
    key, *rest = place
    if isinstance(tree, dict):
        return tree | {key: put(tree[key], rest, value)}
    return type(tree)(put(one, rest, value) if n == key else one for n, one in enumerate(tree))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("other", list(OTHERS.values()), ids=list(OTHERS))
def test_whatever_stands_in_place_of_an_entry_training_goes_on(run, other):
    """What several damaged states leave of a run is checked once."""
    make, network, state, left = run
    for place in places(state):
        resumed = make()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            resumed.load_state_dict(put(state, place, other))
        said = " ".join(str(line.message) for line in caught)
        keeps_none = (place[-1:], other) == (("kept",), None)
        assert keeps_none or resumed.best_epoch is not None or "start" in said or "lost" in said, place
        if (leaves := str(resumed.state_dict())) in left:
            continue
        left.add(leaves)
        resumed.check(network)
        with suppress(RuntimeError):  # the only kind that is documented
            resumed.restore(network)
        assert math.isfinite(resumed.history[-1]["expected_accuracy"]), place


def test_a_rule_that_does_not_take_its_state_starts_anew(run):
    make, network, *_ = run
    first, resumed = (make(rule=Given((0.9, 0.1))) for _ in range(2))
    resumed.engine.history.rule.load_state_dict = lambda state: 1 / 0
    first.check(network)
    with pytest.warns(UserWarning, match="division by zero"):
        resumed.load_state_dict(first.state_dict())
    resumed.check(network)
    assert resumed.best_epoch == 0


def test_features_of_a_trained_layer_are_those_before_training(run):
    make, body = run[0], nn.Linear(4, 4)
    network = nn.Sequential(body, nn.Linear(4, 3))
    whole, resumed = (make(feature_extractor=body) for _ in range(2))
    whole.check(network)
    resumed.load_state_dict(whole.state_dict())
    nn.init.normal_(body.weight, std=9)
    for stopper in (whole, resumed):
        stopper.check(network)
    assert resumed.history == whole.history
