"""Batches of a dataset, read without changing the user's objects: in one worker process, or from a deep copy."""

import copy
import gc
import multiprocessing
import textwrap
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
from torch.utils import _pytree as pytree
from torch.utils.data import DataLoader

from bu_torch.internal.global_state import seeded, start_from
from bu_torch.samples.samples import UnreadableError

_PATIENCE = 60  # seconds for a batch: a dataset with threads or locks may wait forever in a forked process
_Result = TypeVar("_Result")


class DatasetError(UnreadableError):
    """A dataset, or the function that collates its samples, has raised."""


def with_batches(
    loader: DataLoader[Any], order: dict[str, Any], seed: int, use: Callable[[Iterator[Any]], _Result]
) -> _Result:
    """Use a loader's batches in an `order` that `DataLoader` takes, read in a worker.

    A copy is read where no worker may start, or where one fails and training has none.
    """
    method = multiprocessing.get_start_method(allow_none=True) or multiprocessing.get_all_start_methods()[0]
    # Other methods than "fork" need a main module that is guarded, and a daemonic process may start no other.
    if not multiprocessing.current_process().daemon and (loader.num_workers or method == "fork"):
        in_worker = {
            "worker_init_fn": partial(_begin, loader.worker_init_fn, seed),
            "num_workers": 1,
            # The default context itself would be fixed by its first use, and a script could no longer choose another.
            "multiprocessing_context": loader.multiprocessing_context or multiprocessing.get_context(method),
            "timeout": 0 if loader.num_workers else _PATIENCE,
        }
        try:
            return _used(loader.dataset, use, collate_fn=loader.collate_fn, **order, **in_worker)
        except DatasetError:  # tensors on a GPU, connections, locks and threads do not work in a forked process
            if loader.num_workers:
                raise
    with seeded(seed):
        dataset, collate_fn = _copied(loader)
        return _used(dataset, use, collate_fn=collate_fn, **order)


def _used(dataset: Any, use: Callable[[Iterator[Any]], _Result], **options: Any) -> _Result:
    iterator: Any = None

    def batches() -> Iterator[Any]:
        nonlocal iterator
        with _explained(dataset):
            with torch.device("cpu"):  # another default device refuses the generator, and a forked worker
                iterator = iter(DataLoader(dataset, generator=torch.Generator(), **options))
            yield from iterator

    try:
        return use(batches())
    finally:
        if hasattr(iterator, "_shutdown_workers"):  # at once, also if an error keeps the iterator alive
            iterator._shutdown_workers()


def _begin(worker_init_fn: Callable[[int], None] | None, seed: int, worker_id: int) -> None:
    gc.freeze()  # never collect the parent's garbage: a finaliser may close or delete something
    start_from(seed)  # draws are then those of a deep copy that the parent reads
    if worker_init_fn is not None:
        worker_init_fn(worker_id)


def _copied(loader: DataLoader[Any]) -> tuple[Any, Any]:
    """Deep copies of dataset and collation, or the originals, with a warning, if they cannot be copied."""
    dataset: Any = loader.dataset
    parts = []
    while hasattr(dataset, "__dict__"):
        parts.append(vars(dataset))
        dataset = getattr(dataset, "dataset", None)
    # Read-only arrays, such as files mapped into memory, are shared.
    arrays = [part for part in pytree.tree_leaves(parts) if isinstance(part, np.ndarray)]
    both = loader.dataset, loader.collate_fn
    try:
        return copy.deepcopy(both, {id(array): array for array in arrays if not array.flags.writeable})
    except Exception as error:  # a user's class may raise anything
        warnings.warn(
            f"{type(loader.dataset).__name__} cannot be copied ({described(error)}): reading it may move its random"
            " generators, caches and open files, or use up a stream.",
            stacklevel=2,
        )
        return both


@contextmanager
def _explained(dataset: Any) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # a user's class may raise anything
        raise DatasetError(f"{type(dataset).__name__} cannot be read ({described(error)}).") from error


def described(error: Exception) -> str:
    """Type and text of an exception, in one line, without the traceback that torch adds to a worker's."""
    said = f"{type(error).__name__}: {error}"
    if "Original Traceback" in said:
        said = said.rstrip().splitlines()[-1]
    return textwrap.shorten(said, 300, placeholder=" [...]").rstrip(".: ")
