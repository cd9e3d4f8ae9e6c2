"""A warning if the network gets other inputs in the first training batch than those that were read before."""

import math
from collections.abc import Iterable
from typing import Any

import torch
from lightning_utilities.core.rank_zero import rank_zero_warn
from torch import Tensor, nn
from torch.utils import _pytree as pytree

CHANGE_INPUTS = (
    "Move the preparation of inputs from `training_step` into `forward`, or into `on_after_batch_transfer`; or pass"
    " samples as the network takes them: `reference=(inputs, labels)`."
)
_CLOSE = 1e-3  # share of the spread of the values, to allow for the rounding of autocast
_SHIFTED = 0.5  # standard deviations
_STRETCHED = 2.0
_MOST_ROWS = 4096  # compared one by one


class InputWatch:
    """Compares what the network gets in the first training batch with samples that were read before training."""

    def __init__(self) -> None:
        self._handles: list[Any] = []
        self._samples: list[Tensor] = []
        self._got: list[Tensor] = []

    def begin(self, module: nn.Module, samples: list[Tensor]) -> None:
        """Listen to a module and its parts, unless compiled; `samples` has a tensor (N, ...) for each input."""
        self._samples, self._got = samples, []
        listener = _Listener(self._got, module, samples)
        parts = module.modules() if samples and not _is_compiled(module) else ()
        self._handles = [part.register_forward_pre_hook(listener, with_kwargs=True, prepend=True) for part in parts]

    def end_batch(self) -> None:
        """Warn if the batch differed, and end."""
        lines = [[difference_of(sample, tensor) for tensor in self._got] for sample in self._samples]
        line, remedy = next((of_one[0] for of_one in lines if of_one and all(of_one)), ""), CHANGE_INPUTS
        if 0 < len(self._got) < len(lines):
            line, remedy = f"{len(self._got)} of the {len(lines)} tensors", "Name those that it takes: `input_key=`."
        self.end()
        if line:
            rank_zero_warn(
                f"In the first batch the network gets {line} in the samples that bu-torch has read, so the scores do"
                f" not describe the trained network. {remedy}"
            )

    def end(self) -> None:
        """Listen no longer."""
        for handle in self._handles:
            handle.remove()
        self._handles, self._samples, self._got = [], [], []


class _Listener:
    """Hook that keeps what a module gets first; or a part of it, if that is called first with tensors of its shapes."""

    def __init__(self, got: list[Tensor], module: nn.Module | None = None, samples: Iterable[Tensor] = ()) -> None:
        self._got, self._module, self._shapes = got, module, {sample.shape[1:] for sample in samples}

    def __call__(self, part: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        # Within a transform of `torch.func`, such as `vmap`, tensors hold no values that can be read.
        if self._got or torch._C._functorch.peek_interpreter_stack() is not None:
            return
        # `forward` may take a dict. `DistributedDataParallel` calls the module with a batch and its number.
        values = [*args, *kwargs.values()]
        values = pytree.tree_leaves(values) if len(values) == 1 else values
        tensors = [value for value in values if isinstance(value, Tensor)]
        if part is self._module or self._shapes <= {tensor.shape[1:] for tensor in tensors}:
            self._got += [tensor.detach().to("cpu", copy=True) for tensor in tensors]

    def __reduce__(self) -> tuple[Any, ...]:
        return _Listener, ([torch.empty(0)],)  # copies of the module are not watched


def _is_compiled(module: nn.Module) -> bool:
    """Whether a part or a method is compiled, so that hooks could change how the module runs."""
    marks = ("_compiler_ctx", "_compiled_call_impl", "_orig_mod", "_torchdynamo_orig_callable")
    return any(
        isinstance(part, torch.jit.ScriptModule) or any(getattr(one, mark, None) is not None for mark in marks)
        for part in module.modules()
        for one in (part, *vars(part).values(), *vars(type(part)).values())
    )


def difference_of(expected: Tensor, got: Tensor) -> str:
    """Say how inputs differ in shape, mean or spread; "" if they do not, or if some rows of both are the same."""
    if expected.shape[1:] != got.shape[1:]:
        return f"inputs of shape {tuple(got.shape[1:])} instead of {tuple(expected.shape[1:])}"
    before, after = expected.double(), got.double()
    are_indices = not (expected.is_floating_point() or got.is_floating_point())  # they have no units
    if are_indices or _share_rows(before.flatten(1)[:_MOST_ROWS], after.flatten(1)[:_MOST_ROWS]):
        return ""
    middle, mean = float(before.mean()), float(after.mean())
    spread, found = float(before.std()), float(after.std())
    is_shifted = abs(mean - middle) > _SHIFTED * max(spread, found)
    if is_shifted or max(spread, found) > _STRETCHED * min(spread, found):
        return f"values of mean {mean:.3g} and standard deviation {found:.3g} instead of {middle:.3g} and {spread:.3g}"
    return ""


def _share_rows(first: Tensor, second: Tensor) -> bool:
    """Whether both have a row in common that is not constant."""
    rows = second[second.amax(dim=1) > second.amin(dim=1)] if second.shape[1] > 1 else second
    reach = _CLOSE * float(first.std()) * math.sqrt(first.shape[1])
    return bool((torch.cdist(rows, first) <= reach).any())
