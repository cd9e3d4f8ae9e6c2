"""The one reader of training samples: arrays, datasets, samplers, loaders and their batches become tensors.

Reading leaves no trace. The user's loader is never iterated: a loader of our own, without workers, reads a shallow copy
of its dataset, and a deep copy of its sampler gives the indices. Global random states are put back.
"""

import copy
import itertools
import math
import random
import sys
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    Subset,
    TensorDataset,
    WeightedRandomSampler,
    default_collate,
)

from bu_torch.internal.inputs import as_features, as_labels, as_tensor, check_integer, scikit_learn_seed
from bu_torch.internal.traces import preserved_random_state
from bu_torch.samples.balance import as_weights
from bu_torch.samples.subset import stratified_rows

# Where a batch holds its inputs and its labels: keys of a dict, or places in a tuple; None where the batch is a pair.
Keys = tuple[str | int | None, str | int | None]

READ_BATCH = 256
_NO_KEYS: Keys = (None, None)
_READ_TWICE = 32  # samples, to see whether they are augmented at random
_PARTS = ("inputs", "labels")  # of a batch
_WIDE_UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)  # which not every torch can index
IGNORED = -100  # what torch's losses leave out, by the default of their `ignore_index`
_MOST_PASSES, _MOST_DRAWS = 16, 2_000_000  # of a sampler that draws some samples more often than others
_MOST_INDICES = 100_000_000
_SIGNIFICANCE = 3.0  # standard deviations of a correlation
_NO_SAMPLE = "there must be at least one sample, got none."
_WAY_OUT = "Pass a pair (inputs, labels) of tensors or arrays."


class Samples(NamedTuple):
    """Training samples in the order of their dataset: all of them or a subset."""

    inputs: Tensor  # (n, ...), of the dtype and on the device that the dataset gives
    labels: Tensor  # (n, ...), likewise; estimators check that these are classes
    rows: Tensor  # (n,) int64, places in the dataset; 0, 1, ... if the places are not known
    n_training: int  # samples to choose from
    classes: list[str] | None = None  # names, if the dataset has them
    is_stratified: bool | None = None  # whether each class has its share of a subset; None if all samples are here
    weights: Tensor | None = None  # how often training draws each, (n,) float64, > 0; None if it draws all alike
    n_ignored: int = 0  # samples that were left out because their label is `IGNORED`
    is_random: bool = False  # whether a sample is another each time that it is read

    def at(self, rows: Tensor) -> "Samples":
        """Some of the samples, by their places here."""
        inputs, places = (part[rows.to(part.device)] for part in (self.inputs, self.rows))
        if self.labels.dtype in _WIDE_UNSIGNED:
            labels = torch.from_numpy(self.labels.cpu().numpy()[rows.cpu().numpy()]).to(self.labels.device)
        else:
            labels = self.labels[rows.to(self.labels.device)]
        weights = None if self.weights is None else self.weights[rows.to(self.weights.device)]
        return self._replace(inputs=inputs, labels=labels, rows=places, weights=weights)


class UnreadableError(ValueError):
    """Samples cannot be read. The message names neither the argument nor the way out: the caller adds both."""


def read_samples(dataset: Any, max_samples: int | None = None, seed: int = 0, keys: Keys = _NO_KEYS) -> Samples:
    """Read samples from whatever a user has.

    Args:
        dataset: A Dataset or another sequence of samples, an `IterableDataset`, a DataLoader, an object with `setup`
            and `train_dataloader` (a LightningDataModule), or all inputs and all labels: a pair, or a longer tuple or
            a dict with `keys`.
        max_samples: Samples to read at most, >= 1: a random subset, or the first ones of a stream. None reads all.
        seed: Seed of the subset and of what the dataset draws from global random states, 0 <= seed < 2**64.
        keys: Keys or places of inputs and labels in a batch.

    Returns:
        The samples; `read_loader` describes their order and choice.

    Raises:
        TypeError: If `dataset` is none of these, or holds tensors that are not dense.
        ValueError: If there is no sample, or batches are not inputs and labels; see `read_loader`.
    """
    if max_samples is not None:
        check_integer("max_samples", max_samples, 1)

    def how_many(n_training: int) -> int:
        return n_training if max_samples is None else min(n_training, max_samples)

    if hasattr(dataset, "train_dataloader") and hasattr(dataset, "setup"):
        with preserved_random_state():
            dataset.prepare_data()
            dataset.setup("fit")
            dataset = dataset.train_dataloader()
    if (pair := whole_pair(dataset, keys)) is not None:
        return choose_among(*_as_tensors(*pair), how_many, seed)
    try:
        return read_loader(_as_loader(dataset), how_many, seed=seed, keys=keys, stream_limit=max_samples)
    except UnreadableError as error:
        raise ValueError(f"`dataset`: {error} {_WAY_OUT}") from error


def read_loader(
    loader: DataLoader[Any],
    how_many: Callable[[int], int],
    *,
    seed: int = 0,
    keys: Keys = _NO_KEYS,
    n_batches: float = math.inf,
    stream_limit: int | None = None,
    unwrap: Callable[[Any], Any] = lambda sampler: sampler,
    transform: Callable[[Any], Any] | None = None,
    looks_for_augmentation: bool = False,
) -> Samples:
    """Read the samples that a loader visits, each once, in ascending order of their indices.

    Samples that a sampler leaves out may be held out, and are not read. If fewer samples are wanted than there are, the
    subset is random, and stratified if labels are known without reading samples. Two kinds of loaders do not know their
    number of samples: an `IterableDataset` is read from its beginning, and `DataLoader(dataset, batch_size=None)`,
    where each item of the dataset is a batch, is read completely. The subset is then chosen among the samples read.

    A sampler may draw some samples more often than others: `weights` then say how often. A `WeightedRandomSampler`
    tells it; of a sampler of one's own, what it gives in a few passes is counted.

    Numbers that the dataset draws from global random states follow from `seed`: a dataset that augments at random gives
    the same samples in each run. Samples with the label -100, which torch's losses ignore, are left out and counted.

    Args:
        loader: Any DataLoader. Its `collate_fn` makes the batches; its workers are not used.
        how_many: Given the number of samples, the number wanted, >= 1. Called once.
        seed: Seed of the subset and of global random states, 0 <= seed < 2**64.
        keys: Keys or places of inputs and labels in a batch.
        n_batches: Batches in a training epoch. The limit counts for a loader in order, which leaves out the same
            samples in every epoch, and is ignored for all others.
        stream_limit: Samples to read at most from an `IterableDataset`; None reads all.
        unwrap: Takes a sampler and gives the user's own, if a trainer has wrapped it to share it among processes.
        transform: What a trainer does to each batch before the network gets it; it is given whole batches.
        looks_for_augmentation: Whether to read a few samples a second time, to see whether they are others then.

    Returns:
        The samples, on the device that the dataset gives them on, or on the CPU with a `transform`.

    Raises:
        UnreadableError: If there is no sample, if batches are not inputs and labels of one length and of one shape, if
            a stream cannot be read twice, or if a sampler cannot be copied.
        TypeError: If a batch holds tensors that are not dense.
    """
    with seeded(seed):
        dataset = _reading_copy(loader.dataset)
        classes = _class_names(dataset)
        if isinstance(dataset, IterableDataset):
            _check_restarts(dataset)
            read = _concatenate(_own_loader(loader, dataset), keys, transform, stream_limit)
            return choose_among(*read, how_many, seed)._replace(classes=classes)
        indices, are_lists, weights = _visited(loader, dataset, n_batches, unwrap)
        if loader.batch_sampler is None and not are_lists:
            read = _concatenate(_own_loader(loader, Subset(dataset, indices)), keys, transform)
            return choose_among(*read, how_many, seed)._replace(classes=classes)
        n_training, are_places = len(indices), isinstance(indices[0], int)
        known = known_labels(dataset, keys[1]) if are_places else None
        chosen, is_stratified = _subset(
            n_training, how_many(n_training), seed, None if known is None else known[indices]
        )
        if chosen is not None:
            indices = [indices[i] for i in chosen.tolist()]
            weights = None if weights is None else weights[chosen]
        inputs, labels = _read_at(loader, dataset, indices, are_lists, keys, transform)
        is_random = False
        if len(inputs) != len(indices):
            are_places, weights = False, None
        elif looks_for_augmentation and (type(dataset) is not TensorDataset or transform is not None):
            again, _ = _read_at(loader, dataset, indices[:_READ_TWICE], are_lists, keys, transform)
            is_random = not torch.equal(again, inputs[:_READ_TWICE])
        rows = torch.as_tensor(indices) if are_places else torch.arange(len(inputs))
        samples = Samples(inputs, labels, rows, n_training, classes, is_stratified, weights, is_random=is_random)
        return without_ignored(samples)


def whole_samples(inputs: Any, labels: Any, sample_weight: Any = None, *, keep_integers: bool = False) -> Samples:
    """All samples that a user gives, checked as the estimators check them, but for those whose label is -100.

    Args:
        inputs: Shape (N, ...), tensor or array, finite.
        labels: Classes, shape (N,), integers >= 0, or -100.
        sample_weight: How often training draws each sample, shape (N,), positive; None if it draws all alike.
        keep_integers: Whether integer inputs (token ids) stay what they are.

    Raises:
        TypeError: If an argument is not made of real numbers.
        ValueError: If shapes do not fit, or a value is out of range.
    """
    inputs = as_features(inputs, "inputs", keep_integers=keep_integers)
    labels = as_tensor(labels, "labels")
    weights = None if sample_weight is None else as_weights(sample_weight, len(inputs)).to(inputs.device)
    samples = Samples(inputs, labels, torch.arange(len(inputs)), len(inputs), weights=weights)
    if labels.ndim and len(labels) == len(inputs):
        samples = without_ignored(samples)
    n_left = len(samples.inputs)
    return samples._replace(labels=as_labels(samples.labels, n_left), n_training=n_left)


def choose_among_whole(samples: Samples, how_many: Callable[[int], int], seed: int) -> Samples:
    """`choose_among` of what `whole_samples` gave, with the places that the user knows."""
    chosen = choose_among(samples.inputs, samples.labels, how_many, seed, samples.weights)
    return chosen._replace(rows=samples.rows[chosen.rows], n_ignored=samples.n_ignored)


def fewer_of(samples: Samples, n_wanted: int, seed: int) -> Samples:
    """A random part of samples that have been read, each class with its share; all of them if as many are wanted."""
    n_samples = len(samples.inputs)
    if len(samples.labels) != n_samples:  # the estimators say so
        return samples
    rows, is_stratified = _subset(n_samples, n_wanted, seed, _as_strata(samples.labels, n_samples))
    if rows is None:
        return samples
    return samples.at(rows)._replace(is_stratified=bool(is_stratified) and samples.is_stratified is not False)


def choose_among(
    inputs: Tensor, labels: Tensor, how_many: Callable[[int], int], seed: int, weights: Tensor | None = None
) -> Samples:
    """Choose as many of the given samples as are wanted, at random, each class with its share.

    Args:
        inputs: Shape (N, ...).
        labels: Shape (N, ...). The subset is stratified if each sample has one whole number.
        how_many: Given the number of samples, the number wanted, >= 1. Called once.
        seed: Seed of the choice, 0 <= seed < 2**64.
        weights: How often training draws each sample, shape (N,), > 0; None if it draws all alike.

    Returns:
        The samples, without those whose label is -100. All of them, not copied, if as many are wanted, or if inputs and
        labels differ in length: the estimators refuse those with both lengths.

    Raises:
        UnreadableError: If all labels are -100.
    """
    n_samples = len(inputs)
    if len(labels) != n_samples:
        return Samples(inputs, labels, torch.arange(n_samples), n_samples, weights=weights)
    every = without_ignored(Samples(inputs, labels, torch.arange(n_samples), n_samples, weights=weights))
    n_left = len(every.inputs)
    return fewer_of(every._replace(n_training=n_left), how_many(n_left), seed)


def without_ignored(samples: Samples) -> Samples:
    """The same without samples whose label is -100, which torch's losses ignore; they are counted in `n_ignored`.

    Raises:
        UnreadableError: If none is left.
    """
    labels = samples.labels
    is_signed = labels.is_floating_point() or labels.dtype in (torch.int8, torch.int16, torch.int32, torch.int64)
    if not is_signed or labels.numel() != len(labels):
        return samples
    is_ignored = labels.detach().reshape(-1) == IGNORED
    n_ignored = int(is_ignored.sum())
    if not n_ignored:
        return samples
    if n_ignored == len(labels):
        raise UnreadableError(f"all {n_ignored} labels are {IGNORED}, which torch's losses ignore.")
    return samples.at((~is_ignored).nonzero().squeeze(1))._replace(n_ignored=n_ignored)


def whole_pair(dataset: Any, keys: Keys = _NO_KEYS) -> tuple[Any, Any] | None:
    """All inputs and all labels if `dataset` is a dict or tuple of whole arrays; None if it holds single samples.

    Raises:
        TypeError: If `dataset` is a dict, list or tuple of loaders.
        ValueError: If `keys` do not tell which arrays are meant.
    """
    if not isinstance(dataset, tuple | list | Mapping):
        return None
    parts = list(dataset.values()) if isinstance(dataset, Mapping) else dataset
    if any(isinstance(part, DataLoader) for part in parts[:1]):
        raise TypeError(f"`dataset` must be a single DataLoader, got a {type(dataset).__name__} of them. {_WAY_OUT}")
    if not isinstance(dataset, Mapping):
        is_pair = len(dataset) == 2 and hasattr(dataset[0], "__len__")
        if not is_pair and not (dataset and all(isinstance(part, Tensor | np.ndarray) for part in dataset)):
            return None
    try:
        return _entries(dataset, keys)
    except UnreadableError as error:
        raise ValueError(f"`dataset`: {error} {_WAY_OUT}") from error


def _as_tensors(inputs: Any, labels: Any) -> tuple[Tensor, Tensor]:
    inputs, labels = as_tensor(inputs, "inputs"), as_tensor(labels, "labels")
    if inputs.ndim == 0 or labels.ndim == 0 or len(inputs) != len(labels):
        raise ValueError(
            f"`dataset` must be inputs and labels of one length, got {tuple(inputs.shape)} and {tuple(labels.shape)}."
        )
    if not len(inputs):
        raise ValueError(f"`dataset`: {_NO_SAMPLE} {_WAY_OUT}")
    return inputs, labels


def _as_loader(dataset: Any) -> DataLoader[Any]:
    if isinstance(dataset, DataLoader):
        return dataset
    is_sequence = hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")
    if not is_sequence and not isinstance(dataset, IterableDataset):
        raise TypeError(
            "`dataset` must be a Dataset or DataLoader of labelled samples, or a pair (inputs, labels) of tensors or"
            f" arrays, got {type(dataset).__name__}."
        )
    return DataLoader(dataset, batch_size=READ_BATCH)


# Which samples: indices of a dataset, and labels to stratify them by.


def _visited(
    loader: DataLoader[Any], dataset: Any, n_batches: float, unwrap: Callable[[Any], Any]
) -> tuple[list[Any], bool, Tensor | None]:
    """Indices that a loader visits, ascending, each once; whether its sampler gives lists; how often each comes.

    Without a batch sampler, lists ask the dataset for whole batches:
    `DataLoader(dataset, sampler=BatchSampler(...), batch_size=None)`.
    """
    sampler: Any = unwrap(loader.sampler) if loader.batch_sampler is None else loader.batch_sampler
    are_lists = loader.batch_sampler is not None or isinstance(sampler, BatchSampler)
    batches = None
    if type(sampler) is BatchSampler:  # a subclass may leave out some of what its own sampler gives
        batches, sampler = sampler, unwrap(sampler.sampler)
    indices: list[Any] | None = _visited_sooner_or_later(sampler, dataset, batches, n_batches)
    weights = None
    if indices is not None:
        if isinstance(sampler, WeightedRandomSampler):
            weights = _drawn_by(sampler)
    else:
        batch_size = getattr(batches, "batch_size", 1)  # entries are batches, unless the loader makes them
        own_pass = _own_passes(sampler, loader.dataset, dataset, n_batches * batch_size)
        entries = own_pass()
        if batches is None:
            are_lists = are_lists or any(isinstance(e, list | tuple) or getattr(e, "ndim", 0) for e in entries[:1])
        are_nested = batches is None and are_lists
        indices, weights = _counted(_indices(entries, are_nested), lambda: _indices(own_pass(), are_nested))
    if not indices:
        raise UnreadableError(_NO_SAMPLE)
    return indices, are_lists, weights


def _indices(entries: list[Any], are_nested: bool) -> list[Any]:
    """What a sampler gave as plain indices, lists of them taken apart."""
    flat = [index for entry in entries for index in entry] if are_nested else entries
    return [index.item() if hasattr(index, "item") else index for index in flat]


def _counted(first: list[Any], draw: Callable[[], list[Any]]) -> tuple[list[Any], Tensor | None]:
    """Indices of a sampler's first pass, and of a few more if these give others or repeat some; how often each comes.

    Not if that is chance alone, which two halves of the passes tell: their counts are unrelated then.
    """
    halves = Counter(first), Counter(draw())
    if len(halves[0]) == len(first) and halves[0] == halves[1]:
        return sorted(halves[0]), None
    for i in range(2, min(_MOST_PASSES, max(2, _MOST_DRAWS // len(first)))):
        halves[i % 2].update(draw())
    indices = sorted(halves[0] | halves[1])
    counts = torch.tensor([[half[index] for index in indices] for half in halves], dtype=torch.float64)
    centred = counts - counts.mean(dim=1, keepdim=True)
    related = float((centred[0] * centred[1]).sum())
    largest = float(centred.norm(dim=1).prod())
    threshold = largest * min(_SIGNIFICANCE / math.sqrt(len(indices)), 0.99)
    return indices, counts.sum(dim=0) if related > threshold else None


def _drawn_by(sampler: WeightedRandomSampler) -> Tensor | None:
    """How often a sampler draws each sample that it draws at all; None if all alike.

    Without replacement, a sample of weight w is among the n drawn with a probability near 1 - exp(-t w), with the t for
    which they add up to n (Rosen 1972).
    """
    weights = sampler.weights[sampler.weights > 0].double().cpu()
    if not sampler.replacement:
        if sampler.num_samples >= len(weights):
            return None
        weights = weights / weights.mean()
        low, high = 0.0, 1.0
        while float((1 - torch.exp(-high * weights)).sum()) < sampler.num_samples:
            high *= 2
        for _ in range(60):
            middle = (low + high) / 2
            is_low = float((1 - torch.exp(-middle * weights)).sum()) < sampler.num_samples
            low, high = (middle, high) if is_low else (low, middle)
        weights = -torch.expm1(-high * weights)
    return None if bool((weights == weights[0]).all()) else weights


def _visited_sooner_or_later(
    sampler: Any, dataset: Any, batches: BatchSampler | None, n_batches: float
) -> list[int] | None:
    """Ascending indices that one of torch's own samplers visits in some epoch; None for any other sampler."""
    if isinstance(sampler, WeightedRandomSampler):
        return torch.nonzero(sampler.weights).flatten().tolist()
    if isinstance(sampler, DistributedSampler):  # of all processes together
        return list(range(len(dataset)))
    if not isinstance(sampler, SequentialSampler | RandomSampler):
        return None
    n_samples = len(getattr(sampler, "data_source", dataset))
    if isinstance(sampler, SequentialSampler):  # what comes last is left out in every epoch
        batch_size = 1 if batches is None else batches.batch_size
        if batches is not None and batches.drop_last:
            n_samples -= n_samples % batch_size
        n_samples = int(min(n_samples, n_batches * batch_size))
    return list(range(n_samples))


def _own_passes(sampler: Iterable[Any], original: Any, dataset: Any, n_draws: float) -> Callable[[], list[Any]]:
    """A function that gives what a copy of a sampler gives in its next pass, at most `n_draws` entries.

    If the sampler holds the `original` dataset, the copy holds `dataset`.
    """
    try:
        own = copy.deepcopy(sampler, {id(original): dataset})
    except Exception as error:  # a user's class may raise anything
        raise UnreadableError(
            f"{type(sampler).__name__} cannot be copied to see which samples it visits: {error}."
        ) from error
    passes = itertools.count()

    def draw() -> list[Any]:
        epoch, set_epoch = next(passes), getattr(own, "set_epoch", None)
        if epoch and callable(set_epoch):  # as trainers do before each epoch
            set_epoch(epoch)
        return _one_pass(own, n_draws)

    return draw


def _one_pass(sampler: Iterable[Any], n_draws: float) -> list[Any]:
    """What a sampler gives in an epoch, for it may have no end: up to its length, or without one up to `n_draws`."""
    try:
        n_draws = len(sampler)  # type: ignore[arg-type]
    except Exception:  # a user's class may raise anything
        n_draws = min(n_draws, _MOST_INDICES)
    entries = list(itertools.islice(sampler, int(n_draws)))
    if len(entries) == _MOST_INDICES:
        raise UnreadableError(f"{type(sampler).__name__} has no length, and gives more than {_MOST_INDICES} indices.")
    return entries


def _subset(n_samples: int, n_wanted: int, seed: int, labels: Tensor | None) -> tuple[Tensor | None, bool | None]:
    """Ascending rows of a random subset and whether it is stratified; twice None if all samples are wanted."""
    if n_wanted >= n_samples:
        return None, None
    return stratified_rows(n_samples, n_wanted, seed, labels), labels is not None


def known_labels(dataset: Any, label_key: str | int | None = None) -> Tensor | None:
    """Labels (N,) int64 of a map-style dataset if they are known without reading samples; otherwise None.

    A `TensorDataset` holds them, and torchvision's datasets have them as `targets`; a `Subset` of either is understood.
    """
    try:
        if isinstance(dataset, Subset):
            known = known_labels(dataset.dataset, label_key)
            return None if known is None else known[torch.as_tensor(dataset.indices)]
        if isinstance(dataset, TensorDataset):
            labels = dataset.tensors[label_key if isinstance(label_key, int) else 1]
        else:
            labels = torch.as_tensor(np.asarray(dataset.targets))
        return _as_strata(labels, len(dataset))
    except Exception:  # a user's property may raise anything, and nothing but the strata depends on it
        return None


def _as_strata(labels: Tensor, n_samples: int) -> Tensor | None:
    """Labels as int64 (N,) to stratify by; None if samples do not have one whole number each."""
    if labels.shape != (n_samples,) or labels.is_complex():
        return None
    try:
        whole = labels.long()
        return whole if bool((whole == labels).all()) else None
    except RuntimeError:  # torch compares no unsigned integers of 16 bits and more
        return None


def _class_names(dataset: Any) -> list[str] | None:
    """Names of the classes, which torchvision's datasets have as `classes`."""
    while isinstance(dataset, Subset):
        dataset = dataset.dataset
    try:
        names = list(dataset.classes)
    except Exception:  # a user's property may raise anything, and nothing but a page's wording depends on it
        return None
    return names if all(isinstance(name, str) for name in names) else None


# Reading without a trace.


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


def _check_restarts(stream: IterableDataset[Any]) -> None:
    """Raise if a stream can be read only once."""
    first: object = iter(stream)
    if first is stream or first is iter(stream):
        raise UnreadableError(
            f"{type(stream).__name__} gives the same iterator each time: reading it here would use up its samples."
        )


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
) -> tuple[Tensor, Tensor]:
    """Inputs and labels of a map-style dataset at these indices, in batches as the loader makes them."""
    is_plain = type(dataset) is TensorDataset and loader.collate_fn is default_collate and transform is None
    if is_plain:  # all at once gives the same values
        inputs, labels = split_batch(list(dataset.tensors), keys)
        return inputs[torch.as_tensor(indices)], labels[torch.as_tensor(indices)]
    if loader.batch_sampler is None and are_lists:
        own = _own_loader(loader, dataset, BatchSampler(indices, READ_BATCH, drop_last=False))
    else:
        own = _own_loader(loader, Subset(dataset, indices))
    inputs, labels = _concatenate(own, keys, transform)
    if len(inputs) < len(indices):
        warnings.warn(
            f"The loader's batches hold {len(inputs)} of the {len(indices)} samples that were read: only those are"
            " used.",
            stacklevel=2,
        )
    return inputs, labels


# Batches.


def _concatenate(
    batches: Iterable[Any], keys: Keys, transform: Callable[[Any], Any] | None, limit: int | None = None
) -> tuple[Tensor, Tensor]:
    """Inputs and labels of all batches, up to `limit` samples."""
    if transform is not None:
        batches = map(transform, batches)
    n_left = sys.maxsize if limit is None else limit
    read: list[tuple[Tensor, Tensor]] = []
    for inputs, labels in (split_batch(batch, keys) for batch in batches):
        if len(inputs):
            if transform is not None:  # which has moved them to where the network is
                inputs, labels = inputs.detach().cpu(), labels.detach().cpu()
            read.append((inputs[:n_left], labels[:n_left]))
            n_left -= len(read[-1][0])
        if not n_left:
            break
    if not read:
        raise UnreadableError(_NO_SAMPLE)
    joined = dict(zip(_PARTS, zip(*read, strict=True), strict=True))
    for name, tensors in joined.items():
        shapes = {tuple(tensor.shape[1:]) for tensor in tensors}
        if len(shapes) > 1:
            found = ", ".join(map(str, sorted(shapes)[:3]))
            raise UnreadableError(f"all {name} must have one shape, got {found}.")
    inputs, labels = (torch.cat(tensors) for tensors in joined.values())
    return inputs, labels


def split_batch(batch: Any, keys: Keys) -> tuple[Tensor, Tensor]:
    """Inputs and labels of a batch, both dense tensors of one length.

    Raises:
        UnreadableError: If they are not to be found, or are no tensors of one length.
        TypeError: If one of them is not dense.
    """
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
                f"batches are dicts with the keys {has}: name two of them by `input_key=` and `label_key=`."
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
                raise UnreadableError(f"`{name}={place}` is no place in a batch of {len(batch)}.")
        return batch[input_key], batch[label_key]
    if is_tuple and len(batch) == 2:
        return batch[0], batch[1]
    what = f"{type(batch).__name__} of {len(batch)}" if is_tuple else type(batch).__name__
    raise UnreadableError(
        "batches must be (inputs, labels), or dicts or longer tuples with the keys or places of the two as"
        f" `input_key=` and `label_key=`, got a {what}."
    )
