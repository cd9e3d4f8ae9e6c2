"""Calling a network: the tensors of a sample as one tensor, and outputs of any form as logits."""

import inspect
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from torch.nn.parameter import is_lazy
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from bu_torch.functional.checks import as_logits
from bu_torch.internal.inputs import as_tensor, exceeds_float32
from bu_torch.internal.output import log_nothing, outline
from bu_torch.internal.replica import evaluation_copy


@dataclass(frozen=True)
class Packing:
    """Arrangement of a sample's tensors in one, which is chosen, moved and compared; the network gets its own again.

    Indices are integers and truth values of at most two dimensions, and a floating-point mask beside them; all other
    tensors hold numbers. The form is `"rows"` (n, K, L) of indices alone, `"channels"` (n, C, H, W) of images of one
    size, `"table"` (n, D) of numbers and vectors, or `"mixed"` (n, D) of all else.
    """

    order: tuple[int, ...]  # place of each tensor in the structure that holds them: numbers come first, then indices
    names: tuple[str, ...]  # path of each in that structure
    shapes: tuple[torch.Size, ...]  # shape of each in one sample
    dtypes: tuple[torch.dtype | None, ...]  # None for numbers
    form: Literal["rows", "channels", "table", "mixed"]
    dtype: torch.dtype  # type of the packed tensor
    spec: Any  # structure that holds the tensors

    @classmethod
    def of(cls, tree: Any) -> "Packing":
        """Packing for tensors of one length, in a structure from `as_inputs`."""
        paths, spec = pytree.tree_flatten_with_path(tree)
        tensors = [tensor for _, tensor in paths]
        rows = {tensor.shape for tensor in tensors if _holds_integers(tensor) and tensor.ndim == 2}
        are_indices = [_holds_integers(part) or (part.shape in rows and is_mask(part)) for part in tensors]
        form: Literal["rows", "channels", "table", "mixed"] = "mixed"
        dtype = torch.float64 if any(map(exceeds_float32, tensors)) else torch.float32
        if all(are_indices) and all(tensor.ndim == 2 for tensor in tensors):
            form, dtype = "rows", torch.int64
        elif len({(tensor.dtype, *tensor.shape[2:]) for tensor in tensors}) == 1 and tensors[0].ndim == 4:
            form, dtype = "channels", tensors[0].dtype
        elif not any(are_indices) and all(tensor.ndim <= 2 for tensor in tensors):
            form = "table"
        order = tuple(sorted(range(len(tensors)), key=lambda place: are_indices[place]))
        return cls(
            order=order,
            names=tuple(pytree.keystr(paths[place][0]) for place in order),
            shapes=tuple(tensors[place].shape[1:] for place in order),
            dtypes=tuple(tensors[place].dtype if are_indices[place] else None for place in order),
            form=form,
            dtype=dtype,
            spec=spec,
        )

    def pack(self, tree: Any) -> Tensor:
        """Pack the tensors of `tree`, which have the packing's shapes and types, into one tensor (n, ...)."""
        leaves = pytree.tree_leaves(tree)
        tensors = [leaves[place].to(self.dtype) for place in self.order]
        if self.form == "rows":
            longest = max(shape[0] for shape in self.shapes)
            return torch.stack([pad(tensor, (0, longest - tensor.shape[1])) for tensor in tensors], 1)
        if self.form != "channels":
            tensors = [tensor.reshape(len(tensor), -1) for tensor in tensors]
        return torch.cat(tensors, dim=1)

    def unpack(self, packed: Tensor) -> Any:
        """Restore the tensors; numbers have the dtype of `packed`."""
        parts = zip(self.order, self._split(packed), self.dtypes, strict=True)
        by_place = {place: part.contiguous().to(dtype or packed.dtype) for place, part, dtype in parts}
        return pytree.tree_unflatten([by_place[place] for place in range(len(by_place))], self.spec)

    def numbers(self, packed: Tensor) -> list[Tensor]:
        """The tensors that hold numbers, (n, ...) each."""
        return self._split(packed)[: self.dtypes.count(None)]

    def numbers_and_indices(self, packed: Tensor) -> tuple[Tensor, Tensor]:
        """Numbers (n, D), and indices (n, K, L): K rows of one length, such as ids and their mask, or one row."""
        numbers, indices = self.shapes[: self.dtypes.count(None)], self.shapes[self.dtypes.count(None) :]
        n_numbers, lengths = sum(shape.numel() for shape in numbers), {shape.numel() for shape in indices}
        n_rows = len(indices) if len(lengths) == 1 and lengths != {1} else 1
        return packed[:, :n_numbers], packed[:, n_numbers:].reshape(len(packed), n_rows, -1)

    def _split(self, packed: Tensor) -> list[Tensor]:
        if self.form == "rows":
            return [packed[:, k, : shape[0]] for k, shape in enumerate(self.shapes)]
        sizes = [shape[0] if self.form == "channels" else shape.numel() for shape in self.shapes]
        parts = zip(packed.split(sizes, dim=1), self.shapes, strict=True)
        return [part.reshape(len(packed), *shape) for part, shape in parts]

    def __str__(self) -> str:
        shapes = (", ".join(map(str, ("n", *shape))) for shape in self.shapes)
        return ", ".join(f"{name} of shape ({shape})" for name, shape in zip(self.names, shapes, strict=True))

    @property
    def index_names(self) -> tuple[str, ...]:
        return self.names[self.dtypes.count(None) :]


def as_inputs(inputs: Any, name: str) -> Any:
    """Inputs as a tensor, or as a dict or a tuple of tensors of one length, which may be nested.

    Mappings, as tokenizers give, become dicts, and lists of tensors tuples; a list of one tensor is that tensor.
    """
    if isinstance(inputs, Mapping):
        tree: Any = {key: as_inputs(value, f"{name}[{key!r}]") for key, value in inputs.items()}
    elif isinstance(inputs, tuple | list) and all(isinstance(leaf, Tensor) for leaf in pytree.tree_leaves(inputs)):
        tree = tuple(as_inputs(value, name) for value in inputs)
        tree = tree[0] if len(tree) == 1 else tree
    else:
        tree = as_tensor(inputs, name)
    tensors = pytree.tree_leaves(tree)
    if len({tensor.shape[:1] for tensor in tensors}) != 1 or not tensors[0].ndim:
        shapes = ", ".join(str(tuple(tensor.shape)) for tensor in tensors) or "none"
        raise ValueError(f"`{name}` must be tensors of one length, got {shapes}.")
    return tree


def takes(function: Any, *args: Any, **kwargs: Any) -> bool:
    """Whether a function, or a module's `forward`, takes these arguments; True if it has no signature to tell."""
    return _binds("bind", function, args, kwargs)


def names_taken(function: Any, names: Iterable[Any]) -> list[str]:
    """Select the names that are arguments of a function or of a module's `forward`."""
    return [name for name in names if isinstance(name, str) and _binds("bind_partial", function, (), {name: None})]


def _binds(how: str, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    try:
        signature = inspect.signature(function.forward if isinstance(function, nn.Module) else function)
    except (TypeError, ValueError):
        return True
    try:
        getattr(signature, how)(*args, **kwargs)
    except TypeError:
        return False
    return True


def call(model: Callable[..., Any], tree: Any, signature_of: Any = None) -> Any:
    """Call a model with one tensor or several: those of a dict by name or else in order, those of a tuple in order.

    If the signature of the model, or that of another, does not allow that, it gets the dict or the tuple itself.
    """
    if not callable(model):
        remedy = "for a scikit-learn classifier pass its `decision_function`"
        raise TypeError(f"`model` must be callable, (n, d) -> (n, J), got {type(model).__name__}: {remedy}.")
    function = signature_of or model
    if isinstance(tree, dict) and all(isinstance(name, str) for name in tree) and takes(function, **tree):
        return model(**tree)
    values = tuple(tree.values()) if isinstance(tree, dict) and len(tree) > 1 else tree
    if isinstance(values, tuple) and takes(function, *values):
        return model(*values)
    return model(tree)


def _holds_integers(tensor: Tensor) -> bool:
    return not tensor.is_floating_point() and not tensor.is_complex() and tensor.ndim <= 2


def is_mask(tensor: Tensor) -> bool:
    """Whether all values are 0 or 1."""
    return bool(((tensor == 0) | (tensor == 1)).all())


BATCH = 4096  # rows at once, at most
_LEAST_BATCH, _BATCH_ELEMENTS = 32, 2**23  # 32 MB of float32 bound a batch of large inputs
_BATCH_TOKENS = 2**15  # a network makes a vector of each
_WARN = partial(warnings.warn, stacklevel=5)  # the warning names the caller's line
_ROUNDING = 0.01  # half precision rounds the sum of shares, and a network may clamp its probabilities
_SQUASHING = ("aten::sigmoid", "aten::sigmoid_", "aten::_softmax")


def read_logits(
    model: Callable[[Tensor], Any], inputs: Any, batch_size: int = BATCH, *, check_finite: bool = True, name: str = ""
) -> Tensor:
    """Logits (n, J) of a copy of any callable at `inputs` (n, ...), on the model's device and in its precision.

    With a `name` for it, probabilities become logits, and a warning says if they cannot be told from logits.
    """
    with evaluation_copy(model) as network:
        outputs = partial(logits_in_batches, lambda batch: call(network, copy_to(network, batch)), inputs, batch_size)
        logits = OutputConverter(name, _WARN).logits(outputs) if name else outputs()
    if check_finite and not bool(torch.stack(torch.aminmax(logits)).isfinite().all()):
        n_bad = int((~logits.isfinite().all(dim=1)).sum())
        raise ValueError(f"`model` must give finite logits, got NaN or infinity for {n_bad} of {len(logits)} inputs.")
    return logits


def logits_in_batches(
    output_of: Callable[[Tensor], Any],
    inputs: Any,
    most_rows: int = BATCH,
    name: str = "`model`",
    key: str | int | None = None,
) -> Tensor:
    """Logits (n, J) in the outputs for `inputs` (n, ...), in batches; fewer rows at once if they are large."""
    n_values = _BATCH_ELEMENTS if inputs.dtype.is_floating_point else _BATCH_TOKENS
    n_rows = min(most_rows, BATCH, max(_LEAST_BATCH, n_values // max(1, inputs.shape[1:].numel())))
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
        entry = entry_of(output, key, name)
    else:
        entry = output.get("logits") if isinstance(output, Mapping) else getattr(output, "logits", output)
        entry = entry[0] if isinstance(entry, tuple) and len(entry) == 1 else entry
    try:
        entry = entry if isinstance(entry, Tensor) else torch.as_tensor(entry, device="cpu")
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(
            f"{name} must give a tensor or an array of logits (n, J), or an output with `logits`, got"
            f" {outline(output)}. `output_key=`, if that is an argument, names the logits in a tuple or a dict."
        ) from error
    logits = as_logits(entry.reshape(1, -1) if n_inputs == 1 and entry.ndim < 2 else entry)
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


class OutputConverter:
    """Turns a network's outputs into logits; the first reading decides whether they are probabilities."""

    def __init__(self, name: str, warn: Callable[[str], None], log: Callable[[str], None] = log_nothing) -> None:
        self._name, self._warn, self._log = name, warn, log
        self._kind: Literal["logits", "shares", "chances"] | None = None  # shares sum to 1 in each row, chances do not

    def logits(self, read: Callable[[], Tensor]) -> Tensor:
        """Logits (n, J) of the outputs that `read` gives, which `as_logits` has arranged."""
        outputs = read()
        self._kind = self._kind or self._kind_of(outputs, read)
        limits = torch.finfo(outputs.dtype)
        if self._kind == "shares":
            return outputs.clamp(min=limits.tiny).log()
        if self._kind == "chances":
            log_odds = outputs.clamp(limits.tiny, 1 - limits.eps).logit()
            return torch.cat((outputs[:, :1], log_odds[:, 1:]), 1) if was_one_column(outputs) else log_odds
        return outputs

    def _kind_of(self, outputs: Tensor, read: Callable[[], Tensor]) -> Literal["logits", "shares", "chances"]:
        if not bool(((outputs >= 0) & (outputs <= 1)).all()):
            return "logits"
        first = 1 if was_one_column(outputs) else 0
        if first == 0 and bool(((outputs.sum(dim=1) - 1).abs() < _ROUNDING).all()):
            self._log(f"{self._name} gives probabilities: their logarithms are the logits.")
            return "shares"
        with _LastSquashing() as last:  # an untrained network may have logits in [0, 1]
            outputs = read()
        if last.gave(outputs[:, first:]):
            self._log(f"{self._name} gives probabilities: logits are computed from them.")
            return "chances"
        if first == 1:
            self._warn(
                f"{self._name} gives numbers in [0, 1] in one column, so class 1 is predicted everywhere. These look"
                " like probabilities: the scores are wrong unless they are logits, the values before a sigmoid."
            )
        return "logits"


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
        columns = ((kept - outputs[-len(kept) :]).abs() < _ROUNDING).all(dim=0)
        return bool(columns.any() if outputs.shape[1] == 1 else columns.all())


def was_one_column(logits: Tensor) -> bool:
    """True for logits [0, z], as `as_logits` makes them of one column."""
    return logits.shape[1] == 2 and logits.any(dim=0).tolist() == [False, True]


def copy_to(model: object, inputs: Any) -> Any:
    """Copy one tensor or several to the device and precision of a model, if it has these; it may change the copies."""
    weights: list[Tensor] = []  # a temperature may have another precision than the layers
    if isinstance(model, nn.Module) and not isinstance(model, PackedNetwork):
        weights = [weight for weight in model.parameters() if weight.is_floating_point() and not is_lazy(weight)]
    dtype = max(weights, key=Tensor.numel).dtype if weights else None
    return pytree.tree_map(
        lambda part: part.to(device_of(model, part), dtype if part.is_floating_point() else None, copy=True), inputs
    )


def device_of(model: object, inputs: Any) -> torch.device:
    """Device on which a model takes inputs: its own, or theirs if it has none."""
    if isinstance(model, nn.Module):
        return next((p.device for p in model.parameters()), inputs.device)
    return inputs.device


class PackedNetwork(nn.Module):
    """Takes packed inputs, and calls a network, a function or a network's method with the tensors themselves."""

    def __init__(self, network: Callable[..., Any], packing: Packing) -> None:
        super().__init__()
        self.network, self.packing = network, packing
        self.owner = getattr(network, "__self__", network)  # a part, so that a copy of it runs, in eval mode

    def forward(self, packed: Tensor) -> Any:
        return call(self.network, copy_to(self.owner, self.packing.unpack(packed)))
