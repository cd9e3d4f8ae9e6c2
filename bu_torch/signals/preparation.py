"""Keeping what `Signals.fit` computes: in a file or a state, plain arrays and a fingerprint that says of what.

No inputs are among them: perturbed inputs are drawn again from samples and seed, or were read with them.
"""

import hashlib
import io
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import torch
from torch import Tensor

from bu_torch.estimators.boundary import BoundaryUncertainty
from bu_torch.estimators.label_probabilities import LabelRegression
from bu_torch.internal.files import regular_file
from bu_torch.internal.printing import cleaned, progress
from bu_torch.perturbation.draws import kind_of
from bu_torch.perturbation.moves import MixedMove, Readings
from bu_torch.samples.samples import copies
from bu_torch.space.features import MixedFeatures

if TYPE_CHECKING:
    from bu_torch.signals.measuring import Signals

_FORMAT = 16  # raise it if the arrays change, or the way in which they are computed
_PROBE = 64
_LEAST_SKILL = 0.01  # votes on 400 random labels or more seldom have a higher skill
_MOST_COPIES = 0.5
_BAR = "{desc}: {percentage:3.0f}%|{bar}| {elapsed}<{remaining}"

_FINGERPRINT = "bu_torch_fingerprint"
_OF_BOUNDARY = ("labels", "neighbors", "nearest_distance")
_OF_CLASSES = ("left_out_distances", "votes", "probabilities")
_OF_PAPERS = "bayes_pairs"
_SKILLS = ("vote_skill", "regression_skill", "sharpness")


def fit_or_load(
    signals: "Signals", inputs: Tensor, labels: Tensor, cache: str | Path | None, sample_weight: Tensor | None = None
) -> tuple[Path | None, Path | None]:
    """Load what an earlier run has kept for the same samples and settings, or fit and keep the result.

    Samples are those of `Signals.fit`, whose errors are raised. `cache` is a file (npz), which is refused if it is
    damaged or for other samples or settings (ValueError); or a folder, in which samples and settings give the file its
    name. If it cannot be written, a warning says so. Returns the file that was read, and the file that was written, or
    None.
    """
    inputs, file = signals.boundary.as_inputs(inputs), None if cache is None else Path(cache)
    try:
        with progress("bu-torch prepares", total=n_comparisons(len(inputs), signals.boundary.n_draws), bar_format=_BAR):
            # A name without a suffix is a folder to be made.
            if file is not None and (file.is_dir() or not (file.suffix or file.exists())):
                file = file / f"{signals.fingerprint_of(inputs, labels, sample_weight)}.npz"
            try:
                if file is not None:
                    signals.load(file, inputs, labels, sample_weight)
                    return file, None
            except (FileNotFoundError, NotADirectoryError):
                pass
            except OSError as error:
                line = f"The cache {file} cannot be read: {error.strerror}. Its contents are computed anew."
                warnings.warn(f"{line} To turn the cache off: `cache=None`.", stacklevel=2)
                file = None
            signals.fit(inputs, labels, sample_weight)
    except torch.OutOfMemoryError:  # training may still fit on the device
        if inputs.is_cpu:
            raise
        return fit_or_load(signals, inputs.cpu(), labels, cache, sample_weight)
    try:
        if file is not None:
            signals.save(file)
    except OSError as error:
        warnings.warn(f"The cache {file} cannot be written: {error}. It is not kept.", stacklevel=2)
        file = None
    return None, file


def write_arrays(
    file: BinaryIO,
    boundary: BoundaryUncertainty,
    fingerprint: str,
    left_out_distances: Tensor,
    bayes_pairs: Tensor | None,
) -> None:
    """Write what `Signals.fit` has computed, for `read_arrays`."""
    tensors = {name: getattr(boundary, name) for name in _OF_BOUNDARY}
    tensors |= {"votes": boundary.votes_of_present, "probabilities": boundary.probabilities_of_present}
    tensors |= {"left_out_distances": left_out_distances}
    tensors |= {} if bayes_pairs is None else {_OF_PAPERS: bayes_pairs}
    arrays: dict[str, Any] = {name: tensor.cpu().numpy() for name, tensor in tensors.items()}
    arrays |= {name: np.array(getattr(boundary, name)) for name in _SKILLS}
    arrays |= {_FINGERPRINT: np.array(fingerprint), "space": np.array(boundary.space_name_)}
    np.savez(file, **arrays)


def read_arrays(
    path: str | Path | Tensor, fingerprint: str, device: torch.device
) -> tuple[dict[str, Tensor], list[float], str]:
    """Read tensors, skills and the name of the space from a file, or bytes of one; errors as of `Signals.load`."""
    is_state = isinstance(path, Tensor)
    source = io.BytesIO(path.numpy().tobytes()) if isinstance(path, Tensor) else regular_file(path)
    name = "the state" if is_state else f"`{path}`"
    arrays: dict[str, np.ndarray] = {}
    try:
        with source as content, np.load(content, allow_pickle=False) as file:
            if any(member.compress_type for member in file.zip.infolist()):  # a small file may inflate to a huge one
                raise ValueError("Compressed arrays are not read.")
            found = str(file[_FINGERPRINT])
            if found == fingerprint:
                wanted = ("space", *_OF_BOUNDARY, *_OF_CLASSES, *_SKILLS, *({_OF_PAPERS} & {*file.files}))
                arrays = {one: file[one] for one in wanted}
    except (FileNotFoundError, NotADirectoryError, PermissionError, MemoryError):
        raise
    except Exception as error:  # a damaged zip may raise anything
        raise ValueError(
            f"{name} is not a file that `Signals.save` wrote, or it is damaged ({type(error).__name__}): remove it, or"
            " name another file."
        ) from error
    if not arrays:
        raise ValueError(
            f"{name} was made of other samples or settings, or by another version (fingerprint {cleaned(found[:12])},"
            f" expected {fingerprint[:12]}): remove it, or name another file."
        )
    space, skills = str(arrays.pop("space")), [float(arrays.pop(name)) for name in _SKILLS]
    return {name: torch.from_numpy(array).to(device) for name, array in arrays.items()}, skills, space


def fingerprint_of(boundary: BoundaryUncertainty, inputs: Tensor, labels: Tensor, weights: Tensor | None) -> str:
    """Digest of checked samples and of the settings of `boundary`, which need not be fitted."""
    settings = (boundary.n_neighbors, boundary.n_draws, boundary.seed)
    kind = kind_of(boundary.perturbation, inputs)
    words = [repr((_FORMAT, *settings, boundary.ends_with_samples))]
    options = (boundary.feature_extractor, boundary.perturbation)
    words += [repr(option) for option in options if isinstance(option, MixedFeatures | MixedMove)]
    words += [boundary.feature_extractor] if isinstance(boundary.feature_extractor, str) else []
    digest = hashlib.sha256("".join([*words, kind if kind in ("neighbors", "tokens", "reading") else ""]).encode())
    # An extractor and a perturbation are identified by their results on a few samples.
    few = inputs[:_PROBE]
    is_probed = callable(boundary.feature_extractor) and not boundary.may_use_module(inputs)
    probe = [boundary.space.extract(few)] if is_probed else []
    if callable(boundary.perturbation):
        generator = torch.Generator().manual_seed(boundary.seed)
        probe.append(boundary.perturbation(few.clone(), torch.ones(len(few), device=few.device), generator))
    if isinstance(boundary.perturbation, Readings):  # they cannot be drawn again
        probe.append(boundary.perturbation.inputs[: boundary.n_draws])
    for tensor in (inputs, labels, *probe, *([] if weights is None else [weights])):
        digest.update(repr((tuple(tensor.shape), str(tensor.dtype))).encode())
        digest.update(tensor.cpu().contiguous().numpy().data.cast("B"))
    return digest.hexdigest()


def n_comparisons(n_samples: int, n_draws: int) -> int:
    """Length of the progress bar of `Signals.fit`: the pairs of N samples that it compares."""
    regression = LabelRegression()
    n_read = min(n_samples, regression.max_samples) + n_draws * n_samples
    return (1 + n_draws) * n_samples**2 + n_read * min(n_samples, regression.n_landmarks)


def warn_of(boundary: BoundaryUncertainty, inputs: Tensor) -> None:
    """Warn if most samples have an exact copy with the same label, or if neighbours predict labels like chance."""
    labels = boundary.labels
    is_copied = torch.zeros_like(labels, dtype=torch.bool)
    for rows, others in copies(inputs, boundary.neighbors):
        is_copied[rows] |= labels[others] == labels[rows]
    share = float(is_copied.double().mean())
    if share > _MOST_COPIES:
        warnings.warn(
            f"{share:.0%} of the samples have an exact copy with the same label among the others. Copies reveal"
            " each other's label, so a network that memorises labels looks better than it is. If a dataset repeats"
            " its samples, pass each once: to the callbacks, as `reference`.",
            stacklevel=4,
        )
    nearby, regression = boundary.vote_skill, boundary.regression_skill
    if nearby < _LEAST_SKILL <= regression:
        warnings.warn(
            "The nearest neighbours predict a sample's label no better than chance (Brier skill score"
            f" {nearby:.2f}), but a regression on all samples does ({regression:.2f}): rely on expected"
            " accuracy, not on boundary uncertainty, trust score and agreement with neighbours.",
            stacklevel=4,
        )
    elif nearby < _LEAST_SKILL:
        warnings.warn(
            "The other samples predict a sample's label no better than chance (Brier skill score"
            f" {nearby:.2f} by the nearest, {regression:.2f} by regression on all): either"
            " nearly all labels are noise, or distances between inputs mean nothing. The scores then say little"
            " about a classifier. A `feature_extractor` may give a space in which distances mean something.",
            stacklevel=4,
        )
