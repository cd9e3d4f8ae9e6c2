"""Finding and reading the labelled samples that a trainer trains on, without touching the trainer's own loader."""

import copy
import math
import random
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from lightning_utilities.core.rank_zero import rank_zero_info, rank_zero_warn
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    WeightedRandomSampler,
)

from bu_torch._inputs import as_tensor
from bu_torch._labelled_data import Keys, entries, joined_samples, known_labels, stratified_rows
from bu_torch.callbacks._lightning import MisconfigurationException, library_of

if TYPE_CHECKING:
    from lightning.pytorch import Trainer

_WAY_OUT = "Pass the training samples as `reference=(inputs, labels)`, two tensors."
_STREAM_SAMPLES = 10_000  # read from a stream of unknown length unless `max_samples` says otherwise
_READ_BATCH = 256


class TrainingData(NamedTuple):
    """Samples to look at."""

    inputs: Tensor  # (n, ...)
    labels: Tensor  # (n, ...)
    rows: Tensor  # (n,) where they are in the dataset
    n_training: int  # how many there are to choose from
    classes: list[str] | None = None  # names, where the dataset tells them


def read_training_data(
    trainer: "Trainer",
    *,
    how_many: Callable[[int], int],
    most: int | None,
    keys: Keys,
    seed: int,
    reference: Any = None,
) -> TrainingData:
    """Samples of the trainer's training data, or of `reference`, on the device the dataset gives them on.

    A `reference` is a loader or a dataset; no limit on the trainer's batches is one on it. `how_many` says how many of
    the samples are wanted, given how many there are. A map-style dataset is read in order at the indices that training
    visits, or at a random subset of them drawn with `seed`: stratified where the labels can be told without reading the
    samples. A stream is read from a fresh iterator, up to `most` samples.

    Raises:
        MisconfigurationException: If the samples cannot be found or their batches are not (inputs, labels).
    """
    if reference is None:
        loader, n_batches = trainer.train_dataloader, trainer.num_training_batches
    else:
        loader = reference if isinstance(reference, DataLoader) else DataLoader(reference, batch_size=_READ_BATCH)
        n_batches = math.inf
    if not isinstance(loader, DataLoader):
        raise MisconfigurationException(
            f"The training samples are found in a single `torch.utils.data.DataLoader`, got {type(loader).__name__}."
            f" {_WAY_OUT}"
        )
    if isinstance(loader.dataset, IterableDataset):
        inputs, labels = _read_stream(loader, most, keys)
        return choose_among(inputs, labels, how_many, seed)
    indices = _trained_indices(trainer, loader, n_batches)
    if not indices:
        raise MisconfigurationException(f"The training data holds no sample. {_WAY_OUT}")
    n_training = len(indices)
    dataset = _reading_copy(loader.dataset)
    known = known_labels(dataset, keys[1])
    of_indices = known if known is None else known[indices]
    if (chosen := choose(len(indices), how_many(len(indices)), seed, of_indices)) is not None:
        indices = [indices[i] for i in chosen.tolist()]
    batches: Iterable[Any]
    if _asks_for_lists(trainer, loader):  # then the dataset makes the batches
        blocks = BatchSampler(indices, _READ_BATCH, drop_last=False)
        batches = DataLoader(
            dataset, sampler=blocks, batch_size=None, collate_fn=loader.collate_fn, generator=torch.Generator()
        )
    else:
        batches = _own_loader(loader, Subset(dataset, indices))
    inputs, labels = _concatenate(_split(batch, keys) for batch in batches)
    if len(inputs) < len(indices):
        rank_zero_warn(
            f"The loader's batches hold {len(inputs)} of the {len(indices)} training samples that were read: boundary"
            " uncertainty looks at those alone."
        )
    rows = torch.as_tensor(indices) if len(indices) == len(inputs) else torch.arange(len(inputs))
    return TrainingData(inputs, labels, rows, n_training, _class_names(loader.dataset))


def choose_among(inputs: Tensor, labels: Tensor, how_many: Callable[[int], int], seed: int) -> TrainingData:
    """Of samples that are at hand, as many as are wanted; lengths that differ are left for the user to be told of."""
    rows = choose(len(inputs), how_many(len(inputs)), seed, labels)
    if rows is None or len(labels) != len(inputs):
        return TrainingData(inputs, labels, torch.arange(len(inputs)), len(inputs))
    return TrainingData(inputs[rows], labels[rows], rows, len(inputs))


def choose(n_samples: int, n_chosen: int, seed: int, labels: Tensor | None) -> Tensor | None:
    """Ascending rows of a random subset, said in the log; None where all samples are used.

    With labels, each class keeps its share, and at least one sample where there is room for all classes.
    """
    if n_samples <= n_chosen:
        return None
    if labels is not None and labels.shape != (n_samples,):
        labels = None
    kind = "random" if labels is None else "stratified random"
    rank_zero_info(f"Boundary uncertainty looks at a {kind} {n_chosen} of the {n_samples} training samples.")
    return stratified_rows(n_samples, n_chosen, seed, labels)


def _class_names(dataset: Any) -> list[str] | None:
    """Names of the classes, as torchvision's datasets hold them in `classes`."""
    while isinstance(dataset, Subset):
        dataset = dataset.dataset
    try:
        names = list(dataset.classes)
    except Exception:  # a user's property may raise anything, and nothing but a page's wording depends on it
        return None
    return names if all(isinstance(name, str) for name in names) else None


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
    except (AttributeError, TypeError):  # a plain list, or a dataset that does not allow it
        return dataset
    return twin


def _own_loader(loader: DataLoader[Any], dataset: Dataset[Any]) -> DataLoader[Any]:
    """A loader in order, in this process, with a generator of its own, that collates as the trainer's does."""
    batch_size = None if loader.batch_sampler is None else (loader.batch_size or _READ_BATCH)
    return DataLoader(
        dataset, batch_size=batch_size, collate_fn=loader.collate_fn, num_workers=0, generator=torch.Generator()
    )


def _trained_indices(trainer: "Trainer", loader: DataLoader[Any], n_batches: float) -> list[int]:
    """Indices of the dataset that training on so many batches an epoch visits, ascending."""
    n_samples = len(loader.dataset)  # type: ignore[arg-type]
    batch_sampler: Any = (
        _unwrapped(loader.sampler, trainer) if _asks_for_lists(trainer, loader) else loader.batch_sampler
    )
    if batch_sampler is not None and type(batch_sampler) is not BatchSampler:
        return sorted({index for batch in _own_pass(batch_sampler, loader) for index in batch})
    sampler = _unwrapped(loader.sampler if batch_sampler is None else batch_sampler.sampler, trainer)
    if isinstance(sampler, SequentialSampler):
        # In order, a limit on the batches leaves out the same samples in every epoch.
        batch_size = 1 if batch_sampler is None else batch_sampler.batch_size
        return list(range(int(min(n_samples, n_batches * batch_size))))
    if isinstance(sampler, WeightedRandomSampler):
        return torch.nonzero(sampler.weights).flatten().tolist()
    if isinstance(sampler, RandomSampler | DistributedSampler):
        return list(range(n_samples))
    return sorted(set(_own_pass(sampler, loader)))


def _asks_for_lists(trainer: "Trainer", loader: DataLoader[Any]) -> bool:
    """Whether the dataset makes the batches: `DataLoader(dataset, sampler=BatchSampler(...), batch_size=None)`."""
    if loader.batch_sampler is not None:
        return False
    sampler = _unwrapped(loader.sampler, trainer)
    if isinstance(sampler, BatchSampler):
        return True
    if isinstance(sampler, SequentialSampler | RandomSampler | WeightedRandomSampler | DistributedSampler):
        return False
    return any(isinstance(index, list | tuple) for index in _own_pass(sampler, loader)[:1])


def _unwrapped(sampler: Any, trainer: "Trainer") -> Any:
    """The user's own sampler, where Lightning has put its own around it to share it out."""
    wrapper = library_of(trainer).distributed_sampler_wrapper
    while isinstance(sampler, wrapper):
        sampler = sampler.dataset._sampler
    return sampler


def _own_pass(sampler: Iterable[Any], loader: DataLoader[Any]) -> list[Any]:
    """What a pass over a copy of a sampler gives; the dataset that it may hold is not copied."""
    try:
        return list(copy.deepcopy(sampler, {id(loader.dataset): loader.dataset}))
    except TypeError as error:
        raise MisconfigurationException(
            f"{type(sampler).__name__} cannot be copied to see which samples it visits: {error}. {_WAY_OUT}"
        ) from error


def _read_stream(loader: DataLoader[Any], most: int | None, keys: Keys) -> tuple[Tensor, Tensor]:
    dataset = loader.dataset
    first: object = iter(dataset)
    if first is dataset or first is iter(dataset):
        raise MisconfigurationException(
            f"{type(dataset).__name__} gives the same iterator each time: reading it here would take its samples away"
            f" from training. {_WAY_OUT}"
        )
    limit = most or _STREAM_SAMPLES
    inputs, labels = _concatenate(
        _take((_split(batch, keys) for batch in _own_loader(loader, _reading_copy(dataset))), limit)
    )
    if len(inputs) >= limit:
        rank_zero_info(
            f"Boundary uncertainty reads the first {limit} samples of {type(dataset).__name__}"
            f"{'' if most else '; `max_samples` sets another number'}."
        )
    return inputs, labels


def _take(batches: Iterator[tuple[Tensor, Tensor]], limit: int) -> Iterator[tuple[Tensor, Tensor]]:
    for inputs, labels in batches:
        yield inputs[:limit], labels[:limit]
        limit -= len(inputs)
        if limit <= 0:
            return


def _split(batch: Any, keys: Keys) -> tuple[Tensor, Tensor]:
    try:
        inputs, labels = entries(batch, keys)
    except ValueError as error:
        raise MisconfigurationException(f"Training data: {error} {_WAY_OUT}") from error
    for name, value in (("inputs", inputs), ("labels", labels)):
        if not isinstance(value, Tensor):
            raise MisconfigurationException(
                f"The {name} of a training batch must be a tensor, got {type(value).__name__}. {_WAY_OUT}"
            )
        as_tensor(value, name)  # a dense one
    if labels.ndim == 0 or inputs.ndim == 0 or len(inputs) != len(labels):
        raise MisconfigurationException(
            "The inputs and labels of a training batch must be equally long,"
            f" got {tuple(inputs.shape)} and {tuple(labels.shape)}. {_WAY_OUT}"
        )
    return inputs, labels


def _concatenate(batches: Iterable[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    parts = [(inputs, labels) for inputs, labels in batches if len(inputs)]
    if not parts:
        raise MisconfigurationException(f"The training data gave no sample. {_WAY_OUT}")
    try:
        return joined_samples(parts, f"All {{}} must have one shape to be compared, got {{}}. {_WAY_OUT}")
    except ValueError as error:
        raise MisconfigurationException(str(error)) from error
