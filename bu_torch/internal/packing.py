"""Several tensors of a sample, such as token ids and their mask, as one tensor, and the call of a model with them."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from torch.utils import _pytree as pytree

from bu_torch.internal.inputs import as_tensor, exceeds_float32


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
        are_indices = [_holds_integers(part) or (part.shape in rows and _is_mask(part)) for part in tensors]
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
    def has_indices(self) -> bool:
        return any(self.dtypes)


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
    function = signature_of or model
    if isinstance(tree, dict) and all(isinstance(name, str) for name in tree) and takes(function, **tree):
        return model(**tree)
    values = tuple(tree.values()) if isinstance(tree, dict) and len(tree) > 1 else tree
    if isinstance(values, tuple) and takes(function, *values):
        return model(*values)
    return model(tree)


def of_one_length(columns: list[list[Tensor]]) -> list[list[Tensor]]:
    """Pad rows to the longest, if each batch is padded to its own length and a mask marks the padding.

    A column holds the tensors of one input from all batches. They are padded on the same side as in the batches, with
    the value that these have where the mask is 0.
    """
    is_ragged = any(tensor.shape[1:] != column[0].shape[1:] for column in columns for tensor in column)
    masks = next((column for column in columns if all(one.ndim == 2 and _is_mask(one) for one in column)), None)
    if not is_ragged or masks is None or len(columns) == 1:
        return columns
    longest = max(mask.shape[1] for mask in masks)
    is_left = any(bool((mask[:, 0] == 0).any()) for mask in masks)

    def lengthened(column: list[Tensor]) -> list[Tensor]:
        if [row.shape for row in column] != [mask.shape for mask in masks]:
            return column
        hidden = torch.cat([row[mask == 0] for row, mask in zip(column, masks, strict=True)])
        value = float(hidden[0]) if len(hidden) else 0.0
        missing = [longest - row.shape[1] for row in column]
        return [pad(row, (n, 0) if is_left else (0, n), value=value) for row, n in zip(column, missing, strict=True)]

    return [lengthened(column) for column in columns]


def _holds_integers(tensor: Tensor) -> bool:
    return not tensor.is_floating_point() and not tensor.is_complex() and tensor.ndim <= 2


def _is_mask(tensor: Tensor) -> bool:
    return bool(((tensor == 0) | (tensor == 1)).all())
