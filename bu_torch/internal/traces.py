"""A look at a network that leaves no trace: its state is copied before, and put back after."""

import random
import warnings
from collections import OrderedDict, deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.parameter import is_lazy

from bu_torch.internal.shards import reshard

_CONTAINERS = (list, dict, OrderedDict, set, deque)  # attributes whose entries are put back,
_LONGEST = 1000  # if they have at most so many
_LARGEST = 2**16  # elements of a tensor that is an attribute, and is put back too
_OF_MODULES = frozenset(vars(nn.Module())) - {"training"}  # what torch keeps: parameters, hooks
_MANAGED = ("torch.distributed.", "torch.jit.", "torch._dynamo.")  # modules that look after their own state


class RestoringError(Exception):
    """Something that a look at a network has changed cannot be put back."""


@contextmanager
def evaluation_mode(model: object) -> Iterator[None]:
    """Look at a model in eval mode, without gradient, and leave no trace.

    On leaving, all modes, parameters, buffers, attributes and random states are as they were. Before that, modules with
    a `train` of their own are told of the mode they go back to, parents before children. `RestoringError` says that
    something cannot be put back; all else is.
    """
    if not isinstance(model, nn.Module):
        with preserved_random_state(), torch.no_grad():
            yield
        return
    with (
        _cleared_autocast_cache(),
        preserved_random_state(),
        preserved_attributes(model),
        torch.no_grad(),
        _preserved_parameters(model),
        ExitStack() as stack,
    ):
        modes = [(module, module.training) for module in model.modules()]
        for module, mode in modes:
            stack.callback(setattr, module, "training", mode)
        for module, mode in reversed(modes):
            if _has_own_train(module):
                stack.callback(module.train, mode)
        model.eval()
        yield


@contextmanager
def preserved_random_state() -> Iterator[None]:
    """Put the global random states of torch, NumPy and Python back on leaving, also after an exception."""
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
    python_state, numpy_state = random.getstate(), np.random.get_state()  # noqa: NPY002  (the user's, to put back)
    try:
        with torch.random.fork_rng(devices=devices):
            yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)  # noqa: NPY002


@contextmanager
def preserved_attributes(model: object) -> Iterator[None]:
    """Put the buffers of a module and its other attributes back on leaving, and those of all its parts.

    Entries of containers and values of small tensors are put back too; other objects may have changed within.
    `RestoringError` says that one cannot be put back; all others are.
    """
    if not isinstance(model, nn.Module):
        yield
        return
    sharded = reshard(model)
    with ExitStack() as stack:
        for module in model.modules():
            is_managed = type(module).__module__.startswith(_MANAGED) and module not in sharded
            if not (is_managed or isinstance(module, LazyModuleMixin)):
                stack.callback(_Attributes(module, _OF_MODULES if sharded else frozenset()).put_back)
            for name, buffer in module._buffers.items():
                if buffer is not None and not _is_without_values(buffer) and not is_expanded(buffer):
                    stack.callback(_Values(buffer, f"buffer `{name}` in {type(module).__name__}").put_back)
        stack.callback(reshard, model)
        yield


class _Attributes:
    """The attributes of a module at one moment, but for some: FSDP2 puts hooks and parameters in by itself.

    `forward` may count, remember or set up something, and a layer of LoRA notes whether it is merged.
    """

    def __init__(self, module: nn.Module, excluded: frozenset[str]) -> None:
        self._module, self._excluded = module, excluded
        self._values = {name: value for name, value in vars(module).items() if name not in excluded}
        self._entries: list[tuple[Any, Any]] = []
        self._tensors: list[_Values] = []
        for name, value in self._values.items():
            if type(value) in _CONTAINERS and len(value) <= _LONGEST:
                self._entries.append((value, value.copy() if value else ()))  # most, of hooks, are empty
            elif _is_plain(value) and value.numel() <= _LARGEST and not value.requires_grad:
                self._tensors.append(_Values(value, f"tensor `{name}` in {type(module).__name__}"))

    def put_back(self) -> None:
        now, before = vars(self._module), self._values
        for name in [name for name in now if name not in before and name not in self._excluded]:
            del now[name]
        for name, value in before.items():
            if name not in now or now[name] is not value:
                now[name] = value
        for container, entries in self._entries:
            if not _has_same_entries(container, entries):
                container.clear()
                container.extend(entries) if isinstance(container, list | deque) else container.update(entries)
        with ExitStack() as stack:
            for values in self._tensors:
                stack.callback(values.put_back)


class _Values:
    """The values of a plain tensor at one moment, its size, and its place in memory; an error names it by `name`."""

    def __init__(self, tensor: Tensor, name: str) -> None:
        self._tensor, self._name = tensor, name
        self._memory, self._version, self._before = tensor.data, _version(tensor), tensor.detach().clone()

    def put_back(self) -> None:
        tensor = self._tensor
        with _restoring(self._name), torch.inference_mode(tensor.is_inference()), torch.no_grad():
            _move_back(tensor, self._memory)  # observers of quantisation grow from nothing in their first pass
            if _version(tensor) != self._version:
                tensor.copy_(self._before)
            # A change of `tensor.data`, or by fused observers of quantisation, is not counted; on other devices, to
            # compare would wait for the device.
            elif tensor.layout == torch.strided and (
                tensor.device.type != "cpu" or not torch.equal(tensor, self._before)
            ):
                tensor.data.copy_(self._before)


@contextmanager
def _restoring(name: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise RestoringError(
            f"A check has changed the network, and its {name} cannot be restored: {type(error).__name__}: {error}"
        ) from error


# Names of the parameters that a look at a module has changed, once it has been looked at.
_CHANGED: WeakKeyDictionary[nn.Module, set[str]] = WeakKeyDictionary()


@contextmanager
def _preserved_parameters(model: nn.Module) -> Iterator[None]:
    """Put the parameters back that `forward`, or a change of mode, has changed, and which of them have a gradient.

    The first look at a module copies all of its parameters, to the CPU, and finds those that a look changes, as
    `nn.Embedding(max_norm=)` does. Later looks copy these alone, and what belongs to modules with a `train` of their
    own: layers of LoRA add their product to a weight there, and what they subtract again is not the same to the bit.
    """
    parameters = {name: one for name, one in model.named_parameters() if _is_plain(one)}
    is_first = model not in _CHANGED
    changed = _CHANGED.setdefault(model, set())
    # A change of mode may change parameters: torch's own modules hand the mode on.
    merging = (part for part in model.modules() if _has_own_train(part))
    merging = (part for part in merging if not getattr(part.train, "__module__", "").startswith("torch."))
    merged = {id(one) for part in merging for one in part.parameters()}
    with ExitStack() as stack:
        for name, parameter in parameters.items():
            before = None
            if name in changed or id(parameter) in merged:
                before = parameter.detach().clone()
            elif is_first:
                before = parameter.detach().to("cpu", copy=True)
            place = parameter.data, _version(parameter), parameter.requires_grad
            stack.callback(_put_parameter_back, parameter, name, place, before, changed, is_first=is_first)
        yield


def _put_parameter_back(
    parameter: Tensor,
    name: str,
    place: tuple[Tensor, int | None, bool],
    before: Tensor | None,
    changed: set[str],
    *,
    is_first: bool,
) -> None:
    memory, version, has_gradient = place
    is_touched = _version(parameter) != version
    with _restoring(f"parameter `{name}`"):
        _move_back(parameter, memory)
        parameter.requires_grad_(has_gradient)
    if is_touched:
        changed.add(name)
    if before is None:
        if is_touched:
            warnings.warn(
                f"A check has changed the parameter `{name}` of the network, which earlier checks did not: training"
                " continues from the changed values. From the next check on, the parameter is restored.",
                stacklevel=3,
            )
        return
    with _restoring(f"parameter `{name}`"), torch.no_grad():
        if is_first and not is_touched and torch.equal(parameter.detach().to(before.device), before):
            return
        changed.add(name)
        parameter.data.copy_(before)  # which autograd does not take for a change: the values are those it knows


def _move_back(tensor: Tensor, memory: Tensor) -> None:
    """Let a tensor have the place in memory, the size and the strides that it had."""
    if (tensor.data_ptr(), tensor.shape, tensor.stride()) != (memory.data_ptr(), memory.shape, memory.stride()):
        tensor.data = memory


def _has_own_train(module: nn.Module) -> bool:
    return "train" in vars(module) or type(module).train is not nn.Module.train


def _has_same_entries(container: Any, entries: Any) -> bool:
    """Compare by identity: entries may be tensors."""
    if len(container) != len(entries):
        return False
    if not entries:
        return True
    if isinstance(container, dict):
        return all(container.get(key, container) is value for key, value in entries.items())
    if isinstance(container, set):
        return container == entries
    return all(one is other for one, other in zip(container, entries, strict=True))


@contextmanager
def _cleared_autocast_cache() -> Iterator[None]:
    """Forget the weights that were cast without gradient: older versions of torch would train with them."""
    try:
        yield
    finally:
        if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
            torch.clear_autocast_cache()


def _is_without_values(tensor: Tensor) -> bool:
    return is_lazy(tensor) or tensor.is_meta


def _is_plain(value: Any) -> bool:
    """Tell if a value is a tensor that can be copied and written to as one that lies in memory as a whole."""
    if not isinstance(value, Tensor) or _is_without_values(value):
        return False
    return value.layout == torch.strided and not is_expanded(value) and type(value.data) is Tensor


def is_expanded(buffer: Tensor) -> bool:
    """Tell if several elements are one number in memory, so that nothing can be written to them."""
    if buffer.layout != torch.strided or buffer.is_contiguous():
        return False
    return any(stride == 0 and size > 1 for stride, size in zip(buffer.stride(), buffer.shape, strict=True))


def _version(tensor: Tensor) -> int | None:
    """Grows with each change in place; None if torch does not count."""
    return None if tensor.is_inference() else tensor._version
