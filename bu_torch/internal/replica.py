"""Copies of a network to look at: the user's own network is never run, so nothing of it needs to be put back.

A sharded network, whose tensors are `DTensor` (`fully_shard`, tensor parallelism), is looked at in place.
"""

import sys
import types
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from bu_torch.internal.copying import CopyError, Copying, place_of_storage
from bu_torch.internal.global_state import preserved_random_state

_MOST_COPIED = 2**26  # bytes of frozen parameters


def copy_of(value: Any, values: Mapping[str, Tensor] | None = None) -> Any:
    """Copy an object by the rules of `evaluation_copy`, in the modes that it has; itself if it cannot be copied."""
    return _copied(value, values)[0]


def _copied(value: Any, values: Mapping[str, Tensor] | None) -> tuple[Any, dict[str, Any]]:
    """Copy of an object, and the parameters whose memory it shares."""
    network = value if isinstance(value, nn.Module) else nn.Module()
    values = values or {}
    named = _named(network) if values else ()
    replaced = {n: one for n, one in named if n in values and one.shape == values[n].shape}
    shared = _shareable(network, replaced)
    with torch.no_grad(), torch.inference_mode(False):
        copying = Copying(network, shared.values(), {id(one) for one in replaced.values()})
        made = copying.copy_root(value)
        if copying.held_weakly:
            vars(made)["_held_by_copy"] = copying.held_weakly
        if replaced:
            own = {name: one for name, one in _named(made) if name in replaced}
            torch._foreach_copy_([one.data for one in own.values()], [values[name] for name in own])
    return made, shared


@contextmanager
def evaluation_copy(
    model: Any, values: Mapping[str, Tensor] | None = None, *, is_sharded: bool = False
) -> Iterator[Any]:
    """Give a copy of a network in eval mode, without gradient; random states are put back on leaving.

    Weights, buffers and attributes of the copy are its own. Frozen parameters share their memory if they are most of
    the network and more than 64 MiB, so that a large network that is fine-tuned is not held twice. They are copied all
    the same in embeddings with `max_norm`, and below a module with its own `train` or `eval`, which may merge weights.
    Containers, arrays, generators, hooks, closures and plain objects are copied to any depth; datasets, loaders,
    optimisers, files and what belongs to a trainer are the same objects. Compiled modules and wrappers for several
    processes are copied as the networks within, under the names that weights have there.

    A bound method of a module becomes that of the copy. A model that is no module is given as it is. A sharded network
    cannot be copied: its modes, its buffers and what `values` replaces are put back on leaving instead.

    Args:
        model: The network, without lazy layers, a bound method of one, or any other callable.
        values: Values of parameters and buffers by name that replace the network's own.
        is_sharded: True for a sharded network whose parameters do not show it.

    Raises `CopyError`, naming the module or parameter, if one cannot be copied, or if one that the copy shares was
    changed in place.
    """
    owner = model.__self__ if isinstance(model, types.MethodType) else model
    with preserved_random_state(), torch.no_grad():
        if not isinstance(owner, nn.Module):
            yield model
        elif is_sharded or has_shards(owner):
            with replaced_in_place(owner, values or {}), evaluated_in_place(owner):
                yield model
        else:
            made, shared = _copied(owner, values)
            versions = {name: one._version for name, one in shared.items() if not one.is_inference()}
            network = made.eval()
            yield network if owner is model else types.MethodType(model.__func__, network)
            for name, version in versions.items():
                if shared[name]._version != version:
                    raise CopyError(
                        f"A look at a copy of the network has changed its frozen parameter `{name}`, which is not"
                        " copied: `forward` and `eval` must not write to it. Register it as a buffer, or let it require"
                        " a gradient."
                    )


def is_unmoved(network: nn.Module, model: nn.Module, values: Mapping[str, Tensor]) -> bool:
    """True if a copy still has the weights and buffers it was made with; its pass or `eval` may have changed them."""
    before, now = dict(_named(model)) | dict(values), dict(_named(network))
    with suppress(Exception):  # some tensors cannot be compared
        return before.keys() == now.keys() and all(
            torch.equal(one, before[name].to(one.device)) for name, one in now.items()
        )
    return False


def has_lazy_layers(module: nn.Module) -> bool:
    """Return True if the first batch has yet to make some layers."""
    return any(map(is_lazy, (*module.parameters(), *module.buffers())))


def _shareable(network: nn.Module, replaced: Collection[str]) -> dict[str, Any]:
    """Frozen parameters by name whose memory a copy shares, if they are most of a large network.

    Those in the memory of trained or `replaced` ones are copied with these.
    """
    frozen = [(name, one) for name, one in network.named_parameters() if not one.requires_grad]
    if not frozen:
        return {}
    own: set[int] = set()
    for part in network.modules():
        modes = ("train", "eval")
        is_merging = any(
            name in vars(part) or not getattr(getattr(type(part), name), "__module__", "").startswith("torch.")
            for name in modes
        )
        is_renorming = isinstance(part, nn.Embedding | nn.EmbeddingBag) and part.max_norm is not None
        if is_merging or is_renorming:
            own.update(map(id, part.parameters(recurse=is_merging)))
    trained = {place_of_storage(one) for one in network.parameters() if one.requires_grad}
    found = {
        name: one
        for name, one in frozen
        if not (name in replaced or id(one) in own or is_lazy(one) or place_of_storage(one) in trained)
    }
    n_trained = sum(one.nbytes for one in network.parameters() if one.requires_grad and not is_lazy(one))
    return found if sum(one.nbytes for one in found.values()) > max(_MOST_COPIED, n_trained) else {}


def _named(network: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from network.named_parameters(remove_duplicate=False)
    yield from network.named_buffers(remove_duplicate=False)


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
def evaluated_in_place(model: nn.Module) -> Iterator[None]:
    """Put a sharded network in eval mode, and restore its modes and buffers on leaving.

    No process could hold a copy of it. Attributes and frozen parameters that a look changes stay changed.
    """
    reshard(model)
    buffers = [one for one in model.buffers() if one.layout == torch.strided]
    before = [(buffer, buffer.detach().clone()) for buffer in buffers]
    modes = [(module, module.training) for module in model.modules()]
    try:
        model.eval()
        yield
    finally:
        for module, mode in modes:
            module.training = mode
        with torch.no_grad():
            for buffer, values in before:
                buffer.copy_(values)
        reshard(model)


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
