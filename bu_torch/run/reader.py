"""Reading a network as a check does: in which process, its logits, and the operations of a pass."""

import traceback
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, distributed, nn
from torch.nn.parameter import is_lazy
from torch.utils.flop_counter import FlopCounterMode

from bu_torch.internal.inputs import as_floats
from bu_torch.internal.network import BATCH, Packing, call, copy_to, logits_in_batches
from bu_torch.internal.replica import evaluation_copy
from bu_torch.perturbation.draws import keeps_integers
from bu_torch.run.settings import Settings
from bu_torch.samples.samples import Samples

T = TypeVar("T")
_FEW = 31  # inputs at which a network is tried out: no usual size of batches, for which alone it may be made


class Processes:
    """A single process, and the base of several: a trainer overrides all but `on_first` and `read_then_on_first`."""

    count, rank = 1, 0
    are_sharded = False  # no process has the whole network
    weights_are_hidden = False  # nor shows which part it has

    def broadcast(self, value: T) -> T:
        """Give the value of the first process to all."""
        return value

    def on_first(self, work: Callable[[], T]) -> T:
        """Run `work` in the first process and return its result in all of them; if it raises there, all raise."""
        if self.count == 1:
            return work()
        result, error = None, None
        if self.rank == 0:
            try:
                result = work()
            except Exception as failed:  # the user's code may raise anything
                error = failed
        message = "" if error is None else "".join(traceback.format_exception_only(error)).strip()
        result, message = self.broadcast((result, message))
        if message:
            raise error or RuntimeError(f"The first process failed: {message}")
        return cast("T", result)

    def read_then_on_first(self, read: Callable[[], Tensor], work: Callable[[Tensor], T]) -> T:
        """Run `work` on what `read` gives in the first process; if each holds a part of the network, all read."""
        if not self.are_sharded:
            return self.on_first(lambda: work(read()))
        logits = read()
        return self.on_first(lambda: work(logits))


class TorchProcesses(Processes):
    """Processes of a group of torch, None for all: in a plain loop, under `accelerate launch`, in Lightning Fabric."""

    def __init__(self, group: Any = None) -> None:
        self._group = group
        try:
            self.count = distributed.get_world_size(group)
        except (AttributeError, TypeError) as error:
            got = type(group).__name__
            raise TypeError(f"`process_group` must be a group of `torch.distributed` or None, got {got}.") from error
        self.rank = distributed.get_rank(group)

    def broadcast(self, value: T) -> T:
        values = [value]
        distributed.broadcast_object_list(values, group=self._group, group_src=0)
        return values[0]


class NetworkReader:
    """Reads logits at samples of a layout; the callbacks refine it by what their trainer adds."""

    name = "`model`"  # what an error names
    error: type[Exception] = ValueError  # what a trial raises
    # What may help then.
    remedy = "Token ids need `perturbation='tokens'`, and what needs a gradient `with torch.enable_grad():`."

    def __init__(self, settings: Settings, packing: Packing | None = None) -> None:
        self.settings, self.packing = settings, packing

    def logits_at(self, network: Any, inputs: Any, *, wrapper: Any = None, most_rows: int = BATCH) -> Tensor:
        """Logits (n, J) at `inputs` (n, ...) of a network, a copy from `evaluation_copy`, which a pass may change.

        A `wrapper` of the network is called in its place, if there is one.
        """
        called = network if wrapper is None else wrapper
        unpack = (lambda batch: batch) if self.packing is None else self.packing.unpack
        logits = logits_in_batches(
            lambda batch: call(called, copy_to(network, unpack(batch)), signature_of=network),
            inputs,
            most_rows,
            self.name,
            self.settings.output_key,
        )
        return logits.to(inputs.device)

    def try_out(self, model: Any, inputs: Any, *, is_sharded: bool) -> Tensor:
        """Logits of a model at a few inputs, as a check will read them, before it trains."""
        few = next(iter(inputs.split(_FEW)))
        try:
            with evaluation_copy(model, is_sharded=is_sharded) as network:
                return self.logits_at(network, few)
        except Exception as error:  # the user's code may raise anything
            what = f"inputs of shape {tuple(few.shape)}" if self.packing is None else str(self.packing)
            said = f"{type(error).__name__}: {error}".removesuffix(".")
            raise self.error(
                f"A check of bu-torch passes {what} to `{type(model).__name__}` as batches hold them, without labels"
                f" and without gradient, and needs logits: {said}. {self.remedy}"
            ) from error

    def operations_of(self, model: object, samples: Samples | None) -> int:
        """Floating-point operations of a pass of one sample: at least two for each weight; 0 if `model` is no module.

        A convolution uses each weight many times, an embedding only a few of its rows. A recurrent layer uses each
        weight once a step of the sequence, and torch cannot count it on every device. Without samples, because the
        model cannot be run, the weights alone are counted.
        """
        if not isinstance(model, nn.Module):
            return 0
        multiplied = [layer for layer in model.modules() if not isinstance(layer, nn.Embedding | nn.EmbeddingBag)]
        weights = {id(weight): weight for layer in multiplied for weight in layer.parameters(recurse=False)}
        of_weights = 2 * sum(weight.numel() for weight in weights.values() if not is_lazy(weight))
        if samples is None:
            return of_weights
        sample = samples.inputs[:1]
        if samples.reread is None and not keeps_integers(self.settings.perturbation):  # else they are not moved
            sample = as_floats(sample)
        counter, recurrent = FlopCounterMode(display=False), [0]

        def count_steps(layer: nn.RNNBase, args: tuple[Any, ...], output: object) -> None:
            inputs = args[0].data if isinstance(args[0], nn.utils.rnn.PackedSequence) else args[0]
            n_weights = sum(weight.numel() for weight in layer.parameters())
            recurrent.append(2 * inputs.numel() // layer.input_size * n_weights)

        try:
            with evaluation_copy(model) as network, ExitStack() as stack, warnings.catch_warnings(), counter:
                warnings.simplefilter("ignore")  # the counter's hooks warn
                for layer in (part for part in network.modules() if isinstance(part, nn.RNNBase)):
                    stack.enter_context(layer.register_forward_hook(count_steps))
                # The counter does not see into a transformer's fused kernel, so the separate layers run instead.
                stack.callback(torch.backends.mha.set_fastpath_enabled, torch.backends.mha.get_fastpath_enabled())
                torch.backends.mha.set_fastpath_enabled(False)
                self.logits_at(network, sample)
        except Exception:  # the user's code may raise anything; a check will raise it again
            return of_weights
        return max(of_weights, counter.get_total_flops(), sum(recurrent))
