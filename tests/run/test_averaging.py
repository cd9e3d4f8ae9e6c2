"""The average of weights over checks, as a loop of one's own measures and keeps it, against its definition."""

import copy
from contextlib import nullcontext

import pytest
import torch
from problems import Given, averages_of, blobs, close, same, weights_of
from torch import nn

from bu_torch import BoundaryUncertaintyStopper

X, Y = blobs(60)


class Holder(nn.Module):
    """Trains these parts, and predicts without them."""

    def __init__(self, *parts):
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def forward(self, x):
        return x[:, :3]


def network():
    torch.manual_seed(0)
    return Holder(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Linear(5, 2))


def stopper_of(past=0.5):
    """A stopper that keeps the last check."""
    rule = Given(tuple(range(99)))
    return BoundaryUncertaintyStopper(X, Y, n_neighbors=10, n_draws=1, averaging=past, rule=rule, patience=99)


def follow(module, stopper, seeds=range(3)):
    """Move all weights as steps of training would, and check after each; the weights of training."""
    states = []
    for seed in seeds:
        g = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for tensor in weights_of_own(module):
                tensor.add_(torch.randn(tensor.shape, generator=g) if tensor.is_floating_point() else 1)
        states.append(weights_of(module))
        stopper.check(module)
        assert same(weights_of(module), states[-1])
    return states


def weights_of_own(module):
    frozen = {id(one.data) for one in module.parameters() if not one.requires_grad}
    return [one for one in nn.Module.state_dict(module).values() if id(one) not in frozen]


def kept(module, stopper):
    """The weights that the last check has measured."""
    twin = copy.deepcopy(module)
    copy.deepcopy(stopper).restore(twin)
    return weights_of(twin)


def test_frozen_weights_enter_when_they_are_unfrozen():
    module, stopper = network(), stopper_of()
    module.parts[0].requires_grad_(False)
    follow(module, stopper, range(2))
    assert torch.equal(kept(module, stopper)["parts.0.weight"], module.parts[0].weight)
    module.parts[0].requires_grad_(True)
    expected = averages_of(follow(module, stopper, range(2, 5)), 0.5, n_before=2)
    found = kept(module, stopper)
    assert close(*({n: one[n] for n in ("parts.0.weight", "parts.0.bias")} for one in (found, expected)))


def test_no_buffers_but_running_statistics_are_averaged_and_no_weight_that_is_infinite_from_the_start():
    module, stopper = network(), stopper_of()
    module.register_buffer("running_mean", torch.zeros(2))  # of a layer of the user's
    module.register_buffer("seen", torch.zeros(()))
    module.register_buffer("mask", torch.full((3, 3), -torch.inf).triu(1))
    module.register_parameter("transitions", nn.Parameter(torch.tensor([0.0, -torch.inf])))
    states = follow(module, stopper)
    found, expected = kept(module, stopper), averages_of(states, 0.5)
    for name in ("seen", "mask", "transitions"):
        assert torch.equal(found.pop(name), states[-1][name])
        del expected[name]
    assert close(found, expected)


def test_weights_that_are_not_finite_do_not_enter():
    module, stopper = network(), stopper_of()
    states = follow(module, stopper, range(2))
    with torch.no_grad():
        module.parts[0].weight[0, 0] = torch.nan
    stopper.check(module)
    assert kept(module, stopper)["parts.0.weight"].isnan().any()  # what training has
    module.load_state_dict(states[-1])
    states += follow(module, stopper, [3])
    assert close(kept(module, stopper), averages_of(states, 0.5))


def test_weights_are_matched_by_name_and_begin_anew_with_another_shape():
    module, stopper = network(), stopper_of()
    stopper.check(module)
    module.parts[2] = nn.Linear(5, 4)
    module.register_parameter("first", nn.Parameter(torch.ones(2)))  # comes before all others
    states = follow(module, stopper, range(2))
    found, expected = kept(module, stopper), averages_of(states, 0.5, n_before=1)
    assert close(*({name: value[name] for name in ("parts.2.weight", "first")} for value in (found, expected)))
    assert not torch.allclose(found["parts.0.weight"].double(), expected["parts.0.weight"])  # the check before counts


def of_all_kinds():
    module = network()
    module.tied = nn.Linear(3, 5)
    module.tied.weight = module.parts[0].weight
    module.to(torch.bfloat16)
    module.wide = nn.Parameter(torch.randn(7, dtype=torch.float64))
    module.complex = nn.Parameter(torch.randn(7, dtype=torch.complex64))
    module.scalar, module.empty = nn.Parameter(torch.tensor(2.0)), nn.Parameter(torch.empty(0, 3))
    return module


KINDS = [*((network, 20, past) for past in (0.0, 0.7, 0.99)), (of_all_kinds, 3, 0.7)]


@pytest.mark.parametrize(("make", "n_checks", "past"), KINDS)
def test_it_is_the_mean_of_the_checks_weighted_by_their_age_and_training_goes_its_own_way(make, n_checks, past):
    module, stopper, states = make(), stopper_of(past), []
    for seed in range(n_checks):
        states += follow(module, stopper, [seed])
        assert close(kept(module, stopper), averages_of(states, past))


@pytest.mark.parametrize("past", [0.5, 0.9])
def test_a_state_goes_on_where_it_was_taken_or_anew_with_another_weight_of_the_past(past):
    module, stopper, again = network(), stopper_of(0.5), stopper_of(past)
    states = follow(module, stopper, range(2))
    with nullcontext() if past == 0.5 else pytest.warns(UserWarning, match="averaging=0.9"):
        again.load_state_dict(stopper.state_dict())
    later = follow(copy.deepcopy(module), again, [2])
    follow(module, stopper, [3])  # a state is a copy
    assert close(kept(module, again), averages_of(states + later if past == 0.5 else later, past))
