"""The one reader of training samples: arrays, datasets, samplers, loaders and their batches become tensors.

It leaves no trace: a loader of our own, without workers, reads a shallow copy of the dataset, and a deep copy of the
sampler gives the indices. Global random states are put back.
"""

import copy
import math
import random
import sys
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    Sampler,
    Subset,
    TensorDataset,
    default_collate,
)

from bu_torch.internal.inputs import check_integer, scikit_learn_seed
from bu_torch.internal.random_state import preserved_random_state
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

READ_BATCH = 256
_READ_TWICE = 32  # samples, to see whether they are augmented at random


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
        ValueError: If there is no sample, batches are not inputs and labels of one length and shape, a stream cannot be
            read twice, or a sampler cannot be copied.
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
        dataset = _reading_copy(loader.dataset)
        classes = _class_names(dataset)
        if isinstance(dataset, IterableDataset):
            first: object = iter(dataset)
            if first is dataset or first is iter(dataset):
                raise UnreadableError(
                    f"{type(dataset).__name__} gives the same iterator each time: reading it here would use up its"
                    " samples."
                )
            own = _own_loader(loader, dataset)
            read = concatenate(own, keys, transform, stream_limit, stream_limit or 0, max_bytes, has_progress_bar)
            return choose_among(*read, how_many, seed)._replace(classes=classes)
        indices, are_lists, weights = visited_by(loader, dataset, n_batches, unwrap)
        if loader.batch_sampler is None and not are_lists:
            read = concatenate(_own_loader(loader, Subset(dataset, indices)), keys, transform)
            return choose_among(*read, how_many, seed)._replace(classes=classes)
        n_training, are_places = len(indices), isinstance(indices[0], int)
        known = known_labels(dataset, keys.labels) if are_places else None
        n_wanted = how_many(n_training)
        is_stratified = known is not None if n_wanted < n_training else None
        if n_wanted < n_training:
            chosen = stratified_rows(n_training, n_wanted, seed, None if known is None else known[indices])
            indices = [indices[i] for i in chosen.tolist()]
            weights = None if weights is None else weights[chosen]
        inputs, labels = _read_at(loader, dataset, indices, are_lists, keys, transform, max_bytes, has_progress_bar)
        is_random = False
        if len(labels) != len(indices):
            are_places, weights = False, None
        elif looks_for_augmentation and (type(dataset) is not TensorDataset or transform is not None):
            again, _ = _read_at(loader, dataset, indices[:_READ_TWICE], are_lists, keys, transform)
            twice = zip(pytree.tree_leaves(inputs), pytree.tree_leaves(again), strict=True)
            is_random = not all(torch.equal(one[:_READ_TWICE], other) for one, other in twice)
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
        random.seed(seed)
        np.random.seed(scikit_learn_seed(seed))  # noqa: NPY002  (which datasets use, and which is put back)
        torch.default_generator.manual_seed(seed)
        if torch.cuda.is_initialized():  # otherwise a seed would wait for the first use, and stay
            torch.cuda.manual_seed_all(seed)
        yield


def _reading_copy(dataset: Any) -> Any:
    """A shallow copy to read from: files it opens and random numbers it draws are not those of training.

    A dataset that opens its file on the first read, to do so in each worker, must not find it opened in this process.
    """
    try:
        twin = copy.copy(dataset)
        for name, value in vars(twin).items():
            if isinstance(value, torch.Generator):
                setattr(twin, name, value.clone_state())
            elif isinstance(value, random.Random | np.random.Generator | np.random.RandomState):
                setattr(twin, name, copy.deepcopy(value))
            elif isinstance(value, Dataset):
                setattr(twin, name, _reading_copy(value))
            elif isinstance(value, list) and value and all(isinstance(part, Dataset) for part in value):
                setattr(twin, name, [_reading_copy(part) for part in value])
        if hasattr(type(dataset), "__del__"):  # which may close what both hold: the copy is kept as long as the dataset
            weakref.finalize(dataset, id, twin).atexit = False
    except Exception:  # a plain list, or a dataset that does not allow it: a user's class may raise anything
        return dataset
    return twin


def _own_loader(loader: DataLoader[Any], dataset: Dataset[Any], lists: Sampler[Any] | None = None) -> DataLoader[Any]:
    """A loader in order, in this process, with a generator of its own, that collates as the given one does."""
    batch_size = None if loader.batch_sampler is None else (loader.batch_size or READ_BATCH)
    return DataLoader(
        dataset, batch_size=batch_size, sampler=lists, collate_fn=loader.collate_fn, generator=torch.Generator()
    )


def _read_at(
    loader: DataLoader[Any],
    dataset: Any,
    indices: list[Any],
    are_lists: bool,
    keys: Keys,
    transform: Callable[[Any], Any] | None,
    max_bytes: int | None = None,
    has_progress_bar: bool = False,
) -> tuple[Any, Tensor]:
    """Inputs and labels of a map-style dataset at these indices, in batches as the loader makes them."""
    if type(dataset) is TensorDataset and loader.collate_fn is default_collate and transform is None:  # all at once
        inputs, labels = split_batch(list(dataset.tensors), keys)
        check_bytes(inputs, len(indices), max_bytes)
        places = torch.as_tensor(indices)
        is_whole = torch.equal(places, torch.arange(len(labels)))  # held once, as the dataset has them
        return inputs if is_whole else pytree.tree_map(lambda tensor: tensor[places], inputs), labels[places]
    if loader.batch_sampler is None and are_lists:
        own = _own_loader(loader, dataset, BatchSampler(indices, READ_BATCH, drop_last=False))
    else:
        own = _own_loader(loader, Subset(dataset, indices))
    inputs, labels = concatenate(own, keys, transform, None, len(indices), max_bytes, has_progress_bar)
    if len(labels) < len(indices):
        warnings.warn(
            f"The loader's batches hold {len(labels)} of the {len(indices)} samples that were read: only those are"
            " used.",
            stacklevel=2,
        )
    return inputs, labels
