"""Reading training samples: arrays, datasets, samplers, loaders and their batches become tensors.

Reading leaves no trace: a worker process or a deep copy reads, and a deep copy of the sampler gives the indices, in a
worker if one may start. Global random states are put back.
"""

import copy
import itertools
import math
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, suppress
from functools import partial
from typing import Any, TypeVar

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
    WeightedRandomSampler,
)

from bu_torch.internal.global_state import preserved_random_state, seeded
from bu_torch.internal.inputs import check_integer
from bu_torch.samples.balance import stratified_rows
from bu_torch.samples.batches import NO_KEYS, NO_SAMPLE, WAY_OUT, InputKey, Keys, as_tensors, concatenate, whole_pair
from bu_torch.samples.readings import READ_BATCH, LoaderRows, with_batches
from bu_torch.samples.samples import Samples, UnreadableError, choose_among, known_labels, packed, without_ignored
from bu_torch.samples.worker import DatasetError, from_worker, may_start_worker

_MOST_PASSES, _MOST_DRAWS = 16, 2_000_000  # to see if a sampler draws some samples more often
_MOST_INDICES = 100_000_000
_SIGNIFICANCE = 3.0  # standard deviations of a correlation
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
            dataset = _training_loader(dataset)
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


def _training_loader(datamodule: Any) -> Any:
    """The training loader of a data module; one that a trainer has set up is not set up again, with another split."""
    if getattr(datamodule, "trainer", None) is not None:
        with suppress(Exception):  # it was set up for tests alone
            return datamodule.train_dataloader()
    datamodule.prepare_data()
    datamodule.setup("fit")
    return datamodule.train_dataloader()


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
) -> Samples:
    """Read the samples that a loader visits, each once, by ascending index, as many as `how_many` says.

    Samples that a sampler leaves out may be held out, and are not read. The number of samples of an `IterableDataset`
    and of `DataLoader(dataset, batch_size=None)`, whose items are batches, is not known: a subset is chosen among those
    read, at most `stream_limit` of a stream. If an epoch has only `n_batches`, a loader in order leaves out the same
    samples in every epoch. The first batch shows if the inputs take more than `max_bytes` (`TooManyBytesError`),
    except for items that are batches. `unwrap` returns the user's own sampler from one that a trainer distributes among
    processes; `transform` does what a trainer does to each batch, and the samples are then on the CPU.
    `looks_for_augmentation` reads a few samples a second time, to see if they differ.

    Raises `UnreadableError` where `read_samples` raises a ValueError.
    """
    with seeded(seed):
        dataset, classes = loader.dataset, _class_names(loader.dataset)
        if isinstance(dataset, IterableDataset):
            order: dict[str, Any] = {
                "batch_size": None if loader.batch_sampler is None else loader.batch_size or READ_BATCH
            }
            limits = stream_limit, stream_limit or 0, max_bytes
            read = with_batches(loader, order, seed, lambda batches: concatenate(batches, keys, transform, *limits))
            return choose_among(*read, how_many, seed)._replace(classes=classes)
        indices, are_lists, weights = visited_by(loader, n_batches, unwrap, seed)
        if loader.batch_sampler is None and not are_lists:
            items = {"sampler": indices, "batch_size": None}
            read = with_batches(loader, items, seed, lambda batches: concatenate(batches, keys, transform))
            return choose_among(*read, how_many, seed)._replace(classes=classes)
        n_training, are_places = len(indices), isinstance(indices[0], int)
        known = known_labels(dataset, keys.labels) if are_places else None
        n_wanted = how_many(n_training)
        is_stratified = known is not None if n_wanted < n_training else None
        if n_wanted < n_training:
            chosen = stratified_rows(n_training, n_wanted, seed, None if known is None else known[indices])
            indices = [indices[i] for i in chosen.tolist()]
            weights = None if weights is None else weights[chosen]
        again = LoaderRows(loader, indices, seed, keys, transform)
        inputs, labels, is_random, why_unlike = again.read_first(max_bytes, looks_for_augmentation)
        are_known = len(labels) == len(indices)
        if not are_known:
            are_places, weights = False, None
        rows = torch.as_tensor(indices if are_places else range(len(labels)), device="cpu")
        inputs, packing = packed(inputs)
        samples = Samples(inputs, labels, rows, n_training, classes, is_stratified, weights, packing=packing)
        if looks_for_augmentation and are_known:
            samples = samples._replace(is_random=is_random, why_unlike=why_unlike, again=again)
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


def visited_by(
    loader: DataLoader[Any], n_batches: float, unwrap: Callable[[Any], Any], seed: int
) -> tuple[list[Any], bool, Tensor | None]:
    """Indices that a loader visits, ascending, each once; whether its sampler gives lists; how often each comes.

    Without a batch sampler, as in `DataLoader(dataset, sampler=BatchSampler(...), batch_size=None)`, lists are batches.
    """
    dataset: Any = loader.dataset
    sampler: Any = unwrap(loader.sampler) if loader.batch_sampler is None else loader.batch_sampler
    are_lists = loader.batch_sampler is not None or isinstance(sampler, BatchSampler)
    batches = None
    if type(sampler) is BatchSampler:  # a subclass may leave out some of what its own sampler gives
        batches, sampler = sampler, unwrap(sampler.sampler)
    indices: list[Any]
    weights = None
    if isinstance(sampler, WeightedRandomSampler):
        indices, weights = torch.nonzero(sampler.weights).flatten().tolist(), _drawn_by(sampler)
    elif isinstance(sampler, DistributedSampler):  # all processes together visit every sample
        indices = list(range(len(dataset)))
    elif isinstance(sampler, SequentialSampler | RandomSampler):
        n_samples = len(getattr(sampler, "data_source", dataset))
        is_in_order = isinstance(sampler, SequentialSampler)
        indices = list(range(_n_first(n_samples, batches, n_batches) if is_in_order else n_samples))
    else:
        batch_size = getattr(batches, "batch_size", 1)  # entries are batches, unless the loader makes them

        def look(passes: Iterator[Any]) -> tuple[list[Any], bool, Tensor | None]:
            entries = next(passes)
            are_nested = batches is None and (
                are_lists or any(isinstance(e, list | tuple) or getattr(e, "ndim", 0) for e in entries[:1])
            )
            found, weights = _counted(_indices(one, are_nested) for one in itertools.chain([entries], passes))
            return found, are_lists or are_nested, weights

        indices, are_lists, weights = _in_worker(_Passes(sampler, dataset, n_batches * batch_size), seed, look)
    if not indices:
        raise UnreadableError(NO_SAMPLE)
    return indices, are_lists, weights


def _indices(entries: list[Any], are_nested: bool) -> list[Any]:
    """Entries of a sampler as plain indices, lists of them taken apart."""
    flat = [index for entry in entries for index in entry] if are_nested else entries
    return [index.item() if hasattr(index, "item") else index for index in flat]


def _counted(passes: Iterator[list[Any]]) -> tuple[list[Any], Tensor | None]:
    """Indices of a sampler's first pass, and of a few more if these differ or repeat some; how often each comes.

    The counts are None if they differ by chance alone: those of two halves of the passes are then unrelated.
    """
    first = next(passes)
    halves = Counter(first), Counter(next(passes))
    if len(halves[0]) == len(first) and halves[0] == halves[1]:
        return sorted(halves[0]), None
    for i in range(2, min(_MOST_PASSES, max(2, _MOST_DRAWS // len(first)))):
        halves[i % 2].update(next(passes))
    indices = sorted(halves[0] | halves[1])
    counts = torch.tensor([[half[one] for one in indices] for half in halves], dtype=torch.float64, device="cpu")
    centred = counts - counts.mean(dim=1, keepdim=True)
    related = float((centred[0] * centred[1]).sum())
    largest = float(centred.norm(dim=1).prod())
    threshold = largest * min(_SIGNIFICANCE / math.sqrt(len(indices)), 0.99)
    return indices, counts.sum(dim=0) if related > threshold else None


def _drawn_by(sampler: WeightedRandomSampler) -> Tensor | None:
    """Relative frequency of each sample that a sampler draws at all; None if all alike.

    Without replacement, a sample of weight w is among the n drawn with a probability near 1 - exp(-t w), with the t for
    which they add up to n (Rosen 1972).
    """
    weights = sampler.weights[sampler.weights > 0].double().cpu()
    if not sampler.replacement:
        from scipy.optimize import brentq

        if sampler.num_samples >= len(weights):
            return None
        weights = weights / weights.mean()

        def excess(t: float) -> float:
            return float(-torch.expm1(-t * weights).sum()) - sampler.num_samples

        high = 1.0
        while excess(high) < 0:
            high *= 2
        weights = -torch.expm1(-brentq(excess, 0.0, high) * weights)
    return None if bool((weights == weights[0]).all()) else weights


def _n_first(n_samples: int, batches: BatchSampler | None, n_batches: float) -> int:
    """Number of samples in order that each epoch visits: every epoch leaves out the last ones."""
    batch_size = 1 if batches is None else batches.batch_size
    if batches is not None and batches.drop_last:
        n_samples -= n_samples % batch_size
    return int(min(n_samples, n_batches * batch_size))


class _Passes(IterableDataset[Any]):
    """Passes of a sampler as a dataset, for a worker to make: a sampler may change its dataset, or draw by closures."""

    def __init__(self, sampler: Iterable[Any], dataset: Any, n_draws: float) -> None:
        self.given = sampler, dataset, n_draws

    def __iter__(self) -> Iterator[list[Any]]:
        return _own_passes(*self.given)


def _in_worker(dataset: IterableDataset[Any], seed: int, use: Callable[[Iterator[Any]], _Result]) -> _Result:
    """Use what a worker reads, one after another; read here if no worker may start, or if it fails."""
    loader = DataLoader(dataset, batch_size=None, collate_fn=_unchanged)
    if may_start_worker(loader):
        with suppress(DatasetError), closing(from_worker(loader, {"batch_size": None}, seed)) as read:
            return use(read)
    return use(iter(dataset))


def _unchanged(read: Any) -> Any:
    return read


def _own_passes(sampler: Iterable[Any], dataset: Any, n_draws: float) -> Iterator[list[Any]]:
    """Passes of a copy of a sampler, epoch after epoch: up to its length, or up to `n_draws` entries if it has none.

    If the sampler holds the dataset, the copy holds it too.
    """
    try:
        own = copy.deepcopy(sampler, {id(dataset): dataset})
    except Exception as error:  # a user's class may raise anything
        raise UnreadableError(
            f"{type(sampler).__name__} cannot be copied to see which samples it visits: {error}."
        ) from error
    for epoch in itertools.count():
        if epoch and callable(set_epoch := getattr(own, "set_epoch", None)):  # as trainers do before each epoch
            set_epoch(epoch)
        try:
            n_most = len(own)  # type: ignore[arg-type]
        except Exception:  # a user's class may raise anything
            n_most = int(min(n_draws, _MOST_INDICES))
        entries = list(itertools.islice(own, n_most))
        if len(entries) == _MOST_INDICES:
            raise UnreadableError(f"{type(own).__name__} has no length, and gives more than {_MOST_INDICES} indices.")
        yield entries
