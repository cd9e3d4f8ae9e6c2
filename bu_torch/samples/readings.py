"""Samples of a loader at given indices, read once, or again and again to see how random augmentation changes them."""

import itertools
import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self, TypeVar

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils.data import DataLoader, Subset, TensorDataset, default_collate

from bu_torch.internal.global_state import seeded
from bu_torch.samples.batches import NO_KEYS, Keys, check_bytes, concatenate, split_batch
from bu_torch.samples.samples import Samples, UnreadableError, packed
from bu_torch.samples.worker import described, from_here, with_batches

READ_BATCH = 256
ASKED_TO_READ = "`perturbation='reading'` needs a dataset or a loader whose samples differ each time they are read"
WITHOUT_READING = "Pass `perturbation=None`."
_READ_TWICE = 32  # samples, to see whether they are augmented at random
_Result = TypeVar("_Result")


class FirstReading(NamedTuple):
    """Inputs and labels, and what a second reading of a few shows."""

    inputs: Any
    labels: Tensor
    is_random: bool = False  # its inputs differ, as augmentation makes them
    why_unlike: str = ""  # it differs otherwise: what it does, in words


@dataclass(frozen=True, eq=False)
class LoaderRows:
    """Samples of a loader, to be read as often as is needed, in batches as the loader makes them.

    Random numbers start from `seed` in each call, so that calls repeat. In one call they move on from one reading to
    the next, also those of generators that the dataset holds, because one process reads all.
    """

    loader: DataLoader[Any]
    indices: list[Any]
    seed: int
    keys: Keys
    transform: Callable[[Any], Any] | None

    def at(self, rows: Tensor) -> Self:
        """Some of the samples, by their places here."""
        return replace(self, indices=[self.indices[row] for row in rows.tolist()])

    def read(self, n_times: int) -> tuple[Any, Tensor]:
        """Inputs and labels of all samples, `n_times` one after another."""
        batches, n_expected = self._lists(self.indices) * n_times, len(self.indices) * n_times
        with seeded(self.seed):
            return self._use(batches, lambda read: concatenate(read, self.keys, self.transform, None, n_expected))

    def read_first(self, max_bytes: int | None, looks_for_augmentation: bool) -> FirstReading:
        """Inputs and labels of all samples; a few are read a second time if it `looks_for_augmentation`.

        Tensors in memory run no code of the user's, so they are read here, and all at once if there is no `transform`.
        """
        held, n_samples = self._in_memory(), len(self.indices)
        if held is not None and self.transform is None:
            tensors, rows = held
            inputs, labels = split_batch(tensors, self.keys)
            check_bytes(inputs, n_samples, max_bytes)
            return FirstReading(*pytree.tree_map(lambda tensor: tensor.detach()[rows], (inputs, labels)))
        # Some classes alone may be augmented, so these lie apart.
        places = range(0, n_samples if looks_for_augmentation else 0, math.ceil(n_samples / _READ_TWICE))
        twice = [self.indices[place] for place in places]
        first = self._lists(self.indices)

        def join(batches: Iterator[Any]) -> FirstReading:
            part = itertools.islice(batches, len(first))
            reading = concatenate(part, self.keys, self.transform, None, n_samples, max_bytes)
            if not twice or len(reading[1]) != n_samples:
                return FirstReading(*reading)
            few = pytree.tree_map(lambda tensor: tensor[:: places.step], reading)
            return FirstReading(*reading, *self._compared(few, batches))

        # By the same worker: its generators move on.
        reading = self._use(first + self._lists(twice), join)
        if len(reading.labels) < n_samples:
            warnings.warn(
                f"The loader's batches hold {len(reading.labels)} of the {n_samples} samples that were read: only those"
                " are used.",
                stacklevel=2,
            )
        return reading

    def _compared(self, first: tuple[Any, Tensor], batches: Iterator[Any]) -> tuple[bool, str]:
        """Read a few samples again; `is_random` and `why_unlike` of a `FirstReading`."""
        n_samples = len(first[1])
        try:
            both, labels = concatenate([first, concatenate(batches, self.keys, self.transform)], NO_KEYS, None)
        except Exception as error:  # the user's code may raise anything
            return False, f"fails: {_said(error)}"
        if why_unlike := _why_unlike(labels[n_samples:], labels[:n_samples]):
            return False, why_unlike
        leaves = pytree.tree_leaves(both)  # padded alike
        return not all(are_equal(tensor[:n_samples], tensor[n_samples:]) for tensor in leaves), ""

    def _lists(self, indices: list[Any]) -> list[list[Any]]:
        size = self.loader.batch_size or READ_BATCH
        return [indices[start : start + size] for start in range(0, len(indices), size)]

    def _use(self, lists: list[list[Any]], use: Callable[[Iterator[Any]], _Result]) -> _Result:
        loader = self.loader
        order = {"sampler": lists, "batch_size": None} if loader.batch_sampler is None else {"batch_sampler": lists}
        if self._in_memory() is None:
            return with_batches(loader, order, self.seed, use)
        with closing(from_here(loader.dataset, loader.collate_fn, order)) as batches:
            return use(batches)

    def _in_memory(self) -> tuple[list[Tensor], Tensor] | None:
        """Tensors of a `TensorDataset`, or of subsets of one, and rows of them; None for all other datasets."""
        dataset: Any = self.loader.dataset
        subsets = []
        while type(dataset) is Subset:
            subsets.append(dataset)
            dataset = dataset.dataset
        if type(dataset) is not TensorDataset or self.loader.collate_fn is not default_collate:
            return None
        rows = torch.as_tensor(self.indices, device="cpu")
        for subset in subsets:
            rows = torch.as_tensor(subset.indices, device="cpu")[rows]
        return list(dataset.tensors), rows


def may_be_read_again(perturbation: Any) -> bool:
    """Return True if further readings may take the place of perturbed samples."""
    return perturbation is None or perturbation == "reading"


def with_readings(samples: Samples, n_draws: int, perturbation: Any, warn: Callable[[str], None]) -> Samples:
    """Read the samples again, `n_draws` times, if two readings differ and no other `perturbation` is asked for.

    Readings that are none of the same samples end in a warning, and the samples are moved; in a ValueError if readings
    are asked for.
    """
    if not may_be_read_again(perturbation):
        return samples
    why_unlike = samples.why_unlike
    if samples.is_random and samples.again is not None:
        try:
            return read_again(samples, n_draws)
        except UnreadableError as error:
            why_unlike = str(error)
    found = f"a second reading of the same samples {why_unlike or 'gives the same inputs'}"
    if perturbation == "reading":
        found = "these are read once" if samples.again is None else found
        raise ValueError(f"{ASKED_TO_READ}: {found}. {WITHOUT_READING}")
    if why_unlike:
        warn(
            f"Samples: {found}. That is no augmentation, so a check perturbs the first reading. Let the dataset give"
            " the same sample for the same index, augmented or not."
        )
    return samples


def read_again(samples: Samples, n_further: int) -> Samples:
    """Read samples anew, each 1 + `n_further` times: the first reading takes their place, `readings` are the others.

    The samples hold `again`. `UnreadableError` says what was found if these are not the same samples.
    """
    assert samples.again is not None  # noqa: S101
    n_samples, n_times = len(samples.labels), 1 + n_further
    try:
        tree, labels = samples.again.read(n_times)
        inputs, packing = packed(tree)
    except Exception as error:  # the user's code may raise anything
        raise UnreadableError(f"fails: {_said(error)}") from error
    if why_unlike := _why_unlike(labels, samples.labels.repeat(n_times, *[1] * (samples.labels.ndim - 1))):
        raise UnreadableError(why_unlike)
    if packing is None and inputs.shape[1:] != samples.inputs.shape[1:]:
        shapes = f"{tuple(inputs.shape[1:])} instead of {tuple(samples.inputs.shape[1:])}"
        raise UnreadableError(f"gives inputs of another shape, {shapes}")
    if inputs.is_floating_point() and not bool(inputs.isfinite().all()):
        raise UnreadableError("gives inputs that are NaN or infinite")
    readings = inputs[n_samples:].unflatten(0, (n_further, n_samples))
    return samples._replace(inputs=inputs[:n_samples], readings=readings, packing=packing)


def _why_unlike(labels: Tensor, expected: Tensor) -> str:
    """Say what another reading does if it does not give these labels; "" if it does."""
    if len(labels) != len(expected):
        return f"gives {len(labels)} samples instead of {len(expected)}"
    return "" if are_equal(labels, expected) else "gives other labels"


def _said(error: Exception) -> str:
    return str(error).rstrip(".") if isinstance(error, UnreadableError) else described(error)


def are_equal(first: Tensor, second: Tensor) -> bool:
    """Return True if two tensors hold the same values, or NaN in the same places."""
    if torch.equal(first, second) or first.shape != second.shape:
        return first.shape == second.shape
    is_number = first == first
    return bool((is_number == (second == second)).all()) and torch.equal(first[is_number], second[is_number])
