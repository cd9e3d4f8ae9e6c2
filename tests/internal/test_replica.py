"""Copies of networks: equal to the network, and nothing that is done to them reaches it."""

import collections
import functools
import io
import itertools
import multiprocessing
import random
import sqlite3
import threading
import types
import weakref
from mmap import mmap
from multiprocessing import Semaphore
from queue import Queue, SimpleQueue

import numpy as np
import pytest
import torch
from problems import data_parallel
from torch import nn
from torch.nn.utils import prune
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics import CatMetric, MeanMetric

from bu_torch.internal import replica
from bu_torch.internal.copying import CopyError
from bu_torch.internal.replica import copy_of, evaluation_copy

X = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))


def state(value, seen=None):
    """All that an object holds, as plain data, by a walk that shares nothing with the copying."""
    seen = set() if seen is None else seen
    if isinstance(value, torch.Tensor):
        return value.detach().tolist()
    if isinstance(value, torch.Generator):
        return value.get_state().tolist()
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, random.Random):
        return value.getstate()
    if isinstance(value, np.random.Generator):
        return str(value.bit_generator.state)
    if isinstance(value, weakref.ref | type | types.FunctionType | types.BuiltinFunctionType) or id(value) in seen:
        return "known"
    seen.add(id(value))
    if isinstance(value, dict | collections.UserDict):
        return [(str(key), state(one, seen)) for key, one in value.items()]
    if isinstance(value, list | tuple | set | collections.deque):
        return [state(one, seen) for one in value]
    if hasattr(value, "__dict__"):
        return [(name, state(one, seen)) for name, one in vars(value).items() if name != "_is_full_backward_hook"]
    return repr(value)


class Counting(nn.Module):
    """Writes to everything that it holds, of every kind and at some depth."""

    def __init__(self):
        super().__init__()
        self.layer, self.seen = nn.Linear(4, 3), 0
        self.counter, self.by_size = collections.Counter(), collections.defaultdict(list)
        self.user, self.queue = collections.UserDict(n=0), collections.deque([0], maxlen=3)
        self.nested = {"a": [{"b": [0]}], "c": (1, [0])}
        self.array, self.tensor = np.zeros(2), torch.zeros(2)
        self.random, self.numpy = random.Random(0), np.random.default_rng(0)
        self.torch = torch.Generator().manual_seed(0)
        self.stats = types.SimpleNamespace(n=0)
        self.part = functools.partial(self.note, 1)
        self.add = self.queue.append
        self.numbers = itertools.count()
        self.register_buffer("total", torch.zeros(()))
        self.activations = []
        self.layer.register_forward_hook(lambda module, args, output: self.activations.append(output))
        self.layer.register_forward_pre_hook(self.look)
        self.lock = threading.Lock()
        self.parent = weakref.ref(self)

    def look(self, module, args):
        self.seen += 1

    def note(self, n):
        self.stats.n += n

    def forward(self, x):
        self.counter["calls"] += 1
        self.by_size[len(x)].append(1)
        self.user["n"] += 1
        self.add(1)
        self.nested["a"][0]["b"].append(1)
        self.nested["c"][1].append(2)
        self.array += 1
        self.tensor += 1
        self.total += 1
        self.part()
        self.parent().stats.n += next(self.numbers)
        noise = self.random.random() + self.numpy.random() + torch.rand(1, generator=self.torch)
        with self.lock:
            return self.layer(x) + 1e-3 * noise


class Nested(nn.Module):
    """Holds metrics, and a module that is no child."""

    def __init__(self):
        super().__init__()
        self.mean, self.all, self.hidden = MeanMetric(), CatMetric(), [nn.Linear(4, 3)]

    def forward(self, x):
        self.mean.update(x)
        self.all.update(x[:, 0])
        self.hidden[0].weight.data += 1
        return self.hidden[0](x)


class Kept(nn.Module):
    """Holds a value with a history."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3, 4))
        self.double = self.weight * 2

    def forward(self, x):
        return x @ self.double.T


class Normalising(nn.Linear):
    def forward(self, x):
        self.weight.data = nn.functional.normalize(self.weight.data)
        self.bias.data.mul_(0.5)
        return super().forward(x)


class Referring(nn.Module):
    """Leads to its parts and its state in every indirect way."""

    def __init__(self):
        super().__init__()
        self.layer, self.n, self.config = nn.Linear(4, 3), 0, Attributes(scale=2.0)
        self.proxy, self.method = [weakref.proxy(self)], weakref.WeakMethod(self.note)
        self.by_part = weakref.WeakKeyDictionary({self.layer: 1.0})
        self.parts = weakref.WeakValueDictionary(layer=self.layer)
        self.cached, self.passed = functools.lru_cache(self.note), Passing(self.layer)
        store = []

        def hook(module, args, output, seen=store, *, more=store):
            seen.append(1)
            hook.calls.append(1)
            return output * (1 + len(more) + len(hook.calls))

        hook.calls = []
        self.layer.register_forward_hook(hook)

    def note(self, n=1):
        self.n += n
        return 1.0

    def forward(self, x):
        scale = self.config.scale * self.proxy[0].note() * self.method()() * self.by_part[self.layer]
        return (self.parts["layer"](x) + self.passed(x)) * scale * self.cached(2)


class Attributes(dict):
    """A dict whose entries are its attributes."""

    def __init__(self, **entries):
        super().__init__(entries)
        self.__dict__ = self


class Passing:
    """Hands everything on to a module."""

    def __init__(self, module):
        self._module = module

    def __getattr__(self, name):
        return getattr(self._module, name)

    def __call__(self, x):
        return self._module(x)


class Fusing(nn.Module):
    """Has another part in eval mode."""

    def __init__(self):
        super().__init__()
        self.one, self.other, self.fused = nn.Linear(4, 3), nn.Linear(4, 3), None

    def train(self, mode=True):
        super().train(mode)
        self.fused = None
        if not mode:
            self.fused = nn.Linear(4, 3)
            with torch.no_grad():
                self.fused.weight.copy_(self.one.weight + self.other.weight)
                self.fused.bias.copy_(self.one.bias + self.other.bias)
        return self

    def forward(self, x):
        return self.one(x) + self.other(x) if self.fused is None else self.fused(x)


class Closing(nn.Linear):
    """Closes what it holds at its end."""

    def __init__(self):
        super().__init__(4, 3)
        self.is_open = [True]

    def __del__(self):
        self.is_open[0] = False


class Momentum(nn.Linear):
    """Moves a frozen twin by its data, as momentum contrast does."""

    def __init__(self):
        super().__init__(4, 3)
        self.twin = nn.Linear(4, 3).requires_grad_(False)

    def forward(self, x):
        for one, other in zip(self.twin.parameters(), (self.weight, self.bias), strict=True):
            one.data = one.data * 0.9 + other.data * 0.1
            one.data += 1
        return self.twin(x)


class Learning(nn.Module):
    """Takes a gradient within `forward`, by way of its own weights."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        with torch.enable_grad():
            self.layer(x).square().sum().backward()
        return self.layer(x) + self.layer.weight.grad.sum()


def tied():
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    net[1].weight = net[0].weight
    return net


def pruned():
    net = nn.Sequential(nn.Linear(4, 3))
    prune.l1_unstructured(net[0], "weight", amount=0.5)
    return net


def quantised():
    net = nn.Sequential(nn.Linear(4, 3), nn.ReLU())
    net.qconfig = torch.ao.quantization.get_default_qat_qconfig("fbgemm")
    return torch.ao.quantization.prepare_qat(net)


class Sequence(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        output = self.layer(x.unsqueeze(1))
        return (output[0] if isinstance(output, tuple) else output)[:, 0]


class Patched(nn.Sequential):
    """A method of one object, a layer among defaults, and the one object of a class."""

    class Single:
        one = None

        def __new__(cls):
            cls.one = cls.one or super().__new__(cls)
            return cls.one

    def __init__(self):
        super().__init__(nn.BatchNorm1d(4), nn.Linear(4, 3))
        before, self.single = self[0].forward, self.Single()
        self.single.seen = []
        self[0].forward = types.MethodType(lambda _, x: before(x), self[0])
        self.head = lambda x, layer=self[1]: layer(x)

    def forward(self, x):
        return self.head(self[0](x))


MODULES = {
    "patched": Patched,
    "attributes of every kind": Counting,
    "metrics and hidden parts": Nested,
    "a value with a history": Kept,
    "weights that forward replaces": lambda: Normalising(4, 3),
    "indirect references": Referring,
    "another part in eval mode": Fusing,
    "a module that closes": Closing,
    "a twin that is moved by its data": Momentum,
    "a gradient within": Learning,
    "tied": tied,
    "pruned": pruned,
    "observers": quantised,
    "weight norm": lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)),
    "old weight norm": lambda: nn.utils.weight_norm(nn.Linear(4, 3)),
    "spectral norm": lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(4, 3)),
    "orthogonal": lambda: nn.utils.parametrizations.orthogonal(nn.Linear(4, 3)),
    "transformer": lambda: Sequence(nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)),
    "recurrent": lambda: Sequence(nn.GRU(4, 3, batch_first=True)),
    "batch norm": lambda: nn.Sequential(nn.BatchNorm1d(4), nn.Dropout(0.5)),
    "scripted": lambda: nn.Sequential(torch.jit.script(nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3)))),
    "parallel": lambda: data_parallel(nn.Sequential(nn.BatchNorm1d(4))),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", list(MODULES))
def test_a_look_changes_nothing_and_gives_what_the_network_gives_in_eval_mode(name):
    torch.manual_seed(0)
    module, twin = MODULES[name](), None
    torch.manual_seed(0)
    twin = MODULES[name]()
    before = state(module)
    for _ in range(2):
        with evaluation_copy(module) as network:
            assert not network.training
            output = network(X.clone())
            assert set(network.state_dict()) >= set(module.state_dict())
        assert state(module) == before
    with torch.no_grad():
        torch.testing.assert_close(output, twin.eval()(X.clone()), rtol=0, atol=0)
    assert module.training


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Python 3.12 for a copy of `itertools.count`
def test_bound_methods_are_those_of_the_copy_and_functions_stay():
    module = Counting()
    before = state(module)
    with evaluation_copy(module.forward) as forward:
        forward(X)
        assert forward.__self__ is not module
    assert state(module) == before
    with evaluation_copy(print) as function:
        assert function is print


def test_many_frozen_parameters_are_shared_and_a_change_of_one_is_refused_by_name(monkeypatch):
    class Writing(nn.Module):
        def __init__(self, frozen):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(4), requires_grad=not frozen)

        def forward(self, x):
            self.scale += 1
            return x * self.scale

    module = Writing(frozen=True)
    with evaluation_copy(module) as network:  # few are copied
        network(X)
    assert module.scale.tolist() == [1] * 4
    monkeypatch.setattr(replica, "_MOST_COPIED", 0)
    assert copy_of(module).scale.data_ptr() == module.scale.data_ptr()
    with pytest.raises(CopyError, match="frozen parameter `scale`"), evaluation_copy(module) as network:
        network(X)
    module = Writing(frozen=False)
    with evaluation_copy(module) as network:
        network(X)
    assert module.scale.tolist() == [1] * 4


def test_a_frozen_parameter_in_the_memory_of_a_trained_one_is_copied_with_it():
    net = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    net[1].weight = nn.Parameter(net[0].weight.data, requires_grad=False)
    copied = copy_of(net, {"0.weight": torch.zeros(4, 4)})
    assert not copied[1].weight.any()
    assert net[1].weight.any()


def counting():
    yield from range(10**6)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (counting, "generator, `held`"),
        (threading.local, "_local, `held`"),
        (lambda: multiprocessing.Value("i", 3), "Synchronized, `held`"),
        (lambda: [counting()], "generator, within an attribute"),
        (SimpleQueue, "SimpleQueue, `held`"),
        (lambda: sqlite3.connect(":memory:"), "Connection, `held`"),
        (Semaphore, "Semaphore, `held`"),
        (lambda: mmap(-1, 8), "mmap, `held`"),
        (lambda: iter(DataLoader([1])), "_SingleProcessDataLoaderIter, `held`"),
    ],
)
def test_what_a_look_would_move_and_cannot_copy_is_refused_by_name(make, said):
    network = nn.Sequential(nn.Linear(4, 3))
    network[0].held = make()
    said = f"Linear holds an object of {said}.* outside of the module"
    with pytest.raises(CopyError, match=said), evaluation_copy(network):
        pass


class Aliased(nn.Module):
    """Uses its weight under other names."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 3)
        self.alias, self.row = self.first.weight.data, self.first.weight.detach()[1:]

    def forward(self, x):
        return nn.functional.linear(x, self.alias) + (x @ self.row.T).sum(dim=1, keepdim=True)


def test_a_tensor_that_is_a_view_of_a_weight_is_that_of_the_copy():
    network, other = Aliased(), torch.ones(3, 4)
    before = network.first.weight.detach().clone()
    with evaluation_copy(network, {"first.weight": other}) as copied:
        assert torch.equal(copied.alias, other)
        assert torch.equal(copied.row, other[1:])
        copied.first.weight.data.zero_()
        assert not copied.alias.any()
        assert torch.equal(network(X), network(X))
    assert torch.equal(network.alias, before)
    with evaluation_copy(network) as copied:
        assert torch.equal(copied(X), network(X))


def test_what_belongs_to_training_is_shared():
    module = nn.Linear(4, 3)
    module.data, module.optimizer = TensorDataset(X), torch.optim.SGD(module.parameters(), lr=0.1)
    copied = copy_of(module)
    assert copied.data is module.data
    assert copied.optimizer is module.optimizer


def test_parameters_keep_their_tags_and_kinds():
    class Special(nn.Parameter):
        pass

    module = nn.Linear(4, 3)
    module.weight.tag = [1]
    module.special = Special(torch.ones(2))
    copied = copy_of(module)
    assert copied.weight.tag == [1]
    assert copied.weight.tag is not module.weight.tag
    assert type(copied.special) is Special


def test_a_module_that_cannot_be_copied_is_refused_by_name():
    class Single(nn.Linear):
        def __setstate__(self, state):
            raise ValueError("there can be only one")

    with pytest.raises(CopyError, match=r"Single cannot be copied.*ValueError: there can be only one"):
        copy_of(nn.Sequential(Single(4, 3)))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_observers_of_quantisation_on_a_gpu():
    module = quantised().cuda()
    module(X.cuda())
    before = {name: value.clone() for name, value in module.state_dict().items()}
    with evaluation_copy(module) as network:
        network(100 * X.cuda())
    torch.testing.assert_close(module.state_dict(), before, rtol=0, atol=0)


def test_a_queue_that_a_thread_empties_is_copied_without_its_bound():
    module = nn.Linear(4, 3)
    module.logged = Queue(1)
    module.logged.put(1)
    with evaluation_copy(module) as network:
        network.logged.put(2)
        network.logged.join()
        assert network.logged.qsize() == 2
    assert module.logged.qsize() == 1


def test_a_stream_in_memory_is_copied():
    class Holding(nn.Linear):
        def __init__(self):
            super().__init__(4, 2)
            self.stream = io.BytesIO(bytes(range(10)))

    module = Holding()
    copied = copy_of(module)
    assert copied.stream.read(3) == bytes(range(3))
    assert module.stream.tell() == 0
