"""Number of samples that a check looks at: a price in forward passes, counted, never timed, so that runs repeat."""

import logging
import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.utils.flop_counter import FlopCounterMode

from bu_torch.run.settings import MeasurementSettings
from bu_torch.samples.samples import IGNORED

_log = logging.getLogger(__name__)

MAX_DRAWS = 4  # more are no better (docs/limits.md)
AUTO = 0.15  # with the floor
_LEAST_FLOOR, _MOST_FLOOR = 500, 6000  # forward passes that small data needs, of large networks and of small ones
_FLOOR_OPERATIONS = 6e8
_OPERATIONS_BESIDE = 40_000  # of a pass: what a check does with its logits takes as long on one core
_SLOW = 0.5  # seconds of a check that are worth a word,
_MUCH = 0.25  # if they are so much of the training between two checks


class Plan(NamedTuple):
    """Numbers of samples that a check looks at, and of perturbations of each."""

    n_samples: int
    n_draws: int


def plan(
    settings: MeasurementSettings,
    n_training: int,
    n_visited: int,
    n_operations: int,
    n_bytes: int = 0,
    max_samples: int | None = None,
) -> Plan:
    """Bound the forward passes of one check by a share of those that an epoch visits.

    Another sample says more than another draw of the same one, so only small data, where single predictions make the
    signals jump, has several draws. An epoch visits `n_visited` of `n_training` samples; one takes `n_operations` in a
    forward pass and `n_bytes` in memory, 0 if that is not known. `max_samples` takes the place of the setting.
    """
    max_samples, n_draws = max_samples or settings.max_samples, settings.n_draws
    n_samples = n_training if max_samples is None else min(n_training, max_samples)
    if settings.max_bytes is not None and n_bytes:
        n_samples = min(n_samples, max(settings.max_bytes // n_bytes, settings.n_neighbors))
    if settings.budget is None:
        return Plan(n_samples, n_draws or MAX_DRAWS)
    affordable = _FLOOR_OPERATIONS / (n_operations + _OPERATIONS_BESIDE)
    floor = min(_MOST_FLOOR, max(_LEAST_FLOOR, affordable))
    passes = math.floor(max(AUTO * n_visited, floor))
    if n_draws is None:
        n_draws = min(MAX_DRAWS, max(1, passes // n_samples))
    if max_samples is None:
        n_samples = min(n_samples, max(passes // n_draws, settings.n_neighbors))
    return Plan(n_samples, n_draws)


def bound_in_bytes(wanted: Plan, made: Plan, max_bytes: int | None) -> str:
    """Tell that fewer samples are looked at because all would take more than `max_bytes`; "" if they do not."""
    if made.n_samples >= wanted.n_samples:
        return ""
    return (
        f"Boundary uncertainty holds {made.n_samples} samples and not {wanted.n_samples}, to take no more than"
        f" {max_bytes} bytes. To change it: `max_bytes`."
    )


def ignored(n_ignored: int) -> str:
    """Tell how many samples are left out; "" for none."""
    line = f"{n_ignored} samples have the label {IGNORED}, which torch's losses ignore: they are left out."
    return line if n_ignored else ""


def describe_slow_check(check_seconds: float, training_seconds: float) -> str:
    """Say what a check takes beside the training before it; "" if that is little of either."""
    if check_seconds < max(_SLOW, _MUCH * training_seconds):
        return ""
    return (
        f"A check of boundary uncertainty takes {check_seconds:.1f} s, and the training before it took"
        f" {training_seconds:.1f} s."
    )


def count_operations(module: nn.Module, forward: Callable[[], object] | None = None) -> int:
    """Floating-point operations of a forward pass of one sample: two for each weight, or more where more are counted.

    A convolution uses each weight many times, an embedding a few of its rows; recurrent layers, which torch cannot
    count on every device, each weight once a step of the sequence. `forward` passes one sample through the module,
    which is a copy then: layers get hooks.
    """
    multiplied = [layer for layer in module.modules() if not isinstance(layer, nn.Embedding | nn.EmbeddingBag)]
    weights = {id(weight): weight for layer in multiplied for weight in layer.parameters(recurse=False)}
    of_weights = 2 * sum(weight.numel() for weight in weights.values() if not is_lazy(weight))
    if forward is None:
        return of_weights
    counter = FlopCounterMode(display=False)
    try:
        with ExitStack() as stack, warnings.catch_warnings(), counter, _missed_operations(module, counter) as missed:
            warnings.simplefilter("ignore")  # of hooks that the counter registers
            # No counter looks into a transformer's fused kernel: it gives way to the layers that it is made of.
            stack.callback(torch.backends.mha.set_fastpath_enabled, torch.backends.mha.get_fastpath_enabled())
            torch.backends.mha.set_fastpath_enabled(False)
            forward()
    except Exception as error:  # the user's code may raise anything, and is asked again where that matters
        _log.debug("Operations are not counted: %s: %s", type(error).__name__, error)
        return of_weights
    return max(of_weights, counter.get_total_flops() + sum(missed))


@contextmanager
def _missed_operations(module: nn.Module, counter: FlopCounterMode) -> Iterator[list[int]]:
    """Operations of each pass through a recurrent layer that a counter has not seen."""
    missed, known = [], 0

    def before(layer: nn.Module, args: tuple[torch.Tensor, ...]) -> None:
        nonlocal known
        known = counter.get_total_flops()

    def after(layer: nn.RNNBase, args: tuple[torch.Tensor, ...], output: object) -> None:
        inputs = args[0].data if isinstance(args[0], nn.utils.rnn.PackedSequence) else args[0]
        n_steps = inputs.numel() // layer.input_size  # of all samples
        n_operations = 2 * n_steps * sum(weight.numel() for weight in layer.parameters())
        missed.append(max(0, n_operations - (counter.get_total_flops() - known)))

    with ExitStack() as hooks:
        for layer in module.modules():
            if isinstance(layer, nn.RNNBase):
                hooks.enter_context(layer.register_forward_pre_hook(before))
                hooks.enter_context(layer.register_forward_hook(after))
        yield missed
