"""Labelled samples out of what users have: two arrays, a dataset, a loader or a data module."""

import copy
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    TensorDataset,
    WeightedRandomSampler,
    default_collate,
)

from bu_torch._evaluation_mode import preserved_random_state
from bu_torch._inputs import as_tensor, check_integer

# Where a batch holds its inputs and its labels: keys of a dict, or places in a tuple; None where it is a pair.
Keys = tuple[str | int | None, str | int | None]

_READ_BATCH = 256
_WAY_OUT = "Pass a pair (inputs, labels) of tensors or arrays."


def read_labelled(
    dataset: Any, max_samples: int | None = None, seed: int = 0, keys: Keys = (None, None)
) -> tuple[Tensor, Tensor]:
    """Inputs (n, ...) and labels (n,) of `dataset`, at most `max_samples` of them, in order.

    A subset is random, and stratified where the labels can be told without reading the samples. No random number of the
    dataset's loader is used, and none that the dataset draws globally shows outside. A dict or tuple of whole arrays is
    read by `keys` as one batch.

    Raises:
        TypeError: If `dataset` is nothing that can be read.
        ValueError: If samples are not (input, label), or there is none.
    """
    if max_samples is not None:
        check_integer("max_samples", max_samples, 1)
    with preserved_random_state():
        if hasattr(dataset, "train_dataloader") and hasattr(dataset, "setup"):
            dataset.prepare_data()
            dataset.setup("fit")
            dataset = dataset.train_dataloader()
        if (pair := whole_pair(dataset, keys)) is not None:
            dataset, keys = _as_dataset(*pair), (None, None)
        if isinstance(dataset, DataLoader):
            return _read(dataset.dataset, _visited(dataset), dataset, max_samples, seed, keys)
        if hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__"):
            return _read(dataset, list(range(len(dataset))), None, max_samples, seed, keys)
        if isinstance(dataset, IterableDataset):
            return _read(dataset, None, None, max_samples, seed, keys)
    raise TypeError(
        "`dataset` must be a Dataset or DataLoader of labelled samples, or a pair (inputs, labels) of tensors or"
        f" arrays, got {type(dataset).__name__}."
    )


def whole_pair(dataset: Any, keys: Keys) -> tuple[Any, Any] | None:
    """All inputs and all labels, where `dataset` is a dict or tuple of whole arrays; None where it holds samples."""
    if isinstance(dataset, tuple | list):
        is_pair = len(dataset) == 2 and hasattr(dataset[0], "__len__")
        if not (is_pair or (dataset and all(isinstance(part, Tensor | np.ndarray) for part in dataset))):
            return None
    elif not isinstance(dataset, Mapping):
        return None
    return _entries(dataset, keys)


def stratified_rows(n_samples: int, n_chosen: int, seed: int, labels: Tensor | None) -> Tensor:
    """Ascending rows of a random subset; with labels, each class keeps its share.

    Each class has at least one sample in it where there is room for all classes.
    """
    order = torch.randperm(n_samples, generator=torch.Generator().manual_seed(seed))
    if labels is not None:
        order = order[labels.cpu()[order].argsort(stable=True)]
        of_class = labels.cpu()[order]
        is_first = torch.ones_like(of_class, dtype=torch.bool)
        is_first[1:] = of_class[1:] != of_class[:-1]
        if int(is_first.sum()) > n_chosen:
            is_first[:] = False
        first, rest = order[is_first], order[~is_first]
        n_rest = n_chosen - len(first)
        # Evenly spaced among the samples in order of their classes: each class gets its share, rounded.
        places = (torch.arange(n_rest, dtype=torch.float64) + 0.5) * (len(rest) / max(n_rest, 1))
        order = torch.cat((first, rest[places.long()]))
    return order[:n_chosen].sort().values


def _as_dataset(inputs: Any, labels: Any) -> TensorDataset:
    inputs, labels = as_tensor(inputs, "inputs"), as_tensor(labels, "labels")
    if inputs.ndim == 0 or labels.ndim == 0 or len(inputs) != len(labels):
        raise ValueError(
            f"`dataset` must be inputs and labels of one length, got {tuple(inputs.shape)} and {tuple(labels.shape)}."
        )
    return TensorDataset(inputs, labels)


def _visited(loader: DataLoader[Any]) -> list[int] | None:
    """Indices that a loader visits, ascending: what a sampler leaves out may be held out. None for a stream."""
    if isinstance(loader.dataset, IterableDataset):
        return None
    everything = list(range(len(loader.dataset)))  # type: ignore[arg-type]
    sampler: Any = loader.sampler
    if loader.batch_sampler is not None and type(loader.batch_sampler) is not BatchSampler:
        sampler = loader.batch_sampler
    if isinstance(sampler, WeightedRandomSampler):
        return torch.nonzero(sampler.weights).flatten().tolist()
    if isinstance(sampler, SequentialSampler | RandomSampler | DistributedSampler):
        return everything
    # A copy, so that random numbers of its own are left alone; the dataset that it may hold is not copied.
    entries = list(copy.deepcopy(sampler, {id(loader.dataset): loader.dataset}))
    return sorted({index for entry in entries for index in (entry if isinstance(entry, list | tuple) else [entry])})


def _read(
    dataset: Any, indices: list[int] | None, loader: DataLoader[Any] | None, most: int | None, seed: int, keys: Keys
) -> tuple[Tensor, Tensor]:
    """Samples at `indices` of a map-style dataset; the first of a stream, where those are None."""
    collate = default_collate if loader is None else loader.collate_fn
    makes_batches = loader is None or loader.batch_size is not None or loader.batch_sampler is not None
    if indices is None:
        return _concatenate(dataset, _READ_BATCH if makes_batches else None, collate, most, keys)
    if not makes_batches:
        raise ValueError(f"`dataset` must be a loader that makes batches, got one of `batch_size=None`. {_WAY_OUT}")
    if not indices:
        raise ValueError("`dataset` must hold samples, got none.")
    if most is not None and most < len(indices):
        known = known_labels(dataset, keys[1])
        rows = stratified_rows(len(indices), most, seed, None if known is None else known[indices])
        indices = [indices[row] for row in rows.tolist()]
    if isinstance(dataset, TensorDataset) and collate is default_collate:
        return _split(dataset[torch.tensor(indices)], keys)  # all at once
    inputs, labels = _concatenate(Subset(dataset, indices), _READ_BATCH, collate, None, keys)
    if len(inputs) < len(indices):
        warnings.warn(
            f"The batches of `dataset` hold {len(inputs)} of the {len(indices)} samples that were read: those alone are"
            " looked at.",
            stacklevel=2,
        )
    return inputs, labels


def _concatenate(
    dataset: Any, batch_size: int | None, collate: Any, most: int | None, keys: Keys
) -> tuple[Tensor, Tensor]:
    own: Iterable[Any] = DataLoader(dataset, batch_size=batch_size, collate_fn=collate, generator=torch.Generator())
    parts: list[tuple[Tensor, Tensor]] = []
    n_left = most
    for inputs, labels in (_split(batch, keys) for batch in own):
        if not len(inputs):
            continue
        parts.append((inputs[:n_left], labels[:n_left]))
        if n_left is not None:
            n_left -= len(parts[-1][1])
            if not n_left:
                break
    if not parts:
        raise ValueError("`dataset` must hold samples, got none.")
    return joined_samples(parts, "`dataset` must hold {} of one shape, got {}.")


def joined_samples(parts: Sequence[tuple[Tensor, Tensor]], refusal: str) -> tuple[Tensor, Tensor]:
    """Batches of inputs and labels in one; where shapes differ, a ValueError with their name and the shapes in it."""
    for name, of_name in zip(("inputs", "labels"), zip(*parts, strict=True), strict=True):
        shapes = {tuple(part.shape[1:]) for part in of_name}
        if len(shapes) > 1:
            raise ValueError(refusal.format(name, sorted(shapes)[:3]))
    return torch.cat([inputs for inputs, _ in parts]), torch.cat([labels for _, labels in parts])


def entries(batch: Any, keys: Keys) -> tuple[Any, Any]:
    """What of a batch is inputs and what is labels.

    Raises:
        ValueError: If it is no pair and the keys do not tell.
    """
    input_key, label_key = keys
    named = (("input_key", input_key), ("label_key", label_key))
    if isinstance(batch, Mapping):
        has = ", ".join(repr(key) for key in batch)
        if input_key is None or label_key is None:
            raise ValueError(
                f"batches are dicts with the keys {has}: name two of them by `input_key=` and `label_key=`."
            )
        for name, key in named:
            if key not in batch:
                raise ValueError(f"`{name}={key!r}` is not among the keys of a batch: {has}.")
        return batch[input_key], batch[label_key]
    is_tuple = isinstance(batch, tuple | list)
    if is_tuple and (input_key is None) != (label_key is None):
        raise ValueError("`input_key=` and `label_key=` go together, got one of them.")
    if is_tuple and isinstance(input_key, int) and isinstance(label_key, int):
        for name, place in named:
            if place not in range(-len(batch), len(batch)):
                raise ValueError(f"`{name}={place}` is no place in a batch of {len(batch)}.")
        return batch[input_key], batch[label_key]
    if is_tuple and len(batch) == 2:
        return batch[0], batch[1]
    what = f"{type(batch).__name__} of {len(batch)}" if is_tuple else type(batch).__name__
    raise ValueError(
        "batches must be (inputs, labels), or dicts or longer tuples with the keys or places of the two as"
        f" `input_key=` and `label_key=`, got a {what}."
    )


def _entries(batch: Any, keys: Keys) -> tuple[Any, Any]:
    try:
        return entries(batch, keys)
    except ValueError as error:
        raise ValueError(f"`dataset`: {error} {_WAY_OUT}") from error


def _split(batch: Any, keys: Keys) -> tuple[Tensor, Tensor]:
    inputs, labels = _entries(batch, keys)
    are_tensors = isinstance(inputs, Tensor) and isinstance(labels, Tensor)
    if not (are_tensors and inputs.ndim and labels.ndim and len(inputs) == len(labels)):
        raise ValueError(
            "`dataset` must give an input and a label that can be stacked as tensors,"
            f" got {type(inputs).__name__} and {type(labels).__name__}. {_WAY_OUT}"
        )
    return as_tensor(inputs, "inputs"), as_tensor(labels, "labels")


def known_labels(dataset: Any, label_key: str | int | None = None) -> Tensor | None:
    """Labels (N,) of a map-style dataset, where they can be told without reading its samples; else None."""
    try:
        if isinstance(dataset, Subset):
            known = known_labels(dataset.dataset, label_key)
            return None if known is None else known[torch.as_tensor(dataset.indices)]
        if isinstance(dataset, TensorDataset):
            labels = dataset.tensors[label_key if isinstance(label_key, int) else 1]
        else:
            labels = torch.as_tensor(np.asarray(dataset.targets))  # as torchvision's datasets name them
        whole = labels.long()
        return whole if labels.shape == (len(dataset),) and bool((whole == labels).all()) else None
    except Exception:  # a user's property may raise anything, and nothing but the strata depends on it
        return None
