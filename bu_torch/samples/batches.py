"""Batches and arrays taken apart into inputs and labels."""

import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils.data import DataLoader

from bu_torch.internal.inputs import as_tensor
from bu_torch.internal.packing import as_inputs, as_tree, names_taken, of_one_length, takes
from bu_torch.internal.printing import advance, progress
from bu_torch.samples.samples import UnreadableError

InputKey = str | int | Sequence[str | int] | None


class Keys(NamedTuple):
    """Keys or places of inputs and labels in a batch; without them, inputs are what the `network` has arguments for."""

    inputs: InputKey = None
    labels: str | int | None = None
    network: Any = None


NO_KEYS = Keys()
_LABELS = ("labels", "label", "targets", "target", "y")
_NO_BATCH = (
    "batches must be (inputs, labels), or dicts or longer tuples whose keys or places are given by `input_key=`, which"
    " may be a list, and `label_key=`"
)
_PADDED = " Pad all batches to one length; ids that come with a mask of 0 and 1 may be padded batch by batch."
NO_SAMPLE = "there must be at least one sample, got none."
WAY_OUT = "Pass a pair (inputs, labels) of tensors or arrays."


def whole_pair(dataset: Any, keys: Keys = NO_KEYS) -> tuple[Any, Tensor] | None:
    """All inputs and all labels if `dataset` is a dict or tuple of whole arrays; None if it holds single samples."""
    if not isinstance(dataset, tuple | list | Mapping):
        return None
    parts = list(dataset.values()) if isinstance(dataset, Mapping) else dataset
    if parts and isinstance(parts[0], DataLoader):
        raise TypeError(f"`dataset` must be a single DataLoader, got a {type(dataset).__name__} of them. {WAY_OUT}")
    is_pair = len(parts) == 2 and hasattr(parts[0], "__len__")
    are_arrays = len(parts) > 0 and all(isinstance(part, Tensor | np.ndarray) for part in parts)
    if not (is_pair or are_arrays or isinstance(dataset, Mapping)):
        return None
    inputs, labels = _entries(dataset, keys)
    inputs, labels = as_inputs(inputs, "inputs"), as_tensor(labels, "labels")
    _check_lengths(inputs, labels)
    return inputs, labels


class TooManyBytesError(Exception):
    """The samples to read take more bytes than allowed; `n_fitting` of them fit."""

    def __init__(self, n_fitting: int) -> None:
        self.n_fitting = n_fitting


def concatenate(
    batches: Iterable[Any],
    keys: Keys,
    transform: Callable[[Any], Any] | None,
    limit: int | None = None,
    n_expected: int = 0,
    max_bytes: float | None = None,
) -> tuple[Any, Tensor]:
    """Inputs and labels of all batches, up to `limit` samples; raises if `n_expected` take more than `max_bytes`."""
    n_left, n_dropped = sys.maxsize if limit is None else limit, 0
    read: list[tuple[Any, Tensor]] = []
    with progress("bu-torch reads", total=n_expected or None, unit=" samples"):
        for batch in batches:
            if batch is None:  # a training step may skip it
                n_dropped += 1
                continue
            both = split_batch(batch if transform is None else transform(batch), keys)
            if not len(both[1]):
                continue
            if transform is not None:  # it has moved them to the network's device
                both = pytree.tree_map(Tensor.cpu, both)
            n_bytes = sum(tensor[:1].nbytes for tensor in pytree.tree_leaves(both[0]))
            if not read and max_bytes is not None and n_bytes * n_expected > max_bytes:
                raise TooManyBytesError(max(1, int(max_bytes // n_bytes)))
            # Tensors of a worker lie in shared memory, of which there may be little, and hold an open file each.
            read.append(pytree.tree_map(lambda tensor, most=n_left: tensor[:most].detach().clone(), both))
            n_left -= len(read[-1][1])
            advance(len(read[-1][1]))
            if not n_left:
                break
    if n_dropped:
        warnings.warn(f"{n_dropped} batches that are None are left out.", stacklevel=2)
    if not read:
        raise UnreadableError(NO_SAMPLE)
    return _joined(read)


def _joined(read: list[tuple[Any, Tensor]]) -> tuple[Any, Tensor]:
    spec = pytree.tree_structure(read[0])
    if any(pytree.tree_structure(both) != spec for both in read):
        raise UnreadableError("all batches must have the same inputs, got others in some.")
    *columns, labels = map(list, zip(*map(pytree.tree_leaves, read), strict=True))
    read.clear()
    joined = [*of_one_length(columns), labels]
    for tensors in joined:
        shapes = sorted({tuple(tensor.shape[1:]) for tensor in tensors})
        if len(shapes) > 1:
            raise UnreadableError(f"all samples must have one shape, got {', '.join(map(str, shapes[:3]))}.{_PADDED}")
    whole: tuple[Any, Tensor] = pytree.tree_unflatten(map(torch.cat, joined), spec)
    return whole


def split_batch(batch: Any, keys: Keys) -> tuple[Any, Tensor]:
    """Inputs and labels of a batch, dense tensors of one length; raises `UnreadableError` and `TypeError`."""
    inputs, labels = _entries(batch, keys)
    both = as_tree(inputs), labels
    for name, part in zip(("inputs", "labels"), both, strict=True):
        tensors = pytree.tree_leaves(part)
        if not tensors or not all(isinstance(tensor, Tensor) for tensor in tensors):
            raise UnreadableError(f"the {name} of a batch must be a tensor of numbers, got {type(part).__name__}.")
        for tensor in tensors:
            as_tensor(tensor, name)  # refuses one that is not dense
    _check_lengths(*both)
    return both


def _check_lengths(inputs: Any, labels: Tensor) -> None:
    shapes = [tuple(tensor.shape) for tensor in (*pytree.tree_leaves(inputs), labels)]
    if not all(shapes) or len({shape[0] for shape in shapes}) > 1:
        raise UnreadableError(f"inputs and labels must be equally long, got {', '.join(map(str, shapes))}.")


def _entries(batch: Any, keys: Keys) -> tuple[Any, Any]:
    """The entries of a batch that are inputs and labels."""
    if not isinstance(batch, Mapping | tuple | list):
        raise UnreadableError(f"{_NO_BATCH}, got a {type(batch).__name__}.")
    is_dict = isinstance(batch, Mapping)
    has = f"keys {', '.join(map(repr, batch))}" if is_dict else f"places 0 to {len(batch) - 1}"
    input_key, label_key = _keys(batch, keys, has) if isinstance(batch, Mapping) else _places(batch, keys)
    several = [input_key] if isinstance(input_key, str) or not isinstance(input_key, Sequence) else input_key
    places = [*several, label_key]
    if not is_dict:  # a command line gives places as strings
        places = [int(place) if str(place).isdecimal() else place for place in places]
    try:
        *inputs, labels = (batch[place] for place in places)
    except (KeyError, IndexError, TypeError) as error:
        raise UnreadableError(
            f"`input_key={input_key!r}` and `label_key={label_key!r}` must be in a batch, which has the {has}."
        ) from error
    if several is not input_key:
        return inputs[0], labels
    return dict(zip(several, inputs, strict=True)) if is_dict else tuple(inputs), labels


def _keys(batch: Mapping[Any, Any], keys: Keys, has: str) -> tuple[InputKey, str | int]:
    """Keys of inputs and labels; missing ones are guessed from their names and from what the network takes."""
    input_key, label_key, network = keys
    if label_key is None and network is not None:
        guesses = [name for name in _LABELS if name in batch]
        label_key = guesses[0] if len(guesses) == 1 else None
    if input_key is None and network is not None and label_key is not None:
        others = [key for key, value in batch.items() if isinstance(value, Tensor) and key != label_key]
        input_key = names_taken(network, others) or (others[0] if len(others) == 1 else None)
        if input_key is None and others and takes(network, batch):  # `forward` takes the dict itself
            input_key = others
    if input_key is None or label_key is None:
        raise UnreadableError(
            f"batches are dicts with the {has}: name inputs and labels with `input_key=`, which may be a list, and"
            " `label_key=`."
        )
    return input_key, label_key


def _places(batch: Sequence[Any], keys: Keys) -> tuple[InputKey, str | int]:
    """Places of inputs and labels; without any, a batch is a pair, or what the network takes and then labels."""
    input_key, label_key, network = keys
    if input_key is not None and label_key is not None:
        return input_key, label_key
    if input_key is not None or label_key is not None:
        raise UnreadableError("`input_key=` and `label_key=` go together, got one of them.")
    if len(batch) == 2:
        return 0, 1
    if len(batch) > 2 and network is not None and _ends_with_labels(batch, network):
        return range(len(batch) - 1), -1
    raise UnreadableError(f"{_NO_BATCH}, got a {type(batch).__name__} of {len(batch)}.")


def _ends_with_labels(batch: Sequence[Any], network: Any) -> bool:
    """True if a batch is what the network takes and then labels, and nothing else in it could be the labels."""
    if not all(isinstance(value, Tensor) for value in batch) or not takes(network, *batch[:-1]):
        return False
    may_be_labels = [value.ndim == 1 and not value.is_floating_point() for value in batch]
    return may_be_labels[-1] and (not any(may_be_labels[:-1]) or not takes(network, *batch[:-2]))
