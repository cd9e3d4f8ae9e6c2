"""Batches of a dataset, read where nothing of the user's moves: in a worker process, or from a deep copy."""

import copy
import io
import multiprocessing
import os
import pickle
import random
import re
import stat
import textwrap
import warnings
import weakref
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate
from torch.utils.data._utils.collate import collate, default_collate_fn_map

from bu_torch.internal.inputs import scikit_learn_seed
from bu_torch.samples.samples import UnreadableError

_PATIENCE = 60  # seconds for a batch: a dataset with threads or locks may wait forever in a forked process
_FRAMES = re.compile(r'^  (?:File "|\[Previous line).*\n(?:    .*\n)*', re.MULTILINE)  # of a traceback


class DatasetError(UnreadableError):
    """A dataset, or the function that collates its samples, has raised."""


def from_worker(loader: DataLoader[Any], order: dict[str, Any], seed: int) -> Generator[Any, None, None]:
    """Yield batches of a loader's dataset in an order of our own, as its own single worker would read them.

    `order` is what `DataLoader` takes. The worker ends with the iterator. Close it, and it ends at once.
    """
    has_workers = loader.num_workers > 0
    # The default context itself would be fixed by its first use, and a script could no longer choose another.
    context = (loader.multiprocessing_context if has_workers else None) or multiprocessing.get_context(_start_method())
    files = _open_files() if context.get_start_method() == "fork" else {}
    options: dict[str, Any] = {
        "collate_fn": partial(_pickled, loader.collate_fn),
        "worker_init_fn": partial(_begin, loader.worker_init_fn, seed, files),
        "generator": torch.Generator(),
        "num_workers": 1,
        "prefetch_factor": 1,
        "multiprocessing_context": context,
        "timeout": 0 if has_workers else _PATIENCE,
    }
    return _batches(loader.dataset, order | options, pickle.loads)


def may_start_worker(loader: DataLoader[Any]) -> bool:
    """Tell if a worker can read: not in a daemonic process, and not where it would need a guarded main module."""
    return not multiprocessing.current_process().daemon and (loader.num_workers > 0 or _start_method() == "fork")


def _start_method() -> str:
    return multiprocessing.get_start_method(allow_none=True) or multiprocessing.get_all_start_methods()[0]


def from_here(loader: DataLoader[Any], order: dict[str, Any]) -> Generator[Any, None, None]:
    """Yield the same batches, read in this process from the loader's own dataset."""
    return _batches(loader.dataset, order | {"collate_fn": loader.collate_fn, "generator": torch.Generator()})


def from_copy(loader: DataLoader[Any], order: dict[str, Any], failure: str) -> Generator[Any, None, None]:
    """Yield the same batches, read in this process from a deep copy, or from the original if it cannot be copied.

    A warning says so, after `failure`, what a worker failed of.
    """
    dataset = loader.dataset
    # Arrays that nobody can write to, as files mapped into memory, are shared.
    memo: dict[int, Any] = {id(array): array for array in _read_only(dataset)}
    try:
        dataset, collate_fn = copy.deepcopy((dataset, loader.collate_fn), memo)
        if any(hasattr(type(part), "__del__") for part in memo.values()):  # which may close what both hold
            weakref.finalize(loader.dataset, id, dataset).atexit = False  # keeps the copy as long as the dataset
    except Exception as error:  # a user's class may raise anything
        name = type(dataset).__name__
        if isinstance(dataset, IterableDataset):
            first: object = iter(dataset)
            if first is dataset or first is iter(dataset):
                raise UnreadableError(
                    f"{name} gives the same iterator each time: reading it here would use up its samples."
                ) from error
        warnings.warn(
            f"{failure}{name} cannot be copied ({_described(error)}): reading it may move its random generators, caches"
            " and open files.",
            stacklevel=2,
        )
        return from_here(loader, order)
    return _batches(dataset, order | {"collate_fn": collate_fn, "generator": torch.Generator()})


def _read_only(dataset: Any) -> Iterator[Any]:
    for part in pytree.tree_leaves(getattr(dataset, "__dict__", {})):
        if isinstance(part, Dataset):
            yield from _read_only(part)
        elif isinstance(part, np.ndarray) and not part.flags.writeable:
            yield part


def _batches(
    dataset: Dataset[Any], options: dict[str, Any], load: Callable[[Any], Any] = lambda batch: batch
) -> Generator[Any, None, None]:
    iterator = None
    try:
        iterator = iter(DataLoader(dataset, **options))
        for batch in iterator:
            yield load(batch)
    except Exception as error:  # a user's class may raise anything
        place = "a worker process" if "num_workers" in options else "this process"
        raise DatasetError(f"{type(dataset).__name__} cannot be read in {place}: {_described(error)}.") from error
    finally:
        if "num_workers" in options and iterator is not None:  # at once, also if an error keeps the iterator alive
            iterator._shutdown_workers()  # type: ignore[attr-defined]


def _described(error: Exception) -> str:
    """Type and text of an exception, in a line: of a worker's, whose traceback torch makes the text, the original's."""
    said = f"{type(error).__name__}: {error}"
    if "Original Traceback" in said:
        said = _FRAMES.split(said)[-1]
    return textwrap.shorten(said, 300, placeholder=" ...").rstrip(".: ")


def _pickled(collate_fn: Callable[[Any], Any], samples: Any) -> bytes:
    """A batch as bytes, which pass through a pipe.

    Tensors would lie in shared memory, of which containers have little, and would keep a file open each. What cannot be
    pickled raises here; in torch's queue it would leave the other process waiting.
    """
    if collate_fn is default_collate:  # which in a worker stacks in shared memory
        collate_fn = partial(collate, collate_fn_map={**default_collate_fn_map, Tensor: _stacked})
    stream = io.BytesIO()
    _Pickler(stream, pickle.HIGHEST_PROTOCOL).dump(collate_fn(samples))
    return stream.getvalue()


def _stacked(tensors: list[Tensor], *, collate_fn_map: Any) -> Tensor:
    return torch.stack(tensors)


class _Pickler(pickle.Pickler):
    """Writes the elements of a tensor alone, not the whole storage that it is a view of, nor its history."""

    def reducer_override(self, value: Any) -> Any:
        if type(value) is not Tensor or value.layout != torch.strided or not value.numel():
            return NotImplemented
        elements = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        buffer: Any = elements.numpy()
        return _as_tensor, (pickle.PickleBuffer(buffer), value.dtype, value.shape)


def _as_tensor(elements: bytearray, dtype: torch.dtype, shape: torch.Size) -> Tensor:
    return torch.frombuffer(elements, dtype=torch.uint8).view(dtype).reshape(shape)


def _open_files() -> dict[int, os.stat_result]:
    """Files, pipes and sockets that are open in this process, without its standard ones."""
    found = {}
    for number in [int(path.name) for path in Path("/dev/fd").iterdir()]:
        with suppress(OSError):  # the listing itself, which is closed
            found[number] = os.fstat(number)
    return {number: status for number, status in found.items() if number > 2}


def start_from(seed: int) -> None:
    """Let global random states start from `seed`."""
    random.seed(seed)
    np.random.seed(scikit_learn_seed(seed))  # noqa: NPY002  (which datasets use)
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():  # otherwise a seed would wait for the first use, and stay
        torch.cuda.manual_seed_all(seed)


def _begin(
    worker_init_fn: Callable[[int], None] | None, seed: int, files: dict[int, os.stat_result], worker_id: int
) -> None:
    """Part a worker from the files of the process that it was forked from; then begin as the loader's workers do.

    A forked process shares the positions in them, so that a read here would move those of training. Pipes and sockets
    cannot be opened anew: they are cut off, or answers to training would be read here.
    """
    for number, status in files.items():
        with suppress(OSError):
            if os.path.samestat(os.fstat(number), status) and (own := _opened_anew(number, status.st_mode)):
                os.dup2(own, number, inheritable=False)
                os.close(own)
    start_from(seed)  # draws are then those of a copy that is read in this process
    if worker_init_fn is not None:
        worker_init_fn(worker_id)


def _opened_anew(number: int, mode: int) -> int | None:
    import fcntl  # which Windows lacks, where nothing is forked

    if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
        return os.open(os.devnull, os.O_RDWR)
    if not stat.S_ISREG(mode) or fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE != os.O_RDONLY:
        return None
    own = os.open(f"/dev/fd/{number}", os.O_RDONLY)
    os.lseek(own, os.lseek(number, 0, os.SEEK_CUR), os.SEEK_SET)
    return own
