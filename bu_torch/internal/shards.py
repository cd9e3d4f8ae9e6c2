"""Tensors of which each process holds a shard: `DTensor`, as `fully_shard` (FSDP2) and tensor parallelism make them."""

import sys
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn


def is_sharded(value: Any) -> TypeGuard[Any]:
    """Tell if a value is a `DTensor`; nothing is imported to find out, for that takes as long as this package."""
    library = sys.modules.get("torch.distributed.tensor")
    return library is not None and isinstance(value, library.DTensor)


def local(tensor: Tensor) -> Tensor:
    """The part of a tensor that this process holds, in its own memory; of a plain tensor all."""
    if not is_sharded(tensor):
        return tensor.data
    with torch.no_grad():
        return tensor.to_local().data


def gathered(value: Any) -> Any:
    """The whole of a sharded tensor, on the CPU; all processes must call this. Other values as they are."""
    if not is_sharded(value):
        return value
    return value.detach().to(value.device_mesh.device_type).full_tensor().cpu()


def sharded_like(value: Any, weight: Any) -> Any:
    """The shard of a whole tensor that this process holds, if `weight` is sharded; other values as they are."""
    if not is_sharded(weight) or is_sharded(value) or not isinstance(value, Tensor):
        return value
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(value, weight.device_mesh, weight.placements, src_data_rank=None)


def largest_of_all(values: Tensor, tensors: list[Any]) -> Tensor:
    """The largest of the values (n,) that processes have of their shards of n tensors, NaN where one has it."""
    meshes = [one.device_mesh if is_sharded(one) else None for one in tensors]
    for mesh in dict.fromkeys(one for one in meshes if one is not None):  # in the same order in all processes
        from torch.distributed.tensor import DTensor, Shard

        places = [n for n, one in enumerate(meshes) if one == mesh]
        rows = values[places].to(mesh.device_type).unsqueeze(0)
        whole = DTensor.from_local(rows, mesh, [Shard(0)] * mesh.ndim, run_check=False).full_tensor()
        values[places] = whole.amax(dim=0).to(values.device)
    return values


def reshard(model: nn.Module) -> list[nn.Module]:
    """Let the modules of FSDP2, which are returned, hold shards again: after a forward pass some hold whole weights."""
    library = sys.modules.get("torch.distributed.fsdp")
    parts: list[Any] = []
    if library is not None:
        parts = [part for part in model.modules() if isinstance(part, library.FSDPModule)]
    for part in parts:
        part.reshard()
    return parts
