"""Samples of a trainer, which `samples.reading` reads without touching the trainer's own loader."""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from lightning_utilities.core.rank_zero import rank_zero_info
from torch.utils.data import DataLoader, IterableDataset

from bu_torch.callbacks._lightning import MisconfigurationException, library_of
from bu_torch.internal.traces import preserved_attributes
from bu_torch.samples import reading
from bu_torch.samples.batches import Keys
from bu_torch.samples.samples import Samples, UnreadableError, fewer_of, whole_samples

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer

_BATCH_HOOKS = ("on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer")
_WAY_OUT = "Pass the training samples as `reference=(inputs, labels)`, two tensors."
_STREAM_SAMPLES = 10_000  # read from a stream of unknown length unless `max_samples` says otherwise


def read_training_data(
    trainer: "Trainer",
    *,
    how_many: Callable[[int], int],
    most: int | None,
    keys: Keys,
    seed: int,
    reference: Any = None,
    transform: Callable[[Any], Any] | None = None,
) -> Samples:
    """Read the trainer's training samples, or those of `reference`, as `bu_torch.samples.reading.read_loader` does.

    Args:
        trainer: In training. A limit on its batches leaves out samples of a loader in order, but none of `reference`.
        how_many: Given the number of samples, the number wanted. Called once.
        most: Samples to read at most from a stream; None for 10,000.
        keys: Keys or places of inputs and labels in a batch.
        seed: Seed of the subset and of random augmentation.
        reference: A Dataset or DataLoader to read in place of the trainer's.
        transform: As `batch_hooks` gives it.

    Returns:
        The samples, on the device that the dataset gives them on.

    Raises:
        MisconfigurationException: If there is no single loader, or its samples cannot be read.
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
    try:
        samples = reading.read_loader(
            loader,
            how_many,
            seed=seed,
            keys=keys,
            n_batches=n_batches,
            stream_limit=limit,
            unwrap=lambda sampler: users_sampler(sampler, trainer),
            transform=transform,
            looks_for_augmentation=reference is None,
        )
    except UnreadableError as error:
        raise MisconfigurationException(f"{name}: {error} {_WAY_OUT}") from error
    if isinstance(loader.dataset, IterableDataset) and samples.n_training >= limit:
        rank_zero_info(
            f"Boundary uncertainty reads the first {limit} samples of {type(loader.dataset).__name__}"
            f"{'' if most else '; `max_samples` sets another number'}."
        )
    if samples.is_random:
        rank_zero_info(
            f"{name}: a sample is another each time it is read (random augmentation). Boundary uncertainty reads"
            " each once,"
            " at one draw, and perturbs what it got; `reference=` takes other samples."
        )
    return samples


def read_pair(pair: tuple[Any, Any], how_many: Callable[[int], int], seed: int, keep_integers: bool) -> Samples:
    """Inputs and labels that the user gave, checked, as many as are wanted."""
    samples = whole_samples(*pair, keep_integers=keep_integers)
    return fewer_of(samples, how_many(len(samples.inputs)), seed)


def batch_hooks(trainer: "Trainer", pl_module: "LightningModule") -> Callable[[Any], Any] | None:
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


def users_sampler(sampler: Any, trainer: "Trainer") -> Any:
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
