"""Batches of a dataset, read without changing the user's objects, and taken apart into inputs and labels."""

import copy
import gc
import itertools
import multiprocessing
import sys
import textwrap
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils import _pytree as pytree
from torch.utils.data import DataLoader

from bu_torch.internal.inputs import as_tensor
from bu_torch.internal.network import as_inputs, is_mask, names_taken, takes
from bu_torch.internal.output import outline, progress
from bu_torch.internal.replica import seeded, start_from
from bu_torch.samples.samples import UnreadableError

InputKey = str | int | Sequence[str | int] | None

_LABELS = ("labels", "label", "targets", "target", "y")
_PADDED = " Pad all batches to one length; ids that come with a mask of 0 and 1 may be padded batch by batch."
_PATIENCE = 60  # seconds for a batch: a dataset with threads or locks may wait forever in a forked process
_Result = TypeVar("_Result")


class DatasetError(UnreadableError):
    """A dataset, or the function that collates its samples, has raised."""


def with_batches(
    loader: DataLoader[Any], sampling: dict[str, Any], seed: int, use: Callable[[Iterator[Any]], _Result]
) -> _Result:
    """Give `use` a loader's batches, read in a worker, by another `sampling`: `DataLoader`'s sampler and batch size.

    A copy is read where no worker may start, or where one fails and training has none.
    """
    method = multiprocessing.get_start_method(allow_none=True) or multiprocessing.get_all_start_methods()[0]
    # Other methods than "fork" need a main module that is guarded, and a daemonic process may start no other.
    if not multiprocessing.current_process().daemon and (loader.num_workers or method == "fork"):
        in_worker = {
            "worker_init_fn": partial(_init_worker, loader.worker_init_fn, seed),
            "num_workers": 1,
            # The default context itself would be fixed by its first use, and a script could no longer choose another.
            "multiprocessing_context": loader.multiprocessing_context or multiprocessing.get_context(method),
            "timeout": 0 if loader.num_workers else _PATIENCE,
        }
        try:
            with closing(_batches(loader.dataset, collate_fn=loader.collate_fn, **sampling, **in_worker)) as batches:
                return use(batches)
        except DatasetError:  # tensors on a GPU, connections, locks and threads do not work in a forked process
            if loader.num_workers:
                raise
    with seeded(seed):
        dataset, collate_fn = _copied(loader)
        with closing(_batches(dataset, collate_fn=collate_fn, **sampling)) as batches:
            return use(batches)


def _batches(dataset: Any, **options: Any) -> Generator[Any]:
    """Batches of a `DataLoader` with these options, whose worker ends with them."""
    iterator: Any = None
    try:
        with torch.device("cpu"):  # another default device refuses the generator, and a forked worker
            iterator = iter(DataLoader(dataset, generator=torch.Generator(), **options))
        yield from iterator
    except Exception as error:  # a user's class may raise anything
        raise DatasetError(f"{type(dataset).__name__} cannot be read ({described(error)}).") from error
    finally:
        if hasattr(iterator, "_shutdown_workers"):  # at once, also if an error keeps the iterator alive
            iterator._shutdown_workers()


def _init_worker(worker_init_fn: Callable[[int], None] | None, seed: int, worker_id: int) -> None:
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


def described(error: Exception) -> str:
    """Type and text of an exception, in one line, without the traceback that torch adds to a worker's."""
    said = f"{type(error).__name__}: {error}"
    if "Original Traceback" in said:
        said = said.rstrip().splitlines()[-1]
    return textwrap.shorten(said, 300, placeholder=" [...]").rstrip(".: ")


class Keys(NamedTuple):
    """Keys or places of inputs and labels in a batch; without them, inputs are what the `network` has arguments for."""

    inputs: InputKey = None
    labels: str | int | None = None
    network: Any = None


def holds_arrays(dataset: Any) -> bool:
    """Whether a dict or a tuple holds all inputs and all labels as arrays; else it holds single samples."""
    if not isinstance(dataset, tuple | list):
        return isinstance(dataset, Mapping)
    is_pair = len(dataset) == 2 and hasattr(dataset[0], "__len__")
    return is_pair or (len(dataset) > 0 and all(isinstance(part, Tensor | np.ndarray) for part in dataset))


def concatenate(
    batches: Iterable[Any],
    keys: Keys,
    transform: Callable[[Any], Any] | None,
    limit: int | None = None,
    n_expected: int | None = None,
) -> tuple[Any, Tensor]:
    """Inputs and labels of all batches, up to `limit` samples; a bar shows how many of `n_expected` are read."""
    n_left, n_skipped = sys.maxsize if limit is None else limit, 0
    read: list[tuple[Any, Tensor]] = []
    with progress("bu-torch reads", total=n_expected, unit=" samples") as move_on:
        for batch in batches:
            if batch is None:  # a training step may skip it
                n_skipped += 1
                continue
            both = split_batch(batch if transform is None else transform(batch), keys)
            if not len(both[1]):
                continue
            if transform is not None:  # it has moved them to the network's device
                both = pytree.tree_map(Tensor.cpu, both)
            # Tensors of a worker lie in shared memory, of which there may be little, and hold an open file each.
            read.append(pytree.tree_map(lambda tensor, most=n_left: tensor[:most].detach().clone(), both))
            n_left -= len(read[-1][1])
            move_on(len(read[-1][1]))
            if not n_left:
                break
    if n_skipped:
        warnings.warn(f"{n_skipped} batches that are None are left out.", stacklevel=2)
    if not read:
        raise UnreadableError("there must be at least one sample, got none.")
    return _joined(read)


def _joined(read: list[tuple[Any, Tensor]]) -> tuple[Any, Tensor]:
    spec = pytree.tree_structure(read[0])
    if any(pytree.tree_structure(both) != spec for both in read):
        raise UnreadableError("all batches must have the same inputs, got others in some.")
    *columns, labels = map(list, zip(*map(pytree.tree_leaves, read), strict=True))
    read.clear()
    joined = [*of_one_length(columns), labels]
    for tensors in joined:
        shapes = sorted({tuple(tensor.shape[1:]) for tensor in tensors})
        if len(shapes) > 1:
            raise UnreadableError(f"all samples must have one shape, got {', '.join(map(str, shapes[:3]))}.{_PADDED}")
    whole: tuple[Any, Tensor] = pytree.tree_unflatten(map(torch.cat, joined), spec)
    return whole


def of_one_length(columns: list[list[Tensor]]) -> list[list[Tensor]]:
    """Pad rows to the longest, if each batch is padded to its own length and a mask marks the padding.

    A column holds the tensors of one input from all batches, or the padded one of all. They are padded on the same side
    as in the batches, with the value that these have where the mask is 0.
    """
    is_ragged = any(tensor.shape[1:] != column[0].shape[1:] for column in columns for tensor in column)
    masks = next((column for column in columns if all(one.ndim == 2 and is_mask(one) for one in column)), None)
    if not is_ragged or masks is None or len(columns) == 1:
        return columns
    side = "left" if any(bool((mask[:, 0] == 0).any()) for mask in masks) else "right"

    def lengthened(column: list[Tensor]) -> list[Tensor]:
        if [row.shape for row in column] != [mask.shape for mask in masks]:
            return column
        hidden = torch.cat([row[mask == 0] for row, mask in zip(column, masks, strict=True)])
        value = float(hidden[0]) if len(hidden) else 0.0
        rows = list(itertools.chain(*column))
        return [pad_sequence(rows, batch_first=True, padding_value=value, padding_side=side)]

    return [lengthened(column) for column in columns]


def split_batch(batch: Any, keys: Keys) -> tuple[Any, Tensor]:
    """Inputs and labels of a batch, dense tensors of one length; raises `UnreadableError` and `TypeError`."""
    inputs, labels = _entries(batch, keys)
    inputs, labels = as_inputs(inputs, "inputs"), as_tensor(labels, "labels")
    shapes = [tuple(tensor.shape) for tensor in (*pytree.tree_leaves(inputs), labels)]
    if not all(shapes) or len({shape[0] for shape in shapes}) > 1:
        raise UnreadableError(f"inputs and labels must be equally long, got {', '.join(map(str, shapes))}.")
    return inputs, labels


def _entries(batch: Any, keys: Keys) -> tuple[Any, Any]:
    """The entries of a batch that are inputs and labels."""
    if not isinstance(batch, Mapping | tuple | list):
        raise UnreadableError(f"batches must be pairs (inputs, labels), tuples or dicts, got {type(batch).__name__}.")
    input_key, label_key = _guessed_keys(batch, keys) if isinstance(batch, Mapping) else _guessed_places(batch, keys)
    has = outline(batch)
    if input_key is None or label_key is None:
        raise UnreadableError(
            f"a batch must be a pair (inputs, labels), got a {has}: name inputs and labels by both `input_key=`, which"
            " may be a list, and `label_key=`, keys or places."
        )
    is_one = isinstance(input_key, str) or not isinstance(input_key, Sequence)
    input_keys: Any = [input_key] if is_one else input_key
    places = [*input_keys, label_key]
    if not isinstance(batch, Mapping):  # a command line gives places as strings
        places = [int(place) if str(place).isdecimal() else place for place in places]
    try:
        *inputs, labels = (batch[place] for place in places)
    except (KeyError, IndexError, TypeError) as error:
        raise UnreadableError(
            f"`input_key={input_key!r}` and `label_key={label_key!r}` must be in a batch, which is a {has}."
        ) from error
    if is_one:
        return inputs[0], labels
    return dict(zip(input_keys, inputs, strict=True)) if isinstance(batch, Mapping) else tuple(inputs), labels


def _guessed_keys(batch: Mapping[Any, Any], keys: Keys) -> tuple[InputKey, str | int | None]:
    """Keys of inputs and labels; missing ones are guessed from names and what the network takes, if it is known."""
    input_key, label_key, network = keys
    if network is None:
        return input_key, label_key
    if label_key is None:
        guesses = [name for name in _LABELS if name in batch]
        label_key = guesses[0] if len(guesses) == 1 else None
    if input_key is None and label_key is not None:
        others = [key for key, value in batch.items() if isinstance(value, Tensor) and key != label_key]
        input_key = names_taken(network, others) or (others[0] if len(others) == 1 else None)
        if input_key is None and others and takes(network, batch):  # `forward` takes the dict itself
            input_key = others
    return input_key, label_key


def _guessed_places(batch: Sequence[Any], keys: Keys) -> tuple[InputKey, str | int | None]:
    """Places that are named, of a pair, or of what the network takes and then the only entry that may be labels."""
    input_key, label_key, network = keys
    if input_key is not None or label_key is not None:  # they go together
        return input_key, label_key
    if len(batch) == 2:
        return 0, 1
    if network is None or len(batch) < 2 or not all(isinstance(value, Tensor) for value in batch):
        return None, None
    may_be_labels = [value.ndim == 1 and not value.is_floating_point() for value in batch]
    is_clear = not any(may_be_labels[:-1]) or not takes(network, *batch[:-2])
    if may_be_labels[-1] and is_clear and takes(network, *batch[:-1]):
        return range(len(batch) - 1), -1
    return None, None
