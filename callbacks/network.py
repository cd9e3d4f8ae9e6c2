"""Reading a copy of the network in the trainer's precision; a warning if it gets other inputs in the first batch."""

import copy
import math
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from lightning_utilities.core.rank_zero import rank_zero_warn
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from bu_torch.callbacks.trainer import (
    SHARDED,
    WRAPPING,
    LightningModule,
    MisconfigurationException,
    Trainer,
    library,
    misconfigured,
)
from bu_torch.internal.logits import dtype_of, in_batches
from bu_torch.internal.packing import Packing, call
from bu_torch.internal.replica import evaluation_copy, has_lazy_layers, prepare_copy
from bu_torch.perturbation.draws import PerturbedInputs, keeps_integers
from bu_torch.run.engine import Engine, UnfitLogitsError
from bu_torch.run.plan import count_operations
from bu_torch.run.settings import Settings
from bu_torch.samples.samples import Samples

Inputs = Tensor | PerturbedInputs
_MOST_COMPARED = 2**22  # numbers, 16 MB
_BATCH_ELEMENTS = 2**16  # input values of one forward batch, so that small inputs go through in few batches
SEVERAL_TENSORS = (
    "Name the tensors of a batch that `forward` takes, and no others, in its order: `input_key=[...]`, their keys or"
    " places. If batches lack one, pass `reference=(inputs, labels)`, with inputs in a dict or a tuple of tensors."
)


class NetworkReader:
    """Reads the logits of a trainer's network."""

    def __init__(self, settings: Settings) -> None:
        self._settings, self._perturbation = settings, settings.perturbation
        self._takes_integers = False  # samples are integers, before they are perturbed
        self._packing: Packing | None = None  # layout of several tensors a sample in one
        self.is_tried = False  # a batch was read as a check reads it

    def adapt(self, packing: Packing | None, *, are_integers: bool, takes_readings: bool) -> None:
        """Read such samples from now on."""
        self._packing, self._takes_integers = packing, are_integers
        self._perturbation = "reading" if takes_readings else self._settings.perturbation

    def try_once(self, trainer: Trainer, pl_module: LightningModule, engine: Engine) -> None:
        """Read one batch as a check will, to refuse a module before it trains."""

        def logits() -> Tensor:
            batch = next(iter(engine.inputs.split(self._batch_size(trainer, engine.inputs))))
            with evaluation_copy(pl_module, is_sharded=engine.processes.are_sharded) as network:
                return self.read(trainer, network, batch)

        with misconfigured(UnfitLogitsError, before="`forward`: "):
            engine.processes.on_logits(logits, engine.check_columns)
        self.is_tried = True
        is_moved = self._takes_integers and self._packing is None and self._perturbation is None
        embeds = any(isinstance(part, nn.Embedding | nn.EmbeddingBag) for part in pl_module.modules())
        if is_moved and embeds:  # its `forward` must round them
            rank_zero_warn(
                "The samples are integers, and the network has an `nn.Embedding`. If they are token ids, pass"
                " `perturbation='tokens'`: otherwise they are moved like numbers, to ids of unrelated tokens."
            )

    def count_operations(self, trainer: Trainer, pl_module: LightningModule, sample: Tensor) -> int:
        """Count the operations of one sample's forward pass."""
        if not can_be_passed(trainer, pl_module):
            return count_operations(pl_module)
        with evaluation_copy(pl_module) as network:
            sample = sample.cpu().clone().to(pl_module.device)
            return count_operations(network, partial(self.read, trainer, network, sample))

    def read(self, trainer: Trainer, module: nn.Module, inputs: Inputs) -> Tensor:
        """Logits (n, J) of a copy of a module at `inputs` (n, ...), in batches."""
        packing, n_rows = self._packing, self._batch_size(trainer, inputs)
        dtype = dtype_of(module, inputs)
        if packing is not None or not (inputs.is_floating_point() or keeps_integers(self._perturbation)):
            dtype = dtype_of(module, torch.empty(0, dtype=torch.float32))  # perturbed integers are floats
        pl_module, precision = trainer.lightning_module, trainer.precision_plugin
        # The wrappers of these strategies gather the sharded weights.
        is_wrapped = type(trainer.strategy).__name__ in WRAPPING and module is pl_module
        forward: Callable[[Any], Any] = trainer.model if is_wrapped else module

        def forward_batch(batch: Tensor) -> Any:
            own = batch.to(dtype, copy=True) if packing is None else packing.unpack(batch.clone(), dtype)
            return call(forward, precision.convert_input(own), of=module)

        try:
            with precision.forward_context():
                return in_batches(forward_batch, inputs, n_rows, "`forward`", self._settings.output_key)
        except Exception as error:  # the user's code may raise anything
            first = next(iter(inputs.split(n_rows)))
            what = f"inputs of shape {tuple(first.shape)} and dtype {dtype}" if packing is None else str(packing)
            raise MisconfigurationException(
                f"A check of bu-torch passes {what} to `{type(pl_module).__name__}.forward` without gradient and needs"
                f" logits: {type(error).__name__}: {str(error).removesuffix('.')}.{self._remedy(error)}"
            ) from error

    def _batch_size(self, trainer: Trainer, inputs: Inputs) -> int:
        of_training: int = getattr(trainer.train_dataloader, "batch_size", None) or 1
        return max(1, _BATCH_ELEMENTS // inputs.shape[1:].numel(), of_training)

    def _remedy(self, error: Exception) -> str:
        said = str(error)
        if "does not require grad" in said:
            return " Wrap what needs a gradient in `with torch.enable_grad():`."
        if "`output_key=` names" in said:
            return ""
        is_of_arguments = isinstance(error, AttributeError) or re.search(r"(positional|keyword) arg", said)
        if self._packing is not None or is_of_arguments:
            return f" {SEVERAL_TENSORS}"
        if self._takes_integers and not keeps_integers(self._perturbation):
            return " The samples are integers: if they are token ids, pass `perturbation='tokens'`."
        return f" {CHANGE_INPUTS}"


def can_be_passed(trainer: Trainer, pl_module: LightningModule) -> bool:
    """Whether the module can be run before training."""
    return type(trainer.strategy).__name__ not in SHARDED and not has_lazy_layers(pl_module)


@prepare_copy.register
def _ignore_logs(copied: LightningModule, module: nn.Module) -> None:
    """Let a copy ignore what it logs: it would enter the epoch's mean, or be refused in the hook of a check."""
    vars(copied)["log"] = _log_nothing
    if (trainer := vars(module)["_trainer"]) is not None:
        copied._trainer = silent = copy.copy(trainer)
        silent.loggers = [library.loggers.logger.DummyLogger() for _ in silent.loggers]


def _log_nothing(*_: object, **__: object) -> None:  # no lambda, because a callback that holds a copy may be pickled
    pass


CHANGE_INPUTS = (
    "Move the preparation of inputs from `training_step` into `forward`, or into `on_after_batch_transfer`; or pass"
    " samples as the network takes them: `reference=(inputs, labels)`."
)
_CLOSE = 1e-3  # share of the spread of the values, to allow for the rounding of autocast
_SHIFTED = 0.5  # standard deviations
_STRETCHED = 2.0
_MOST_ROWS = 4096  # compared one by one


class InputWatch:
    """Compares what the network gets in the first training batch with samples that were read before training.

    It is a hook of the module and its parts: the module may get the batch, or a part of it that `training_step` calls.
    """

    def __init__(self) -> None:
        self._module: nn.Module | None = None
        self._samples: list[Tensor] = []  # a tensor (N, ...) for each input
        self._received: list[Tensor] = []
        self._handles: list[Any] = []

    def remember(self, samples: Samples) -> None:
        """Keep a few samples to compare the batch with."""
        few = samples.inputs[: max(1, _MOST_COMPARED // samples.inputs[0].numel())].cpu().clone()
        self._samples = [few] if samples.packing is None else pytree.tree_leaves(samples.packing.unpack(few))

    def begin(self, module: nn.Module) -> None:
        """Listen to a module, unless a part of it is compiled."""
        if self._samples and not _is_compiled(module):
            self._module = module
            parts = module.modules()
            self._handles = [part.register_forward_pre_hook(self, with_kwargs=True, prepend=True) for part in parts]

    def __call__(self, part: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        # Within a transform of `torch.func`, such as `vmap`, tensors hold no values that can be read.
        if self._module is None or self._received or torch._C._functorch.peek_interpreter_stack() is not None:
            return
        # `forward` may take a dict. `DistributedDataParallel` calls the module with a batch and its number.
        values = [*args, *kwargs.values()]
        values = pytree.tree_leaves(values) if len(values) == 1 else values
        tensors = [value for value in values if isinstance(value, Tensor)]
        shapes = {sample.shape[1:] for sample in self._samples}
        if part is self._module or shapes <= {tensor.shape[1:] for tensor in tensors}:
            self._received = [tensor.detach().to("cpu", copy=True) for tensor in tensors]

    def end_batch(self) -> None:
        """Warn if the batch differed, and end."""
        received, samples = self._received, self._samples
        self.end()
        differences = [[difference_of(sample, tensor) for tensor in received] for sample in samples]
        line, remedy = next((lines[0] for lines in differences if lines and all(lines)), ""), CHANGE_INPUTS
        if 0 < len(received) < len(samples):
            line, remedy = f"{len(received)} of the {len(samples)} tensors", "Name those that it takes: `input_key=`."
        if line:
            rank_zero_warn(
                f"In the first batch the network gets {line} in the samples that bu-torch has read, so the scores do"
                f" not describe the trained network. {remedy}"
            )

    def end(self) -> None:
        """Listen no longer."""
        for handle in self._handles:
            handle.remove()
        self._module, self._samples, self._received, self._handles = None, [], [], []

    def __reduce__(self) -> tuple[Any, ...]:
        return InputWatch, ()  # copies of the module are not watched


def _is_compiled(module: nn.Module) -> bool:
    """Whether a part or a method is compiled, so that hooks could change how the module runs."""
    marks = ("_compiler_ctx", "_compiled_call_impl", "_orig_mod", "_torchdynamo_orig_callable")
    return any(
        isinstance(part, torch.jit.ScriptModule) or any(getattr(value, mark, None) is not None for mark in marks)
        for part in module.modules()
        for value in (part, *vars(part).values(), *vars(type(part)).values())
    )


def difference_of(expected: Tensor, got: Tensor) -> str:
    """Say how inputs differ in shape, mean or spread; "" if they do not, or if some rows of both are the same."""
    if expected.shape[1:] != got.shape[1:]:
        return f"inputs of shape {tuple(got.shape[1:])} instead of {tuple(expected.shape[1:])}"
    before, after = expected.double(), got.double()
    are_indices = not (expected.is_floating_point() or got.is_floating_point())  # they have no units
    if are_indices or _share_rows(before.flatten(1)[:_MOST_ROWS], after.flatten(1)[:_MOST_ROWS]):
        return ""
    middle, mean = float(before.mean()), float(after.mean())
    spread, spread_now = float(before.std()), float(after.std())
    widest = max(spread, spread_now)
    if abs(mean - middle) > _SHIFTED * widest or widest > _STRETCHED * min(spread, spread_now):
        return (
            f"values of mean {mean:.3g} and standard deviation {spread_now:.3g} instead of {middle:.3g} and"
            f" {spread:.3g}"
        )
    return ""


def _share_rows(first: Tensor, second: Tensor) -> bool:
    """Whether both have a row in common that is not constant."""
    rows = second[second.amax(dim=1) > second.amin(dim=1)] if second.shape[1] > 1 else second
    reach = _CLOSE * float(first.std()) * math.sqrt(first.shape[1])
    return bool((torch.cdist(rows, first) <= reach).any())
