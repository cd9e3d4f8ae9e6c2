"""The average of weights over checks, against its definition."""

import copy

import pytest
import torch
from problems import averages_of, close, same, weights_of
from torch import nn

from bu_torch.internal.replica import copy_of
from bu_torch.run.weights import WeightAverage, load


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 2))


def train(module, seed):
    """Move all weights as a step of training would."""
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for tensor in module.state_dict().values():
            if tensor.is_floating_point() or tensor.is_complex():
                tensor.add_(torch.randn(tensor.shape, generator=g))
            else:
                tensor.add_(1)


def follow(module, average, seeds=range(3)):
    """Train, and let the weights of so many checks enter; those weights."""
    states = []
    for seed in seeds:
        train(module, seed)
        assert average.update(module)
        states.append(weights_of(module))
    return states


def read(module, average):
    """The weights that a check reads."""
    return weights_of(copy_of(module, average.values()))


def resumed(state, past=0.5):
    average = WeightAverage(past)
    average.load_state_dict(state)
    return average


@pytest.mark.parametrize("past", [0.0, 0.7, 0.99])
def test_it_is_the_mean_of_the_checks_weighted_by_their_age(past):
    module, average, states = network(), WeightAverage(past), []
    assert not average.values()
    for seed in range(30):
        states += follow(module, average, [seed])
        assert close(read(module, average), averages_of(states, past))
        assert same(weights_of(module), states[-1])


def test_frozen_weights_are_shared_until_they_are_unfrozen():
    module, average = network(), WeightAverage(0.5)
    module[0].requires_grad_(False)
    for seed in range(2):
        train(module[1:], seed)
        average.update(module)
    assert not {"0.weight", "0.bias"} & average.state_dict()["n_checks"].keys()
    module[0].requires_grad_(True)
    expected = averages_of(follow(module, average, range(2, 5)), 0.5)
    found = read(module, average)
    assert close(*({name: value[name] for name in ("0.weight", "0.bias")} for value in (found, expected)))


def test_no_buffers_but_running_statistics_are_averaged_and_no_weight_that_is_infinite_from_the_start():
    module, average = network(), WeightAverage(0.5)
    module.register_buffer("running_mean", torch.zeros(2))  # of a layer of the user's
    module.register_buffer("seen", torch.zeros(()))
    module.register_buffer("mask", torch.full((3, 3), -torch.inf).triu(1))
    module.register_parameter("transitions", nn.Parameter(torch.tensor([0.0, -torch.inf])))
    module.register_buffer("scratch", torch.zeros(3), persistent=False)
    states = follow(module, average)
    module.scratch.fill_(2)
    copied = copy_of(module, average.values())
    assert copied.scratch.tolist() == [2, 2, 2]
    found, expected = weights_of(copied), averages_of(states, 0.5)
    for name in ("seen", "mask", "transitions"):
        assert torch.equal(found.pop(name), states[-1][name])
        del expected[name]
    assert close(found, expected)


def test_weights_that_are_not_finite_do_not_enter():
    module, average = network(), WeightAverage(0.5)
    states = follow(module, average, range(2))
    train(module, 2)
    whole = weights_of(module)
    with torch.no_grad():
        module[0].weight[0, 0] = torch.nan
    assert not average.update(module)
    assert read(module, average)["0.weight"].isnan().any()  # what training has
    module.load_state_dict(whole)
    states += follow(module, average, [3])
    assert close(read(module, average), averages_of(states, 0.5))


def test_weights_are_matched_by_name_and_begin_anew_with_another_shape():
    module, average = network(), WeightAverage(0.5)
    average.update(module)
    module[3] = nn.Linear(5, 4)
    extended = nn.Sequential(*module)
    extended.register_parameter("first", nn.Parameter(torch.ones(2)))  # comes before all others
    states = follow(extended, average, range(2))
    found, expected = read(extended, average), averages_of(states, 0.5)
    assert close(*({name: value[name] for name in ("3.weight", "first")} for value in (found, expected)))
    assert not torch.allclose(found["0.weight"].double(), expected["0.weight"])  # which has the check before, too
    assert same(weights_of(extended), states[-1])


def tied(share):
    module = nn.Sequential(*(nn.Linear(4, 4) for _ in range(3)))
    for layer in module[1:]:
        share(layer, module[0].weight)
    return module


def tied_by_name():
    return tied(lambda layer, weight: setattr(layer, "weight", weight))


def tied_by_memory():
    return tied(lambda layer, weight: setattr(layer.weight, "data", weight.data))


def channels_last():
    return nn.Sequential(nn.Conv2d(3, 4, 3)).to(memory_format=torch.channels_last)


def of_dtypes():
    module = network().to(torch.bfloat16)
    module.wide = nn.Parameter(torch.randn(7, dtype=torch.float64))
    module.complex = nn.Parameter(torch.randn(7, dtype=torch.complex64))
    module.scalar, module.empty = nn.Parameter(torch.tensor(2.0)), nn.Parameter(torch.empty(0, 3))
    return module


def recurrent():
    return nn.LSTM(3, 4, num_layers=2, bidirectional=True)


def parametrized():
    return nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(3, 4)), nn.Linear(4, 2))


@pytest.mark.parametrize(
    "make", [network, tied_by_name, tied_by_memory, channels_last, of_dtypes, recurrent, parametrized]
)
def test_a_copy_with_the_average_is_laid_out_as_the_module_whose_weights_stay_and_go_back(make):
    module, average = make(), WeightAverage(0.7)
    states = follow(module, average)
    before = weights_of(module)
    copied = copy_of(module, average.values())
    assert close(weights_of(copied), averages_of(states, 0.7))
    assert same(weights_of(module), before)
    layouts = [[(one.stride(), one.dtype) for one in of.state_dict().values()] for of in (module, copied)]
    assert layouts[0] == layouts[1]
    places = [len({one.untyped_storage().data_ptr() for one in of.parameters()}) for of in (module, copied)]
    assert places[0] == places[1]
    assert not {one.data_ptr() for one in module.parameters() if one.numel()} & {
        one.data_ptr() for one in copied.parameters()
    }
    loaded = make()
    loaded.load_state_dict(weights_of(copied))
    load(loaded, {name: before[name] for name in average.values()}, allow_missing=True)
    assert same(weights_of(loaded), before)


def test_its_state_is_a_copy_and_goes_on_where_it_was_taken():
    module, average = network(), WeightAverage(0.7)
    follow(module, average)
    state = average.state_dict()
    kept, again, second, anew = copy.deepcopy(state), resumed(state, 0.7), resumed(state, 0.7), resumed(state, 0.5)
    again.update(module, is_again=True)  # counts once
    assert same(state["weights"], again.state_dict()["weights"])
    train(module, 4)
    for one in (average, second, anew):
        one.update(module)
    assert same(average.state_dict()["weights"], second.state_dict()["weights"])
    assert same(state["weights"], kept["weights"])
    assert set(anew.state_dict()["n_checks"].values()) == {1}


def test_a_lazy_module_is_averaged_once_it_is_made():
    module, average = nn.Sequential(nn.LazyLinear(4)), WeightAverage(0.5)
    assert average.update(module)
    module(torch.ones(2, 3))
    average.update(module)
    assert set(average.state_dict()["n_checks"]) == {"0.weight", "0.bias"}
