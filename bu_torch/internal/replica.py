"""Copies of a network to read, so that the user's own is never run; what cannot be copied is read in place."""

import copy
import sys
import types
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
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


@singledispatch
def prepare_copy(copied: nn.Module, module: nn.Module) -> None:
    """Prepare the copy of a module; the callbacks register what a module of Lightning's needs."""


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


def copy_of(value: Any, values: Mapping[str, Tensor] | None = None) -> Any:
    """Copy an object by the rules of `evaluation_copy`, in the modes that it has; raises what its copying raises."""
    parts = list(value.modules()) if isinstance(value, nn.Module) else [value]
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
            if name := _wrapped(part):
                memo[id(part)] = _Unwrapped(name, copy.deepcopy(getattr(part, name), memo))
        made = copy.deepcopy(value, memo)
    for part in parts:
        if isinstance(part, nn.Module) and id(part) in memo:
            prepare_copy(memo[id(part)], part)
    return made


def _copy_tensors(network: nn.Module, values: Mapping[str, Tensor], memo: dict[Any, Any]) -> None:
    """Put copies of parameters and buffers into a memo, with these values by name; views of one stay views of its copy.

    Frozen parameters share their memory if they have more than 64 MiB.
    """
    named = [(name, one) for name, one in _named(network) if _is_plain(one)]
    replaced = {id(one): values[name] for name, one in named if name in values and one.shape == values[name].shape}
    shared = _shareable(network) - replaced.keys()
    storages = memo["torch"] = dict[int, torch.UntypedStorage]()  # as torch's own copies use it
    copies: dict[int, Tensor] = {}
    for one in dict.fromkeys(one for _, one in sorted(named, key=lambda pair: id(pair[1]) in shared)):
        storage = one.untyped_storage()
        if storage._cdata not in storages:
            if id(one) in shared:
                storages[storage._cdata] = storage
            elif id(one) in replaced and one.nbytes == storage.nbytes():
                storages[storage._cdata] = torch.UntypedStorage(storage.nbytes(), device=storage.device)
            else:
                storages[storage._cdata] = storage.clone()
        made = torch.empty(0, dtype=one.dtype, device=one.device)
        made = made.set_(storages[storage._cdata], one.storage_offset(), one.shape, one.stride())
        if isinstance(one, nn.Parameter):
            made = torch.Tensor._make_subclass(type(one), made, one.requires_grad)
        copies[id(one)] = made.requires_grad_(one.requires_grad and one.is_leaf)
        vars(made).update(vars(one))
    if replaced:
        torch._foreach_copy_([copies[place].data for place in replaced], list(replaced.values()))
    memo.update(copies)


def _named(network: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from network.named_parameters(remove_duplicate=False)
    yield from network.named_buffers(remove_duplicate=False)


def _is_plain(tensor: Any) -> bool:
    """Whether a tensor has a place in memory that others may share."""
    is_made = not (is_lazy(tensor) or tensor.is_meta or tensor.is_quantized) and tensor.numel() > 0
    return is_made and tensor.layout == torch.strided and type(tensor.data) is Tensor


def _shareable(network: nn.Module) -> set[int]:
    """Ids of the frozen parameters of a large network, but for modules that may write to theirs."""
    frozen = {id(one): one for one in network.parameters() if not (one.requires_grad or is_lazy(one))}
    if sum(one.nbytes for one in frozen.values()) > _MOST_COPIED:
        for part in network.modules():
            may_merge = (type(part).train, type(part).eval) != (nn.Module.train, nn.Module.eval)
            if may_merge or getattr(part, "max_norm", None) is not None:
                for one in part.parameters():
                    frozen.pop(id(one), None)
        return set(frozen)
    return set()


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
    wrappers for several processes are copied as the networks within, under the names that weights have there.

    A network that is sharded, scripted or cannot be copied is given itself: see `evaluated_in_place`. A bound method of
    a module becomes that of the copy. A model that is no module is given as it is.

    Args:
        model: The network, without lazy layers, a bound method of one, or any other callable.
        values: Values of parameters and buffers by name that replace the network's own.
        is_sharded: True for a sharded network whose parameters do not show it.
    """
    owner = model.__self__ if isinstance(model, types.MethodType) else model
    with preserved_random_state(), torch.no_grad():
        if not isinstance(owner, nn.Module):
            yield model
        elif (made := None if is_sharded else _copy_in_eval_mode(owner, values)) is not None:
            yield made if owner is model else types.MethodType(model.__func__, made)
        else:
            with evaluated_in_place(owner, values):
                yield model


def _copy_in_eval_mode(network: nn.Module, values: Mapping[str, Tensor] | None) -> nn.Module | None:
    if has_shards(network) or any(isinstance(part, torch.jit.ScriptModule) for part in network.modules()):
        return None
    try:
        copied: nn.Module = copy_of(network, values).eval()
    except Exception:  # the user's classes may raise anything
        return None
    return copied


@contextmanager
def evaluated_in_place(model: nn.Module, values: Mapping[str, Any] | None = None) -> Iterator[None]:
    """Put a network in eval mode, with these values by name; put modes, buffers, gradients and values back on leaving.

    Modes are set without a call of `train`, which may merge weights. Whatever else `forward` changes stays changed.
    """
    reshard(model)
    parts, parameters = list(model.modules()), list(model.parameters())
    modes, gradients = [part.training for part in parts], [one.grad for one in parameters]
    buffers = [
        (part, name, one, one.detach().clone())
        for part in parts
        for name, one in part._buffers.items()
        if one is not None and one.layout == torch.strided
    ]
    try:
        with replaced_in_place(model, values or {}):
            for part in parts:
                part.training = False
            for one in parameters:
                one.grad = None
            yield
    finally:
        for part, mode in zip(parts, modes, strict=True):
            part.training = mode
        for one, gradient in zip(parameters, gradients, strict=True):
            one.grad = gradient
        with torch.no_grad():
            for part, name, buffer, before in buffers:
                part._buffers[name] = buffer.copy_(before)
        reshard(model)


def has_lazy_layers(module: nn.Module) -> bool:
    """Return True if the first batch has yet to make some layers."""
    return any(map(is_lazy, (*module.parameters(), *module.buffers())))


def is_sharded(value: Any) -> TypeGuard[Any]:
    """Return True if a value is a `DTensor`, without the slow import of that module."""
    library = sys.modules.get("torch.distributed.tensor")
    return library is not None and isinstance(value, library.DTensor)


def local(tensor: Tensor) -> Tensor:
    """Local part of a tensor, sharing its memory; a plain tensor is local as a whole."""
    if not is_sharded(tensor):
        return tensor.data
    with torch.no_grad():
        return tensor.to_local().data


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


def largest_of_all(values: Tensor, tensors: list[Any]) -> Tensor:
    """Maximum over all processes of values (n,) that belong to the shards of n tensors; NaN wins."""
    meshes = [one.device_mesh if is_sharded(one) else None for one in tensors]
    for mesh in dict.fromkeys(one for one in meshes if one is not None):  # all processes need the same order
        from torch.distributed.tensor import DTensor, Shard

        places = [n for n, one in enumerate(meshes) if one == mesh]
        rows = values[places].to(mesh.device_type).unsqueeze(0)
        whole = DTensor.from_local(rows, mesh, [Shard(0)] * mesh.ndim, run_check=False).full_tensor()
        values[places] = whole.amax(dim=0).to(values.device)
    return values


def reshard(model: nn.Module) -> list[nn.Module]:
    """Let FSDP2's modules hold shards again, because some hold whole weights after a pass; return the modules."""
    library = sys.modules.get("torch.distributed.fsdp")
    parts: list[Any] = []
    if library is not None:
        parts = [part for part in model.modules() if isinstance(part, library.FSDPModule)]
    for part in parts:
        part.reshard()
    return parts


def has_shards(model: nn.Module) -> bool:
    """Return True if a process holds only a part of some parameters."""
    library = sys.modules.get("torch.distributed.fsdp")
    kinds = () if library is None else (library.FSDPModule, library.FullyShardedDataParallel)
    return any(map(is_sharded, model.parameters())) or any(isinstance(part, kinds) for part in model.modules())


@contextmanager
def replaced_in_place(model: nn.Module, values: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Put values by name into a sharded network, shards into shards, and restore its own on leaving.

    Yields the network's own values, on the devices of their replacements.
    """
    reshard(model)
    weights = dict((*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)))
    own = {name: weights[name].detach().to(one.device, copy=True) for name, one in values.items()}
    try:
        overwrite(weights, values)
        yield own
    finally:
        overwrite(weights, own)


def overwrite(weights: Mapping[str, Any], values: Mapping[str, Any]) -> None:
    """Write values by name into weights, shards into shards; autograd does not count it as a change."""
    if values:
        torch._foreach_copy_([local(weights[name]) for name in values], [local(value) for value in values.values()])
