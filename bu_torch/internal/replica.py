"""Copies of a network to look at, so that the user's own is neither run nor changed."""

import threading
import types
import weakref
from collections import Counter, OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import singledispatch
from io import IOBase
from itertools import filterfalse
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils.data import DataLoader, Dataset, Sampler

from bu_torch.internal.random_state import preserved_random_state
from bu_torch.internal.shards import evaluated_in_place, has_shards, replaced_in_place

_ATOMIC = frozenset((type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size))
# Objects of the process or of the whole training: a copy refers to the same ones.
_WORLD = (Dataset, DataLoader, Sampler, torch.optim.Optimizer, types.ModuleType, threading.Thread, IOBase)
_WORLD_PACKAGES = ("lightning.", "pytorch_lightning.", "torch._dynamo.", "torch.distributed.", "bu_torch.")
_MOST_SPARE = 2  # bytes of a storage that several parameters share, for each byte of theirs


class CopyError(RuntimeError):
    """A network cannot be copied, or a look at its copy has changed the network itself."""


class Replica:
    """A copy of a network in eval mode, whose weights, buffers and attributes are its own.

    Frozen parameters are shared, for most of a network that is fine-tuned should not be held twice; but those below a
    module with a `train` of its own, which may merge weights, and of embeddings with `max_norm` are copied. Containers,
    arrays, generators, hooks, closures and plain objects are copied to any depth; datasets, loaders, optimisers, files
    and what belongs to a trainer are the same objects. Compiled modules and wrappers for several processes are copied
    as the networks within, under the names that weights have there.

    Args:
        network: The network, without lazy layers and without shards.
        values: Values of parameters and buffers by name that replace the network's own.

    Raises:
        CopyError: If a module cannot be copied; the message names it.
    """

    def __init__(self, network: nn.Module, values: Mapping[str, Tensor] | None = None) -> None:
        shared = _shareable(network, values or ())
        self._versions = {name: (one, one._version) for name, one in shared.items() if not one.is_inference()}
        self.network: nn.Module = copy_of(network, values).eval()

    def check_shared(self) -> None:
        """Raise a `CopyError` if a parameter that the network shares with this copy was changed in place."""
        for name, (parameter, version) in self._versions.items():
            if parameter._version != version:
                raise CopyError(
                    f"A look at a copy of the network has changed its frozen parameter `{name}`, which is not copied:"
                    " `forward` and `eval` must not write to it. Register it as a buffer, or let it require a gradient."
                )


@singledispatch
def settle(module: nn.Module) -> None:
    """Prepare a module that was copied; the callbacks register what a module of Lightning's needs."""


def copy_of(value: Any, values: Mapping[str, Tensor] | None = None, *, shares: bool = True) -> Any:
    """Copy an object by the rules of `Replica`, in the modes that it has; itself if it cannot be copied.

    With `shares=False` it shares no frozen parameters either.
    """
    network = value if isinstance(value, nn.Module) else nn.Module()
    replaced = {n: one for n, one in _named(network) if values and n in values and one.shape == values[n].shape}
    with torch.no_grad(), torch.inference_mode(False):
        shared = _shareable(network, replaced).values() if shares else ()
        copying = _Copying(network, shared, {id(one) for one in replaced.values()})
        made = copying.root(value)
        if values and replaced:
            own = dict(_named(made))
            torch._foreach_copy_([own[name].data for name in replaced], [values[name] for name in replaced])
    return made


@contextmanager
def looking_at(
    model: Any,
    values: Mapping[str, Tensor] | None = None,
    *,
    is_sharded: bool = False,
) -> Iterator[Any]:
    """Give a copy of a model to look at, without gradient; random states are put back on leaving.

    A bound method of a module becomes that of the copy. A model that is no module is given as it is. A sharded network
    cannot be copied: its modes, its buffers and what `values` replaces are put back on leaving instead. (`is_sharded`
    says so if its parameters do not show it.) Arguments and errors are those of `Replica`.
    """
    owner = model.__self__ if isinstance(model, types.MethodType) else model
    with preserved_random_state(), torch.no_grad():
        if not isinstance(owner, nn.Module):
            yield model
        elif is_sharded or has_shards(owner):
            with replaced_in_place(owner, values or {}), evaluated_in_place(owner):
                yield model
        else:
            replica = Replica(owner, values)
            yield replica.network if owner is model else types.MethodType(model.__func__, replica.network)
            replica.check_shared()


def is_mostly_frozen(module: nn.Module) -> bool:
    """Return True if frozen parameters take more memory than all others, as in a network that is fine-tuned."""
    n_bytes = Counter[bool]()
    for parameter in filterfalse(is_lazy, module.parameters()):
        n_bytes[parameter.requires_grad] += parameter.nbytes
    return n_bytes[False] > n_bytes[True]


def has_lazy_layers(module: nn.Module) -> bool:
    """Return True if the first batch has yet to make some layers."""
    return any(map(is_lazy, (*module.parameters(), *module.buffers())))


class _Bare(nn.Module):
    """A network out of its wrapper, with the names that weights have in the wrapper."""

    def __init__(self, name: str, network: nn.Module) -> None:
        super().__init__()
        self._modules[name] = network

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        (network,) = self.children()
        return network(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            (network,) = self.children()
            return getattr(network, name)


class _Copying:
    """Copies objects as `copy.deepcopy` does; closures and methods too, but tensors and shared objects by the rules."""

    def __init__(self, network: nn.Module, shared: Iterable[Any], replaced: set[int]) -> None:
        self._replaced = replaced  # ids of tensors that get other values later
        self._copies: dict[int, Any] = {id(one): one for one in shared}
        self._originals: list[Any] = []  # kept alive, because the ids of freed objects are used again
        self._storages: dict[int, torch.UntypedStorage] = {}  # copies by the place of the original
        places = Counter[int]()
        for one in network.parameters():
            if _is_plain(one):
                places[_place(one)] += one.nbytes
        self._bytes_of_parameters = places

    def __call__(self, value: Any) -> Any:
        if type(value) in _ATOMIC or isinstance(value, type):
            return value
        known = self._copies.get(id(value), self)
        return self._copy(value) if known is self else known

    def root(self, value: Any) -> Any:
        """Copy an object that would be shared within another, such as a data module."""
        return self(value) if isinstance(value, nn.Module) else self._object(value)

    def _keep(self, value: Any, made: Any) -> Any:
        self._copies[id(value)] = made
        self._originals.append(value)
        return made

    def _copy(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return self._keep(value, self._tensor(value))
        if type(value) in (OrderedDict, dict, list, tuple, set):
            return self._container(value)
        if isinstance(value, types.MethodType):
            return types.MethodType(value.__func__, self(value.__self__))
        if isinstance(value, types.FunctionType):
            return self._function(value)
        if isinstance(value, weakref.ref):
            target = value()
            return value if target is None else weakref.ref(self(target))
        if isinstance(value, torch.Generator):
            return self._keep(value, value.clone_state())
        if isinstance(value, nn.Module) and (name := _wrapped(value)):
            return self._keep(value, _Bare(name, self(getattr(value, name))))
        if _belongs_to_the_world(value):
            return self._keep(value, value)
        return self._object(value)

    def _container(self, value: Any) -> Any:
        if type(value) in (tuple, set):
            return self._keep(value, type(value)(map(self, value)))
        made = self._keep(value, type(value)())
        if type(value) is list:
            made.extend(map(self, value))
        else:
            made.update((self(key), self(one)) for key, one in value.items())
        return made

    def _tensor(self, tensor: Any) -> Any:
        if is_lazy(tensor):
            return tensor.__deepcopy__({})
        values = self._values(tensor)
        if not isinstance(tensor, nn.Parameter):
            made = values.requires_grad_(tensor.requires_grad and tensor.is_leaf)
        elif type(tensor) is nn.Parameter or not issubclass(type(tensor), nn.Parameter):
            made = nn.Parameter(values, requires_grad=tensor.requires_grad)
        else:
            made = torch.Tensor._make_subclass(type(tensor), values, tensor.requires_grad)
        if tags := vars(tensor):
            vars(made).update(self(tags))
        return made

    def _values(self, tensor: Any) -> Any:
        detached = tensor.detach()
        if not (isinstance(tensor, nn.Parameter) and _is_plain(tensor)):
            return detached.clone()
        place, storage = _place(tensor), tensor.untyped_storage()
        n_bytes = self._bytes_of_parameters[place]
        if n_bytes == tensor.nbytes or storage.nbytes() > _MOST_SPARE * n_bytes:
            return torch.empty_like(detached) if id(tensor) in self._replaced else detached.clone()
        # Parameters in one storage stay together: tied ones by their place, and those of recurrent layers for cuDNN.
        if place not in self._storages:
            self._storages[place] = storage.clone()
        empty = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        return empty.set_(self._storages[place], tensor.storage_offset(), tensor.shape, tensor.stride())

    def _function(self, function: Any) -> Any:
        if (original := getattr(function, "_torchdynamo_orig_callable", None)) is not None:
            return self._keep(function, self(original))
        if not (cells := function.__closure__):
            return function
        own = tuple(types.CellType() for _ in cells)
        made = types.FunctionType(
            function.__code__, function.__globals__, function.__name__, function.__defaults__, own
        )
        made.__kwdefaults__ = function.__kwdefaults__
        vars(made).update(vars(function))
        self._keep(function, made)
        for cell, copied in zip(cells, own, strict=True):
            try:
                contents = cell.cell_contents
            except ValueError:  # a variable that has no value yet
                continue
            copied.cell_contents = self(contents)
        return made

    def _object(self, value: Any) -> Any:
        """Copy an object in its own way to be pickled; share a plain object that has none."""
        try:
            if isinstance(value, nn.Module):
                return self._module(value)
            if hasattr(type(value), "__deepcopy__"):
                return self._keep(value, value.__deepcopy__(self._copies))
            how = value.__reduce_ex__(4)
            return self._keep(value, value) if isinstance(how, str) else self._rebuilt(value, *how)
        except CopyError:
            raise
        except Exception as error:  # the user's classes may raise anything
            if not isinstance(value, nn.Module):  # a lock, a socket, a generator
                return self._keep(value, value)
            raise CopyError(
                f"{type(value).__name__} cannot be copied, so boundary uncertainty cannot look at it:"
                f" {type(error).__name__}: {error}"
            ) from error

    def _module(self, module: Any) -> Any:
        kind = type(module)
        if isinstance(module, torch.jit.ScriptModule):
            return self._keep(module, module.__deepcopy__({}))
        if nn.utils.parametrize.is_parametrized(module) or not hasattr(kind, "__deepcopy__"):
            is_plain = kind.__setstate__ is nn.Module.__setstate__  # others may leave out what refers to themselves
            state = vars(module) if is_plain else module.__getstate__()
            state = {name: one for name, one in state.items() if name != "_compiled_call_impl"}
            made = self._rebuilt(module, kind.__new__, (kind,), state)
        else:
            made = self._keep(module, module.__deepcopy__(self._copies))
        settle(made)
        return made

    def _rebuilt(
        self, value: Any, make: Any, args: Any, state: Any = None, items: Any = None, pairs: Any = None, *_: Any
    ) -> Any:
        made = self._keep(value, make(*map(self, args)))
        if state is not None:
            state = self(state)
            if hasattr(made, "__setstate__"):
                made.__setstate__(state)
            else:
                own, slots = state if isinstance(state, tuple) and len(state) == 2 else (state, {})
                vars(made).update(own or {}) if hasattr(made, "__dict__") else None
                for name, one in (slots or {}).items():
                    setattr(made, name, one)
        for item in items or ():
            made.append(self(item))
        for key, one in pairs or ():
            made[self(key)] = self(one)
        return made


def _shareable(network: nn.Module, replaced: Collection[str]) -> dict[str, Any]:
    """Frozen parameters by name that no look changes, and that share no memory with those trained or `replaced`."""
    own: set[int] = set()
    for part in network.modules():
        is_merging = "train" in vars(part) or not getattr(type(part).train, "__module__", "").startswith("torch.")
        is_renorming = isinstance(part, nn.Embedding | nn.EmbeddingBag) and part.max_norm is not None
        if is_merging or is_renorming:
            own.update(map(id, part.parameters(recurse=is_merging)))
    trained = {_place(one) for one in network.parameters() if one.requires_grad}
    named = [(name, one) for name, one in network.named_parameters() if not one.requires_grad]
    return {
        name: one
        for name, one in named
        if not (name in replaced or id(one) in own or is_lazy(one) or _place(one) in trained)
    }


def _named(network: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from network.named_parameters(remove_duplicate=False)
    yield from network.named_buffers(remove_duplicate=False)


def _is_plain(tensor: Any) -> bool:
    """Return True if a tensor has a place in memory that others may share."""
    is_made = not (is_lazy(tensor) or tensor.is_meta) and tensor.numel() > 0
    return is_made and tensor.layout == torch.strided and type(tensor.data) is Tensor


def _place(tensor: Any) -> int:
    """Storage of a tensor, which others may share; its own number if it has none."""
    return tensor.untyped_storage()._cdata if _is_plain(tensor) else id(tensor)


def _wrapped(module: nn.Module) -> str:
    """Name of the network in a wrapper that compiles it or shares it out; "" for other modules."""
    if type(module).__name__ == "OptimizedModule":
        return "_orig_mod"
    return "module" if isinstance(module, nn.DataParallel | nn.parallel.DistributedDataParallel) else ""


def _belongs_to_the_world(value: Any) -> bool:
    if isinstance(value, _WORLD):
        return True
    if isinstance(value, nn.Module | dict):
        return False
    bases = (f"{one.__module__}." for one in type(value).__mro__)
    is_of_training = any(one.startswith(_WORLD_PACKAGES) and ".callbacks." not in one for one in bases)
    return is_of_training or hasattr(type(value), "__del__")  # it would close what both hold
