"""Number of samples that a check uses, by its price in forward passes; not timed, so that runs repeat."""

import math
import sys
from typing import NamedTuple

from bu_torch.run.settings import Settings
from bu_torch.samples.reading import may_be_read_again
from bu_torch.samples.samples import IGNORED, Samples
from bu_torch.signals.catalogue import SIGNALS

MAX_DRAWS = 4  # more do not help (docs/limits.md)
AUTO_SHARE = 0.15  # share of an epoch's samples; the floor below may exceed it
MAX_BYTES = 2**30  # of samples that are held, unless `max_samples` is given
_LEAST_FLOOR, _MOST_FLOOR = 500, 6000  # forward passes that small data needs: large networks, small ones
_FLOOR_OPERATIONS = 6e8
_OPERATIONS_BESIDE = 40_000  # evaluating the logits of a pass takes as long on one core


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
    max_samples, n_draws = max_samples or settings.max_samples, settings.n_draws
    # Passes of each sample beside those of its draws.
    n_unmoved = int(any(SIGNALS[name].measured_in for name in settings.also))
    n_samples = n_training if max_samples is None else min(n_training, max_samples)
    most, least = most_bytes(settings), settings.n_neighbors
    n_held = sys.maxsize if most is None or not n_bytes else most // n_bytes
    n_samples = min(n_samples, max(n_held, least))
    affordable = _FLOOR_OPERATIONS / (n_operations + _OPERATIONS_BESIDE)
    passes = math.floor(max(AUTO_SHARE * n_visited, min(_MOST_FLOOR, max(_LEAST_FLOOR, affordable))))
    if n_draws is None:
        n_draws = min(MAX_DRAWS, max(1, passes // n_samples - n_unmoved))
    if max_samples is None:
        n_samples = min(n_samples, max(passes // (n_draws + n_unmoved), least))
    return Plan(min(n_samples, max(n_held // (1 + n_draws * holds_draws), least)), n_draws)


def plan_for(
    settings: Settings,
    samples: Samples,
    n_operations: int,
    n_visited: int | None = None,
    max_samples: int | None = None,
) -> Plan:
    """Plan of a check at samples that were read; as `plan`, but an epoch visits all samples if `n_visited` is None."""
    n_training = samples.n_training
    holds_draws = samples.is_random and may_be_read_again(settings.perturbation)
    counts = n_training, n_training if n_visited is None else n_visited, n_operations, samples.inputs[:1].nbytes
    return plan(settings, *counts, max_samples, holds_draws=holds_draws)


def most_bytes(settings: Settings) -> int | None:
    """Bound on the bytes of the samples that are held; None if `max_samples` says how many they are."""
    return MAX_BYTES if settings.max_samples is None else None


def describe_ignored(n_ignored: int) -> str:
    """Warning about samples that are left out; "" if there are none."""
    line = f"{n_ignored} samples have the label {IGNORED}, which torch's losses ignore: they are left out."
    return line if n_ignored else ""
