"""Finding and reading the labelled samples that a trainer trains on, without touching the trainer's own loader."""

import copy
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from lightning.pytorch.utilities.rank_zero import rank_zero_info
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

_WAY_OUT = "Pass the training samples as `reference=(inputs, labels)`, two tensors."
_STREAM_SAMPLES = 10_000  # read from a stream of unknown length unless `max_samples` says otherwise
_READ_BATCH = 256


def read_training_data(
    trainer: Trainer, *, max_samples: int | None, input_key: str | None, label_key: str | None, seed: int
) -> tuple[Tensor, Tensor]:
    """Inputs (N, ...) and labels (N, ...) of the trainer's training data, on the device the dataset gives them on.

    A map-style dataset is read in order at the indices that training visits; where there are more than `max_samples`, a
    random subset drawn with `seed`. A stream is read from a fresh iterator up to `max_samples`.

    Raises:
        MisconfigurationException: If the samples cannot be found or their batches are not (inputs, labels).
    """
    loader = trainer.train_dataloader
    if not isinstance(loader, DataLoader):
        raise MisconfigurationException(
            f"The training samples are found in a single `torch.utils.data.DataLoader`, got {type(loader).__name__}."
            f" {_WAY_OUT}"
        )
    if isinstance(loader.dataset, IterableDataset):
        return _read_stream(loader, max_samples, input_key, label_key)
    indices = _trained_indices(trainer, loader)
    if max_samples is not None and len(indices) > max_samples:
        chosen = torch.randperm(len(indices), generator=torch.Generator().manual_seed(seed))[:max_samples]
        rank_zero_info(f"Boundary uncertainty reads a random {max_samples} of the {len(indices)} training samples.")
        indices = [indices[i] for i in chosen.sort().values.tolist()]
    if not indices:
        raise MisconfigurationException(f"The training data holds no sample. {_WAY_OUT}")
    batches = _own_loader(loader, Subset(loader.dataset, indices))
    return _concatenate(_split(batch, input_key, label_key) for batch in batches)


def _own_loader(loader: DataLoader[Any], dataset: Dataset[Any]) -> DataLoader[Any]:
    """A loader in order, in this process, with a generator of its own, that collates as the trainer's does."""
    batch_size = None if loader.batch_sampler is None else (loader.batch_size or _READ_BATCH)
    return DataLoader(
        dataset, batch_size=batch_size, collate_fn=loader.collate_fn, num_workers=0, generator=torch.Generator()
    )


def _trained_indices(trainer: Trainer, loader: DataLoader[Any]) -> list[int]:
    """Indices of the dataset that training visits, ascending."""
    n_samples = len(loader.dataset)  # type: ignore[arg-type]
    batch_sampler = loader.batch_sampler
    sampler: Iterable[Any] = loader.sampler
    if batch_sampler is not None and not isinstance(batch_sampler, BatchSampler):
        visited = chain.from_iterable(copy.deepcopy(batch_sampler))
        return sorted(set(visited))
    if isinstance(batch_sampler, BatchSampler):
        sampler = batch_sampler.sampler
    if isinstance(sampler, SequentialSampler):
        # In order, a limit on the batches leaves out the same samples in every epoch.
        n_batches = trainer.num_training_batches
        return list(range(int(min(n_samples, n_batches * (loader.batch_size or 1)))))
    if isinstance(sampler, RandomSampler | WeightedRandomSampler | DistributedSampler):
        return list(range(n_samples))
    return sorted(set(copy.deepcopy(sampler)))


def _read_stream(
    loader: DataLoader[Any], max_samples: int | None, input_key: str | None, label_key: str | None
) -> tuple[Tensor, Tensor]:
    dataset = loader.dataset
    first: object = iter(dataset)
    if first is dataset or first is iter(dataset):
        raise MisconfigurationException(
            f"{type(dataset).__name__} gives the same iterator each time: reading it here would take its samples away"
            f" from training. {_WAY_OUT}"
        )
    limit = max_samples or _STREAM_SAMPLES
    inputs, labels = _concatenate(
        _take((_split(batch, input_key, label_key) for batch in _own_loader(loader, dataset)), limit)
    )
    if len(inputs) >= limit:
        rank_zero_info(
            f"Boundary uncertainty reads the first {limit} samples of {type(dataset).__name__}"
            f"{'' if max_samples else '; `max_samples` sets another number'}."
        )
    return inputs, labels


def _take(batches: Iterator[tuple[Tensor, Tensor]], limit: int) -> Iterator[tuple[Tensor, Tensor]]:
    for inputs, labels in batches:
        yield inputs[:limit], labels[:limit]
        limit -= len(inputs)
        if limit <= 0:
            return


def _split(batch: Any, input_key: str | None, label_key: str | None) -> tuple[Tensor, Tensor]:
    if isinstance(batch, Mapping):
        keys = ", ".join(repr(key) for key in batch)
        if input_key is None or label_key is None:
            raise MisconfigurationException(
                f"Training batches are dicts with the keys {keys}: name two of them by `input_key=` and `label_key=`."
            )
        for name, key in (("input_key", input_key), ("label_key", label_key)):
            if key not in batch:
                raise MisconfigurationException(f"`{name}={key!r}` is not among the keys of a training batch: {keys}.")
        inputs, labels = batch[input_key], batch[label_key]
    elif isinstance(batch, tuple | list) and len(batch) == 2:
        inputs, labels = batch
    else:
        what = f"{type(batch).__name__} of {len(batch)}" if isinstance(batch, tuple | list) else type(batch).__name__
        raise MisconfigurationException(
            f"Training batches must be (inputs, labels), or dicts with `input_key=` and `label_key=`, got a {what}."
            f" {_WAY_OUT}"
        )
    for name, value in (("inputs", inputs), ("labels", labels)):
        if not isinstance(value, Tensor):
            raise MisconfigurationException(
                f"The {name} of a training batch must be a tensor, got {type(value).__name__}. {_WAY_OUT}"
            )
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
    shapes = {tuple(inputs.shape[1:]) for inputs, _ in parts}
    if len(shapes) > 1:
        raise MisconfigurationException(
            f"All inputs must have one shape to be compared, got {sorted(shapes)[:3]}. {_WAY_OUT}"
        )
    return torch.cat([inputs for inputs, _ in parts]), torch.cat([labels for _, labels in parts])
