"""Format of a `Preparation`: a zip of plain arrays, without pickle, and a fingerprint of samples and settings.

A disk may break, and anyone can copy a fingerprint. So shapes and types are read before the arrays, and values are
checked before they are used.
"""

import io
import math
import zipfile
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from bu_torch.internal.printing import cleaned

_FINGERPRINT = "bu_torch_fingerprint"
_LONGEST_HEADER = 4096  # bytes; NumPy writes 128
_BLOCK_ELEMENTS = 2**22
_SUM_TOLERANCE = 0.01  # float32 rounds the votes of a large cluster
_SKILL_TOLERANCE = 1e-6
_SPACES = ("inputs", "patches", "tokens", "mixed", "metric", "custom", "module")
_WORDS = (np.dtype("<U5"), np.dtype("<U6"), np.dtype("<U7"))  # lengths of the names of spaces
_FLOATS, _INTEGER = (np.dtype(np.float32), np.dtype(np.float64)), (np.dtype(np.int64),)


class _Array(NamedTuple):
    """Demands on an array; `is_right` checks each of its entries or rows."""

    shape: tuple[int, ...]
    dtypes: tuple[np.dtype, ...]
    content: str
    is_right: Callable[[np.ndarray], np.ndarray]


Layout = Mapping[str, _Array]


class _DamageError(ValueError):
    pass


def write_arrays(file: BinaryIO, fingerprint: str, arrays: Mapping[str, np.ndarray]) -> None:
    """Write arrays and their fingerprint."""
    content: dict[str, Any] = {_FINGERPRINT: np.array(fingerprint), **arrays}
    np.savez(file, **content)


def read_arrays(
    source: AbstractContextManager[BinaryIO], name: str, fingerprint: str, expected: Layout
) -> dict[str, np.ndarray]:
    """Read the arrays of a file in no more memory than they need; `name` is for errors, which are `Signals.load`'s."""
    line = _Array((), (np.array(fingerprint).dtype,), "a fingerprint", lambda found: np.array(True))
    arrays: dict[str, np.ndarray] = {}
    try:
        with source as content, zipfile.ZipFile(content) as file:
            found = str(_read(file, _FINGERPRINT, line))
            if found == fingerprint:
                arrays = {one: _read(file, one, demands) for one, demands in expected.items()}
    except (FileNotFoundError, NotADirectoryError, PermissionError, MemoryError):
        raise
    except Exception as error:  # a damaged zip may raise anything
        said = error if isinstance(error, _DamageError) else type(error).__name__
        raise ValueError(
            f"{name} is not a file that `Signals.save` wrote, or it is damaged ({said}): remove it, or name another"
            " file."
        ) from error
    if not arrays:
        raise ValueError(
            f"{name} was made of other samples or settings, or by another version (fingerprint {cleaned(found[:12])},"
            f" expected {fingerprint[:12]}): remove it, or name another file."
        )
    return arrays


def layout(labels: np.ndarray, n_neighbors: int, n_draws: int) -> Layout:
    """Demands on each array by name, for samples with these labels, (N,)."""
    classes = np.unique(labels)
    n_samples, n_classes, n_perturbed = len(labels), len(classes), n_draws * len(labels)

    def are_pairs(found: np.ndarray) -> np.ndarray:
        return np.isin(found, classes).all(axis=1) & (found[:, 0] < found[:, 1])

    def is_skill(found: np.ndarray) -> np.ndarray:
        return np.isfinite(found) & (found <= 1 + _SKILL_TOLERANCE)

    def are_finite(found: np.ndarray) -> np.ndarray:
        return (found >= 0) & np.isfinite(found)

    def are_distances(found: np.ndarray) -> np.ndarray:
        return np.all(found >= 0, axis=1)

    distances, shares = "distances >= 0", "shares >= 0 with sum 1 in each row"
    clusters = f"different rows in [0, {n_samples}) for each sample, its own first"
    pairs = "two classes of the labels for each sample, the lower first"
    return {
        "space": _Array((), _WORDS, f"one of {', '.join(_SPACES)}", lambda found: np.isin(found, _SPACES)),
        "labels": _Array((n_samples,), _INTEGER, "the labels of the samples", partial(np.equal, labels)),
        "neighbors": _Array((n_samples, n_neighbors), _INTEGER, clusters, _are_clusters),
        "bayes_pairs": _Array((n_samples, 2), _INTEGER, pairs, are_pairs),
        "nearest_distance": _Array((n_samples,), _FLOATS, f"finite {distances}", are_finite),
        "left_out_distances": _Array((n_perturbed, n_classes), _FLOATS, distances, are_distances),
        "votes": _Array((n_samples, n_classes), _FLOATS[:1], shares, _are_shares),
        "probabilities": _Array((n_perturbed, n_classes), _FLOATS[:1], shares, _are_shares),
        "vote_skill": _Array((), _FLOATS[1:], "a finite number of at most 1", is_skill),
        "regression_skill": _Array((), _FLOATS[1:], "a finite number of at most 1", is_skill),
    }


def _read(file: zipfile.ZipFile, name: str, expected: _Array) -> np.ndarray:
    """Read an array of the file, its header first, because that may claim any size."""
    member = f"{name}.npy"
    if member not in file.namelist():
        raise _DamageError(f"`{name}` is missing")
    with file.open(member) as content:
        header = io.BytesIO(content.read(_LONGEST_HEADER))
    is_short = np.lib.format.read_magic(header) == (1, 0)
    read_header = np.lib.format.read_array_header_1_0 if is_short else np.lib.format.read_array_header_2_0
    shape, _, dtype = read_header(header)
    if shape != expected.shape or dtype not in expected.dtypes:
        wanted = " or ".join(map(str, expected.dtypes))
        raise _DamageError(f"`{name}` must be {wanted} of shape {expected.shape}, got {dtype} of shape {shape}")
    n_bytes, n_found = math.prod(shape) * dtype.itemsize, file.getinfo(member).file_size - header.tell()
    if n_found != n_bytes:
        raise _DamageError(f"`{name}` must hold {n_bytes} bytes, got {n_found}")
    with file.open(member) as content:  # opened again, because zipfile checks no sum after a seek
        array = np.lib.format.read_array(content, allow_pickle=False)
    is_right = expected.is_right(array)
    if not is_right.all():
        raise _DamageError(f"`{name}` must hold {expected.content}, got {(~is_right).sum()} of {is_right.size} wrong")
    return array


def _are_clusters(neighbors: np.ndarray) -> np.ndarray:
    """True if each row holds its own number first, and different ones of the others."""
    n_samples = len(neighbors)
    is_right = neighbors[:, 0] == np.arange(n_samples)
    step = max(1, _BLOCK_ELEMENTS // neighbors.shape[1])
    for start in range(0, n_samples, step):
        block = slice(start, start + step)
        members = np.sort(neighbors[block], axis=1)
        is_right[block] &= (members[:, 0] >= 0) & (members[:, -1] < n_samples)
        is_right[block] &= (members[:, 1:] != members[:, :-1]).all(axis=1)
    return is_right


def _are_shares(found: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore", invalid="ignore"):
        total = found.sum(axis=1)
    return (found >= 0).all(axis=1) & (np.abs(total - 1) <= _SUM_TOLERANCE)
