"""Samples of a trainer, which `samples.reading` reads without touching the trainer's own loader."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, TypeGuard

import numpy as np
from lightning_utilities.core.rank_zero import rank_zero_info
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset

from bu_torch.callbacks.lightning_trees import LightningModule, MisconfigurationException, Trainer, library_of
from bu_torch.internal.traces import preserved_attributes
from bu_torch.samples import reading
from bu_torch.samples.batches import Keys, TooManyBytesError
from bu_torch.samples.samples import Samples, UnreadableError

Reference = tuple[Any, Any] | Dataset[Any] | DataLoader[Any]
_NO_DATASETS = (tuple, list, dict, str, bytes, Tensor, np.ndarray)
_BATCH_HOOKS = ("on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer")
_WAY_OUT = "Pass the training samples as `reference=(inputs, labels)`."
_STREAM_SAMPLES = 10_000  # read from a stream of unknown length unless `max_samples` says otherwise


def read_training_data(
    trainer: Trainer,
    *,
    how_many: Callable[[int], int],
    most: int | None,
    max_bytes: int | None,
    n_least: int,
    keys: Keys,
    seed: int,
    reference: Any,
    transform: Callable[[Any], Any] | None,
) -> Samples:
    """Read the trainer's training samples, or those of `reference`, as `bu_torch.samples.reading.read_loader` does.

    At most so many are read from a stream, 10,000 for None. A limit on the trainer's batches leaves out samples of a
    loader in order, but none of `reference`.
    """
    loader, n_batches, name = trainer.train_dataloader, trainer.num_training_batches, "Training data"
    if reference is not None:
        is_loader = isinstance(reference, DataLoader)
        loader = reference if is_loader else DataLoader(reference, batch_size=reading.READ_BATCH)
        n_batches, name = math.inf, "`reference`"
    if not isinstance(loader, DataLoader):
        raise MisconfigurationException(
            f"{name}: samples are read from a single `torch.utils.data.DataLoader`, got {type(loader).__name__}."
            f" {_WAY_OUT}"
        )
    limit = most or _STREAM_SAMPLES
    read = partial(
        reading.read_loader,
        loader,
        seed=seed,
        keys=keys,
        n_batches=n_batches,
        unwrap=lambda sampler: users_sampler(sampler, trainer),
        transform=transform,
        looks_for_augmentation=reference is None,
        has_progress_bar=trainer.progress_bar_callback is not None,
    )
    try:
        try:
            samples = read(how_many, stream_limit=limit, max_bytes=max_bytes)
        except TooManyBytesError as error:
            n_fitting = max(error.n_fitting, n_least)
            samples = read(lambda n_training: min(how_many(n_training), n_fitting), stream_limit=min(limit, n_fitting))
    except UnreadableError as error:
        raise MisconfigurationException(f"{name}: {error} {_WAY_OUT}") from error
    n_read = samples.n_training
    if isinstance(loader.dataset, IterableDataset) and n_read < limit:
        if max_bytes is not None and (n_read + 1) * samples.inputs[:1].nbytes > max_bytes:
            rank_zero_info(
                f"Boundary uncertainty reads the first {n_read} samples of {type(loader.dataset).__name__}, to take no"
                f" more than {max_bytes} bytes. To change it: `max_bytes`."
            )
    elif isinstance(loader.dataset, IterableDataset):
        rank_zero_info(
            f"Boundary uncertainty reads the first {limit} samples of {type(loader.dataset).__name__}"
            f"{'' if most else '; `max_samples` sets another number'}."
        )
    if samples.is_random:
        rank_zero_info(
            f"{name}: a sample differs each time it is read (random augmentation). Boundary uncertainty reads each"
            " sample once and perturbs that draw. To change it: `reference=` takes other samples."
        )
    return samples


def batch_hooks(trainer: Trainer, pl_module: LightningModule) -> Callable[[Any], Any] | None:
    """Function that does to a batch what the trainer does before the module gets it; None if no hook is the user's.

    The hooks of the module or the datamodule are called, whichever the trainer would call.
    """
    selector = trainer._data_connector._datahook_selector
    if selector is None or not any(_is_users(selector.get_instance(name), name) for name in _BATCH_HOOKS):
        return None

    def transform(batch: Any) -> Any:
        with preserved_attributes(pl_module):
            batch = trainer.precision_plugin.convert_input(batch)
            batch = pl_module._on_before_batch_transfer(batch, dataloader_idx=0)
            return trainer.strategy.batch_to_device(batch, dataloader_idx=0)

    return transform


def _is_users(owner: Any, name: str) -> bool:
    """Tell if a method is not Lightning's own."""
    if name in vars(owner):
        return True
    defining = next(cls for cls in type(owner).__mro__ if name in vars(cls))
    return defining.__module__.split(".")[0] not in ("lightning", "pytorch_lightning")


def users_sampler(sampler: Any, trainer: Trainer) -> Any:
    """The user's own sampler, if Lightning has wrapped it to share it among processes."""
    wrapper = library_of(trainer).distributed_sampler_wrapper
    while isinstance(sampler, wrapper):
        sampler = sampler.dataset._sampler
    return sampler


def describe(samples: Samples) -> str:
    """Say how many are looked at, and of how many."""
    if samples.is_stratified is None:
        return f"{len(samples.inputs)} samples"
    kind = "stratified random" if samples.is_stratified else "random"
    return f"a {kind} {len(samples.inputs)} of {samples.n_training} training samples"


def is_pair(value: Any) -> TypeGuard[tuple[Any, Any]]:
    """Tell if samples are given as (inputs, labels)."""
    return isinstance(value, tuple | list) and len(value) == 2


def check_reference(name: str, value: Any) -> None:
    """Raise unless `value` is None, a pair, a loader, or a dataset: what has a length and samples by number."""
    is_alike = hasattr(value, "__getitem__") and hasattr(value, "__len__") and not isinstance(value, _NO_DATASETS)
    if not (value is None or is_pair(value) or is_alike or isinstance(value, Dataset | DataLoader)):
        raise TypeError(
            f"`{name}` must be a pair (inputs, labels), a Dataset or a DataLoader, got {type(value).__name__}."
        )
