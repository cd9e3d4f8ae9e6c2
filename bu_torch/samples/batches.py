"""Batches and arrays taken apart into inputs and labels."""

import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader
from tqdm.auto import tqdm

from bu_torch.internal.inputs import as_tensor
from bu_torch.samples.samples import UnreadableError

# Where a batch holds its inputs and its labels: keys of a dict, or places in a tuple; None where the batch is a pair.
Keys = tuple[str | int | None, str | int | None]
NO_KEYS: Keys = (None, None)
_PARTS = ("inputs", "labels")  # of a batch
NO_SAMPLE = "there must be at least one sample, got none."
WAY_OUT = "Pass a pair (inputs, labels) of tensors or arrays."


def whole_pair(dataset: Any, keys: Keys = NO_KEYS) -> tuple[Any, Any] | None:
    """All inputs and all labels if `dataset` is a dict or tuple of whole arrays; None if it holds single samples."""
    if not isinstance(dataset, tuple | list | Mapping):
        return None
    parts = list(dataset.values()) if isinstance(dataset, Mapping) else dataset
    if any(isinstance(part, DataLoader) for part in parts[:1]):
        raise TypeError(f"`dataset` must be a single DataLoader, got a {type(dataset).__name__} of them. {WAY_OUT}")
    if not isinstance(dataset, Mapping):
        is_pair = len(dataset) == 2 and hasattr(dataset[0], "__len__")
        if not is_pair and not (dataset and all(isinstance(part, Tensor | np.ndarray) for part in dataset)):
            return None
    try:
        return _entries(dataset, keys)
    except UnreadableError as error:
        raise ValueError(f"`dataset`: {error} {WAY_OUT}") from error


def as_tensors(inputs: Any, labels: Any) -> tuple[Tensor, Tensor]:
    """Inputs and labels of the same length as tensors."""
    inputs, labels = as_tensor(inputs, "inputs"), as_tensor(labels, "labels")
    if inputs.ndim == 0 or labels.ndim == 0 or len(inputs) != len(labels):
        raise ValueError(
            f"`dataset` must be inputs and labels of one length, got {tuple(inputs.shape)} and {tuple(labels.shape)}."
        )
    if not len(inputs):
        raise ValueError(f"`dataset`: {NO_SAMPLE} {WAY_OUT}")
    return inputs, labels


class TooManyBytesError(Exception):
    """The samples to read take more bytes than may be held, which `n_fitting` of them do not."""

    def __init__(self, n_fitting: int) -> None:
        self.n_fitting = n_fitting


def check_bytes(inputs: Tensor, n_wanted: int, max_bytes: int | None) -> None:
    """Raise if so many samples like the first of `inputs` take more than `max_bytes`."""
    if max_bytes is not None and (n_bytes := inputs[:1].nbytes) * n_wanted > max_bytes:
        raise TooManyBytesError(max(1, max_bytes // n_bytes))


def concatenate(
    batches: Iterable[Any],
    keys: Keys,
    transform: Callable[[Any], Any] | None,
    limit: int | None = None,
    *,
    n_expected: int = 0,
    max_bytes: int | None = None,
    has_progress_bar: bool = False,
) -> tuple[Tensor, Tensor]:
    """Inputs and labels of all batches, up to `limit` samples; `n_expected` may be more than `max_bytes` allow."""
    if transform is not None:
        batches = map(transform, batches)
    n_left = sys.maxsize if limit is None else limit
    read: list[tuple[Tensor, Tensor]] = []
    shown = tqdm(batches, "Boundary uncertainty reads", delay=3, disable=not has_progress_bar, leave=False)
    for inputs, labels in (split_batch(batch, keys) for batch in shown):
        if len(inputs):
            if transform is not None:  # which has moved them to where the network is
                inputs, labels = inputs.detach().cpu(), labels.detach().cpu()
            if not read:
                check_bytes(inputs, n_expected, max_bytes)
            read.append((inputs[:n_left], labels[:n_left]))
            n_left -= len(read[-1][0])
        if not n_left:
            break
    if not read:
        raise UnreadableError(NO_SAMPLE)
    joined = dict(zip(_PARTS, map(list, zip(*read, strict=True)), strict=True))
    read.clear()
    for name, tensors in joined.items():
        shapes = {tuple(tensor.shape[1:]) for tensor in tensors}
        if len(shapes) > 1:
            found = ", ".join(map(str, sorted(shapes)[:3]))
            raise UnreadableError(f"all {name} must have one shape, got {found}.")
    inputs, labels = (_cat(tensors) for tensors in joined.values())
    return inputs, labels


def _cat(tensors: list[Tensor]) -> Tensor:
    """Concatenate, and free each tensor once it is copied, so that hardly more than the result is held."""
    first = tensors[0]
    if any(tensor.dtype != first.dtype for tensor in tensors):
        return torch.cat(tensors)
    joined, start = first.new_empty((sum(map(len, tensors)), *first.shape[1:])), 0
    tensors.reverse()
    while tensors:
        tensor = tensors.pop()
        joined[start : start + len(tensor)] = tensor
        start += len(tensor)
    return joined


def split_batch(batch: Any, keys: Keys) -> tuple[Tensor, Tensor]:
    """Inputs and labels of a batch, both dense tensors of one length; raises `UnreadableError` and `TypeError`."""
    inputs, labels = _entries(batch, keys)
    for name, value in zip(_PARTS, (inputs, labels), strict=True):
        if not isinstance(value, Tensor):
            raise UnreadableError(f"the {name} of a batch must be a tensor, got {type(value).__name__}.")
        as_tensor(value, name)  # which refuses one that is not dense
    if inputs.ndim == 0 or labels.ndim == 0 or len(inputs) != len(labels):
        raise UnreadableError(
            f"inputs and labels of a batch must be equally long, got {tuple(inputs.shape)} and {tuple(labels.shape)}."
        )
    return inputs, labels


def _entries(batch: Any, keys: Keys) -> tuple[Any, Any]:
    """The entries of a batch that are inputs and labels."""
    input_key, label_key = keys
    named = (("input_key", input_key), ("label_key", label_key))
    if isinstance(batch, Mapping):
        has = ", ".join(repr(key) for key in batch)
        if input_key is None or label_key is None:
            raise UnreadableError(
                f"batches are dicts with the keys {has}: name two of them with `input_key=` and `label_key=`."
            )
        for name, key in named:
            if key not in batch:
                raise UnreadableError(f"`{name}={key!r}` is not among the keys of a batch: {has}.")
        return batch[input_key], batch[label_key]
    is_tuple = isinstance(batch, tuple | list)
    if is_tuple and (input_key is None) != (label_key is None):
        raise UnreadableError("`input_key=` and `label_key=` go together, got one of them.")
    if is_tuple and isinstance(input_key, int) and isinstance(label_key, int):
        for name, place in named:
            if place not in range(-len(batch), len(batch)):
                raise UnreadableError(f"`{name}={place}` is not a place in a batch of {len(batch)}.")
        return batch[input_key], batch[label_key]
    if is_tuple and len(batch) == 2:
        return batch[0], batch[1]
    what = f"{type(batch).__name__} of {len(batch)}" if is_tuple else type(batch).__name__
    raise UnreadableError(
        "batches must be (inputs, labels), or dicts or longer tuples whose keys or places are given by"
        f" `input_key=` and `label_key=`, got a {what}."
    )
