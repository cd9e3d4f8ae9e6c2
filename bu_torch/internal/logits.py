"""Logits of models of any kind and any form of output, at a tensor of inputs or at `PerturbedInputs`."""

import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from bu_torch.functional.checks import as_logits
from bu_torch.internal.output import log_nothing, outline
from bu_torch.internal.packing import Packing, call
from bu_torch.internal.replica import evaluation_copy

_BATCH = 4096
_LEAST_BATCH, _BATCH_ELEMENTS = 32, 2**23  # 32 MB of float32 bound a batch of large inputs
_BATCH_TOKENS = 2**15  # a network makes a vector of each
_WARN = partial(warnings.warn, stacklevel=5)  # the warning names the caller's line
_ROUNDING = 0.01  # half precision rounds the sum of shares, and a network may clamp its probabilities
_SQUASHING = ("aten::sigmoid", "aten::sigmoid_", "aten::_softmax")


def read_logits(
    model: Callable[[Tensor], Any],
    inputs: Any,
    batch_size: int = _BATCH,
    *,
    check_finite: bool = True,
    name: str = "",
) -> Tensor:
    """Logits (n, J) of a copy of any callable at `inputs` (n, ...), on the model's device and in its precision.

    With a `name` for it, probabilities become logits, and a warning says if they cannot be told from logits.
    """
    with evaluation_copy(model) as network:
        outputs = partial(logits_at, network, inputs, batch_size)
        logits = OutputReader(name, _WARN).logits(outputs) if name else outputs()
    if check_finite and not bool(torch.stack(torch.aminmax(logits)).isfinite().all()):
        n_bad = int((~logits.isfinite().all(dim=1)).sum())
        raise ValueError(f"`model` must give finite logits, got NaN or infinity for {n_bad} of {len(logits)} inputs.")
    return logits


def logits_at(network: Callable[[Tensor], Any], inputs: Any, batch_size: int = _BATCH) -> Tensor:
    """Logits (n, J) at `inputs` (n, ...), in batches, of a copy from `evaluation_copy`, which a pass may change."""
    check_callable(network)
    batch_size = min(batch_size, rows_at_once(inputs))
    return logits_in_batches(lambda batch: network(copy_to(network, batch)), inputs, batch_size)


def rows_at_once(inputs: Any) -> int:
    """Rows of a batch that a network gets at once: fewer if they are large."""
    n_values = _BATCH_ELEMENTS if inputs.is_floating_point() else _BATCH_TOKENS
    return min(_BATCH, max(_LEAST_BATCH, n_values // max(1, inputs.shape[1:].numel())))


def logits_in_batches(
    output_of: Callable[[Tensor], Any], inputs: Any, n_rows: int, name: str = "`model`", key: str | int | None = None
) -> Tensor:
    """Logits (n, J) in the outputs for `inputs` (n, ...), `n_rows` at once; name and key as in `logits_of`."""
    parts = [logits_of(output_of(batch), len(batch), name, key) for batch in inputs.split(n_rows)]
    columns = sorted({part.shape[1] for part in parts})
    if len(columns) > 1:
        raise ValueError(f"{name} must give the same number of logits for each input, got {columns} in one pass.")
    return torch.cat(parts)


def logits_of(output: Any, n_inputs: int, name: str = "`model`", key: str | int | None = None) -> Tensor:
    """Logits (n, J) of a model's output: a tensor or an array, or an object with an entry or attribute `logits`.

    `key` names another entry or attribute, or a place in a tuple. For a single input, the logits may lack the batch
    dimension, as after a `squeeze`.
    """
    if key is not None:
        found = entry_of(output, key, name)
    else:
        found = output.get("logits") if isinstance(output, Mapping) else getattr(output, "logits", output)
        found = found[0] if isinstance(found, tuple) and len(found) == 1 else found
    try:
        found = found if isinstance(found, Tensor) else torch.as_tensor(found, device="cpu")
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(
            f"{name} must give a tensor or an array of logits (n, J), or an output with `logits`, got"
            f" {outline(output)}. `output_key=`, if that is an argument, names the logits in a tuple or a dict."
        ) from error
    logits = as_logits(found.reshape(1, -1) if n_inputs == 1 and found.ndim < 2 else found)
    if len(logits) != n_inputs:
        raise ValueError(f"{name} must give one row of logits an input, {n_inputs}, got {len(logits)}.")
    return logits


def entry_of(output: Any, key: str | int, name: str) -> Any:
    """Entry or attribute of an output, by its name or its place."""
    try:
        return getattr(output, key) if isinstance(key, str) and hasattr(output, key) else output[key]
    except (KeyError, IndexError, TypeError) as error:
        raise ValueError(
            f"{name} must give an output with `output_key={key!r}`, got {outline(output)}."
            " `output_key=` names the logits in a tuple or a dict."
        ) from error


def check_callable(model: object) -> None:
    """Raise unless `model` can be called."""
    if not callable(model):
        remedy = "for a scikit-learn classifier pass its `decision_function`"
        raise TypeError(f"`model` must be callable, (n, d) -> (n, J), got {type(model).__name__}: {remedy}.")


class OutputReader:
    """Reads a network's outputs as logits; the first reading decides whether they are probabilities instead."""

    def __init__(self, name: str, warn: Callable[[str], None], log: Callable[[str], None] = log_nothing) -> None:
        self._name, self._warn, self._log = name, warn, log
        self._as_logits: Callable[[Tensor], Tensor] | None = None

    def logits(self, read: Callable[[], Tensor]) -> Tensor:
        """Logits (n, J) of the outputs that `read` gives, which `as_logits` has arranged."""
        outputs = read()
        if self._as_logits is None:
            self._as_logits = self._conversion_of(outputs, read)
        return self._as_logits(outputs)

    def _conversion_of(self, outputs: Tensor, read: Callable[[], Tensor]) -> Callable[[Tensor], Tensor]:
        if not bool(((outputs >= 0) & (outputs <= 1)).all()):
            return _unchanged
        first = 1 if was_one_column(outputs) else 0
        if first == 0 and bool(((outputs.sum(dim=1) - 1).abs() < _ROUNDING).all()):
            self._log(f"{self._name} gives probabilities: their logarithms are the logits.")
            return _logarithm
        with _LastSquashing() as last:  # an untrained network may have logits in [0, 1]
            outputs = read()
        if last.gave(outputs[:, first:]):
            self._log(f"{self._name} gives probabilities: logits are computed from them.")
            return partial(_log_odds, first=first)
        if first == 1:
            self._warn(
                f"{self._name} gives numbers in [0, 1] in one column, so class 1 is predicted everywhere. These look"
                " like probabilities: the scores are wrong unless they are logits, the values before a sigmoid."
            )
        return _unchanged


def _unchanged(logits: Tensor) -> Tensor:
    return logits


def _logarithm(probabilities: Tensor) -> Tensor:
    return probabilities.clamp(min=torch.finfo(probabilities.dtype).tiny).log()


def _log_odds(probabilities: Tensor, first: int) -> Tensor:
    """Logits of the probabilities in the columns from `first` on."""
    limits = torch.finfo(probabilities.dtype)
    return torch.cat((probabilities[:, :first], probabilities[:, first:].clamp(limits.tiny, 1 - limits.eps).logit()), 1)


class _LastSquashing(TorchDispatchMode):
    """Mode that keeps what the last sigmoid or softmax of a pass gave."""

    supports_higher_order_operators = True
    output: Tensor | None = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if getattr(getattr(func, "_schema", None), "name", "") in _SQUASHING:
            self.output = result.detach().clone()
        return result

    def gave(self, outputs: Tensor) -> bool:
        """Whether the last of these outputs (n, J) are what was kept, or one column of it."""
        if self.output is None or self.output.ndim > 2:
            return False
        kept = self.output.to(outputs).reshape(-1, self.output.shape[-1] if self.output.ndim == 2 else 1)
        if outputs.shape[1] not in (1, kept.shape[1]):
            return False
        is_near = (kept - outputs[-len(kept) :]).abs() < _ROUNDING
        columns = is_near.all(dim=0)
        return bool(columns.any() if outputs.shape[1] == 1 else columns.all())


def was_one_column(logits: Tensor) -> bool:
    """True for logits [0, z], as `as_logits` makes them of one column."""
    return logits.shape[1] == 2 and logits.any(dim=0).tolist() == [False, True]


def copy_to(model: object, inputs: Any) -> Any:
    """Copy one tensor or several to the device and precision of a model, if it has these; it may change the copies."""
    return pytree.tree_map(lambda part: part.to(device_of(model, part), dtype_of(model, part), copy=True), inputs)


def dtype_of(model: object, inputs: Any) -> torch.dtype:
    """Dtype in which a model takes inputs: its own, or theirs if they are integers or it has none."""
    if isinstance(model, nn.Module) and inputs.is_floating_point() and not isinstance(model, PackedNetwork):
        sizes = Counter[torch.dtype]()  # a temperature may have another precision than the layers
        for one in model.parameters():
            if one.is_floating_point() and not is_lazy(one):
                sizes[one.dtype] += one.numel()
        return max(sizes, key=lambda dtype: sizes[dtype], default=inputs.dtype)
    return inputs.dtype


def device_of(model: object, inputs: Any) -> torch.device:
    """Device on which a model takes inputs: its own, or theirs if it has none."""
    if isinstance(model, nn.Module):
        return next((p.device for p in model.parameters()), inputs.device)
    return inputs.device


class PackedNetwork(nn.Module):
    """Network that takes packed inputs and calls the trained network as training does."""

    def __init__(self, network: nn.Module, packing: Packing) -> None:
        super().__init__()
        self.network, self.packing = network, packing

    def forward(self, packed: Tensor) -> Any:
        return call(self.network, copy_to(self.network, self.packing.unpack(packed)))
