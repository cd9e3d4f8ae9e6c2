"""A warning if the network gets other inputs in the first training batch than those that were read before."""

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from lightning_utilities.core.rank_zero import rank_zero_warn
from torch import Tensor, nn

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
        self._calls: dict[nn.Module, list[Tensor]] = {}  # tensors of each part's first call

    def begin(self, module: nn.Module, entrances: list[str], samples: list[Tensor]) -> None:
        """Listen to the parts of a module that get its inputs; `samples` has a tensor (N, ...) for each input."""
        self._samples, parts = samples, dict(module.named_modules())
        self._calls = {parts[name]: [] for name in entrances if samples and name in parts}
        self._handles = _listen(self._calls, _Listener(self._calls))

    def end_batch(self) -> None:
        """Warn if the batch differed, and end."""
        # The module itself comes first, then its parts in the order in which `forward` calls them.
        got = next((tensors for tensors in self._calls.values() if tensors), [])
        lines = [[difference_of(sample, tensor) for tensor in got] for sample in self._samples]
        line, remedy = next((of_one[0] for of_one in lines if of_one and all(of_one)), ""), CHANGE_INPUTS
        if 0 < len(got) < len(lines):
            line, remedy = f"{len(got)} of the {len(lines)} tensors", "Name those that it takes: `input_key=`."
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
        self._handles, self._samples, self._calls = [], [], {}


class _Listener:
    """Hook that keeps the tensors of a module's first call; it does nothing in copies of the module."""

    def __init__(self, calls: dict[nn.Module, list[Tensor]]) -> None:
        self._calls = calls

    def __call__(self, part: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        # Within a transform of `torch.func`, such as `vmap`, tensors hold no values that can be read.
        if self._calls.get(part) == [] and torch._C._functorch.peek_interpreter_stack() is None:
            self._calls[part] = [tensor.detach().to("cpu", copy=True) for tensor in _tensors(args, kwargs)]

    def __reduce__(self) -> tuple[Any, ...]:
        return _Listener, ({},)


@contextmanager
def entrances_of(network: nn.Module, module: nn.Module) -> Iterator[list[str]]:
    """List the parts of a copy of a module, itself ("") included, that get the same tensors as its `forward` within.

    There are none if a part or a method of the module is compiled, because hooks could change how it runs.
    """
    given: list[Tensor] = []
    names: list[str] = []

    def note(name: str, part: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        tensors = _tensors(args, kwargs)
        given.extend([] if name else tensors)
        if given and len(given) == len(tensors) and all(map(torch.equal, given, tensors)):
            names.append(name)

    is_compiled = getattr(module, "_compiler_ctx", None) is not None or any(
        type(part).__name__ == "OptimizedModule"
        or getattr(part, "_compiled_call_impl", None) is not None
        or isinstance(part, torch.jit.ScriptModule)
        or any(hasattr(one, "_torchdynamo_orig_callable") for one in (*vars(part).values(), *vars(type(part)).values()))
        for part in module.modules()
    )
    parts = () if is_compiled else network.named_modules()
    handles = [handle for name, part in parts for handle in _listen([part], partial(note, name))]
    try:
        yield names
    finally:
        for handle in handles:
            handle.remove()


def _listen(parts: Iterable[nn.Module], hook: Any) -> list[Any]:
    return [part.register_forward_pre_hook(hook, with_kwargs=True, prepend=True) for part in parts]


def _tensors(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
    """Tensors among the arguments; not those in a batch, with which `DistributedDataParallel` calls the module."""
    return [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]


def difference_of(expected: Tensor, got: Tensor) -> str:
    """Say how inputs differ in shape, mean or spread; "" if they do not, or if some rows of both are the same."""
    if expected.shape[1:] != got.shape[1:]:
        return f"inputs of shape {tuple(got.shape[1:])} instead of {tuple(expected.shape[1:])}"
    before, after = expected.double(), got.double()
    is_of_indices = not (expected.is_floating_point() or got.is_floating_point())  # they have no units
    if is_of_indices or _share_rows(before.flatten(1)[:_MOST_ROWS], after.flatten(1)[:_MOST_ROWS]):
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
