"""Samples of the checks: read without touching the trainer's loader, and prepared in the first process for all."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple, TypeGuard

import numpy as np
from lightning_utilities.core.rank_zero import rank_zero_info, rank_zero_warn
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

from bu_torch.callbacks.losses import LossWatch, describe_weights, weights_in
from bu_torch.callbacks.mixing import before_mixing, is_mixture
from bu_torch.callbacks.network import NetworkReader, can_be_passed
from bu_torch.callbacks.trainer import LightningModule, MisconfigurationException, Trainer, library, misconfigured
from bu_torch.internal.inputs import as_labels
from bu_torch.internal.packing import Packing
from bu_torch.internal.replica import copy_of
from bu_torch.perturbation.draws import Perturbation, keeps_integers
from bu_torch.run.budget import Plan, count_operations, plan
from bu_torch.run.perturbing import may_be_read_again
from bu_torch.run.settings import MeasurementSettings
from bu_torch.run.tracker import Tracker
from bu_torch.samples.batches import InputKey, Keys, TooManyBytesError
from bu_torch.samples.reading import read_loader
from bu_torch.samples.readings import READ_BATCH
from bu_torch.samples.samples import Samples, UnreadableError, fewer_of, whole_samples
from bu_torch.signals.metrics import as_metric

Reference = tuple[Any, Any] | Dataset[Any] | DataLoader[Any]
_NO_DATASETS = (tuple, list, dict, str, bytes, Tensor, np.ndarray)
_BATCH_HOOKS = ("on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer")
_WAY_OUT = "The training samples can also be passed as `reference=(inputs, labels)`."
_STREAM_SAMPLES = 10_000  # read from a stream of unknown length unless `max_samples` says otherwise
_TRIAL_SAMPLES = 512  # read in a `fast_dev_run`


class Source(NamedTuple):
    """Samples to measure at, and their places in batches; arguments of the callbacks."""

    reference: Reference | None = None  # None reads the trainer's loader
    input_key: InputKey = None
    label_key: str | int | None = None


class CheckSamples:
    """Reads a trainer's samples, plans how many of them a check uses, and prepares these."""

    def __init__(self, settings: MeasurementSettings, source: Source, tracker: Tracker, reader: NetworkReader) -> None:
        self._settings, self._source, self._tracker, self._reader = settings, source, tracker, reader
        self._n_batches = math.inf  # for one process, between two checks
        self._samples: Samples | None = None  # until the tracker has them; in the first process
        self._module: nn.Module | None = None  # the network before training, if its features are the space
        self._takes_readings = False  # a few samples differed when they were read again, and so will the draws
        self._options: dict[str, Any] = {}  # of each preparation
        self.awaits_weights = False  # the first training step will show the weights of classes in the loss

    def prepare(self, trainer: Trainer, pl_module: LightningModule, n_batches: float, when: str) -> bool:
        """Compute all that does not depend on the network; False if a run resumes with other samples than before.

        One process has `n_batches` between two checks; `when` says in words when checks are due.
        """
        self._n_batches, reader, tracker = n_batches, self._reader, self._tracker
        is_open = self._settings.class_weight is None and as_metric(self._settings.metric) is None  # counts by class
        self.awaits_weights = is_open and not tracker.checks
        if trainer.reload_dataloaders_every_n_epochs and self._source.reference is None:
            rank_zero_warn("bu-torch uses the training data as first loaded and ignores reloads.")
        first = tracker.processes.on_first(lambda: self._read_here(trainer, pl_module))
        one, reader.packing, reader.perturbation = first
        n_operations = reader.count_operations(trainer, pl_module, one, tracker.processes)
        self._options = {
            "device": pl_module.device,
            "module": self._module_as_space(trainer, pl_module),
        }
        with self._explained():
            is_the_same = tracker.start(
                self._take,
                lambda n_training, n_bytes: self._planned(trainer, n_training, n_operations, n_bytes),
                when=f", {when}",
                is_final=not self.awaits_weights,
                **self._options,
            )
        # Only the network before training may be a space of the second preparation.
        is_space = tracker.samples is not None and tracker.check_setup.about["data"].get("space") == "module"
        self._options["module"] = copy_of(pl_module) if is_space else None
        return self._follow(is_the_same)

    def _take(self) -> Any:
        """Hand over the samples, so that those that are not used can be freed."""
        samples, self._samples = self._samples, None
        return samples

    def release(self) -> None:
        """Free what only a preparation needs, because there is none to come or training has ended."""
        self._samples, self._options = None, {}

    def _follow(self, is_the_same: bool) -> bool:
        """Let the reader read what was prepared; pass on whether a run resumes with the same samples."""
        setup, reader = self._tracker.check_setup, self._reader
        reader.packing = setup.packing
        reader.perturbation = "reading" if setup.takes_readings else self._settings.perturbation
        if not self.awaits_weights:
            self.release()
            if setup.loss_weights is not None and self._settings.class_weight is None:
                rank_zero_info(describe_weights(setup.loss_weights, has_resumed=bool(self._tracker.checks)))
        if not is_the_same:
            rank_zero_warn(
                "The run resumes with different training samples, or with another version of bu_torch: scores cannot be"
                " compared with earlier checks."
            )
        return is_the_same

    def _read_here(
        self, trainer: Trainer, pl_module: LightningModule
    ) -> tuple[Tensor, Packing | None, Perturbation | None]:
        """Read the samples, in the first process; return the input of one, the packing, and the perturbation."""
        settings, reference = self._settings, self._source.reference
        trial = max(_TRIAL_SAMPLES, settings.n_neighbors) if trainer.fast_dev_run else None

        def how_many(n_training: int) -> int:
            n_samples = self._planned(trainer, n_training, count_operations(pl_module)).n_samples
            return n_samples if trial is None else min(n_samples, trial)

        with self._explained():
            if _is_pair(reference):
                samples = whole_samples(*reference, keep_integers=keeps_integers(settings.perturbation))
                samples = fewer_of(samples, how_many(len(samples.inputs)), settings.seed)
            else:
                most = settings.max_samples if trial is None else min(settings.max_samples or trial, trial)
                samples = read_training_data(trainer, pl_module, settings, self._source, how_many, most)
            self._samples = samples
            settings.refuse_too_few(len(samples.inputs), "it")
            n_classes, setup = 1 + int(as_labels(samples.labels, len(samples.inputs)).max()), self._tracker.check_setup
        if self.awaits_weights and setup.loss_weights is None:
            setup.loss_weights = weights_in(pl_module, n_classes)  # the first steps will say if they count
        if samples.packing is not None and self._source.input_key is None:
            rank_zero_info(
                f"bu-torch takes these as inputs: {', '.join(samples.packing.names)}. To change it: `input_key`."
            )
        self._reader.takes_integers = not samples.inputs.is_floating_point()
        self._takes_readings = samples.is_random and may_be_read_again(settings)
        perturbation = "reading" if self._takes_readings else settings.perturbation
        return samples.inputs[:1].cpu().clone(), samples.packing, perturbation

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Raise errors within as Lightning's, naming the samples that cannot be used."""
        try:
            yield
        except (TypeError, ValueError) as error:
            is_reference, way_out = self._source.reference is not None, ""
            source = "`reference`" if is_reference else "the training data"
            shape = () if self._samples is None else self._samples.labels.shape
            self._samples = None
            # Labels are shares of classes if samples were mixed.
            if len(shape) == 2 and shape[1] > 1:
                way_out = (
                    " If a hook mixes samples (mixup, CutMix), mix in `collate_fn` or `training_step` instead, or pass"
                    " unmixed samples as a pair, `reference=(inputs, labels)`: a dataset would pass through the hook."
                )
            raise MisconfigurationException(f"bu-torch cannot use {source}: {error}{way_out}") from error

    def take_weights(self, losses: LossWatch) -> None:
        """Measure with the weights of classes that the first training step has shown; all processes must call this."""
        tracker, setup = self._tracker, self._tracker.check_setup

        def is_other() -> bool:
            assert tracker.samples is not None  # noqa: S101  (they wait for this)
            labels, before = as_labels(tracker.samples.labels, len(tracker.samples.inputs)), setup.loss_weights
            present = set(labels.unique().tolist())
            setup.loss_weights, line = losses.found(max(present) + 1, present)
            if line:
                rank_zero_info(line)
            if setup.loss_weights == before:
                tracker.settle()
            return setup.loss_weights != before

        self.awaits_weights = False
        with self._explained():
            self._follow(not tracker.processes.on_first(is_other) or tracker.start(self._take, **self._options))

    def _module_as_space(self, trainer: Trainer, pl_module: LightningModule) -> nn.Module | None:
        """The network, if its features may be a space."""
        # Features of a network that has already learnt these labels would leak them.
        is_asked_for = self._settings.feature_extractor == "module"
        is_new = trainer.global_step == 0 or bool(self._tracker.checks) or is_asked_for
        if self._reader.passes_alone and can_be_passed(trainer, pl_module):
            return pl_module if is_new else None
        if is_asked_for:
            raise MisconfigurationException(
                "`feature_extractor='module'` needs features of the network before training, which one process reads"
                " alone. That fails if weights are sharded, if a layer is lazy, or if `forward` communicates with other"
                " processes or fails for a single sample. Pass `feature_extractor='inputs'` or 'patches', or a"
                " callable."
            )
        return None

    def _planned(self, trainer: Trainer, n_training: int, n_operations: int, n_bytes: int = 0) -> Plan:
        takes_all = self._settings.max_samples is None and _is_pair(self._source.reference)
        batch_size = getattr(trainer.train_dataloader, "batch_size", None) or math.inf
        # Distinct samples that all processes together train on between two checks.
        n_visited = int(min(n_training, self._n_batches * batch_size * trainer.world_size))
        max_samples = n_training if takes_all else None
        counts = n_training, n_visited, n_operations, n_bytes
        return plan(self._settings, *counts, max_samples, holds_draws=self._takes_readings)


def read_training_data(
    trainer: Trainer,
    pl_module: LightningModule,
    settings: MeasurementSettings,
    source: Source,
    how_many: Callable[[int], int],
    most: int | None,
) -> Samples:
    """Read the trainer's training samples, or those of `reference`; only the first `most`, or 10,000, of a stream."""
    reference: Any = source.reference
    loader, n_batches, name = trainer.train_dataloader, float(trainer.num_training_batches), "Training data"
    if trainer.fast_dev_run:  # its few batches may be fewer samples than a cluster
        n_batches = math.inf
    if reference is not None:
        is_loader = isinstance(reference, DataLoader)
        loader = reference if is_loader else DataLoader(reference, batch_size=READ_BATCH)
        n_batches, name = math.inf, "`reference`"
    if not isinstance(loader, DataLoader):
        raise MisconfigurationException(
            f"{name}: samples are read from a single `torch.utils.data.DataLoader`, got {type(loader).__name__}."
            f" {_WAY_OUT}"
        )
    limit = most or _STREAM_SAMPLES
    read = partial(
        read_loader,
        seed=settings.seed,
        keys=Keys(source.input_key, source.label_key, pl_module),
        n_batches=n_batches,
        unwrap=users_sampler,
        transform=_batch_hooks(trainer, pl_module),
        looks_for_augmentation=reference is None or may_be_read_again(settings),
    )
    with misconfigured(UnreadableError, before=f"{name}: ", after=f" {_WAY_OUT}"):
        try:
            samples = read(loader, how_many, stream_limit=limit, max_bytes=settings.max_bytes)
            if (before := before_mixing(loader, samples, read)) is not None:
                mixed, samples = samples, read(before, how_many, max_bytes=settings.max_bytes)
                if not is_mixture(samples, mixed):
                    raise UnreadableError("`collate_fn` mixes samples (mixup, CutMix) and prepares them, too.")
                rank_zero_info(
                    f"{name}: `collate_fn` mixes labels (mixup, CutMix), so bu-torch reads the samples without it. To"
                    " change it: `reference=(inputs, labels)`."
                )
        except TooManyBytesError as error:
            n_fitting = max(error.n_fitting, settings.n_neighbors)
            few = partial(read, loader, lambda n_training: min(how_many(n_training), n_fitting))
            samples = few(stream_limit=min(limit, n_fitting))
    if isinstance(loader.dataset, IterableDataset) and (line := _describe_stream(loader, samples, settings, most)):
        rank_zero_info(line)
    if samples.is_random and not may_be_read_again(settings):
        rank_zero_info(
            f"{name}: a sample differs each time it is read (random augmentation). bu-torch reads each"
            " sample once and perturbs that draw. To change it: `perturbation='reading'` takes further readings, and"
            " `reference=` other samples."
        )
    return samples


def _describe_stream(loader: DataLoader[Any], samples: Samples, settings: MeasurementSettings, most: int | None) -> str:
    """Log line on how much of a stream is read; "" if all is."""
    n_read, limit, n_bytes = samples.n_training, most or _STREAM_SAMPLES, samples.inputs[:1].nbytes
    said = f"bu-torch reads the first {min(n_read, limit)} samples of {type(loader.dataset).__name__}"
    if n_read >= limit:
        return f"{said}{'' if most else '; `max_samples` sets another number'}."
    if settings.max_bytes is not None and (n_read + 1) * n_bytes > settings.max_bytes:
        return f"{said}, to take no more than {settings.max_bytes} bytes. To change it: `max_bytes`."
    return ""


def _batch_hooks(trainer: Trainer, pl_module: LightningModule) -> Callable[[Any], Any] | None:
    """Function that applies the trainer's batch hooks; None if no hook is the user's.

    It calls copies of the module and the data module, so that their own random generators do not move.
    """
    selector = trainer._data_connector._datahook_selector
    if selector is None or not any(_is_users(selector.get_instance(name), name) for name in _BATCH_HOOKS):
        return None

    owners = {name: selector.get_instance(name) for name in _BATCH_HOOKS}
    copies = {id(owner): copy_of(owner) for owner in owners.values()}
    before, move, after = (getattr(copies[id(owner)], name) for name, owner in owners.items())

    def transform(batch: Any) -> Any:
        batch = before(trainer.precision_plugin.convert_input(batch), 0)
        return after(move(batch, trainer.strategy.root_device, 0), 0)

    return transform


def _is_users(owner: Any, name: str) -> bool:
    """Return True if a method is the user's, not Lightning's."""
    defining = next(one for one in (owner, *type(owner).__mro__) if name in vars(one))
    return defining is owner or defining.__module__.split(".")[0] not in ("lightning", "pytorch_lightning")


def users_sampler(sampler: Any) -> Any:
    """Unwrap a sampler that Lightning has distributed among processes."""
    wrapper = library.trainer.connectors.data_connector.DistributedSamplerWrapper
    while isinstance(sampler, wrapper):
        sampler = sampler.dataset._sampler
    return sampler


def _is_pair(value: Any) -> TypeGuard[tuple[Any, Any]]:
    return isinstance(value, tuple | list) and len(value) == 2


def check_reference(value: Any) -> None:
    """Raise unless `value` is None, a pair, a loader, or a dataset, which may be anything with length and indices."""
    is_alike = hasattr(value, "__getitem__") and hasattr(value, "__len__") and not isinstance(value, _NO_DATASETS)
    if not (value is None or _is_pair(value) or is_alike or isinstance(value, Dataset | DataLoader)):
        raise TypeError(
            f"`reference` must be a pair (inputs, labels), a Dataset or a DataLoader, got {type(value).__name__}."
        )
