"""Reading a network as a check does: its logits, a trial before training, and the operations of a pass."""

import logging
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils.flop_counter import FlopCounterMode

from bu_torch.internal.inputs import as_floats
from bu_torch.internal.network import Packing, call, check_callable, copy_to, logits_in_batches, rows_at_once
from bu_torch.internal.replica import evaluation_copy
from bu_torch.perturbation.draws import keeps_integers
from bu_torch.run.engine import Engine
from bu_torch.run.settings import Settings
from bu_torch.samples.reading import may_be_read_again
from bu_torch.samples.samples import Samples

_FEW = 32  # samples of a trial
_log = logging.getLogger(__name__)


class NetworkReader:
    """Reads logits at samples of a layout; the callbacks refine it by what their trainer adds."""

    name = "`model`"  # what an error names
    error: type[Exception] = ValueError  # what a trial raises
    remedy = "Token ids need `perturbation='tokens'`."  # what may help then

    def __init__(self, settings: Settings, packing: Packing | None) -> None:
        self.settings, self.packing = settings, packing

    def logits_at(self, network: Any, inputs: Any) -> Tensor:
        """Logits (n, J) at `inputs` (n, ...) of a network, a copy from `evaluation_copy`, which a pass may change."""
        check_callable(network)

        def output_of(packed: Tensor) -> Any:
            batch = packed if self.packing is None else self.packing.unpack(packed)
            return self.forward(network, copy_to(network, batch))

        logits = logits_in_batches(output_of, inputs, self.n_rows(inputs), self.name, self.settings.output_key)
        return logits.to(inputs.device)

    def forward(self, network: Any, batch: Any) -> Any:
        """Output for a batch of one tensor or several."""
        return call(network, batch)

    def n_rows(self, inputs: Any) -> int:
        """Rows of a batch."""
        return rows_at_once(inputs)

    def sanity_check(self, model: Any, engine: Engine) -> None:
        """Read a few samples as a check will, to refuse a model before it trains."""

        def logits() -> Tensor:
            few = next(iter(engine.inputs.split(_FEW)))
            try:
                with evaluation_copy(model, is_sharded=engine.processes.are_sharded) as network:
                    return self.logits_at(network, few)
            except Exception as error:  # the user's code may raise anything
                what = f"inputs of shape {tuple(few.shape)}" if self.packing is None else str(self.packing)
                said = f"{type(error).__name__}: {error}".removesuffix(".")
                raise self.error(
                    f"A check of bu-torch passes {what} to `{type(model).__name__}` as batches hold them, without"
                    f" labels and without gradient, and needs logits: {said}. {self.remedy}"
                ) from error

        engine.processes.on_logits(logits, engine.check_columns)

    def operations_of(self, model: object, samples: Samples) -> int:
        """Operations of a pass of one sample; 0 for a model that is no module."""
        if not isinstance(model, nn.Module):
            return 0
        perturbation, sample = self.settings.perturbation, samples.inputs[:1]
        is_read_again = samples.is_random and may_be_read_again(perturbation)
        if not keeps_integers(perturbation) and not is_read_again:
            sample = as_floats(sample)
        with evaluation_copy(model) as network:
            return count_operations(network, partial(self.logits_at, network, sample))


def count_operations(module: nn.Module, forward: Callable[[], object] | None = None) -> int:
    """Count floating-point operations of a forward pass of one sample: at least two for each weight.

    A convolution uses each weight many times, an embedding only a few of its rows. A recurrent layer uses each weight
    once a step of the sequence, and torch cannot count it on every device. `forward` passes one sample through
    `module`, whose layers get hooks, so it must be a copy.
    """
    multiplied = [layer for layer in module.modules() if not isinstance(layer, nn.Embedding | nn.EmbeddingBag)]
    weights = {id(weight): weight for layer in multiplied for weight in layer.parameters(recurse=False)}
    of_weights = 2 * sum(weight.numel() for weight in weights.values() if not is_lazy(weight))
    if forward is None:
        return of_weights
    counter, recurrent = FlopCounterMode(display=False), [0]

    def count_steps(layer: nn.RNNBase, args: tuple[Any, ...], output: object) -> None:
        inputs = args[0].data if isinstance(args[0], nn.utils.rnn.PackedSequence) else args[0]
        recurrent.append(2 * inputs.numel() // layer.input_size * sum(weight.numel() for weight in layer.parameters()))

    try:
        with ExitStack() as stack, warnings.catch_warnings(), counter:
            warnings.simplefilter("ignore")  # the counter's hooks warn
            for layer in (part for part in module.modules() if isinstance(part, nn.RNNBase)):
                stack.enter_context(layer.register_forward_hook(count_steps))
            # The counter does not see into a transformer's fused kernel, so the separate layers run instead.
            stack.callback(torch.backends.mha.set_fastpath_enabled, torch.backends.mha.get_fastpath_enabled())
            torch.backends.mha.set_fastpath_enabled(False)
            forward()
    except Exception as error:  # the user's code may raise anything; a check will raise it again
        _log.debug("Operations are not counted: %s: %s", type(error).__name__, error)
        return of_weights
    return max(of_weights, counter.get_total_flops(), sum(recurrent))
