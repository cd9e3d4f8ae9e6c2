"""Reading a model without leaving a trace."""

import random
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from bu_torch.functional.checks import as_logits

_BATCH = 4096
_WARN = partial(warnings.warn, stacklevel=3)  # at the caller of what warns
_ROUNDING = 0.01  # of the sum of shares in half precision


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


class RestoringError(Exception):
    """Something that a look at a network has changed cannot be put back."""


@contextmanager
def preserved_buffers(model: object) -> Iterator[None]:
    """Put the buffers of a module back on leaving: their values, their sizes, and the tensors themselves.

    Raises:
        RestoringError: If one of them cannot be put back; all others are.
    """
    with ExitStack() as stack:
        for module in model.modules() if isinstance(model, nn.Module) else ():
            for name, buffer in module._buffers.items():
                if buffer is not None and not _is_without_values(buffer) and not is_expanded(buffer):
                    before = buffer.detach().clone()
                    stack.callback(_put_buffer_back, module, name, buffer, _version(buffer), before)
        yield


def _put_buffer_back(module: nn.Module, name: str, buffer: Tensor, version: int | None, before: Tensor) -> None:
    try:
        if module._buffers.get(name) is not buffer:
            module._buffers[name] = buffer
        # A change of `buffer.data` is not counted; on other devices, to compare would wait for the device.
        is_seen = version is None or (buffer.device.type == "cpu" and buffer.layout == torch.strided)
        with torch.inference_mode(buffer.is_inference()), torch.no_grad():
            if buffer.shape != before.shape:  # observers of quantisation grow from nothing in their first pass
                buffer.resize_(before.shape)
            if _version(buffer) != version or (is_seen and not torch.equal(buffer, before)):
                buffer.copy_(before)
    except Exception as error:
        raise RestoringError(
            f"A look at the network has changed the buffer `{name}` of its {type(module).__name__}, which cannot be put"
            f" back: {type(error).__name__}: {error}"
        ) from error


# Names of the parameters that a look at a module has changed, once it has been looked at.
_CHANGED: WeakKeyDictionary[nn.Module, set[str]] = WeakKeyDictionary()


@contextmanager
def preserved_parameters(model: nn.Module) -> Iterator[None]:
    """Put the parameters back that `forward`, or a change of mode, has changed.

    The first look at a module copies all of its parameters, to the CPU, and finds those that a look changes, as
    `nn.Embedding(max_norm=)` does. Later looks copy these alone, and what belongs to modules with a `train` of their
    own: layers of LoRA add their product to a weight there, and what they subtract again is not the same to the bit.
    """
    parameters = {name: one for name, one in model.named_parameters() if _is_plain(one)}
    is_first = model not in _CHANGED
    changed = _CHANGED.setdefault(model, set())
    merged = {id(one) for part in model.modules() if _may_merge(part) for one in part.parameters()}
    with ExitStack() as stack:
        for name, parameter in parameters.items():
            before = None
            if name in changed or id(parameter) in merged:
                before = parameter.detach().clone()
            elif is_first:
                before = parameter.detach().to("cpu", copy=True)
            version = _version(parameter)
            stack.callback(_put_parameter_back, parameter, name, version, before, changed, is_first=is_first)
        yield


def _put_parameter_back(
    parameter: Tensor, name: str, version: int | None, before: Tensor | None, changed: set[str], *, is_first: bool
) -> None:
    is_touched = _version(parameter) != version
    if is_touched:
        changed.add(name)
    if before is None:
        if is_touched:
            _WARN(
                f"A look at the network has changed its parameter `{name}`, which the looks before left alone: training"
                " goes on from the changed values. From the next look on it is put back."
            )
        return
    with torch.no_grad():
        if is_first and not is_touched and torch.equal(parameter.detach().to(before.device), before):
            return
        changed.add(name)
        parameter.data.copy_(before)  # which autograd does not take for a change: the values are those it knows


def _may_merge(module: nn.Module) -> bool:
    """Whether a change of mode may change parameters: torch's own modules hand the mode on."""
    return _has_own_train(module) and not getattr(module.train, "__module__", "").startswith("torch.")


def _has_own_train(module: nn.Module) -> bool:
    return "train" in vars(module) or type(module).train is not nn.Module.train


@contextmanager
def evaluation_mode(model: object) -> Iterator[None]:
    """Look at a model in eval mode, without gradient, and leave no trace.

    On leaving, each submodule's mode, all parameters, buffers and random states are as they were. Modules with a
    `train` of their own are told of the mode they go back to, parents before children.

    Raises:
        RestoringError: If something cannot be put back; all else is.
    """
    if not isinstance(model, nn.Module):
        with preserved_random_state(), torch.no_grad():
            yield
        return
    with (
        _cleared_autocast_cache(),
        preserved_random_state(),
        preserved_buffers(model),
        torch.no_grad(),
        preserved_parameters(model),
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
def _cleared_autocast_cache() -> Iterator[None]:
    """Forget the weights that were cast without gradient: older versions of torch would train with them."""
    try:
        yield
    finally:
        if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
            torch.clear_autocast_cache()


def _is_without_values(tensor: Tensor) -> bool:
    return is_lazy(tensor) or tensor.is_meta


def _is_plain(tensor: Tensor) -> bool:
    """Whether a tensor can be copied and written to as one that lies in memory as a whole."""
    if _is_without_values(tensor) or tensor.layout != torch.strided or is_expanded(tensor):
        return False
    return type(tensor.data) is Tensor


def is_expanded(buffer: Tensor) -> bool:
    """Whether several of its elements are one number in memory, so that nothing can be written to it."""
    if buffer.layout != torch.strided:
        return False
    return any(stride == 0 and size > 1 for stride, size in zip(buffer.stride(), buffer.shape, strict=True))


def _version(buffer: Tensor) -> int | None:
    """Grows with each change in place; None where torch does not count."""
    return None if buffer.is_inference() else buffer._version


def read_logits(
    model: Callable[[Tensor], Any],
    inputs: Tensor,
    batch_size: int = _BATCH,
    *,
    check_finite: bool = True,
    output_key: str | int | None = None,
) -> Tensor:
    """Logits (n, J) of any callable at `inputs` (n, ...), in batches, on the model's device and in its precision."""
    check_callable(model)
    parts = []
    with evaluation_mode(model):
        for batch in inputs.split(batch_size):
            parts.append(logits_of(model(as_taken(model, batch)), len(batch), key=output_key))
    logits = joined(parts)
    if check_finite and not bool(torch.stack(torch.aminmax(logits)).isfinite().all()):
        n_bad = int((~logits.isfinite().all(dim=1)).sum())
        raise ValueError(f"`model` must give finite logits, got NaN or infinity for {n_bad} of {len(logits)} inputs.")
    return logits


def logits_of(output: Any, n_inputs: int, name: str = "`model`", key: str | int | None = None) -> Tensor:
    """Logits (n, J) of what a model gave: a tensor or an array, or an output with an entry or attribute `logits`.

    With a `key`, the entry or attribute of that name, or of that place in a tuple. Of a single input they may come
    without the dimension of the batch, as a `squeeze` leaves them.
    """
    if key is None:
        found = output.get("logits") if isinstance(output, Mapping) else getattr(output, "logits", output)
    else:
        found = _entry(output, key, name)
    try:
        found = torch.as_tensor(found)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(
            f"{name} must give a tensor or an array of logits (n, J), or an output with `logits`, got {_shown(output)}."
        ) from error
    if found.layout != torch.strided:
        raise TypeError(f"{name} must give dense logits, got a tensor of layout {found.layout}.")
    if n_inputs == 1 and found.ndim < 2:
        found = found.reshape(1, -1)
    logits = as_logits(found)
    if len(logits) != n_inputs:
        raise ValueError(f"{name} must give one row of logits an input, {n_inputs}, got {len(logits)}.")
    return logits


def _entry(output: Any, key: str | int, name: str) -> Any:
    try:
        return getattr(output, key) if isinstance(key, str) and hasattr(output, key) else output[key]
    except (KeyError, IndexError, TypeError) as error:
        raise ValueError(f"{name} must give an output with `output_key={key!r}`, got {_shown(output)}.") from error


def _shown(output: Any) -> str:
    """The type of an output, and what is in it."""
    if isinstance(output, Mapping):
        return f"{type(output).__name__} with {', '.join(repr(key) for key in list(output)[:20])}"
    return f"{type(output).__name__} of {len(output)}" if isinstance(output, tuple | list) else type(output).__name__


def joined(parts: list[Tensor], name: str = "`model`") -> Tensor:
    """Logits (n, J) of all batches."""
    columns = sorted({part.shape[1] for part in parts})
    if len(columns) > 1:
        raise ValueError(f"{name} must give equally many logits for each input, got {columns} in one pass.")
    return torch.cat(parts)


def check_callable(model: object) -> None:
    """Raise unless `model` can be called."""
    if not callable(model):
        raise TypeError(
            f"`model` must be callable, (n, d) -> (n, J), got {type(model).__name__}: for a scikit-learn classifier"
            " pass `classifier.decision_function`, or the logarithm of `classifier.predict_proba`."
        )


def warn_of_probabilities(logits: Tensor, name: str = "`model`", warn: Callable[[str], None] = _WARN) -> None:
    """Warn of logits (n, J) that are all in [0, 1], in one column or in rows that sum to 1."""
    if not bool(((logits >= 0) & (logits <= 1)).all()):
        return
    is_one_column = logits.shape[1] == 2 and not bool(logits[:, 0].any()) and bool(logits[:, 1].any())
    if is_one_column or bool(((logits.sum(dim=1) - 1).abs() < _ROUNDING).all()):
        what = "one column, so that class 1 is predicted everywhere" if is_one_column else "rows that sum to 1"
        warn(
            f"{name} gives numbers in [0, 1], {what}. These look like probabilities: what is measured is wrong unless"
            " they are logits, as they are before a sigmoid or softmax."
        )


def as_taken(model: object, inputs: Tensor) -> Tensor:
    """Inputs on the device and in the precision of a model, where it has them."""
    return inputs.to(device_of(model, inputs), dtype_of(model, inputs))


def dtype_of(model: object, inputs: Tensor) -> torch.dtype:
    """In what a model takes its inputs: its own precision; integers, and where it has none, as they are."""
    if isinstance(model, nn.Module) and inputs.is_floating_point():
        return next((p.dtype for p in model.parameters() if p.is_floating_point()), inputs.dtype)
    return inputs.dtype


def device_of(model: object, inputs: Tensor) -> torch.device:
    """Where a model takes its inputs: on its own device, or where they are if it has none."""
    if isinstance(model, nn.Module):
        return next((p.device for p in model.parameters()), inputs.device)
    return inputs.device
