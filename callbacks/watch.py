"""Comparison of the first batches with a check, to refuse a module that prepares inputs in `training_step`."""

import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import torch
from lightning_utilities.core.rank_zero import rank_zero_warn
from torch import Tensor, nn

from bu_torch.callbacks.network import CHANGE_INPUTS, SEVERAL_TENSORS, NetworkReader
from bu_torch.callbacks.trainer import SHARDED, LightningModule, MisconfigurationException, Trainer
from bu_torch.internal.copying import CopyError
from bu_torch.run.processes import Processes
from bu_torch.samples.batches import Keys, split_batch
from bu_torch.samples.samples import UnreadableError, packed

# Tensors that a module was called with, by keyword or position.
_Call = dict[str | int, Tensor]
_MOST_BATCHES = 5  # until the network has been called
_MOST_CALLS = 64  # calls of a module in a batch
_OF_BYTES = (
    "A check calls `forward` with floating-point numbers: let it scale them as it scales bytes, or scale them in"
    " `on_after_batch_transfer`."
)
_CLOSE = 1e-3  # share of the spread of the values, to allow for the rounding of autocast
_SHIFTED = 0.5  # standard deviations
_STRETCHED = 2.0
_KEPT = 0.2  # share of values
_MASKED = 0.95
_AFTER_BYTES = ", behind a layer that takes integers"


class InputConsistency:
    """Compares the network's inputs in training with those in a check of the same batch.

    It compares the calls of the module itself if the step calls it (`self(x)`), else of the first part that a check
    calls (`self.net(x)`), or of the first part of that one, and so on: these get their inputs before any layer has run.
    """

    def __init__(self, reader: NetworkReader, keys: Keys) -> None:
        self._reader, self._keys = reader, keys
        self._is_on = False
        self._n_batches = 0
        self._labels: Tensor | None = None
        self._handles: list[Any] = []
        self._expected: dict[nn.Module, list[_Call]] = {}  # the call of a check
        self._got: dict[nn.Module, list[_Call]] = {}  # calls in training

    def begin(self, trainer: Trainer, pl_module: LightningModule, batch: Any, processes: Processes) -> None:
        """Prepare to compare the network's inputs in this step."""
        if type(trainer.strategy).__name__ in SHARDED or not can_be_watched(pl_module):
            return
        self._is_on = True  # in each process: all decide together
        # A batch that cannot be taken apart could not be read as a sample either.
        with suppress(UnreadableError, TypeError, MisconfigurationException, CopyError):
            several, labels = split_batch(batch, self._keys._replace(network=pl_module))
            inputs, packing = packed(several)
            self._labels = labels.detach().to("cpu", copy=True)
            with processes.copied(pl_module) as network:
                names = dict(pl_module.named_modules())  # `eval` may remove parts of the copy
                parts = {part: names[name] for name, part in network.named_modules() if name in names}
                listener = _Listener(self._expected, self._labels, parts)
                for part in parts:
                    part.register_forward_pre_hook(listener, with_kwargs=True, prepend=True)
                    part.register_forward_hook(listener.end)
                self._reader.read_batch(trainer, network, inputs, packing)
            hook = _Listener(self._got, self._labels, most=_MOST_CALLS)
            self._handles = [
                module.register_forward_pre_hook(hook, with_kwargs=True, prepend=True) for module in self._expected
            ]

    def end(self) -> None:
        """Stop watching."""
        for handle in self._handles:
            handle.remove()
        self._is_on, self._handles, self._expected, self._got, self._labels = False, [], {}, {}, None

    def end_batch(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Compare the calls of the last batch; all processes must call this."""
        if not self._is_on:
            return
        self._n_batches += 1
        objection = self._objection()
        if trainer.strategy.reduce_boolean_decision(bool(objection), all=False):
            self.end()
            way_out = CHANGE_INPUTS
            if "tensor" in objection:
                way_out = SEVERAL_TENSORS
            elif _AFTER_BYTES in objection:
                way_out = _OF_BYTES
            raise MisconfigurationException(
                "In training, the network gets inputs that differ from those of the batches"
                f"{f': {objection}' if objection else ', in another process'}. bu-torch reads the batches,"
                " so it would measure at inputs that the network never gets."
                f" {way_out}"
            )
        has_seen = trainer.strategy.reduce_boolean_decision(bool(self._got), all=False)
        if not (has_seen or self._n_batches == _MOST_BATCHES or trainer.is_last_batch):
            return
        if not has_seen and self._expected:
            rank_zero_warn(
                f"Training has not called `{type(pl_module).__name__}` or its first layers, but a check calls"
                " `forward`. If `training_step` takes another path through the network, the scores do not describe the"
                " trained network."
            )
        self.end()

    def _objection(self) -> str:
        """Say how the calls in training differed from that of a check; "" if one did not, or if none was seen."""
        of_bytes = ""
        for module, (expected,) in self._expected.items():  # the module itself comes first
            calls = self._got.get(module)
            if not calls:
                continue
            # Training may pass a batch in parts, or other samples or a dummy before it.
            found = [difference(expected, call, self._labels) for call in calls]
            if all(found):
                return f"{found[0]}{of_bytes}"
            pairs = zip(expected.values(), calls[found.index("")].values(), strict=False)
            if not any(first.is_floating_point() and not second.is_floating_point() for first, second in pairs):
                return ""
            # A layer that takes bytes may scale them but not floats, so its parts decide.
            of_bytes = _AFTER_BYTES
        return ""


def difference_from_samples(samples: Tensor, batch: Any, keys: Keys) -> str:
    """Say how the inputs of a batch differ from the samples (N, ...) that were read; "" if they do not, or if unknown.

    Rows of the samples, in any order, do not differ.
    """
    with suppress(UnreadableError, TypeError, MisconfigurationException):
        inputs, _ = packed(split_batch(batch, keys)[0])
        if samples.is_floating_point() and inputs.is_floating_point() and samples.shape[1:] == inputs.shape[1:]:
            return difference_of(samples, inputs.detach().cpu())
    return ""


def labels_in(batch: Any, keys: Keys) -> Tensor | None:
    """Labels of a batch, on the CPU; None if it cannot be taken apart."""
    with suppress(UnreadableError, TypeError, MisconfigurationException):
        return split_batch(batch, keys)[1].detach().to("cpu", copy=True)
    return None


def can_be_watched(module: nn.Module) -> bool:
    """Return True if hooks do not change how this module runs, because no part and no method of it is compiled."""
    return getattr(module, "_compiler_ctx", None) is None and not any(
        type(part).__name__ == "OptimizedModule"
        or getattr(part, "_compiled_call_impl", None) is not None
        or isinstance(part, torch.jit.ScriptModule)
        or any(hasattr(one, "_torchdynamo_orig_callable") for one in (*vars(part).values(), *vars(type(part)).values()))
        for part in module.modules()
    )


def is_transformed() -> bool:
    """True within a transform of `torch.func`, such as `vmap`, in which tensors hold no values that can be read."""
    return torch._C._functorch.peek_interpreter_stack() is not None


class _Listener:
    """Hook that records the first calls of each module, no more than `most`; copies of a module get a no-op.

    `parts` maps copied modules to their originals, under which calls are recorded until one of the copies returns.
    """

    def __init__(
        self,
        seen: dict[nn.Module, list[_Call]],
        labels: Tensor | None,
        parts: Mapping[nn.Module, nn.Module] | None = None,
        *,
        most: int = 1,
    ) -> None:
        self._seen, self._labels, self._parts, self._most = seen, labels, parts or {}, most

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        module = self._parts.get(module, module)
        if len(self._seen.get(module, ())) >= self._most or is_transformed():
            return
        named: list[tuple[str | int, Any]] = [*enumerate(args), *kwargs.items()]
        tensors = {  # on the CPU, which holds the dtypes of all devices
            name: value.detach().to("cpu", copy=True) for name, value in _flat(named) if isinstance(value, Tensor)
        }
        # A call with a whole batch, labels included, does not count: DistributedDataParallel calls the module with the
        # arguments of `training_step`.
        is_nested = len(tensors) > sum(isinstance(value, Tensor) for _, value in named)
        is_batch = is_nested and any(holds_labels(one, self._labels) for one in tensors.values())
        if tensors and not is_batch:
            self._seen.setdefault(module, []).append(tensors)

    def end(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        self._most = 0

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(_Listener, most=0), ({}, None)


def _flat(named: list[tuple[str | int, Any]]) -> Iterator[tuple[str | int, Any]]:
    """Arguments, with dicts and tuples flattened."""
    for name, value in named:
        if isinstance(value, Mapping):
            yield from _flat(list(value.items()))
        elif isinstance(value, tuple | list):
            yield from _flat(list(enumerate(value)))
        else:
            yield name, value


def difference(expected: _Call, got: _Call, labels: Tensor | None) -> str:
    """Say how two calls differ; "" if their values are the same or distributed alike.

    Augmentation and mixing of samples keep the mean and nearly the spread of a batch; other units do not.
    """
    # A number that all samples share (a temperature, a rate) is no input.
    expected, got = ({name: value for name, value in call.items() if value.numel() > 1} for call in (expected, got))
    got = {name: value for name, value in got.items() if not holds_labels(value, labels)}
    if not expected or not got:
        return ""
    if len(got) != len(expected):
        return f"{_named(got)}, but a check passes {_named(expected)}"
    names = expected if expected.keys() == got.keys() else got  # by name, or else by place
    pairs = zip(expected.values(), (got[name] for name in names), strict=True)
    return next((found for first, second in pairs if (found := difference_of(first, second))), "")


def _named(call: _Call) -> str:
    names = ", ".join(name if isinstance(name, str) else f"argument {name}" for name in call)
    return f"{len(call)} tensor{'s' if len(call) > 1 else ''} ({names})"


def difference_of(expected: Tensor, got: Tensor) -> str:
    """Say how inputs differ in more than their order or a mixture of them; "" if they do not."""
    if expected.numel() == got.numel() and _is_close(expected.flatten(), got.flatten()):
        return ""
    if expected.shape[1:] != got.shape[1:]:
        return f"shape {tuple(got.shape)} instead of {tuple(expected.shape)}"
    if not expected.is_floating_point() and not got.is_floating_point():
        return ""  # token ids have no units
    before, after = expected.double(), got.double()
    if _has_rows_of(before, after):
        return ""
    if before.shape == after.shape and (
        _is_close(before.mean(dim=0), after.mean(dim=0))  # samples are mixed with one another
        or _is_partly_kept(before, after)  # masked, or erased in parts
    ):
        return ""
    middle, mean = float(before.mean()), float(after.mean())
    spread, found = float(before.std()), float(after.std())
    is_shifted = abs(mean - middle) > _SHIFTED * max(spread, found)
    if is_shifted or max(spread, found) > _STRETCHED * min(spread, found):
        return f"values of mean {mean:.3g} and standard deviation {found:.3g} instead of {middle:.3g} and {spread:.3g}"
    return ""


def _has_rows_of(expected: Tensor, got: Tensor) -> bool:
    """Return True if some rows, other than constant ones, are rows of the batch."""
    batch, rows = expected.flatten(1), got.flatten(1)
    rows = rows[rows.amax(dim=1) > rows.amin(dim=1)] if rows.shape[1] > 1 else rows
    if not rows.numel():
        return False
    reach = _CLOSE * float(batch.std()) * math.sqrt(batch.shape[1])
    return bool((torch.cdist(rows, batch).amin(dim=1) <= reach).any())


def _is_partly_kept(expected: Tensor, got: Tensor) -> bool:
    """Return True if many of the nonzero values are unchanged, or 0 now."""
    is_nonzero = expected.abs() > _CLOSE * expected.abs().max()  # 0 is 0 in any unit
    is_kept = (expected - got).abs() <= _CLOSE * expected.abs()
    # Dropout scales what it keeps; no change of units turns another value into 0.
    is_masked = _KEPT < float((got == 0)[is_nonzero].double().mean()) < _MASKED
    return is_masked or bool(is_kept[is_nonzero].double().mean() > _KEPT)


def holds_labels(value: Tensor, labels: Tensor | None) -> bool:
    """Return True if a tensor holds the labels: as they are, as a column, or one-hot."""
    if labels is None:
        return False
    flat = labels.flatten()
    if value.numel() == flat.numel():
        return bool((value.flatten() == flat).all())
    if value.ndim != 2 or len(value) != len(flat):
        return False
    return bool(((value == 0) | (value == 1)).all()) and bool((value.to(torch.int8).argmax(dim=1) == flat).all())


def _is_close(first: Tensor, second: Tensor) -> bool:
    if first.dtype == second.dtype and torch.equal(first, second):  # the usual case, without copies
        return True
    first, second = first.double(), second.double()
    scale = float(first.std()) if first.numel() > 1 else float(first.abs().max())
    return bool(((first - second).abs() <= _CLOSE * max(scale, 1e-12)).all())
