"""Samples to choose those of the checks from, read without touching the trainer's loader; do they fit training?"""

import copy
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, TypeGuard

import numpy as np
import torch
from lightning_utilities.core.rank_zero import rank_zero_warn
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate

from bu_torch.callbacks.trainer import (
    CHANGE_INPUTS,
    LightningNetworkReader,
    MisconfigurationException,
    can_be_passed,
    misconfigured,
    pl,
)
from bu_torch.internal.network import is_mask
from bu_torch.internal.replica import copy_of
from bu_torch.perturbation.draws import keeps_integers
from bu_torch.run.engine import Engine
from bu_torch.run.prepare import MAX_BYTES, Plan, TrainingData, class_weights_of, plan_check
from bu_torch.run.settings import Settings
from bu_torch.samples.reading import READ_BATCH, read_few, read_loader
from bu_torch.samples.samples import InputKey, Keys, Samples, UnreadableError, whole_samples

Reference = tuple[Any, Any] | Dataset[Any] | DataLoader[Any]
_NO_DATASETS = (tuple, list, dict, str, bytes, Tensor, np.ndarray)
_TRANSFER_HOOKS = ("on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer")
_WAY_OUT = " The training samples can also be passed as `reference=(inputs, labels)`."
_STREAM_SAMPLES = 10_000  # read from a stream of unknown length unless `max_samples` says otherwise
_TRIAL_SAMPLES = 512  # read in a `fast_dev_run`
# To tell whether training gets other inputs than were read.
_MOST_COMPARED = 2**22  # numbers, 16 MB
_MOST_ROWS = 4096  # compared one by one
_COMPILED = ("_compiler_ctx", "_compiled_call_impl", "_orig_mod", "_torchdynamo_orig_callable")
_CLOSE = 1e-3  # share of the spread of the values, to allow for the rounding of autocast
_SHIFTED = 0.5  # standard deviations
_STRETCHED = 2.0


class Source(NamedTuple):
    """Samples to measure at, and their places in batches; arguments of the callbacks."""

    reference: Reference | None = None  # None reads the trainer's loader
    input_key: InputKey = None
    label_key: str | int | None = None

    @contextmanager
    def named_in_errors(self) -> Iterator[None]:
        """Have errors say whether the training data or `reference` is wrong, and what can be done."""
        before = "Training data: " if self.reference is None else "`reference`: "
        after = "" if is_pair(self.reference) else _WAY_OUT
        with misconfigured(TypeError, ValueError, before=before, after=after):
            yield


def training_data(
    trainer: pl.Trainer,
    pl_module: pl.LightningModule,
    source: Source,
    every_n_train_steps: int | None,
    engine: Engine,
) -> TrainingData:
    """Samples for checks every so many steps, or epochs; as many as these may use are read, and a few before."""
    settings, reference = engine.settings, source.reference
    if trainer.reload_dataloaders_every_n_epochs and reference is None:
        rank_zero_warn("bu-torch uses the training data as first loaded and ignores reloads.")
    if every_n_train_steps is None and trainer.num_training_batches == math.inf and trainer.max_steps != -1:
        rank_zero_warn(
            f"The length of the training data is not known, so no epoch may end before `max_steps={trainer.max_steps}`,"
            " and the only check comes after training. Pass `every_n_train_steps=...` to check within epochs."
        )
    if trainer.fast_dev_run:
        most = max(_TRIAL_SAMPLES, settings.n_neighbors)
        settings = replace(settings, max_samples=min(settings.max_samples or most, most))
    n_between = float(trainer.num_training_batches)  # batches, then samples of all processes, between two checks
    if every_n_train_steps is not None:
        steps_of_batch = len(trainer.optimizers) / trainer.accumulate_grad_batches  # one step of each optimiser
        n_between = min(n_between, math.ceil(every_n_train_steps / max(steps_of_batch, 1e-9)))
    batch_size = getattr(trainer.train_dataloader, "batch_size", None)
    n_between = n_between * batch_size * trainer.world_size if batch_size else math.inf

    if is_pair(reference):
        samples = whole_samples(*reference, keep_integers=keeps_integers(settings.perturbation))
        settings.refuse_too_few(len(samples.inputs), "it")
        settings = replace(settings, max_samples=settings.max_samples or len(samples.inputs))
    else:
        loader, read = _reading(trainer, pl_module, source, settings)
        samples = read_few(read, loader)
    few = samples if can_be_passed(trainer, pl_module) else None
    n_operations = LightningNetworkReader(trainer, settings, samples.packing).operations_of(pl_module, few)

    def plan_of(samples: Samples) -> Plan:
        n_visited = int(min(samples.n_training, n_between))
        return plan_check(settings, samples, n_operations, n_visited)

    if not is_pair(reference):
        is_stream = isinstance(loader.dataset, IterableDataset)  # which does not tell how many samples follow
        n_wanted = sys.maxsize if is_stream else plan_of(samples).n_samples
        n_held = max(MAX_BYTES // samples.inputs[:1].nbytes, settings.n_neighbors)
        limit = settings.max_samples or min(_STREAM_SAMPLES, n_held)
        samples = _read_unmixed(loader, partial(read, n_wanted=n_wanted, stream_limit=limit))
        if 0 < (n_left := len(samples.inputs)) < n_wanted < samples.n_training:  # others have no label, or are dropped
            more = math.ceil(n_wanted**2 / n_left)
            samples = _read_unmixed(loader, partial(read, n_wanted=more, stream_limit=limit))
    settings.refuse_too_few(len(samples.inputs), "it")
    class_weight = class_weights_of(pl_module, samples.labels, settings, engine.log)
    return TrainingData(samples, plan_of(samples), _network_as_space(trainer, pl_module, engine), class_weight)


def _network_as_space(trainer: pl.Trainer, pl_module: pl.LightningModule, engine: Engine) -> pl.LightningModule | None:
    """The network, if its features may be a space: it is new, or they were asked for. Those of tables are no space."""
    is_asked_for, can_be_read = engine.settings.feature_extractor == "module", can_be_passed(trainer, pl_module)
    if is_asked_for and not can_be_read:
        raise MisconfigurationException(
            "`feature_extractor='module'` needs features of the network before training, which cannot be read if"
            " weights are sharded or a layer is lazy. Pass `feature_extractor='inputs'` or 'patches', or a callable."
        )
    # Features of a network that has already learnt these labels would leak them.
    is_new = trainer.global_step == 0 or bool(engine.history.entries)
    return pl_module if can_be_read and (is_new or is_asked_for) else None


def _reading(
    trainer: pl.Trainer, pl_module: pl.LightningModule, source: Source, settings: Settings
) -> tuple[DataLoader[Any], Callable[..., Samples]]:
    """The trainer's loader, or one of `reference`; and `read_loader` with what this trainer does to batches."""
    loader: Any = source.reference
    if loader is None:
        loader = trainer.train_dataloader
    elif not isinstance(loader, DataLoader):
        loader = DataLoader(loader, batch_size=READ_BATCH)
    if not isinstance(loader, DataLoader):
        raise UnreadableError(
            f"samples are read from a single `torch.utils.data.DataLoader`, got {type(loader).__name__}."
        )
    # The few batches of a `fast_dev_run` may be fewer samples than a cluster.
    reads_all = source.reference is not None or trainer.fast_dev_run
    return loader, partial(
        read_loader,
        seed=settings.seed,
        keys=Keys(source.input_key, source.label_key, pl_module),
        n_batches=math.inf if reads_all else float(trainer.num_training_batches),
        transform=_batch_hooks(trainer, pl_module),
        looks_for_augmentation=settings.perturbation in (None, "reading"),
    )


def _read_unmixed(loader: DataLoader[Any], read: Callable[..., Samples]) -> Samples:
    """Read samples, before a `collate_fn` that mixes labels (mixup, CutMix)."""
    samples = read(loader)
    if samples.labels.ndim == 2 and samples.labels.shape[1] > 1 and loader.collate_fn is not default_collate:
        unmixed_loader = copy.copy(loader)
        unmixed_loader.collate_fn = default_collate
        with suppress(TypeError, ValueError):
            unmixed = read(unmixed_loader)
            if unmixed.labels.ndim == 1 and unmixed.inputs.shape[1:] == samples.inputs.shape[1:]:
                return unmixed
    return samples


def _batch_hooks(trainer: pl.Trainer, pl_module: pl.LightningModule) -> Callable[[Any], Any] | None:
    """Function that applies the trainer's batch hooks; None if no hook is the user's.

    It calls copies of the module and the data module, so that their own random generators do not move.
    """
    selector = trainer._data_connector._datahook_selector
    owners = [] if selector is None else [selector.get_instance(name) for name in _TRANSFER_HOOKS]
    modules = [str(getattr(owner, name).__module__) for owner, name in zip(owners, _TRANSFER_HOOKS, strict=False)]
    if all(module.split(".")[0] in ("lightning", "pytorch_lightning") for module in modules):
        return None
    copies = {id(owner): owner for owner in owners}
    for key, owner in list(copies.items()):
        with suppress(Exception):  # the user's classes may raise anything
            copies[key] = copy_of(owner)
    before, move, after = (
        getattr(copies[id(owner)], name) for owner, name in zip(owners, _TRANSFER_HOOKS, strict=True)
    )

    def transform(batch: Any) -> Any:
        batch = before(trainer.precision_plugin.convert_input(batch), 0)
        return after(move(batch, trainer.strategy.root_device, 0), 0)

    return transform


def is_pair(value: Any) -> TypeGuard[tuple[Any, Any]]:
    """Whether it is inputs and labels."""
    return isinstance(value, tuple | list) and len(value) == 2


def check_reference(value: Any) -> None:
    """Raise unless `value` is None, a pair, a loader, or a dataset, which may be anything with length and indices."""
    is_alike = hasattr(value, "__getitem__") and hasattr(value, "__len__") and not isinstance(value, _NO_DATASETS)
    if not (value is None or is_pair(value) or is_alike or isinstance(value, Dataset | DataLoader)):
        raise TypeError(
            f"`reference` must be a pair (inputs, labels), a Dataset or a DataLoader, got {type(value).__name__}."
        )


class InputWatch:
    """Warns once if the network gets other inputs in training than the samples that were read before it.

    It is a hook of the module and its parts in the first batch: the module may get that, or a part of it that
    `training_step` calls.
    """

    def __init__(self, samples: Samples | None = None) -> None:
        self._samples: list[Tensor] = []  # a few, a tensor (n, ...) for each input
        self._module: nn.Module | None = None
        self._handles: list[Any] = []
        if samples is not None:
            few = samples.inputs[: max(1, _MOST_COMPARED // samples.inputs[0].numel())].cpu().clone()
            if samples.weights is not None:  # as training draws them
                few = few[samples.weights[: len(few)].multinomial(len(few), True, generator=torch.Generator())]
            self._samples = [few] if samples.packing is None else pytree.tree_leaves(samples.packing.unpack(few))

    def attach(self, module: nn.Module) -> None:
        """Add the hooks, unless a part or a method of the module is compiled: they could change how that runs."""
        parts = list(module.modules()) if self._samples else []
        values = [value for part in parts for value in (part, *vars(part).values(), *vars(type(part)).values())]
        is_compiled = any(getattr(value, mark, None) is not None for value in values for mark in _COMPILED)
        if not (is_compiled or any(isinstance(part, torch.jit.ScriptModule) for part in parts)):
            self._module = module
            self._handles = [part.register_forward_pre_hook(self, with_kwargs=True, prepend=True) for part in parts]

    def detach(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._samples, self._module, self._handles = [], None, []

    def __call__(self, part: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        # Within a transform of `torch.func`, such as `vmap`, tensors hold no values that can be read.
        if torch._C._functorch.peek_interpreter_stack() is not None:
            return
        # `forward` may take a dict. `DistributedDataParallel` calls the module with a batch and its number.
        values, samples = [*args, *kwargs.values()], self._samples
        values = pytree.tree_leaves(values) if len(values) == 1 else values
        tensors = [value.detach().as_subclass(Tensor) for value in values if isinstance(value, Tensor)]
        has_shapes = {sample.shape[1:] for sample in samples} <= {tensor.shape[1:] for tensor in tensors}
        if not (samples and tensors and (part is self._module or has_shapes)):
            return
        self.detach()
        differences = [[_difference(sample, tensor.cpu()) for tensor in tensors] for sample in samples]
        line, remedy = next((lines[0] for lines in differences if all(lines)), ""), CHANGE_INPUTS
        if len(tensors) < len(samples):
            line, remedy = f"{len(tensors)} of the {len(samples)} tensors", "Name those that it takes: `input_key=`."
        if line:
            rank_zero_warn(
                f"In the first batch the network gets {line} in the samples that bu-torch has read, so the scores do"
                f" not describe the trained network. {remedy}"
            )

    def __reduce__(self) -> tuple[Any, ...]:
        return InputWatch, ()  # copies of the module are not watched


def _difference(expected: Tensor, got: Tensor) -> str:
    """Say how inputs differ in shape, mean or spread; "" if they do not, or if some rows of both are the same."""
    are_indices = not (expected.is_floating_point() or got.is_floating_point())
    if expected.shape[1:] != got.shape[1:]:
        if expected.ndim == got.ndim == 2 and (are_indices or is_mask(expected)):  # each batch is padded on its own
            return ""
        return f"inputs of shape {tuple(got.shape[1:])} instead of {tuple(expected.shape[1:])}"
    before, after = expected.double(), got.double()
    if are_indices:  # they have no units
        return ""
    known, rows = (part[:_MOST_ROWS].reshape(len(part[:_MOST_ROWS]), -1) for part in (before, after))
    rows = rows[rows.amax(dim=1) > rows.amin(dim=1)] if rows.shape[1] > 1 else rows  # constant ones say little
    reach = _CLOSE * float(known.std()) * math.sqrt(known.shape[1])
    if bool((torch.cdist(rows, known) <= reach).any()):
        return ""
    n_batches = max(1, len(before) // len(after))
    batches = before[: n_batches * len(after)].reshape(n_batches, -1)  # as large, so that they differ as much by chance
    (means, spreads), (mean, spread) = ((part.mean(-1), part.std(-1)) for part in (batches, after.flatten()))
    widest, narrowest = spreads.maximum(spread), spreads.minimum(spread)
    if bool(((mean - means).abs() > _SHIFTED * widest).logical_or(widest > _STRETCHED * narrowest).all()):
        return (
            f"values of mean {mean:.3g} and standard deviation {spread:.3g} instead of {before.mean():.3g} and"
            f" {before.std():.3g}"
        )
    return ""
