"""Copies of a network to read, so that the user's own is never run; what cannot be copied is read in place."""

import copy
import sys
import types
import weakref
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache, singledispatch
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils.data import DataLoader, Dataset, Sampler

from bu_torch.internal.global_state import preserved_random_state

_MOST_COPIED = 2**26  # bytes of frozen parameters
# Objects of the whole training: a copy refers to the same ones.
_SHARED = (Dataset, DataLoader, Sampler, torch.optim.Optimizer, types.ModuleType)
_SHARED_PACKAGES = ("lightning.", "pytorch_lightning.", "torch.distributed.", "bu_torch.")
_DEPTH = 3  # of containers in which shared objects are looked for
_OF_MODULES = frozenset(vars(nn.Module()))
_MODES = (nn.Module.train, nn.Module.eval)


@singledispatch
def prepare_copy(copied: nn.Module, module: nn.Module) -> None:
    """Prepare the copy of a module; the callbacks register what a module of Lightning's needs."""


def copy_of(value: Any, values: Mapping[str, Tensor] | None = None) -> Any:
    """Copy an object by the rules of `evaluation_copy`, in the modes that it has; raises what its copying raises."""
    parts: list[Any] = list(value.modules()) if isinstance(value, nn.Module) else [value]
    memo: dict[Any, Any] = {}
    with torch.no_grad(), torch.inference_mode(False):
        if isinstance(value, nn.Module):
            _copy_tensors(value, values or {}, memo)
        for part in parts:
            for name, one in getattr(part, "__dict__", {}).items():
                if name not in _OF_MODULES:
                    _share(one, memo, _DEPTH)
                elif type(one) is OrderedDict and not one:  # a module has many of hooks, which take most of the time
                    memo[id(one)] = OrderedDict()
        for part in reversed(parts):
            if name := _wrapped(part):  # the network alone is copied; it takes the wrapper's place
                memo[id(part)] = network = copy.deepcopy(getattr(part, name), memo)
                vars(network).setdefault(name, weakref.proxy(network))
        made = copy.deepcopy(value, memo)
    for part in parts:
        copied = memo.get(id(part))
        if isinstance(part, nn.Module) and isinstance(copied, type(part)):  # no network in the place of its wrapper
            prepare_copy(copied, part)
    return made


def is_plain(tensor: Any) -> bool:
    """Whether a tensor has a place in memory that others may share."""
    is_made = not (is_lazy(tensor) or tensor.is_meta or tensor.is_quantized or tensor.layout != torch.strided)
    return is_made and type(tensor.data) is Tensor


def _copy_tensors(network: nn.Module, values: Mapping[str, Tensor], memo: dict[Any, Any]) -> None:
    """Put copies of parameters and buffers into a memo, with these values by name; views of one stay views of its copy.

    Frozen parameters of more than 64 MiB share their memory, except those of modules that may write to theirs.
    """
    named = [(name, one) for name, one in every_tensor(network).items() if is_plain(one)]
    tensors = {id(one): one for _, one in named}
    replaced = {id(one): values[name] for name, one in named if name in values}
    frozen = {id(one) for one in network.parameters() if not one.requires_grad} & tensors.keys() - replaced.keys()
    for part in network.modules():
        if (type(part).train, type(part).eval) != _MODES or getattr(part, "max_norm", None) is not None:
            frozen -= {id(one) for one in part.parameters()}
    if sum(tensors[place].nbytes for place in frozen) <= _MOST_COPIED:
        frozen = set()
    storages = {place: one.untyped_storage() for place, one in tensors.items()}
    written = {storage._cdata for place, storage in storages.items() if place not in frozen}
    made = {one._cdata: one for one in storages.values() if one._cdata not in written}
    memo["torch"] = made  # where torch's own copies look
    for place, one in tensors.items():
        storage = storages[place]
        if storage._cdata not in made:
            is_whole = place in replaced and one.nbytes == storage.nbytes()
            size, device = storage.nbytes(), storage.device
            made[storage._cdata] = torch.UntypedStorage(size, device=device) if is_whole else storage.clone()
        copied = torch.empty(0, dtype=one.dtype, device=one.device)
        copied = copied.set_(made[storage._cdata], one.storage_offset(), one.shape, one.stride())
        memo[place] = torch.Tensor._make_subclass(type(one), copied, one.requires_grad and one.is_leaf)
        vars(memo[place]).update(vars(one))
    if replaced:
        torch._foreach_copy_([memo[place].data for place in replaced], list(replaced.values()))


def every_tensor(module: nn.Module) -> dict[str, Any]:
    """Parameters and buffers by all their names."""
    return dict((*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)))


def _share(value: Any, memo: dict[Any, Any], depth: int) -> None:
    """Put into a memo what a copy refers to as it is, and detached copies of tensors with a history."""
    kind: Any = type(value)
    if isinstance(value, dict | list | tuple | set):
        for one in (value.values() if isinstance(value, dict) else value) if depth else ():
            _share(one, memo, depth - 1)
    elif isinstance(value, Tensor):
        if not value.is_leaf:
            memo[id(value)] = copy.deepcopy(value.detach(), memo)
    elif _is_shared(kind):
        memo[id(value)] = value


@cache
def _is_shared(kind: Any) -> bool:
    if issubclass(kind, _SHARED):
        return True
    own = (".callbacks.", ".mixins.")  # users derive classes with a state of their own from these
    places = [f"{one.__module__}." for one in kind.__mro__ if not issubclass(kind, nn.Module)]
    return any(one.startswith(_SHARED_PACKAGES) and not any(part in one for part in own) for one in places)


def _wrapped(module: object) -> str:
    """Name of the network in a wrapper that compiles or distributes it; "" for other modules."""
    if type(module).__name__ == "OptimizedModule":
        return "_orig_mod"
    return "module" if isinstance(module, nn.DataParallel | nn.parallel.DistributedDataParallel) else ""


@contextmanager
def evaluation_copy(
    model: Any, values: Mapping[str, Tensor] | None = None, *, is_sharded: bool = False
) -> Iterator[Any]:
    """Give a copy of a network in eval mode, without gradient; random states are put back on leaving.

    The copy is that of `copy.deepcopy`, but datasets, loaders, optimisers, what belongs to a trainer, and frozen
    parameters of more than 64 MiB are the same objects, and tensors with a history are detached. Compiled modules and
    wrappers for several processes are copied as the networks within.

    A network that is sharded, scripted or cannot be copied is given itself: see `evaluated_in_place`. A bound method of
    a module becomes that of the copy. A model that is no module is given as it is.

    Args:
        model: The network, without lazy layers, a bound method of one, or any other callable.
        values: Values of parameters and buffers by name that replace the network's own.
        is_sharded: True for a sharded network whose parameters do not show it.
    """
    owner, copied = model.__self__ if isinstance(model, types.MethodType) else model, None
    with preserved_random_state(), torch.no_grad():
        if not isinstance(owner, nn.Module):
            yield model
            return
        is_scripted = any(isinstance(part, torch.jit.ScriptModule) for part in owner.modules())
        if not (is_sharded or is_scripted or has_shards(owner)):
            with suppress(Exception):  # the user's classes may raise anything
                copied = copy_of(owner, values).eval()
        if copied is not None:
            yield copied if owner is model else types.MethodType(model.__func__, copied)
        else:
            with evaluated_in_place(owner, values):
                yield model


@contextmanager
def evaluated_in_place(model: nn.Module, values: Mapping[str, Any] | None = None) -> Iterator[None]:
    """Put a network in eval mode, with these values by name; put modes, buffers, gradients and values back on leaving.

    Modes are set without a call of `train`, which may merge weights. Whatever else `forward` changes stays changed.
    """
    reshard(model)
    modes = [(part, part.training) for part in model.modules()]
    gradients = [(one, one.grad) for one in model.parameters()]
    buffers = [
        (part, name, one, one.detach().clone())
        for part in model.modules()
        for name, one in part._buffers.items()
        if one is not None and one.layout == torch.strided
    ]
    try:
        with replaced_in_place(model, values or {}):
            for part, _ in modes:
                part.training = False
            for one, _ in gradients:
                one.grad = None
            yield
    finally:
        for part, mode in modes:
            part.training = mode
        for one, gradient in gradients:
            one.grad = gradient
        with torch.no_grad():
            for part, name, buffer, before in buffers:
                part._buffers[name] = buffer.copy_(before)
        reshard(model)


@contextmanager
def replaced_in_place(model: nn.Module, values: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Put values by name into a network, shards into shards, and restore its own on leaving.

    Yields the network's own values, on the devices of their replacements. Autograd counts neither as a change.
    """
    reshard(model)
    weights = every_tensor(model)
    own = {name: weights[name].detach().to(one.device, copy=True) for name, one in values.items()}
    try:
        if values:
            torch._foreach_copy_([local(weights[name]) for name in values], [local(one) for one in values.values()])
        yield own
    finally:
        if own:
            torch._foreach_copy_([local(weights[name]) for name in own], [local(one) for one in own.values()])


def has_lazy_layers(module: nn.Module) -> bool:
    """Return True if the first batch has yet to make some layers."""
    return any(map(is_lazy, (*module.parameters(), *module.buffers())))


def is_sharded(value: Any) -> TypeGuard[Any]:
    """Return True if a value is a `DTensor`, without the slow import of that module."""
    library = sys.modules.get("torch.distributed.tensor")
    return library is not None and isinstance(value, library.DTensor)


def has_shards(model: nn.Module) -> bool:
    """Return True if a process holds only a part of some parameters."""
    library = sys.modules.get("torch.distributed.fsdp")
    kinds = () if library is None else (library.FSDPModule, library.FullyShardedDataParallel)
    return any(map(is_sharded, model.parameters())) or any(isinstance(part, kinds) for part in model.modules())


def reshard(model: nn.Module) -> None:
    """Let FSDP2's modules hold shards again, because some hold whole weights after a pass."""
    if library := sys.modules.get("torch.distributed.fsdp"):
        for part in model.modules():
            if isinstance(part, library.FSDPModule):
                part.reshard()


def local(tensor: Any) -> Any:
    """This process's part of a tensor, sharing its memory; a plain tensor is a part as a whole."""
    return (tensor.to_local() if is_sharded(tensor) else tensor).data


def gathered(value: Any) -> Any:
    """Put a sharded tensor together on the CPU; all processes must call this. Other values are returned as such."""
    if not is_sharded(value):
        return value
    return value.detach().to(value.device_mesh.device_type).full_tensor().cpu()


def sharded_like(value: Any, weight: Any) -> Any:
    """Take this process's shard of a whole tensor, if `weight` is sharded; other values are returned as such."""
    if not is_sharded(weight) or is_sharded(value) or not isinstance(value, Tensor):
        return value
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(value, weight.device_mesh, weight.placements, src_data_rank=None)
