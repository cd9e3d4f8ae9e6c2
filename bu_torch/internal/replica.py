"""What leaves no trace: copies of a network to read, so that the user's own is never run, and global states."""

import copy
import random
import sys
import types
import weakref
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache, singledispatch
from typing import Any, TypeGuard

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils import _pytree as pytree
from torch.utils.data import DataLoader, Dataset, Sampler


@contextmanager
def preserved_random_state(seed: int | None = None) -> Iterator[None]:
    """Put the global random states of torch, NumPy and Python back on leaving; with a `seed`, they start from it."""
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
    python_state, numpy_state = random.getstate(), np.random.get_state()  # noqa: NPY002  (this is the user's)
    try:
        with torch.random.fork_rng(devices=devices):
            if seed is not None:
                start_from(seed)
            yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)  # noqa: NPY002


def start_from(seed: int) -> None:
    """Let global random states start from `seed`."""
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002  (datasets use it)
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():  # otherwise a seed would wait for the first use, and stay
        torch.cuda.manual_seed_all(seed)


_MOST_COPIED = 2**26  # bytes of frozen parameters
# Objects of the whole training: a copy refers to the same ones.
_SHARED = (Dataset, DataLoader, Sampler, torch.optim.Optimizer, types.ModuleType)
_SHARED_PACKAGES = ("lightning.", "pytorch_lightning.", "torch.distributed.", "bu_torch.")
_OF_MODULES = vars(nn.Module()).keys()
_MODES = (nn.Module.train, nn.Module.eval)
# Wrappers that compile or distribute a network, and its name in them.
_WRAPPERS = {"OptimizedModule": "_orig_mod", "DataParallel": "module", "DistributedDataParallel": "module"}


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
            _share(getattr(part, "__dict__", {}), memo)
        for part in reversed(parts):
            if name := _WRAPPERS.get(type(part).__name__):  # the network alone is copied; it takes the wrapper's place
                memo[id(part)] = network = copy.deepcopy(getattr(part, name), memo)
                vars(network).setdefault(name, weakref.proxy(network))
        copied = copy.deepcopy(value, memo)
        if values:
            weights = every_tensor(value)
            torch._foreach_copy_([memo[id(weights[name])].data for name in values], list(values.values()))
    for part in parts:
        copied_part = memo[id(part)]  # a part that is its own copy has none, and cannot be copied
        if isinstance(part, nn.Module) and isinstance(copied_part, type(part)):  # no network in its wrapper's place
            prepare_copy(copied_part, part)
    return copied


def is_plain(tensor: Any) -> bool:
    """Whether a tensor has a place in memory that others may share."""
    is_dense = not (is_lazy(tensor) or tensor.is_meta or tensor.is_quantized or tensor.layout != torch.strided)
    return is_dense and type(tensor.data) is Tensor


def _copy_tensors(network: nn.Module, values: Mapping[str, Tensor], memo: dict[Any, Any]) -> None:
    """Put copies of parameters and buffers into a memo; tensors that share memory do so in the copy, too.

    Frozen parameters of more than 64 MiB share their memory with the copy, unless `values` replace them or a change of
    modes may write to them.
    """
    named = {name: tensor for name, tensor in every_tensor(network).items() if is_plain(tensor)}
    tensors = list(named.values())
    frozen = {id(tensor) for tensor in network.parameters() if not tensor.requires_grad}
    frozen -= {id(tensor) for name, tensor in named.items() if name in values}
    for part in network.modules():
        if (type(part).train, type(part).eval) != _MODES:
            frozen -= {id(tensor) for tensor in part.parameters()}
    storages = {tensor.untyped_storage()._cdata: tensor.untyped_storage() for tensor in tensors}
    for tensor in tensors:
        if id(tensor) not in frozen:
            storages.pop(tensor.untyped_storage()._cdata, None)
    if sum(storage.nbytes() for storage in storages.values()) > _MOST_COPIED:
        memo["torch"] = storages  # where copies of tensors look for those of storages
    for tensor in tensors:
        storage = tensor.untyped_storage().__deepcopy__(memo)
        copied = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        copied.set_(storage, tensor.storage_offset(), tensor.shape, tensor.stride())
        memo[id(tensor)] = torch.Tensor._make_subclass(type(tensor), copied, tensor.requires_grad and tensor.is_leaf)
        vars(memo[id(tensor)]).update(vars(tensor))


def every_tensor(module: nn.Module) -> dict[str, Any]:
    """Parameters and buffers by all their names."""
    return dict((*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)))


def _share(attributes: dict[str, Any], memo: dict[Any, Any]) -> None:
    """Put into a memo what a copy refers to as it is, and detached copies of tensors with a history."""
    # A module has many dicts of hooks; copying those that are empty would take most of the time.
    memo |= {id(hooks): OrderedDict() for hooks in attributes.values() if type(hooks) is OrderedDict and not hooks}
    for value in pytree.tree_leaves([attributes[name] for name in attributes.keys() - _OF_MODULES]):
        kind: Any = type(value)
        if isinstance(value, Tensor) and not value.is_leaf:
            memo[id(value)] = copy.deepcopy(value.detach(), memo)
        elif _is_shared(kind):
            memo[id(value)] = value


@cache
def _is_shared(kind: Any) -> bool:
    if issubclass(kind, _SHARED):
        return True
    is_copied = issubclass(kind, nn.Module | dict)  # such as hyperparameters in a dict of Lightning's
    return not is_copied and any(f"{base.__module__}.".startswith(_SHARED_PACKAGES) for base in kind.__mro__)


@contextmanager
def evaluation_copy(
    model: Any, values: Mapping[str, Tensor] | None = None, *, is_sharded: bool = False
) -> Iterator[Any]:
    """Give a copy of a network in eval mode, without gradient; random states are put back on leaving.

    The copy is that of `copy.deepcopy`, but datasets, loaders, optimisers, what belongs to a trainer, and frozen
    parameters of more than 64 MiB are shared, and tensors with a history are detached. Compiled modules and wrappers
    for several processes are copied as the networks within. A bound method becomes that of the copy. A network that is
    sharded, scripted or cannot be copied is given itself (`evaluated_in_place`), and so is a model that is no module.

    `values` replace parameters and buffers by name. `is_sharded` is for a network whose parameters do not show it.
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
    with replaced_in_place(model, dict(model.named_buffers()) | dict(values or {})):
        parts = [(part, part.training, dict(part._buffers)) for part in model.modules()]
        gradients = [(parameter, parameter.grad) for parameter in model.parameters()]
        try:
            for part, _, _ in parts:
                part.training = False
            for parameter, _ in gradients:
                parameter.grad = None
            yield
        finally:
            for part, mode, buffers in parts:
                part.training = mode
                for name, buffer in buffers.items():
                    part._buffers[name] = buffer
            for parameter, gradient in gradients:
                parameter.grad = gradient
            reshard(model)


@contextmanager
def replaced_in_place(model: nn.Module, values: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Put values by name into a network, shards into shards, and restore its own on leaving.

    Yields the network's own values, on the devices of their replacements. Autograd counts neither as a change.
    """
    reshard(model)
    weights = every_tensor(model)
    own = {name: weights[name].detach().to(value.device, copy=True) for name, value in values.items()}
    try:
        for name, value in values.items():
            local(weights[name]).copy_(local(value))
        yield own
    finally:
        for name, value in own.items():
            local(weights[name]).copy_(local(value))


@contextmanager
def exchanged(model: nn.Module, values: Mapping[str, Tensor]) -> Iterator[None]:
    """Let a network have these tensors by name, and its own on leaving; what shares memory with its own stays."""
    weights = every_tensor(model)
    own = {name: weights[name].data for name in values}
    try:
        for name, value in values.items():
            weights[name].data = value
        yield
    finally:
        for name, value in own.items():
            weights[name].data = value


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
    if not is_sharded(weight) or not isinstance(value, Tensor):
        return value
    if is_sharded(value):
        return value.to(weight.device)
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(value, weight.device_mesh, weight.placements, src_data_rank=None)
