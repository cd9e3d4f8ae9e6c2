"""Deep copies of objects of any kind, so that a check can run a copy; what belongs to the whole training is shared."""

import copy
import functools
import threading
import types
import weakref
from collections import Counter, OrderedDict
from collections.abc import Iterable
from functools import singledispatch
from io import BytesIO, IOBase, StringIO
from mmap import mmap
from multiprocessing.shared_memory import SharedMemory
from multiprocessing.sharedctypes import SynchronizedBase
from multiprocessing.synchronize import SemLock
from queue import Queue, SimpleQueue
from sqlite3 import Connection
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils.data import DataLoader, Dataset, Sampler
from torch.utils.data.dataloader import _BaseDataLoaderIter

_ATOMIC = frozenset((type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size))
# Objects of the process or of the whole training: a copy refers to the same ones.
_SHARED = (Dataset, DataLoader, Sampler, torch.optim.Optimizer, types.ModuleType, threading.Thread, IOBase)
_SHARED_PACKAGES = ("lightning.", "pytorch_lightning.", "torch._dynamo.", "torch.distributed.", "bu_torch.")
# Objects that refer to others in a way of their own.
_WEAK = (weakref.ref, weakref.WeakSet, weakref.WeakKeyDictionary, weakref.WeakValueDictionary)
_CACHED = type(functools.lru_cache(lambda: None))
_REFERRING = (types.MethodType, types.FunctionType, *_WEAK, _CACHED)
_CODE = (type, types.FunctionType, types.BuiltinFunctionType)
_MOST_SPARE = 2  # bytes of a storage that several parameters share, for each byte of theirs


# Objects that cannot be copied, and that `forward` may move: those of training would be moved.
_MOVING = (
    *(types.GeneratorType, threading.local, SynchronizedBase, SimpleQueue, Connection, SharedMemory, SemLock, mmap),
    _BaseDataLoaderIter,
)


class CopyError(RuntimeError):
    """A network cannot be copied, or a look at its copy has changed the network itself."""


class _MovingError(Exception):
    """An object cannot be copied, and must not be shared."""

    def __init__(self, value: Any) -> None:
        self.value = value


@singledispatch
def prepare_copy(module: nn.Module) -> None:
    """Prepare a module that was copied; the callbacks register what a module of Lightning's needs."""


class _Unwrapped(nn.Module):
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


class Copying:
    """Copies objects as `copy.deepcopy` does, closures and methods too; tensors and shared objects have other rules."""

    def __init__(self, network: nn.Module, shared: Iterable[Any], replaced: set[int]) -> None:
        self._replaced = replaced  # ids of tensors that get other values later
        self._copies: dict[int, Any] = {id(one): _sharing(one) for one in shared}
        self._originals: list[Any] = []  # kept alive, because the ids of freed objects are used again
        self.held_weakly: list[Any] = []  # copies that only weak references lead to
        self._storages: dict[int, torch.UntypedStorage] = {}  # copies by the place of the original
        places = Counter[int]()
        self._parameters: dict[int, Any] = {}  # one in each storage
        for one in network.parameters():
            if _is_plain(one):
                places[place_of_storage(one)] += one.nbytes
                self._parameters.setdefault(place_of_storage(one), one)
        self._bytes_of_parameters = places

    def __call__(self, value: Any) -> Any:
        if type(value) in _ATOMIC or isinstance(value, type):
            return value
        known = self._copies.get(id(value), self)
        return self._copy(value) if known is self else known

    def copy_root(self, value: Any) -> Any:
        """Copy an object that would be shared within another, such as a data module."""
        return self(value) if isinstance(value, nn.Module) else self._object(value)

    def _keep(self, value: Any, made: Any) -> Any:
        self._copies[id(value)] = made
        self._originals.append(value)
        return made

    def _copy(self, value: Any) -> Any:
        if type(value) in weakref.ProxyTypes:  # `isinstance` below sees the target
            return self._keep(value, weakref.proxy(self._held(value.__reduce_ex__.__self__)))
        if isinstance(value, Tensor):
            return self._keep(value, self._tensor(value))
        if type(value) in (OrderedDict, dict, list, tuple, set):
            return self._container(value)
        if isinstance(value, _REFERRING):
            return self._reference(value)
        if isinstance(value, nn.Module) and (name := _wrapped(value)):
            return self._keep(value, _Unwrapped(name, self(getattr(value, name))))
        if isinstance(value, BytesIO | StringIO):
            return self._keep(value, copy.copy(value))
        if _is_shared(value):
            return self._keep(value, value)
        return self._object(value)

    def _reference(self, value: Any) -> Any:
        if isinstance(value, types.MethodType):
            function, owner = value.__func__, value.__self__
            is_own = not isinstance(function, types.FunctionType) or _defines(type(owner), function)
            return types.MethodType(function if is_own else self(function), self(owner))
        if isinstance(value, types.FunctionType):
            return self._function(value)
        if isinstance(value, _CACHED):
            return self._keep(value, functools.lru_cache(**value.cache_parameters())(self(value.__wrapped__)))
        return self._keep(value, self._weak(value))

    def _held(self, value: Any) -> Any:
        """Copy the target of a weak reference, and hold the copy, because nothing else may."""
        self.held_weakly.append(self(value))
        return self.held_weakly[-1]

    def _weak(self, value: Any) -> Any:
        if isinstance(value, weakref.ref):
            target = value()
            return value if target is None else type(value)(self._held(target))
        if isinstance(value, weakref.WeakSet):
            return weakref.WeakSet(map(self._held, value))
        return type(value)({self._held(key): self._held(one) for key, one in value.items()})

    def _queue(self, value: Any) -> Any:
        """Copy a queue without a bound and a wait, because a thread, such as that of a logger, empties the original."""
        made: Any = object.__new__(type(value))
        Queue.__init__(made)
        with value.mutex:
            waiting = list(value.queue)
        self._keep(value, made).queue.extend(map(self, waiting))
        vars(made).update({name: self(one) for name, one in vars(value).items() if name not in vars(made)})
        made.join = _return
        return made

    def _container(self, value: Any) -> Any:
        if type(value) in (tuple, set):
            return self._keep(value, type(value)(map(self, value)))
        made = self._keep(value, type(value)())
        if not value:  # as most of a module's are
            return made
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
            return self._view_of_parameter(detached)
        place, storage = place_of_storage(tensor), tensor.untyped_storage()
        n_bytes = self._bytes_of_parameters[place]
        if n_bytes == tensor.nbytes or storage.nbytes() > _MOST_SPARE * n_bytes:
            return torch.empty_like(detached) if id(tensor) in self._replaced else detached.clone()
        # Parameters that share a storage still do in the copy: tied ones must, and recurrent layers need it for cuDNN.
        if place not in self._storages:
            self._storages[place] = storage.clone()
        empty = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        return empty.set_(self._storages[place], tensor.storage_offset(), tensor.shape, tensor.stride())

    def _view_of_parameter(self, tensor: Any) -> Any:
        """Copy of a tensor that is no parameter; a view of one becomes the same view of its copy."""
        parameter = self._parameters.get(place_of_storage(tensor)) if _is_plain(tensor) else None
        if parameter is None or parameter.dtype != tensor.dtype:
            return tensor.clone()
        copied = self(parameter).detach()
        before = tensor.storage_offset() - parameter.storage_offset() + copied.storage_offset()
        is_own = place_of_storage(copied) != place_of_storage(parameter)
        if not is_own or before < 0 or copied.stride() != parameter.stride():
            return tensor.clone()
        try:
            return copied.as_strided(tensor.shape, tensor.stride(), before)
        except RuntimeError:  # it reaches beyond the parameter
            return tensor.clone()

    def _function(self, function: Any) -> Any:
        if (original := getattr(function, "_torchdynamo_orig_callable", None)) is not None:
            return self._keep(function, self(original))
        cells, defaults = function.__closure__ or (), function.__defaults__ or ()
        beside = [*defaults, *(function.__kwdefaults__ or {}).values(), *vars(function).values()]
        if not cells and all(type(one) in _ATOMIC or isinstance(one, _CODE) for one in beside):
            return function
        own = tuple(types.CellType() for _ in cells)
        code, name = function.__code__, function.__name__
        made = self._keep(function, types.FunctionType(code, function.__globals__, name, None, own or None))
        made.__defaults__, made.__kwdefaults__ = self(defaults) or None, self(function.__kwdefaults__)
        vars(made).update(self(vars(function)))
        for cell, copied in zip(cells, own, strict=True):
            try:
                contents = cell.cell_contents
            except ValueError:  # a variable that has no value yet
                continue
            copied.cell_contents = self(contents)
        return made

    def _object(self, value: Any) -> Any:
        """Copy an object as it would be pickled; share one that cannot be, unless it is a module."""
        try:
            if isinstance(value, nn.Module):
                return self._module(value)
            if isinstance(value, Queue):
                return self._queue(value)
            if hasattr(type(value), "__deepcopy__"):
                return self._keep(value, value.__deepcopy__(self._copies))
            how = value.__reduce_ex__(4)
            return self._keep(value, value) if isinstance(how, str) else self._rebuilt(value, *how)
        except (CopyError, _MovingError):
            raise
        except Exception as error:  # the user's classes may raise anything
            if isinstance(value, _MOVING):
                raise _MovingError(value) from error
            if not isinstance(value, nn.Module):  # a lock, a socket
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
            is_plain = kind.__setstate__ is nn.Module.__setstate__  # others may omit references to themselves
            state = vars(module) if is_plain else module.__getstate__()
            state = {name: one for name, one in state.items() if name != "_compiled_call_impl"}
            try:
                made = self._rebuilt(module, kind.__new__, (kind,), state)
            except _MovingError as error:
                name = next((f"`{name}`" for name, one in state.items() if one is error.value), "within an attribute")
                raise CopyError(
                    f"{kind.__name__} holds an object of {type(error.value).__name__}, {name}, which cannot be copied:"
                    " boundary uncertainty runs a copy of the network, and what it changes must not be changed in"
                    " training. Keep the values in a buffer, a list or a number, or the object outside of the module."
                ) from error
        else:
            made = self._keep(module, module.__deepcopy__(self._copies))
        if made is module:
            raise TypeError("its `__deepcopy__` gives the module itself")
        prepare_copy(made)
        return made

    def _rebuilt(
        self, value: Any, make: Any, args: Any, state: Any = None, items: Any = None, pairs: Any = None, *_: Any
    ) -> Any:
        made = self._keep(value, make(*map(self, args)))
        if made is value:  # there can be only one
            return made
        if state is not None:
            state = self(state)
            if hasattr(type(made), "__setstate__"):
                made.__setstate__(state)
            else:
                own, slots = state if isinstance(state, tuple) and len(state) == 2 else (state, {})
                vars(made).update(own or {}) if hasattr(made, "__dict__") else None
                for name, one in (slots or {}).items():
                    setattr(made, name, one)
        if hasattr(type(made), "__del__"):  # it may close what both hold
            made.__class__ = type(type(made).__name__, (type(made),), {"__del__": lambda _: None})
        for item in items or ():
            made.append(self(item))
        for key, one in pairs or ():
            made[self(key)] = self(one)
        if getattr(value, "__dict__", None) is value:  # a dict whose entries are its attributes
            made.__dict__ = made
        return made


def _defines(kind: type, function: Any) -> bool:
    """Return True if a function is a method of a class, not of one object."""
    return any(vars(base).get(function.__name__) is function for base in kind.__mro__)


def _return() -> None:
    pass


def _is_plain(tensor: Any) -> bool:
    """Return True if a tensor has a place in memory that others may share."""
    is_made = not (is_lazy(tensor) or tensor.is_meta) and tensor.numel() > 0
    return is_made and tensor.layout == torch.strided and type(tensor.data) is Tensor


def place_of_storage(tensor: Any) -> int:
    """Storage of a tensor, which others may share; its own number if it has none."""
    return tensor.untyped_storage()._cdata if _is_plain(tensor) else id(tensor)


def _sharing(parameter: Any) -> Any:
    """Another parameter in the same memory, so that the original keeps its `data` if the copy gets a new one."""
    is_usual = type(parameter) is nn.Parameter and _is_plain(parameter)
    return nn.Parameter(parameter.detach(), requires_grad=False) if is_usual else parameter


def _wrapped(module: nn.Module) -> str:
    """Name of the network in a wrapper that compiles or distributes it; "" for other modules."""
    if type(module).__name__ == "OptimizedModule":
        return "_orig_mod"
    return "module" if isinstance(module, nn.DataParallel | nn.parallel.DistributedDataParallel) else ""


def _is_shared(value: Any) -> bool:
    if isinstance(value, _SHARED):
        return True
    if isinstance(value, nn.Module | dict):
        return False
    bases = (f"{one.__module__}." for one in type(value).__mro__)
    others = (".callbacks.", ".mixins.")  # users derive classes with a state of their own from these
    return any(one.startswith(_SHARED_PACKAGES) and not any(part in one for part in others) for one in bases)
