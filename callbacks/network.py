"""Reading a copy of the network in the trainer's precision."""

import copy
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from lightning_utilities.core.rank_zero import rank_zero_warn
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from bu_torch.callbacks.trainer import (
    SHARDED,
    WRAPPING,
    LightningModule,
    MisconfigurationException,
    Trainer,
    library,
)
from bu_torch.callbacks.watch import CHANGE_INPUTS
from bu_torch.internal.logits import dtype_of, in_batches, was_one_column
from bu_torch.internal.packing import Packing, call
from bu_torch.internal.replica import evaluation_copy, has_lazy_layers, prepare_copy
from bu_torch.perturbation.draws import PerturbedInputs, keeps_integers
from bu_torch.run.budget import count_operations
from bu_torch.run.tracker import Tracker
from bu_torch.samples.samples import IGNORED
from bu_torch.signals.metrics import ExpectedMetric, as_metric

Inputs = Tensor | PerturbedInputs
_BATCH_ELEMENTS = 2**16  # input values of one forward batch, so that small inputs go through in few batches
SEVERAL_TENSORS = (
    "Name the tensors of a batch that `forward` takes, and no others, in its order: `input_key=[...]`, their keys or"
    " places. If batches lack one, pass `reference=(inputs, labels)`, with inputs in a dict or a tuple of tensors."
)


class NetworkReader:
    """Reads the logits of a trainer's network."""

    def __init__(self, perturbation: Any, output_key: str | int | None) -> None:
        self.perturbation, self._output_key = perturbation, output_key
        self.takes_integers = False  # samples are integers, before they are perturbed
        self.is_tried = False  # a batch was read as a check reads it
        self.packing: Packing | None = None  # layout of several tensors a sample in one; None if there is one

    def adapt_to(self, packing: Packing | None, perturbation: Any, *, takes_integers: bool | None = None) -> None:
        """Read from now on samples with this layout, perturbed in this way; `takes_integers` None: as before."""
        self.packing, self.perturbation = packing, perturbation
        self.takes_integers = self.takes_integers if takes_integers is None else takes_integers

    def validate_forward(self, trainer: Trainer, pl_module: LightningModule, tracker: Tracker) -> None:
        """Read one batch as a check will, to refuse a module before it trains."""

        def logits() -> Tensor:
            batch = next(iter(tracker.inputs.split(self._batch_size(trainer, tracker.inputs))))
            with evaluation_copy(pl_module, is_sharded=tracker.processes.are_sharded) as network:
                return self.read(trainer, network, batch)

        def check(found: Tensor) -> None:
            _check_columns(found, tracker.check_setup.about["data"]["n_classes"], as_metric(tracker.settings.metric))

        tracker.processes.on_logits(logits, check)
        self.is_tried = True
        is_moved = self.takes_integers and self.packing is None and self.perturbation is None
        embeds = any(isinstance(part, nn.Embedding | nn.EmbeddingBag) for part in pl_module.modules())
        if is_moved and embeds:  # its `forward` must round them
            rank_zero_warn(
                "The samples are integers, and the network has an `nn.Embedding`. If they are token ids, pass"
                " `perturbation='tokens'`: otherwise they are moved like numbers, to ids of unrelated tokens."
            )

    def count_operations(self, trainer: Trainer, pl_module: LightningModule, one: Tensor) -> int:
        """Count the operations of one sample's forward pass."""
        if not can_be_passed(trainer, pl_module):
            return count_operations(pl_module)
        with evaluation_copy(pl_module) as network:
            return count_operations(network, partial(self.read, trainer, network, one.to(pl_module.device)))

    def read(self, trainer: Trainer, module: nn.Module, inputs: Inputs) -> Tensor:
        """Logits (n, J) of a copy of a module at `inputs` (n, ...), in batches."""
        packing, n_rows = self.packing, self._batch_size(trainer, inputs)
        dtype = dtype_of(module, inputs)
        if packing is not None or not (inputs.is_floating_point() or keeps_integers(self.perturbation)):
            dtype = dtype_of(module, torch.empty(0, dtype=torch.float32))  # perturbed integers are floats
        pl_module, precision = trainer.lightning_module, trainer.precision_plugin
        # The wrappers of these strategies gather the sharded weights.
        is_wrapped = type(trainer.strategy).__name__ in WRAPPING and module is pl_module
        forward: Callable[[Any], Any] = trainer.model if is_wrapped else module

        def forward_batch(batch: Tensor) -> Any:
            own = batch.to(dtype, copy=True) if packing is None else packing.unpack(batch.clone(), dtype)
            return call(forward, precision.convert_input(own), of=module)

        try:
            is_alone = trainer.world_size > 1 and not self.is_tried and type(trainer.strategy).__name__ not in SHARDED
            with precision.forward_context(), _RefusedCollectives() if is_alone else nullcontext():
                return in_batches(forward_batch, inputs, n_rows, "`forward`", self._output_key)
        except Exception as error:  # the user's code may raise anything
            first = next(iter(inputs.split(n_rows)))
            what = f"inputs of shape {tuple(first.shape)} and dtype {dtype}" if packing is None else str(packing)
            raise MisconfigurationException(
                f"A check of bu-torch passes {what} to `{type(pl_module).__name__}.forward` and needs logits:"
                f" {type(error).__name__}: {str(error).removesuffix('.')}"
                f"{self._remedy(error)}"
            ) from error

    def _batch_size(self, trainer: Trainer, inputs: Inputs) -> int:
        of_training: int = getattr(trainer.train_dataloader, "batch_size", None) or 1
        return max(1, _BATCH_ELEMENTS // inputs.shape[1:].numel(), of_training)

    def _remedy(self, error: Exception) -> str:
        said = str(error)
        is_of_arguments = "positional argument" in said or "keyword argument" in said
        if "does not require grad" in said:
            return ". A check runs without gradient: wrap what needs one in `with torch.enable_grad():`."
        if self.packing is not None or isinstance(error, AttributeError) or is_of_arguments:
            return f". {SEVERAL_TENSORS}"
        if "`output_key=` names" in said:
            return "."
        if self.takes_integers and not keeps_integers(self.perturbation):
            return ". The samples are integers: if they are token ids, pass `perturbation='tokens'`."
        return f". {CHANGE_INPUTS}"


def can_be_passed(trainer: Trainer, pl_module: LightningModule) -> bool:
    """Return True if the module can be run before training."""
    return type(trainer.strategy).__name__ not in SHARDED and not has_lazy_layers(pl_module)


def _check_columns(logits: Tensor, n_classes: int, metric: ExpectedMetric | None) -> None:
    n_columns = 1 if n_classes > 2 and was_one_column(logits) else logits.shape[1]
    if n_columns < n_classes and (n_columns, n_classes) != (1, 2):
        raise MisconfigurationException(
            f"The module's `forward` gives logits in {n_columns} columns, but the labels have classes 0, ...,"
            f" {n_classes - 1}. In the dataset or `on_after_batch_transfer`, let labels count from 0, and those of"
            f" samples to ignore be {IGNORED}. A regression has no decision boundary to measure."
        )
    if metric is not None and metric.n_classes not in (None, logits.shape[1]):
        raise MisconfigurationException(
            f"`metric` must be of as many classes as the module's `forward` has columns, {logits.shape[1]}, got"
            f" {metric.n_classes}."
        )


@prepare_copy.register
def _ignore_logs(copied: LightningModule, module: nn.Module) -> None:
    """Let a copy ignore what it logs: it would enter the epoch's mean, or be refused in the hook of a check."""
    vars(copied)["log"] = _log_nothing
    if (trainer := vars(module)["_trainer"]) is not None:
        copied._trainer = silent = copy.copy(trainer)
        silent.loggers = [library.loggers.logger.DummyLogger() for _ in silent.loggers]


def _log_nothing(*_: object, **__: object) -> None:  # no lambda, because a callback that holds a copy may be pickled
    pass


class _RefusedCollectives(TorchDispatchMode):
    """Mode that refuses operations for which several processes must meet: the others do not come."""

    supports_higher_order_operators = True  # as the mode that counts operations does

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "namespace", "") in ("c10d", "_c10d_functional"):
            raise RuntimeError("it communicates with other processes, and a check runs in the first one alone")
        return func(*args, **(kwargs or {}))
