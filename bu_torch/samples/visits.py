"""Samplers: which samples an epoch visits, and how often."""

import copy
import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    WeightedRandomSampler,
)

from bu_torch.samples.batches import NO_SAMPLE
from bu_torch.samples.samples import UnreadableError

_MOST_PASSES, _MOST_DRAWS = 16, 2_000_000  # to see if a sampler draws some samples more often
_MOST_INDICES = 100_000_000
_SIGNIFICANCE = 3.0  # standard deviations of a correlation


def visited_by(
    loader: DataLoader[Any], n_batches: float, unwrap: Callable[[Any], Any]
) -> tuple[list[Any], bool, Tensor | None]:
    """Indices that a loader visits, ascending, each once; whether its sampler gives lists; how often each comes.

    Without a batch sampler, `DataLoader(dataset, sampler=BatchSampler(...), batch_size=None)`, lists ask for batches.
    """
    dataset: Any = loader.dataset
    sampler: Any = unwrap(loader.sampler) if loader.batch_sampler is None else loader.batch_sampler
    are_lists = loader.batch_sampler is not None or isinstance(sampler, BatchSampler)
    batches = None
    if type(sampler) is BatchSampler:  # a subclass may leave out some of what its own sampler gives
        batches, sampler = sampler, unwrap(sampler.sampler)
    indices: list[Any]
    weights = None
    if isinstance(sampler, WeightedRandomSampler):
        indices, weights = torch.nonzero(sampler.weights).flatten().tolist(), _drawn_by(sampler)
    elif isinstance(sampler, DistributedSampler):  # all processes together visit every sample
        indices = list(range(len(dataset)))
    elif isinstance(sampler, SequentialSampler | RandomSampler):
        n_samples = len(getattr(sampler, "data_source", dataset))
        is_in_order = isinstance(sampler, SequentialSampler)
        indices = list(range(_n_first(n_samples, batches, n_batches) if is_in_order else n_samples))
    else:
        batch_size = getattr(batches, "batch_size", 1)  # entries are batches, unless the loader makes them
        passes = _own_passes(sampler, dataset, n_batches * batch_size)
        entries = next(passes)
        if batches is None:
            are_lists = are_lists or any(isinstance(e, list | tuple) or getattr(e, "ndim", 0) for e in entries[:1])
        are_nested = batches is None and are_lists
        indices, weights = _counted(_indices(one, are_nested) for one in itertools.chain([entries], passes))
    if not indices:
        raise UnreadableError(NO_SAMPLE)
    return indices, are_lists, weights


def _indices(entries: list[Any], are_nested: bool) -> list[Any]:
    """Entries of a sampler as plain indices, lists of them taken apart."""
    flat = [index for entry in entries for index in entry] if are_nested else entries
    return [index.item() if hasattr(index, "item") else index for index in flat]


def _counted(passes: Iterator[list[Any]]) -> tuple[list[Any], Tensor | None]:
    """Indices of a sampler's first pass, and of a few more if these give others or repeat some; how often each comes.

    None if that is chance alone: then the counts of two halves of the passes are unrelated.
    """
    first = next(passes)
    halves = Counter(first), Counter(next(passes))
    if len(halves[0]) == len(first) and halves[0] == halves[1]:
        return sorted(halves[0]), None
    for i in range(2, min(_MOST_PASSES, max(2, _MOST_DRAWS // len(first)))):
        halves[i % 2].update(next(passes))
    indices = sorted(halves[0] | halves[1])
    counts = torch.tensor([[half[index] for index in indices] for half in halves], dtype=torch.float64)
    centred = counts - counts.mean(dim=1, keepdim=True)
    related = float((centred[0] * centred[1]).sum())
    largest = float(centred.norm(dim=1).prod())
    threshold = largest * min(_SIGNIFICANCE / math.sqrt(len(indices)), 0.99)
    return indices, counts.sum(dim=0) if related > threshold else None


def _drawn_by(sampler: WeightedRandomSampler) -> Tensor | None:
    """Relative frequency of each sample that a sampler draws at all; None if all alike.

    Without replacement, a sample of weight w is among the n drawn with a probability near 1 - exp(-t w), with the t for
    which they add up to n (Rosen 1972).
    """
    weights = sampler.weights[sampler.weights > 0].double().cpu()
    if not sampler.replacement:
        if sampler.num_samples >= len(weights):
            return None
        weights = weights / weights.mean()
        low, high = 0.0, 1.0
        while float((1 - torch.exp(-high * weights)).sum()) < sampler.num_samples:
            high *= 2
        for _ in range(60):
            middle = (low + high) / 2
            is_low = float((1 - torch.exp(-middle * weights)).sum()) < sampler.num_samples
            low, high = (middle, high) if is_low else (low, middle)
        weights = -torch.expm1(-high * weights)
    return None if bool((weights == weights[0]).all()) else weights


def _n_first(n_samples: int, batches: BatchSampler | None, n_batches: float) -> int:
    """Number of samples in order that each epoch visits: what comes last is left out in every one."""
    batch_size = 1 if batches is None else batches.batch_size
    if batches is not None and batches.drop_last:
        n_samples -= n_samples % batch_size
    return int(min(n_samples, n_batches * batch_size))


def _own_passes(sampler: Iterable[Any], dataset: Any, n_draws: float) -> Iterator[list[Any]]:
    """Passes of a copy of a sampler, epoch after epoch: up to its length, or up to `n_draws` entries if it has none.

    If the sampler holds the dataset, the copy holds it too.
    """
    try:
        own = copy.deepcopy(sampler, {id(dataset): dataset})
    except Exception as error:  # a user's class may raise anything
        raise UnreadableError(
            f"{type(sampler).__name__} cannot be copied to see which samples it visits: {error}."
        ) from error
    for epoch in itertools.count():
        if epoch and callable(set_epoch := getattr(own, "set_epoch", None)):  # as trainers do before each epoch
            set_epoch(epoch)
        try:
            n_most = len(own)  # type: ignore[arg-type]
        except Exception:  # a user's class may raise anything
            n_most = int(min(n_draws, _MOST_INDICES))
        entries = list(itertools.islice(own, n_most))
        if len(entries) == _MOST_INDICES:
            raise UnreadableError(f"{type(own).__name__} has no length, and gives more than {_MOST_INDICES} indices.")
        yield entries
