"""A device that is not the CPU, on any machine: tensors that say they are elsewhere and hold their numbers on the CPU.

What mixes devices mostly fails as on a GPU, and so does NumPy. The device is called `lazy`, for which every build of
torch has a place; autograd knows it, and no driver is asked for.
"""

from contextlib import contextmanager
from unittest import mock

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

DEVICE = torch.device("lazy", 0)
_aten = torch.ops.aten
_COPIES = {_aten._to_copy.default, _aten.copy_.default}
_INDEXED = {_aten.index.Tensor, _aten.index_put_.default, _aten.index_put.default, _aten._index_put_impl_.default}
_NO_SCALARS = {_aten.stack.default, _aten.cat.default, _aten.index_select.default, _aten.gather.default}
_tensor, _as_tensor = torch.tensor, torch.as_tensor


class Elsewhere(Tensor):
    """A tensor on the emulated device."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, held):
        return Tensor._make_wrapper_subclass(
            cls, held.size(), strides=held.stride(), storage_offset=held.storage_offset(), dtype=held.dtype,
            device=DEVICE,
        )  # fmt: skip

    def __init__(self, held):
        self.held = held

    @classmethod
    def __torch_dispatch__(cls, operation, types, args=(), kwargs=None):
        return _run(operation, args, kwargs or {})

    def tolist(self):
        return self.held.tolist()

    def new_tensor(self, data, *, dtype=None, device=DEVICE):
        return _made(data, dtype=dtype or self.dtype, device=device)

    def numpy(self, *, force=False):
        raise TypeError("can't convert a tensor of the emulated device to numpy: use Tensor.cpu() first")

    __array__ = numpy

    def __repr__(self):
        return f"{self.held!r} elsewhere"


class _Mode(TorchDispatchMode):
    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if Elsewhere not in types and kwargs.get("device") is None:
            return operation(*args, **kwargs)
        return _run(operation, args, kwargs)


def _run(operation, args, kwargs):
    tensors = _tensors((args, kwargs))
    there = [tensor for tensor in tensors if isinstance(tensor, Elsewhere)]
    if there and operation not in _COPIES:
        may_be_here = _tensors(args[1]) if operation in _INDEXED and isinstance(args[0], Elsewhere) else []
        for tensor in tensors:
            is_here = not isinstance(tensor, Elsewhere) and all(tensor is not index for index in may_be_here)
            if is_here and (tensor.ndim or operation in _NO_SCALARS):
                raise RuntimeError(f"Expected all tensors to be on the same device: {operation}")
    held_args, held_kwargs = pytree.tree_map(_held, (args, kwargs))
    named = kwargs.get("device")
    goes_there = bool(there) if named is None else torch.device(named).type == DEVICE.type
    if goes_there and kwargs.get("generator") is not None:
        raise RuntimeError(f"Expected a generator of the same device: {operation}")
    if named is not None and goes_there:
        held_kwargs["device"] = torch.device("cpu")
    result = operation(*held_args, **held_kwargs)
    if operation is _aten.copy_.default or (goes_there and _is_in_place(operation)):
        return args[0]
    if "out" in kwargs:
        return kwargs["out"]
    return pytree.tree_map(_placed, result) if goes_there else result


def _tensors(tree):
    return [value for value in pytree.tree_leaves(tree) if isinstance(value, Tensor)]


def _is_in_place(operation):
    alias = operation._schema.arguments[0].alias_info if operation._schema.arguments else None
    return alias is not None and alias.is_write


def _held(value):
    return value.held if isinstance(value, Elsewhere) else value


def _placed(value):
    return Elsewhere(value) if type(value) is Tensor else value


def _made(data, *, dtype=None, device=None, **kwargs):
    """`torch.tensor`, which no mode sees, not even that of a default device."""
    made = _tensor(_held(data), dtype=dtype, device="cpu", **kwargs)
    return made.to(torch.get_default_device() if device is None else device)


def _made_of(data, dtype=None, device=None):
    """`torch.as_tensor`, likewise."""
    return _made(_as_tensor(data, dtype=dtype, device="cpu"), device=device)


@contextmanager
def emulated():
    """Within, `DEVICE` is there."""
    with _Mode(), mock.patch.multiple(torch, tensor=_made, as_tensor=_made_of):
        yield DEVICE
