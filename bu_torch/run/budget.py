"""Number of samples that a check uses, by its price in forward passes; not timed, so that runs repeat."""

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

from bu_torch.run.settings import Settings
from bu_torch.samples.samples import IGNORED
from bu_torch.signals.catalogue import SIGNALS

_log = logging.getLogger(__name__)

MAX_DRAWS = 4  # more do not help (docs/limits.md)
AUTO_SHARE = 0.15  # share of an epoch's samples; the floor below may exceed it
MAX_BYTES = 2**30  # of samples that are held, unless `max_samples` is given
_LEAST_FLOOR, _MOST_FLOOR = 500, 6000  # forward passes that small data needs: large networks, small ones
_FLOOR_OPERATIONS = 6e8
_OPERATIONS_BESIDE = 40_000  # evaluating the logits of a pass takes as long on one core
_SLOW = 0.5  # seconds; a faster check is not mentioned
_MUCH = 0.25  # share of the training between two checks; a smaller one is not mentioned


class Plan(NamedTuple):
    """Number of samples that a check uses, and of perturbations of each."""

    n_samples: int
    n_draws: int


def plan(
    settings: Settings,
    n_training: int,
    n_visited: int,
    n_operations: int,
    n_bytes: int = 0,
    max_samples: int | None = None,
    *,
    holds_draws: bool = False,
) -> Plan:
    """Bound the forward passes of one check by a share of the samples that an epoch visits.

    Another sample says more than another draw of the same one, so only small data, where single predictions make the
    signals jump, gets several draws. An epoch visits `n_visited` of `n_training` samples; each takes `n_operations` in
    a forward pass and `n_bytes` in memory, 0 if unknown; so does each draw if it is held. `max_samples` replaces the
    setting.
    """

    def within_bytes(n_samples: int, n_held: int) -> int:
        bound = most_bytes(settings)
        if bound is None or not n_bytes:
            return n_samples
        return min(n_samples, max(bound // (n_bytes * n_held), settings.n_neighbors))

    max_samples, n_draws = max_samples or settings.max_samples, settings.n_draws
    # Passes of each sample beside those of its draws.
    n_unmoved = int(any(SIGNALS[name].reads_samples for name in settings.also))
    n_samples = n_training if max_samples is None else min(n_training, max_samples)
    n_samples = within_bytes(n_samples, 1)
    affordable = _FLOOR_OPERATIONS / (n_operations + _OPERATIONS_BESIDE)
    floor = min(_MOST_FLOOR, max(_LEAST_FLOOR, affordable))
    passes = math.floor(max(AUTO_SHARE * n_visited, floor))
    if n_draws is None:
        n_draws = min(MAX_DRAWS, max(1, passes // n_samples - n_unmoved))
    if max_samples is None:
        n_samples = min(n_samples, max(passes // (n_draws + n_unmoved), settings.n_neighbors))
    return Plan(within_bytes(n_samples, 1 + n_draws * holds_draws), n_draws)


def most_bytes(settings: Settings) -> int | None:
    """Bound on the bytes of the samples that are held; None if `max_samples` says how many they are."""
    return MAX_BYTES if settings.max_samples is None else None


def describe_ignored(n_ignored: int) -> str:
    """Warning about samples that are left out; "" if there are none."""
    line = f"{n_ignored} samples have the label {IGNORED}, which torch's losses ignore: they are left out."
    return line if n_ignored else ""


def describe_slow_check(check_seconds: float, training_seconds: float) -> str:
    """Warning about a check that is slow compared with the training before it; "" if it is not."""
    if check_seconds < max(_SLOW, _MUCH * training_seconds):
        return ""
    return f"A check takes {check_seconds:.1f} s, and the training before it took {training_seconds:.1f} s."


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
    counter = FlopCounterMode(display=False)
    try:
        with ExitStack() as stack, warnings.catch_warnings(), counter, _missed_operations(module, counter) as missed:
            warnings.simplefilter("ignore")  # the counter's hooks warn
            # The counter does not see into a transformer's fused kernel, so the separate layers run instead.
            stack.callback(torch.backends.mha.set_fastpath_enabled, torch.backends.mha.get_fastpath_enabled())
            torch.backends.mha.set_fastpath_enabled(False)
            forward()
    except Exception as error:  # the user's code may raise anything; a check will raise it again
        _log.debug("Operations are not counted: %s: %s", type(error).__name__, error)
        return of_weights
    return max(of_weights, counter.get_total_flops() + sum(missed))


@contextmanager
def _missed_operations(module: nn.Module, counter: FlopCounterMode) -> Iterator[list[int]]:
    """Operations of recurrent layers that the counter has missed, one entry a pass."""
    missed, known = [], 0

    def before(layer: nn.Module, args: tuple[torch.Tensor, ...]) -> None:
        nonlocal known
        known = counter.get_total_flops()

    def after(layer: nn.RNNBase, args: tuple[torch.Tensor, ...], output: object) -> None:
        inputs = args[0].data if isinstance(args[0], nn.utils.rnn.PackedSequence) else args[0]
        n_steps = inputs.numel() // layer.input_size
        n_operations = 2 * n_steps * sum(weight.numel() for weight in layer.parameters())
        missed.append(max(0, n_operations - (counter.get_total_flops() - known)))

    with ExitStack() as hooks:
        for layer in module.modules():
            if isinstance(layer, nn.RNNBase):
                hooks.enter_context(layer.register_forward_pre_hook(before))
                hooks.enter_context(layer.register_forward_hook(after))
        yield missed
