"""Samples of a loader at given indices, read once, or again and again to see how random augmentation changes them."""

import itertools
import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils.data import DataLoader, Subset, TensorDataset, default_collate

from bu_torch.internal.global_state import seeded
from bu_torch.samples.batches import NO_KEYS, Keys, concatenate
from bu_torch.samples.samples import Samples, UnreadableError, samples_of
from bu_torch.samples.worker import described, with_batches

READ_BATCH = 256
ASKED_TO_READ = "`perturbation='reading'` needs a dataset or a loader whose samples differ each time they are read"
WITHOUT_READING = "Pass `perturbation=None`."
_READ_TWICE = 32  # samples, to see whether they are augmented at random
_Result = TypeVar("_Result")


class Reader(NamedTuple):
    """Reads samples of a loader in batches as it makes them.

    Random numbers start from `seed` in each call, so that calls repeat. In one call they move on from one reading to
    the next, also those of generators that the dataset holds, because one process reads all.
    """

    loader: DataLoader[Any]
    seed: int
    keys: Keys
    transform: Callable[[Any], Any] | None

    def read(self, indices: list[Any], n_times: int) -> tuple[Any, Tensor]:
        """Inputs and labels of all samples, `n_times` one after another."""
        batches, n_expected = self._lists(indices) * n_times, len(indices) * n_times
        with seeded(self.seed):
            return self._use(batches, lambda read: concatenate(read, self.keys, self.transform, None, n_expected))

    def read_first(
        self, indices: list[Any], max_bytes: int | None, looks_for_augmentation: bool
    ) -> tuple[Any, Tensor, bool]:
        """Inputs and labels of all samples, and whether a second reading of a few gives other inputs and these labels.

        Nothing is read twice unless it `looks_for_augmentation`.
        """
        n_samples, first = len(indices), self._lists(indices)
        # Some classes alone may be augmented, so these lie apart.
        few = slice(None, n_samples if looks_for_augmentation else 0, math.ceil(n_samples / _READ_TWICE))

        def read_twice(batches: Iterator[Any]) -> tuple[tuple[Any, Tensor], tuple[Any, Tensor] | None]:
            part = itertools.islice(batches, len(first))
            read = concatenate(part, self.keys, self.transform, None, n_samples, max_bytes)
            with suppress(Exception):  # the user's code may raise anything
                return read, concatenate(batches, self.keys, self.transform)
            return read, None

        # By the same worker: its generators move on.
        (inputs, labels), second = self._use(first + self._lists(indices[few]), read_twice)
        if len(labels) < n_samples:
            warnings.warn(
                f"The loader's batches hold {len(labels)} of the {n_samples} samples that were read: only those are"
                " used.",
                stacklevel=2,
            )
            return inputs, labels, False
        before = pytree.tree_map(lambda tensor: tensor[few], (inputs, labels))
        return inputs, labels, second is not None and is_augmentation(before, second)

    def _lists(self, indices: list[Any]) -> list[list[Any]]:
        size = self.loader.batch_size or READ_BATCH
        if self.transform is None and self._is_in_memory():
            size = READ_BATCH
        return [indices[start : start + size] for start in range(0, len(indices), size)]

    def _use(self, lists: list[list[Any]], use: Callable[[Iterator[Any]], _Result]) -> _Result:
        loader = self.loader
        if self._is_in_memory():  # indexing runs no code of the user's
            return use(list(loader.dataset[places]) for places in lists)
        order = {"sampler": lists, "batch_size": None} if loader.batch_sampler is None else {"batch_sampler": lists}
        return with_batches(loader, order, self.seed, use)

    def _is_in_memory(self) -> bool:
        """Whether batches are rows of a `TensorDataset`, or of subsets of one."""
        dataset: Any = self.loader.dataset
        while type(dataset) is Subset:
            dataset = dataset.dataset
        return type(dataset) is TensorDataset and self.loader.collate_fn is default_collate


def is_augmentation(first: tuple[Any, Tensor], second: tuple[Any, Tensor]) -> bool:
    """Whether two readings of the same samples have other inputs and the same labels."""
    with suppress(UnreadableError):  # they have other shapes
        both = concatenate([first, second], NO_KEYS, None)  # joined, they are padded alike
        *inputs, labels = (tensor.tensor_split(2) for tensor in pytree.tree_leaves(both))
        return are_equal(*labels) and not all(itertools.starmap(are_equal, inputs))
    return False


def may_be_read_again(perturbation: Any) -> bool:
    """Whether further readings may take the place of perturbed samples."""
    return perturbation is None or perturbation == "reading"


def with_readings(samples: Samples, n_draws: int, perturbation: Any, warn: Callable[[str], None]) -> Samples:
    """Read the samples again, `n_draws` times, if two readings differ and no other `perturbation` is asked for.

    Readings that are none of the same samples end in a warning, and the samples are moved; in a ValueError if readings
    are asked for.
    """
    if not may_be_read_again(perturbation):
        return samples
    fault = "a second reading gives the same inputs, or other labels"
    if samples.is_random:
        try:
            return read_again(samples, n_draws)
        except Exception as error:  # the user's code may raise anything
            fault = f"a further reading fails: {described(error)}"
            warn(f"Samples: {fault}. That is no augmentation, so a check perturbs the first reading.")
    if perturbation == "reading":
        raise ValueError(f"{ASKED_TO_READ}: {fault}. {WITHOUT_READING}")
    return samples


def read_again(samples: Samples, n_further: int) -> Samples:
    """Read samples anew, each 1 + `n_further` times: the first reading takes their place, `readings` are the others."""
    assert samples.again is not None  # noqa: S101
    n_samples, n_times = len(samples.labels), 1 + n_further
    read = samples_of(*samples.again(samples.rows.tolist(), n_times))
    if not are_equal(read.labels, samples.labels.repeat(n_times, *[1] * (samples.labels.ndim - 1))):
        raise UnreadableError("it gives other labels")
    readings = read.inputs[n_samples:].unflatten(0, (n_further, n_samples))
    return samples._replace(inputs=read.inputs[:n_samples], readings=readings, packing=read.packing)


def are_equal(first: Tensor, second: Tensor) -> bool:
    """Whether two tensors hold the same values, or NaN in the same places."""
    return first.shape == second.shape and bool(((first == second) | ((first != first) & (second != second))).all())
