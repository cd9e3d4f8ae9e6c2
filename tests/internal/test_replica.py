"""Copies of networks: equal to the network, and nothing that is done to them reaches it."""

import collections
import functools
import random
import threading

import loralib
import numpy as np
import pytest
import torch
from problems import data_parallel
from torch import nn
from torch.nn.utils import prune
from torch.utils.data import TensorDataset
from torchmetrics import CatMetric, MeanMetric

from bu_torch.internal import replica
from bu_torch.internal.replica import copy_of, evaluation_copy

X = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))


class Counting(nn.Module):
    """Writes to everything that it holds, and holds a value with a history."""

    def __init__(self):
        super().__init__()
        self.layer, self.counter, self.nested = nn.Linear(4, 3), collections.Counter(), {"a": [{"b": [0]}]}
        self.array, self.random, self.torch = np.zeros(2), random.Random(0), torch.Generator().manual_seed(0)
        self.part, self.double, self.view = functools.partial(self.note, 1), self.layer.weight * 2, self.layer.bias[1:]
        self.mean, self.all = MeanMetric(), CatMetric()
        self.register_buffer("total", torch.zeros(()))
        self.layer.register_forward_pre_hook(self.note)

    def note(self, *_):
        self.counter["seen"] += 1

    def forward(self, x):
        self.part()
        self.nested["a"][0]["b"].append(1)
        self.array += 1
        self.total += 1
        self.mean.update(x)
        self.all.update(x[:, 0])
        self.layer.weight.data *= 1.5
        with torch.enable_grad():
            self.layer(x).square().sum().backward()
        return self.layer(x) + self.random.random() + torch.rand(1, generator=self.torch) + self.double.sum()


def quantised():
    net = nn.Sequential(nn.Linear(4, 3), nn.ReLU())
    net.qconfig = torch.ao.quantization.get_default_qat_qconfig("fbgemm")
    return torch.ao.quantization.prepare_qat(net)


def locked():
    module = nn.Sequential(nn.BatchNorm1d(4), nn.Dropout(0.5), loralib.Linear(4, 3, r=2))
    module.held = threading.Lock()
    return module


MODULES = {
    "state of every kind": Counting,
    "merging": lambda: nn.Sequential(loralib.Linear(4, 3, r=2)),
    "pruned": lambda: nn.Sequential(prune.l1_unstructured(nn.Linear(4, 3), "weight", amount=0.5)),
    "observers": quantised,
    "old weight norm": lambda: nn.utils.weight_norm(nn.Linear(4, 3)),
    "wrapped": lambda: nn.Sequential(torch.compile(nn.Linear(4, 3), backend="eager")),
    "spectral norm": lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(4, 3)),
    "recurrent": lambda: nn.GRU(4, 3),
    "scripted": lambda: nn.Sequential(torch.jit.script(nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3)))),
    "parallel": lambda: data_parallel(nn.Sequential(nn.BatchNorm1d(4))),
    "cannot be copied": locked,
    "its own copy": lambda: type("Own", (nn.Sequential,), {"__deepcopy__": lambda one, _: one})(nn.BatchNorm1d(4)),
}


def state(module):
    own = {name: str(one) for part in module.modules() for name, one in vars(part).items() if name != "held"}
    gradients = [None if one.grad is None else one.grad.tolist() for one in module.parameters()]
    return own, [part.training for part in module.modules()], gradients


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", list(MODULES))
def test_a_look_changes_nothing_and_gives_what_the_network_gives_in_eval_mode(name):
    torch.manual_seed(0)
    module = MODULES[name]()
    torch.manual_seed(0)
    twin = MODULES[name]()
    before, values = state(module), {name: one.clone() for name, one in module.state_dict().items()}
    for _ in range(2):
        with evaluation_copy(module) as network:
            assert not network.training
            output = network(X.clone())
        assert state(module) == before
        torch.testing.assert_close(dict(module.state_dict()), values, rtol=0, atol=0)
    with torch.no_grad():
        torch.testing.assert_close(output, twin.eval()(X.clone()))
    assert module.training


def test_given_values_reach_all_names_and_views_of_a_weight():
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    module[1].weight = nn.Parameter(module[0].weight.data, requires_grad=False)
    module.view = module[0].weight.detach()[1:]
    with evaluation_copy(module.forward, {"0.weight": torch.ones(4, 4)}) as forward:
        copied = forward.__self__
        assert torch.equal(copied[1].weight, torch.ones(4, 4))
        copied[0].weight.data.zero_()
        assert not copied.view.any()
    assert not torch.equal(module[1].weight, torch.ones(4, 4))
    assert module.view.any()
    scripted = torch.jit.script(nn.Linear(4, 4))
    with evaluation_copy(scripted, {"weight": torch.zeros(4, 4), "bias": torch.zeros(4)}) as network:
        assert not network(X).any()
    with evaluation_copy(print) as function:
        assert function is print


def test_large_frozen_parameters_and_what_belongs_to_training_are_shared(monkeypatch):
    module = nn.Linear(4, 3).requires_grad_(False)
    module.data, module.weight.tag = {"train": [TensorDataset(X)]}, 1
    assert copy_of(module).weight.data_ptr() != module.weight.data_ptr()
    monkeypatch.setattr(replica, "_MOST_COPIED", 0)
    copied = copy_of(module)
    assert copied.weight.data_ptr() == module.weight.data_ptr()
    assert (copied.weight.tag, copied.data["train"][0]) == (1, module.data["train"][0])
    merging = loralib.Linear(4, 3, r=2)
    assert copy_of(merging).weight.data_ptr() != merging.weight.data_ptr()
