"""Reading training samples: arrays, datasets, samplers, loaders and their batches become tensors.

Reading leaves no trace: a worker process or a deep copy runs the user's code, and random states are put back.
"""

import copy
import gc
import itertools
import math
import multiprocessing
import sys
import textwrap
import warnings
import weakref
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing, suppress
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils import data
from torch.utils.data import DataLoader, IterableDataset, Subset, TensorDataset, default_collate

from bu_torch.internal.inputs import check_integer, check_seed
from bu_torch.internal.replica import preserved_random_state, start_from
from bu_torch.samples.samples import (
    InputKey,
    Keys,
    Samples,
    UnreadableError,
    choose_among,
    concatenate,
    known_labels,
    samples_of,
    split_batch,
    stratified_rows,
    without_ignored,
)

READ_BATCH = 256
ASKED_TO_READ = "`perturbation='reading'` needs a dataset or a loader whose samples differ each time they are read"
WITHOUT_READING = "Pass `perturbation=None`."
_FEW = 8
_MOST_INDICES = 2_000_000  # of a sampler without an end
_READ_TWICE = 32  # samples, to see whether they are augmented at random
_PATIENCE = 60  # seconds for a batch: a dataset with threads or locks may wait forever in a forked process
_without_worker = weakref.WeakSet[DataLoader[Any]]()  # loaders for which one has failed, maybe after that time
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
        max_samples: Samples to read at most, >= 1: a random subset, stratified if labels are known without reading, or
            the first ones of a stream. None reads all.
        seed: Seed of the subset and of what the dataset draws from global random states, 0 <= seed < 2**64.
        input_key: Key of the inputs in dicts, or place in tuples of more than two; a list of these for several inputs.
        label_key: Key or place of the labels.

    Returns:
        The samples that a loader visits, each once, in ascending order of their indices; without those whose label is
        -100, which torch's losses ignore.

    Raises:
        TypeError, ValueError: If there is no sample, or they cannot be read.
    """
    keys = Keys(input_key, label_key)
    seed = check_seed(seed)
    if max_samples is not None:
        check_integer("max_samples", max_samples, 1)

    n_wanted = max_samples or sys.maxsize
    if hasattr(dataset, "train_dataloader") and hasattr(dataset, "setup"):
        with preserved_random_state():
            if getattr(dataset, "trainer", None) is None:  # else it is set up; once more would split it otherwise
                dataset.prepare_data()
                dataset.setup("fit")
            dataset = dataset.train_dataloader()
    try:
        # A dict or a tuple holds all inputs and all labels as arrays, or else single samples.
        are_all = isinstance(dataset, Mapping)
        if isinstance(dataset, tuple | list) and len(dataset) > 0:
            is_pair = len(dataset) == 2 and hasattr(dataset[0], "__len__")
            are_all = is_pair or all(isinstance(part, Tensor | np.ndarray) for part in dataset)
        if are_all:
            return choose_among(*split_batch(dataset, keys), n_wanted, seed)
        is_sequence = hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")
        if not is_sequence and not isinstance(dataset, DataLoader | IterableDataset):
            raise TypeError(
                "`dataset` must be a Dataset or DataLoader of labelled samples, or a pair (inputs, labels) of tensors"
                f" or arrays, got {type(dataset).__name__}."
            )
        loader = dataset if isinstance(dataset, DataLoader) else DataLoader(dataset, batch_size=READ_BATCH)
        return read_loader(loader, n_wanted, seed=seed, keys=keys, stream_limit=max_samples)
    except UnreadableError as error:
        raise ValueError(f"`dataset`: {error} Pass a pair (inputs, labels) of tensors or arrays.") from error


def read_few(read: Callable[..., Samples], loader: DataLoader[Any]) -> Samples:
    """A batch by a partial `read_loader`, which shows what samples are like; what is to be said is said of all."""
    few = max(_FEW, loader.batch_size or 0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return read(loader, few, stream_limit=few)


def read_loader(
    loader: DataLoader[Any],
    n_wanted: int = sys.maxsize,
    *,
    keys: Keys,
    seed: int = 0,
    n_batches: float = math.inf,
    stream_limit: int | None = None,
    transform: Callable[[Any], Any] | None = None,
    looks_for_augmentation: bool = False,
) -> Samples:
    """Read the samples that a loader visits, each once, by ascending index: `n_wanted` of them, or all.

    Of a stream, a subset is chosen among the first `stream_limit`; of items that are batches, among all. `transform`
    does what a trainer does to each batch, and moves it to the CPU. `looks_for_augmentation` reads a few samples twice.
    Raises `UnreadableError` where `read_samples` raises ValueError.
    """
    reader = LoaderReader(loader, seed, keys, transform)
    with preserved_random_state(seed):
        if isinstance(loader.dataset, IterableDataset):
            sampling = {"batch_size": loader.batch_size}
            return choose_among(*reader.read_batches(sampling, stream_limit), n_wanted, seed)
        indices, are_lists, weights = _visited(loader, n_batches, seed)
        if not are_lists:
            return choose_among(*reader.read_batches({"sampler": indices, "batch_size": None}), n_wanted, seed)
        n_training, are_places = len(indices), all(isinstance(index, int) for index in indices)
        if n_wanted < n_training:
            known = known_labels(loader.dataset, keys.labels) if are_places else None
            chosen = stratified_rows(n_training, n_wanted, seed, None if known is None else known[indices])
            indices = [indices[i] for i in chosen.tolist()]
            weights = None if weights is None else weights[chosen]
        samples = samples_of(*reader.read(indices))
        samples = samples._replace(n_training=n_training, classes=_class_names(loader.dataset))
        n_read, n_asked = len(samples.labels), len(indices)
        if n_read < n_asked:
            alike = "" if weights is None else ", as if the sampler drew all alike"  # nobody knows which they are
            said = f"The loader's batches hold {n_read} of the {n_asked} samples that were read: only those are used"
            warnings.warn(f"{said}{alike}.", stacklevel=2)
        if n_read != n_asked:
            return without_ignored(samples._replace(rows=None))
        is_random = looks_for_augmentation and are_places and reader.sees_augmentation(indices)
        rows = torch.as_tensor(indices, device="cpu") if are_places else None
        return without_ignored(samples._replace(weights=weights, rows=rows, reread=reader.read if is_random else None))


def _class_names(dataset: Any) -> list[str] | None:
    """Names of the classes, which torchvision's datasets have as `classes`."""
    while isinstance(dataset, Subset):
        dataset = dataset.dataset
    with suppress(Exception):  # a user's property may raise anything, and nothing but a page's wording depends on it
        names, are_renumbered = list(dataset.classes), getattr(dataset, "target_transform", None) is not None
        return names if all(isinstance(name, str) for name in names) and not are_renumbered else None
    return None


def _visited(loader: DataLoader[Any], n_batches: float, seed: int) -> tuple[list[Any], bool, Tensor | None]:
    """Indices that a loader visits, ascending, each once; whether its sampler gives lists; how often each comes.

    Without a batch sampler, as in `DataLoader(dataset, sampler=BatchSampler(...), batch_size=None)`, lists are batches.
    """
    dataset: Any = loader.dataset
    sampler: Any = _undistributed(loader.sampler) if loader.batch_sampler is None else loader.batch_sampler
    are_lists = loader.batch_sampler is not None or isinstance(sampler, data.BatchSampler)
    batches, weights = None, None
    if type(sampler) is data.BatchSampler:  # a subclass may leave out some of what its own sampler gives
        batches, sampler = sampler, _undistributed(sampler.sampler)
    size = 1 if batches is None else batches.batch_size
    if isinstance(sampler, data.WeightedRandomSampler):
        is_drawn = sampler.weights > 0
        indices, weights = torch.nonzero(is_drawn).flatten().tolist(), sampler.weights[is_drawn].double().cpu()
        if not sampler.replacement or bool((weights == weights[:1]).all()):
            weights = None
    elif isinstance(sampler, data.SequentialSampler | data.RandomSampler | data.DistributedSampler):
        n_samples = len(getattr(sampler, "data_source", dataset))
        if isinstance(sampler, data.SequentialSampler):  # every epoch leaves out the last ones
            n_samples = int(min(n_samples, size * min(n_batches, len(loader))))
        indices = list(range(n_samples))
    else:
        n_most = int(min(n_batches * size, _MOST_INDICES))
        if hasattr(sampler, "sampler"):  # of a batch sampler of the user's
            sampler, own = copy.copy(sampler), _undistributed(sampler.sampler)
            is_split = isinstance(own, data.DistributedSampler)
            sampler.sampler = data.RandomSampler(range(len(dataset))) if is_split else own
        one_pass: Any = DataLoader([sampler], batch_size=None, collate_fn=partial(_pass_of, n_most=n_most))  # type: ignore[arg-type]
        indices = with_batches(one_pass, {"batch_size": None}, seed, next)
        if batches is None and indices and isinstance(indices[0], list | tuple):
            indices, are_lists = list(_plain(itertools.chain(*indices))), True
        with suppress(TypeError):  # dicts, say, of a sampler that gives queries, cannot be sorted
            indices = sorted(set(indices))
    return indices, are_lists, weights


def _undistributed(sampler: Any) -> Any:
    """The user's own sampler, if Lightning has distributed it among processes."""
    while type(sampler).__name__ == "DistributedSamplerWrapper" and hasattr(sampler.dataset, "_sampler"):
        sampler = sampler.dataset._sampler
    return sampler


def _pass_of(sampler: Any, n_most: int) -> list[Any]:
    """What a pass of a sampler gives; for a worker, because a sampler may draw numbers, or change its dataset."""
    n_indices: float = _MOST_INDICES
    with suppress(Exception):  # a user's class may raise anything
        n_most, n_indices = len(sampler), math.inf
    entries = []
    for entry in _plain(itertools.islice(sampler, n_most)):
        entries.append(entry)
        n_indices -= len(entry) if isinstance(entry, list | tuple) else 1
        if n_indices <= 0:
            break
    return entries


def _plain(entries: Iterable[Any]) -> Iterator[Any]:
    return (entry.tolist() if hasattr(entry, "tolist") else entry for entry in entries)


class LoaderReader(NamedTuple):
    """Reads samples of a loader in batches as it makes them."""

    loader: DataLoader[Any]
    seed: int
    keys: Keys
    transform: Callable[[Any], Any] | None

    def read_batches(self, sampling: dict[str, Any], limit: int | None = None) -> tuple[Any, Tensor]:
        """Inputs and labels of all batches, up to `limit` samples; `sampling` as in `with_batches`."""
        use = partial(concatenate, keys=self.keys, transform=self.transform, limit=limit)
        return with_batches(self.loader, sampling, self.seed, use)

    def read(self, indices: list[Any], n_times: int = 1) -> tuple[Any, Tensor]:
        """Inputs and labels of all samples, `n_times` one after another.

        Random numbers start from `seed`, so that calls repeat. In one call they move on from one reading to the next,
        also those of generators that the dataset holds, because one process reads all.
        """
        loader, whole = self.loader, self.loader.dataset
        while type(whole) is Subset:
            whole = whole.dataset
        is_in_memory = type(whole) is TensorDataset and loader.collate_fn is default_collate
        size = READ_BATCH if is_in_memory and self.transform is None else loader.batch_size or READ_BATCH
        lists = [indices[start : start + size] for start in range(0, len(indices), size)] * n_times
        with preserved_random_state(self.seed):
            if is_in_memory:  # indexing runs no code of the user's
                batches = (list(loader.dataset[places]) for places in lists)
                return concatenate(batches, self.keys, self.transform)
            if loader.batch_sampler is None:
                return self.read_batches({"sampler": lists, "batch_size": None})
            return self.read_batches({"batch_sampler": lists})

    def sees_augmentation(self, indices: list[Any]) -> bool:
        """Whether a second reading of a few of these samples gives other inputs and the same labels."""
        few = indices[:: math.ceil(len(indices) / _READ_TWICE)]  # they lie apart: some classes alone may be augmented
        with suppress(Exception):  # the user's code may raise anything
            *inputs, labels = (tensor.tensor_split(2) for tensor in pytree.tree_leaves(self.read(few, 2)))
            are_same = (torch.allclose(first, second, rtol=0, atol=0, equal_nan=True) for first, second in inputs)
            return torch.equal(*labels) and not all(are_same)
        return False


def with_readings(samples: Samples, n_draws: int, perturbation: Any) -> tuple[Samples, Tensor | None]:
    """Read samples anew that differ each time: a first reading in their place, and `n_draws` more, (n_draws, n, ...).

    None if they do not differ, or, with a warning, if readings are not of the same samples; a ValueError if readings
    are asked for.
    """
    fault = "a second reading gives the same inputs, or other labels"
    if samples.reread is not None and samples.rows is not None:
        n_samples, n_times = len(samples.labels), 1 + n_draws
        try:
            read = samples_of(*samples.reread(samples.rows.tolist(), n_times))
            if not torch.equal(read.labels, samples.labels.repeat(n_times, *[1] * (samples.labels.ndim - 1))):
                raise UnreadableError("it gives other labels")
            readings = read.inputs[n_samples:].unflatten(0, (n_draws, n_samples))
            return samples._replace(inputs=read.inputs[:n_samples], packing=read.packing), readings
        except Exception as error:  # the user's code may raise anything
            fault = f"a further reading fails: {described(error)}"
            said = f"Samples: {fault}. That is no augmentation, so a check perturbs the first reading."
            warnings.warn(said, stacklevel=2)
    if perturbation == "reading":
        raise ValueError(f"{ASKED_TO_READ}: {fault}. {WITHOUT_READING}")
    return samples, None


class DatasetError(UnreadableError):
    """A dataset, or the function that collates its samples, has raised."""


def with_batches(
    loader: DataLoader[Any], sampling: dict[str, Any], seed: int, use: Callable[[Iterator[Any]], _Result]
) -> _Result:
    """Give `use` a loader's batches, read in a worker, by another `sampling`: `DataLoader`'s sampler and batch size.

    A copy is read where no worker may start, or where one fails and training has none.
    """
    method = multiprocessing.get_start_method(allow_none=True) or multiprocessing.get_all_start_methods()[0]
    # Other methods than "fork" need a main module that is guarded, and a daemonic process may start no other.
    may_start = not multiprocessing.current_process().daemon and (loader.num_workers or method == "fork")
    if may_start and loader not in _without_worker:
        in_worker = {
            "worker_init_fn": partial(_init_worker, loader.worker_init_fn, seed),
            "num_workers": 1,
            # The default context itself would be fixed by its first use, and a script could no longer choose another.
            "multiprocessing_context": loader.multiprocessing_context or multiprocessing.get_context(method),
            "timeout": 0 if loader.num_workers else _PATIENCE,
        }
        try:
            with closing(_batches(loader.dataset, collate_fn=loader.collate_fn, **sampling, **in_worker)) as batches:
                return use(batches)
        except DatasetError:  # tensors on a GPU, connections, locks and threads do not work in a forked process
            if loader.num_workers:
                raise
            _without_worker.add(loader)
    with preserved_random_state(seed):
        dataset, collate_fn = _copied(loader)
        with closing(_batches(dataset, collate_fn=collate_fn, **sampling)) as batches:
            return use(batches)


def _batches(dataset: Any, **options: Any) -> Generator[Any]:
    """Batches of a `DataLoader` with these options, whose worker ends with them."""
    iterator: Any = None
    try:
        with torch.device("cpu"):  # another default device refuses the generator, and a forked worker
            iterator = iter(DataLoader(dataset, generator=torch.Generator(), **options))
        yield from iterator
    except Exception as error:  # a user's class may raise anything
        raise DatasetError(f"{type(dataset).__name__} cannot be read ({described(error)}).") from error
    finally:
        if hasattr(iterator, "_shutdown_workers"):  # at once, also if an error keeps the iterator alive
            iterator._shutdown_workers()


def _init_worker(worker_init_fn: Callable[[int], None] | None, seed: int, worker_id: int) -> None:
    gc.freeze()  # never collect the parent's garbage: a finaliser may close or delete something
    start_from(seed)  # draws are then those of a deep copy that the parent reads
    if worker_init_fn is not None:
        worker_init_fn(worker_id)


def _copied(loader: DataLoader[Any]) -> tuple[Any, Any]:
    """Deep copies of dataset and collation, or the originals, with a warning, if they cannot be copied."""
    dataset: Any = loader.dataset
    parts = []
    while hasattr(dataset, "__dict__"):
        parts.append(vars(dataset))
        dataset = getattr(dataset, "dataset", None)
    # Read-only arrays, such as files mapped into memory, are shared.
    arrays = [part for part in pytree.tree_leaves(parts) if isinstance(part, np.ndarray)]
    both = loader.dataset, loader.collate_fn
    try:
        return copy.deepcopy(both, {id(array): array for array in arrays if not array.flags.writeable})
    except Exception as error:  # a user's class may raise anything
        warnings.warn(
            f"{type(loader.dataset).__name__} cannot be copied ({described(error)}): reading it may move its random"
            " generators, caches and open files, or use up a stream.",
            stacklevel=2,
        )
        return both


def described(error: Exception) -> str:
    """Type and text of an exception, in one line, without the traceback that torch adds to a worker's."""
    said = f"{type(error).__name__}: {error}"
    if "Original Traceback" in said:
        said = said.rstrip().splitlines()[-1]
    return textwrap.shorten(said, 300, placeholder=" [...]").rstrip(".: ")
