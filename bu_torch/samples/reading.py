"""The one reader of training samples: arrays, datasets, samplers, loaders and their batches become tensors.

It leaves no trace: a worker process or a deep copy reads, and a deep copy of the sampler gives the indices. Global
random states are put back.
"""

import itertools
import math
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils.data import DataLoader, IterableDataset, Subset, TensorDataset, default_collate

from bu_torch.internal.global_state import preserved_random_state
from bu_torch.internal.inputs import check_integer
from bu_torch.samples.batches import (
    NO_KEYS,
    WAY_OUT,
    InputKey,
    Keys,
    as_tensors,
    check_bytes,
    concatenate,
    split_batch,
    whole_pair,
)
from bu_torch.samples.samples import Samples, UnreadableError, choose_among, known_labels, packed, without_ignored
from bu_torch.samples.subset import stratified_rows
from bu_torch.samples.visits import visited_by
from bu_torch.samples.worker import DatasetError, from_copy, from_here, from_worker, may_start_worker, start_from

READ_BATCH = 256
_READ_TWICE = 32  # samples, to see whether they are augmented at random
_Result = TypeVar("_Result")


def read_samples(
    dataset: Any,
    max_samples: int | None = None,
    seed: int = 0,
    *,
    input_key: InputKey = None,
    label_key: str | int | None = None,
) -> Samples:
    """Read samples from whatever a user has.

    Args:
        dataset: A Dataset or another sequence of samples, an `IterableDataset`, a DataLoader, a LightningDataModule, or
            all inputs and all labels: a pair, or a longer tuple or a dict with the keys below.
        max_samples: Samples to read at most, >= 1: a random subset, or the first ones of a stream. None reads all.
        seed: Seed of the subset and of what the dataset draws from global random states, 0 <= seed < 2**64.
        input_key: Key of the inputs in dicts; their place, an integer, in tuples of more than two; a list of these for
            several inputs.
        label_key: Key or place of the labels.

    Returns:
        The samples that a loader visits, each once, in ascending order of their indices; without those whose label is
        -100, which torch's losses ignore. A subset is stratified if labels are known without reading samples.

    Raises:
        TypeError: If `dataset` is none of these, or holds tensors that are not dense.
        ValueError: If there is no sample, batches are not inputs and labels of one length and shape, the dataset or its
            collate function raises, a stream cannot be read twice, or a sampler cannot be copied.
    """
    keys = Keys(input_key, label_key)
    if max_samples is not None:
        check_integer("max_samples", max_samples, 1)

    how_many = partial(min, max_samples or sys.maxsize)
    if hasattr(dataset, "train_dataloader") and hasattr(dataset, "setup"):
        with preserved_random_state():
            dataset.prepare_data()
            dataset.setup("fit")
            dataset = dataset.train_dataloader()
    if (pair := whole_pair(dataset, keys)) is not None:
        return choose_among(*as_tensors(*pair), how_many, seed)
    is_sequence = hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")
    if not is_sequence and not isinstance(dataset, DataLoader | IterableDataset):
        raise TypeError(
            "`dataset` must be a Dataset or DataLoader of labelled samples, or a pair (inputs, labels) of tensors or"
            f" arrays, got {type(dataset).__name__}."
        )
    loader = dataset if isinstance(dataset, DataLoader) else DataLoader(dataset, batch_size=READ_BATCH)
    try:
        return read_loader(loader, how_many, seed=seed, keys=keys, stream_limit=max_samples)
    except UnreadableError as error:
        raise ValueError(f"`dataset`: {error} {WAY_OUT}") from error


def read_loader(
    loader: DataLoader[Any],
    how_many: Callable[[int], int],
    *,
    seed: int = 0,
    keys: Keys = NO_KEYS,
    n_batches: float = math.inf,
    stream_limit: int | None = None,
    max_bytes: int | None = None,
    unwrap: Callable[[Any], Any] = lambda sampler: sampler,
    transform: Callable[[Any], Any] | None = None,
    looks_for_augmentation: bool = False,
    has_progress_bar: bool = False,
) -> Samples:
    """Read the samples that a loader visits, each once, by ascending index, as many as `how_many` says.

    Samples that a sampler leaves out may be held out, and are not read. The number of samples of an `IterableDataset`
    and of `DataLoader(dataset, batch_size=None)`, whose items are batches, is not known: a subset is chosen among those
    read, at most `stream_limit` of a stream. Of `n_batches` a training epoch, only a loader in order leaves out the
    same samples in every epoch. The first batch shows if the inputs take more than `max_bytes` (`TooManyBytesError`),
    but for items that are batches. `unwrap` leads from a sampler that a trainer shares among processes to the user's
    own; `transform` does what a trainer does to each batch, and the samples are then on the CPU.
    `looks_for_augmentation` reads a few samples a second time, to see if they are others then.

    Raises `UnreadableError` where `read_samples` raises a ValueError.
    """
    with seeded(seed):
        dataset, classes = loader.dataset, _class_names(loader.dataset)
        if isinstance(dataset, IterableDataset):
            order: dict[str, Any] = {
                "batch_size": None if loader.batch_sampler is None else loader.batch_size or READ_BATCH
            }
            limits = stream_limit, stream_limit or 0, max_bytes, has_progress_bar
            read = _with_batches(loader, order, seed, lambda batches: concatenate(batches, keys, transform, *limits))
            return choose_among(*read, how_many, seed)._replace(classes=classes)
        indices, are_lists, weights = visited_by(loader, n_batches, unwrap)
        if loader.batch_sampler is None and not are_lists:
            items = {"sampler": indices, "batch_size": None}
            read = _with_batches(loader, items, seed, lambda batches: concatenate(batches, keys, transform))
            return choose_among(*read, how_many, seed)._replace(classes=classes)
        n_training, are_places = len(indices), isinstance(indices[0], int)
        known = known_labels(dataset, keys.labels) if are_places else None
        n_wanted = how_many(n_training)
        is_stratified = known is not None if n_wanted < n_training else None
        if n_wanted < n_training:
            chosen = stratified_rows(n_training, n_wanted, seed, None if known is None else known[indices])
            indices = [indices[i] for i in chosen.tolist()]
            weights = None if weights is None else weights[chosen]
        inputs, labels, is_random = _read_at(
            loader, indices, seed, keys, transform, max_bytes, looks_for_augmentation, has_progress_bar
        )
        if len(labels) != len(indices):
            are_places, weights = False, None
        rows = torch.as_tensor(indices) if are_places else torch.arange(len(labels))
        inputs, packing = packed(inputs)
        samples = Samples(inputs, labels, rows, n_training, classes, is_stratified, weights, 0, is_random, packing)
        return without_ignored(samples)


def _class_names(dataset: Any) -> list[str] | None:
    """Names of the classes, which torchvision's datasets have as `classes`."""
    while isinstance(dataset, Subset):
        dataset = dataset.dataset
    try:
        names = list(dataset.classes)
    except Exception:  # a user's property may raise anything, and nothing but a page's wording depends on it
        return None
    return names if all(isinstance(name, str) for name in names) else None


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Let global random states start from `seed`; put them back on leaving."""
    with preserved_random_state():
        start_from(seed)
        yield


def _with_batches(
    loader: DataLoader[Any], order: dict[str, Any], seed: int, use: Callable[[Iterator[Any]], _Result]
) -> _Result:
    """Result of `use` on batches from a worker, or from a copy if none may start or it fails and training has none."""
    failure = ""
    if may_start_worker(loader):
        try:
            with closing(from_worker(loader, order, seed)) as batches:
                return use(batches)
        except DatasetError as error:  # tensors on a GPU, connections and threads do not work in a forked process
            if loader.num_workers:
                raise
            failure = f"{error} "
    with seeded(seed), closing(from_copy(loader, order, failure)) as batches:
        return use(batches)


def _read_at(
    loader: DataLoader[Any],
    indices: list[Any],
    seed: int,
    keys: Keys,
    transform: Callable[[Any], Any] | None,
    max_bytes: int | None,
    looks_for_augmentation: bool,
    has_progress_bar: bool,
) -> tuple[Any, Tensor, bool]:
    """Inputs and labels at these indices, in batches as the loader makes them; True if the first differ the next time.

    Tensors in memory run no code of the user's, so that they are read here; without `transform` at once.
    """
    held = _in_memory(loader, indices)
    if held is not None and transform is None:
        tensors, rows = held
        inputs, labels = split_batch(tensors, keys)
        check_bytes(inputs, len(indices), max_bytes)
        return *pytree.tree_map(lambda tensor: tensor.detach()[rows], (inputs, labels)), False
    size = loader.batch_size or READ_BATCH
    twice = indices[:_READ_TWICE] if looks_for_augmentation else []  # by the same worker, whose own generators go on
    lists = [part[i : i + size] for part in (indices, twice) for i in range(0, len(part), size)]
    n_lists = math.ceil(len(indices) / size)
    order = {"sampler": lists, "batch_size": None} if loader.batch_sampler is None else {"batch_sampler": lists}

    def join(batches: Iterator[Any]) -> tuple[Any, Tensor, bool]:
        first = itertools.islice(batches, n_lists)
        inputs, labels = concatenate(first, keys, transform, None, len(indices), max_bytes, has_progress_bar)
        if not twice or len(labels) != len(indices):
            return inputs, labels, False
        n_twice = len(twice)
        before = pytree.tree_map(lambda tensor: tensor[:n_twice], (inputs, labels))
        both, _ = concatenate([before, concatenate(batches, keys, transform)], NO_KEYS, None)  # padded alike
        is_same = all(torch.equal(tensor[:n_twice], tensor[n_twice:]) for tensor in pytree.tree_leaves(both))
        return inputs, labels, not is_same

    if held is not None:
        with closing(from_here(loader.dataset, loader.collate_fn, order)) as batches:
            return join(batches)
    inputs, labels, is_random = _with_batches(loader, order, seed, join)
    if len(labels) < len(indices):
        warnings.warn(
            f"The loader's batches hold {len(labels)} of the {len(indices)} samples that were read: only those are"
            " used.",
            stacklevel=2,
        )
    return inputs, labels, is_random


def _in_memory(loader: DataLoader[Any], indices: list[Any]) -> tuple[list[Tensor], Tensor] | None:
    """Tensors of a `TensorDataset`, or of subsets of one, and rows of them; None for all other datasets."""
    dataset: Any = loader.dataset
    subsets = []
    while type(dataset) is Subset:
        subsets.append(dataset)
        dataset = dataset.dataset
    if type(dataset) is not TensorDataset or loader.collate_fn is not default_collate:
        return None
    rows = torch.as_tensor(indices)
    for subset in subsets:
        rows = torch.as_tensor(subset.indices)[rows]
    return list(dataset.tensors), rows
