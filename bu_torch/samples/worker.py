"""Batches of a dataset, read without changing the user's objects: in a worker process, or from a deep copy."""

import copy
import gc
import io
import itertools
import multiprocessing
import os
import pickle
import re
import stat
import textwrap
import warnings
import weakref
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate
from torch.utils.data._utils.collate import collate, default_collate_fn_map

from bu_torch.internal.global_state import start_from
from bu_torch.samples.samples import UnreadableError

_OPEN = Path("/dev/fd")  # files that are open in this process, by their numbers
_PATIENCE = 60  # seconds for a batch: a dataset with threads or locks may wait forever in a forked process
_FRAMES = re.compile(r'^  (?:File "|\[Previous line).*\n(?:    .*\n)*', re.MULTILINE)  # a frame in a traceback

Batches = Generator[Any, None, None]


class DatasetError(UnreadableError):
    """A dataset, or the function that collates its samples, has raised."""


def may_start_worker(loader: DataLoader[Any]) -> bool:
    """True if a worker can read: not in a daemonic process, and not where it would need a guarded main module."""
    return not multiprocessing.current_process().daemon and (loader.num_workers > 0 or _start_method() == "fork")


def _start_method() -> str:
    return multiprocessing.get_start_method(allow_none=True) or multiprocessing.get_all_start_methods()[0]


def from_worker(loader: DataLoader[Any], order: dict[str, Any], seed: int) -> Batches:
    """Yield batches of a loader's dataset in an order of our own, as its own single worker would read them.

    `order` is what `DataLoader` takes. The worker ends with the iterator; if that is closed, at once.
    """
    has_workers = loader.num_workers > 0
    # The default context itself would be fixed by its first use, and a script could no longer choose another.
    context = (loader.multiprocessing_context if has_workers else None) or multiprocessing.get_context(_start_method())
    is_forked = context.get_start_method() == "fork" and _OPEN.is_dir()
    with _explained(loader.dataset, "a worker process"), ExitStack() as stack:
        memory = [os.memfd_create("batch") for _ in range(2)] if is_forked and hasattr(os, "memfd_create") else []
        for number in memory:
            stack.callback(os.close, number)
        places = itertools.cycle(_OPEN / str(number) for number in memory) if memory else None
        own = DataLoader(
            loader.dataset,
            **order,
            collate_fn=partial(_saved, loader.collate_fn, places),
            worker_init_fn=partial(_begin, loader.worker_init_fn, seed, _open_files() if is_forked else {}),
            generator=torch.Generator(),
            num_workers=1,
            prefetch_factor=1,  # one of two places is written while the other is read
            multiprocessing_context=context,
            timeout=0 if has_workers else _PATIENCE,
        )
        iterator = _iterator(own)
        stack.callback(iterator._shutdown_workers)  # at once, also if an error keeps the iterator alive
        yield from map(_loaded, iterator)


def from_here(dataset: Dataset[Any], collate_fn: Callable[[Any], Any], order: dict[str, Any]) -> Batches:
    """Yield the same batches, read in this process."""
    with _explained(dataset, "this process"):
        yield from _iterator(DataLoader(dataset, **order, collate_fn=collate_fn, generator=torch.Generator()))


def _iterator(loader: DataLoader[Any]) -> Any:
    with torch.device("cpu"):  # another default device refuses the loader's generator, and a forked worker
        return iter(loader)


@contextmanager
def _explained(dataset: Dataset[Any], place: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # a user's class may raise anything
        raise DatasetError(f"{type(dataset).__name__} cannot be read in {place}: {described(error)}.") from error


def described(error: Exception) -> str:
    """Type and text of an exception, in one line, without the traceback that torch adds to a worker's."""
    said = f"{type(error).__name__}: {error}"
    if "Original Traceback" in said:
        said = _FRAMES.split(said)[-1]
    return textwrap.shorten(said, 300, placeholder=" [...]").rstrip(".: ")


def from_copy(loader: DataLoader[Any], order: dict[str, Any], failure: str) -> Batches:
    """Yield the same batches, read in this process from a deep copy, or from the original if it cannot be copied.

    If the original is read, a warning says so, after `failure`, the reason why a worker failed.
    """
    dataset = loader.dataset
    # Read-only arrays, such as files mapped into memory, are shared.
    memo: dict[int, Any] = {id(array): array for array in _read_only(dataset, set())}
    try:
        own, collate_fn = copy.deepcopy((dataset, loader.collate_fn), memo)
        for original in memo.get(id(memo), []):
            if hasattr(type(original), "__del__"):  # it may close what both hold: the copy lives as long
                weakref.finalize(original, id, memo[id(original)]).atexit = False
    except Exception as error:  # a user's class may raise anything
        name = type(dataset).__name__
        if isinstance(dataset, IterableDataset):
            first: object = iter(dataset)
            if first is dataset or first is iter(dataset):
                raise UnreadableError(
                    f"{name} gives the same iterator each time: reading it here would use up its samples."
                ) from error
        warnings.warn(
            f"{failure}{name} cannot be copied ({described(error)}): reading it may move its random generators, caches"
            " and open files.",
            stacklevel=2,
        )
        own, collate_fn = dataset, loader.collate_fn
    return from_here(own, collate_fn, order)


def _read_only(dataset: Any, seen: set[int]) -> Iterator[Any]:
    seen.add(id(dataset))  # datasets may refer to one another
    for part in pytree.tree_leaves(getattr(dataset, "__dict__", {})):
        if isinstance(part, Dataset):
            yield from () if id(part) in seen else _read_only(part, seen)
        elif isinstance(part, np.ndarray) and not part.flags.writeable:
            yield part


def _saved(collate_fn: Callable[[Any], Any], places: Iterator[Path] | None, samples: Any) -> Path | bytes:
    """Save a batch in a file in memory and return its path; without such a file, return the bytes.

    torch's queue would take shared memory, of which containers have little, and a file for each tensor, and would leave
    the other process waiting if a batch cannot be pickled.
    """
    if collate_fn is default_collate:  # it stacks in shared memory in a worker
        stacked: dict[Any, Any] = {Tensor: lambda tensors, **_: torch.stack(tensors)}
        collate_fn = partial(collate, collate_fn_map={**default_collate_fn_map, **stacked})
    batch = collate_fn(samples)
    if places is None:
        _Pickler(stream := io.BytesIO(), pickle.HIGHEST_PROTOCOL).dump(batch)
        return stream.getvalue()
    with (place := next(places)).open("r+b") as file:
        _Pickler(file, pickle.HIGHEST_PROTOCOL).dump(batch)
    return place


def _loaded(saved: Path | bytes) -> Any:
    with io.BytesIO(saved) if isinstance(saved, bytes) else saved.open("rb") as stream:
        return pickle.load(stream)  # noqa: S301  (our own worker has written it)


class _Pickler(pickle.Pickler):
    """Writes only the elements of a tensor, not the storage that it is a view of, nor its history."""

    def reducer_override(self, value: Any) -> Any:
        if type(value) is not Tensor or value.layout != torch.strided or not value.numel():
            return NotImplemented
        elements = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        return _as_tensor, (pickle.PickleBuffer(elements.numpy().data), value.dtype, value.shape)


def _as_tensor(elements: bytearray, dtype: torch.dtype, shape: torch.Size) -> Tensor:
    return torch.frombuffer(elements, dtype=torch.uint8).view(dtype).reshape(shape)


def _open_files() -> dict[int, os.stat_result]:
    """Files, pipes and sockets that are open in this process, without its standard ones."""
    found = {}
    for path in list(_OPEN.iterdir()):
        with suppress(OSError):  # the listing itself, which is closed
            found[int(path.name)] = path.stat()
    return {number: status for number, status in found.items() if number > 2}


def _begin(
    worker_init_fn: Callable[[int], None] | None, seed: int, files: dict[int, os.stat_result], worker_id: int
) -> None:
    """Give a forked worker open files of its own; then begin as the loader's workers do.

    A forked process shares file positions, so a read in the worker would move those of training. Pipes and sockets
    cannot be opened anew: they are cut off, or the worker would read answers meant for training.
    """
    gc.freeze()  # never collect the parent's garbage: a finaliser may close or delete something
    for number, status in files.items():
        with suppress(OSError):  # it is closed by now; a pipe of the worker may have its number
            if os.path.samestat(os.fstat(number), status) and (own := _opened_anew(number, status.st_mode)):
                os.dup2(own, number, inheritable=False)
                os.close(own)
    start_from(seed)  # draws are then those of a deep copy that the parent reads
    if worker_init_fn is not None:
        worker_init_fn(worker_id)


def _opened_anew(number: int, mode: int) -> int | None:
    import fcntl  # Windows lacks it, and forks nothing

    if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
        return os.open(os.devnull, os.O_RDWR)
    if not stat.S_ISREG(mode) or fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE != os.O_RDONLY:
        return None
    own = os.open(_OPEN / str(number), os.O_RDONLY)
    os.lseek(own, os.lseek(number, 0, os.SEEK_CUR), os.SEEK_SET)
    return own
