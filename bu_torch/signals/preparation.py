"""Results that do not depend on the network in training: computed once, and kept in files and in states of runs."""

import hashlib
import io
import warnings
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, Self

import numpy as np
import torch
from torch import Tensor

from bu_torch.estimators.boundary import BoundaryUncertainty
from bu_torch.estimators.label_probabilities import LabelRegression
from bu_torch.estimators.trust import TrustScore
from bu_torch.internal.files import open_whole, regular_file
from bu_torch.internal.printing import cleaned
from bu_torch.perturbation.draws import kind_of
from bu_torch.perturbation.moves import MixedMove, Readings
from bu_torch.samples.samples import copies
from bu_torch.space.features import FeatureSpace, MixedFeatures

_FORMAT = 16  # raise it if the arrays change, or the way in which they are computed
_PROBE = 64
_LEAST_SKILL = 0.01  # votes on 400 random labels or more seldom have a higher skill
_MOST_COPIES = 0.5

_FINGERPRINT = "bu_torch_fingerprint"
_OF_BOUNDARY = ("labels", "neighbors", "nearest_distance")
_OF_CLASSES = ("left_out_distances", "votes", "probabilities")
_OF_PAPERS = "bayes_pairs"
_SKILLS = ("vote_skill", "regression_skill", "sharpness")


@dataclass(frozen=True, eq=False)
class Preparation:
    """Results for N samples, each perturbed D times, of C classes that have samples; `boundary` holds most of them.

    `save` and `packed` write one format, a zip of plain arrays and the fingerprint, which `load` checks. No inputs are
    among them: perturbed inputs are drawn again from samples and seed, or were read with them.
    """

    boundary: BoundaryUncertainty  # fitted: labels, neighbours, label probabilities
    fingerprint: str  # digest of samples and settings, 64 hexadecimal digits
    left_out_distances: Tensor  # (D * N, C + 1) to each class, without samples it is made from, and inf
    bayes_pairs: Tensor | None = None  # (N, 2) likely Bayes pairs, if a rule of the papers reads them

    @classmethod
    def make(
        cls,
        boundary: BoundaryUncertainty,
        inputs: Tensor,
        labels: Tensor,
        sample_weight: Tensor | None = None,
        known_neighbors: Any = None,
    ) -> Self:
        """Fit `boundary` to checked samples, and compute the rest; errors as in `BoundaryUncertainty.fit`."""
        points = boundary.fit_points(inputs, labels, sample_weight, known_neighbors)
        perturbed, features = boundary.perturbed_points()
        # Near a sample that it was made from, a perturbed one would be trusted for having that sample's label.
        made_of = boundary.perturbed.sources
        if made_of is None:
            made_of = torch.arange(len(points), device=points.device).repeat(boundary.n_draws)
        trust = TrustScore().fit(points, boundary.classes.columns(labels))
        left_out = trust.class_distances(perturbed, made_of[: len(perturbed)])
        boundary.estimate_probabilities(inputs, points, perturbed, features)
        pairs = None
        if boundary.ends_with_samples:
            from bu_torch.papers.proposal2 import likely_bayes_pairs

            pairs = likely_bayes_pairs(points, labels, boundary.seed)
        fingerprint = fingerprint_of(boundary, inputs, labels, boundary.weights)
        return cls(boundary, fingerprint, _with_absent_column(left_out), pairs)

    @classmethod
    def load(
        cls,
        source: str | Path | Tensor,
        boundary: BoundaryUncertainty,
        inputs: Tensor,
        labels: Tensor,
        weights: Tensor | None,
    ) -> Self:
        """Load what `save` or `packed` wrote, instead of `make`, and give `boundary` its part.

        Samples are checked, and `weights` include `boundary.class_weight`; otherwise as in `Signals.load`.
        """
        fingerprint = fingerprint_of(boundary, inputs, labels, weights)
        if isinstance(source, Tensor):
            arrays = _read(io.BytesIO(source.numpy().tobytes()), "the state", fingerprint)
        else:
            arrays = _read(regular_file(source), f"`{source}`", fingerprint)
        space, skills = str(arrays.pop("space")), [float(arrays.pop(name)) for name in _SKILLS]
        tensors = {name: torch.from_numpy(array).to(inputs.device) for name, array in arrays.items()}
        boundary.restore(tensors, skills, weights, inputs, space)
        return cls(boundary, fingerprint, _with_absent_column(tensors["left_out_distances"]), tensors.get(_OF_PAPERS))

    def save(self, path: str | Path) -> None:
        """Write a file, whole or not at all, for no other user to read."""
        with open_whole(Path(path), 0o600) as file:
            self._write(file)

    def packed(self) -> Tensor:
        """Bytes of such a file, for a state."""
        content = io.BytesIO()
        self._write(content)
        return torch.frombuffer(content.getbuffer(), dtype=torch.uint8)

    def to(self, device: torch.device | str) -> Self:
        """Copy on a device; `boundary` is moved separately."""
        pairs = None if self.bayes_pairs is None else self.bayes_pairs.to(device)
        return replace(self, left_out_distances=self.left_out_distances.to(device), bayes_pairs=pairs)

    def _write(self, file: BinaryIO) -> None:
        boundary = self.boundary
        tensors = {name: getattr(boundary, name) for name in _OF_BOUNDARY}
        tensors |= {"votes": boundary.votes_of_present, "probabilities": boundary.probabilities_of_present}
        tensors |= {"left_out_distances": self.left_out_distances[:, :-1]}
        tensors |= {} if self.bayes_pairs is None else {_OF_PAPERS: self.bayes_pairs}
        arrays: dict[str, Any] = {name: tensor.cpu().numpy() for name, tensor in tensors.items()}
        arrays |= {name: np.array(getattr(boundary, name)) for name in _SKILLS}
        arrays |= {_FINGERPRINT: np.array(self.fingerprint), "space": np.array(self.boundary.space_name_)}
        np.savez(file, **arrays)


def _read(source: AbstractContextManager[BinaryIO], name: str, fingerprint: str) -> dict[str, np.ndarray]:
    """Read the arrays of a file; `name` is for errors, which are those of `Signals.load`."""
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
    return arrays


def fingerprint_of(boundary: BoundaryUncertainty, inputs: Tensor, labels: Tensor, weights: Tensor | None) -> str:
    """Digest of checked samples and of the settings of `boundary`, which need not be fitted."""
    settings = (boundary.n_neighbors, boundary.n_draws, boundary.seed)
    kind = kind_of(boundary.perturbation, inputs)
    words = [repr((_FORMAT, *settings, boundary.space.n_components, boundary.ends_with_samples))]
    options = (boundary.feature_extractor, boundary.perturbation)
    words += [repr(option) for option in options if isinstance(option, MixedFeatures | MixedMove)]
    words += [boundary.feature_extractor] if isinstance(boundary.feature_extractor, str) else []
    digest = hashlib.sha256("".join([*words, kind if kind in ("neighbors", "tokens", "reading") else ""]).encode())
    # An extractor and a perturbation are identified by their results on a few samples.
    few = inputs[:_PROBE]
    is_probed = callable(boundary.feature_extractor) and not boundary.may_use_module(inputs)
    probe = [boundary.space.extract(few)] if is_probed and isinstance(boundary.space, FeatureSpace) else []
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
    """Length of the progress bar of `Preparation.make`: the pairs of N samples that it compares."""
    regression = LabelRegression()
    n_read = min(n_samples, regression.max_samples) + n_draws * n_samples
    return (1 + n_draws) * n_samples**2 + n_read * min(n_samples, regression.n_landmarks)


def _with_absent_column(distances: Tensor) -> Tensor:
    """Append a column of infinity; in column-major memory the nearest class is found in a third of the time."""
    return torch.nn.functional.pad(distances.T.contiguous(), (0, 0, 0, 1), value=torch.inf).T


def warn_of(preparation: Preparation, inputs: Tensor) -> None:
    """Warn if most samples have an exact copy with the same label, or if neighbours predict labels like chance."""
    labels = preparation.boundary.labels
    is_copied = torch.zeros_like(labels, dtype=torch.bool)
    for rows, others in copies(inputs, preparation.boundary.neighbors):
        is_copied[rows] |= labels[others] == labels[rows]
    share = float(is_copied.double().mean())
    if share > _MOST_COPIES:
        warnings.warn(
            f"{share:.0%} of the samples have an exact copy with the same label among the others. Copies reveal"
            " each other's label, so a network that memorises labels looks better than it is. If a dataset repeats"
            " its samples, pass each once: to the callbacks, as `reference`.",
            stacklevel=4,
        )
    nearby, regression = preparation.boundary.vote_skill, preparation.boundary.regression_skill
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
