"""Sharded tensors: `DTensor`, as `fully_shard` (FSDP2) and tensor parallelism make them."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn


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
