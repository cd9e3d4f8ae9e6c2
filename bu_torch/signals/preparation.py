"""All that does not depend on the network in training: computed once, and kept in files and in the states of runs."""

import hashlib
import io
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, Self

import numpy as np
import torch
from torch import Tensor

from bu_torch.estimators.boundary import BoundaryUncertainty
from bu_torch.estimators.label_probabilities import LabelProbabilities, LabelRegression
from bu_torch.estimators.space_choice import MetricRegression
from bu_torch.estimators.trust import TrustScore
from bu_torch.internal.files import open_whole, regular_file
from bu_torch.internal.inputs import PresentClasses
from bu_torch.perturbation.draws import MixedMove
from bu_torch.samples.copies import copies
from bu_torch.signals.arrays import layout, read_arrays, write_arrays
from bu_torch.space.features import FeatureSpace
from bu_torch.space.metric import MetricSpace
from bu_torch.space.mixed import MixedFeatures

_FORMAT = 13  # raise it when the arrays hold something else, or are computed in another way
_PROBE = 64
_LEAST_SKILL = 0.01  # votes on 400 random labels or more seldom have a higher skill
_MOST_COPIES = 0.5
MOST_ENTRIES = 2**28  # in an array with a column for each class: a gibibyte in float32; there are three such arrays

_OF_BOUNDARY = ("labels", "neighbors", "nearest_distance", "bayes_pairs")
_OF_CLASSES = ("left_out_distances", "votes", "probabilities")
_SKILLS = ("vote_skill", "regression_skill")


@dataclass(frozen=True, eq=False)
class Preparation:
    """Results of N samples, D times perturbed, of C classes that have samples. No inputs are among them.

    Perturbed inputs are drawn again from samples and seed. `save` and `packed` write one format, a zip of plain arrays
    and the fingerprint, which `load` checks.
    """

    fingerprint: str  # digest of samples and settings, 64 hexadecimal digits
    space: str  # `space_name_` of the `BoundaryUncertainty`, whose attributes are the next four too
    labels: Tensor  # (N,)
    neighbors: Tensor  # (N, M)
    nearest_distance: Tensor  # (N,)
    bayes_pairs: Tensor  # (N, 2)
    left_out_distances: Tensor  # (D * N, C + 1) from each perturbed sample to each class, itself left out, and inf
    votes: Tensor  # (N, C) votes of the labels near each sample
    probabilities: Tensor  # (D * N, C) class probabilities at each perturbed sample
    vote_skill: float  # 1 is certain, 0 chance
    regression_skill: float  # skill of a regression on all other samples

    @classmethod
    def make(
        cls,
        boundary: BoundaryUncertainty,
        inputs: Tensor,
        labels: Tensor,
        sample_weight: Tensor | None = None,
        known_neighbors: Any = None,
    ) -> Self:
        """Fit `boundary` to checked samples, and compute all else; errors as of `BoundaryUncertainty.fit`."""
        classes = PresentClasses(labels)
        n_entries = boundary.n_draws * len(inputs) * len(classes)
        if n_entries > MOST_ENTRIES:
            raise ValueError(
                f"{boundary.n_draws} draws of {len(inputs)} samples of {len(classes)} classes need arrays of"
                f" {n_entries:.1e} numbers, more than {MOST_ENTRIES:.1e}: pass fewer draws or samples (`n_draws`,"
                " `max_samples`)."
            )
        points = boundary.fit_points(inputs, labels, sample_weight, known_neighbors)
        columns = classes.columns(labels)
        space, trial = boundary.space, boundary.trial_
        base = space.base if isinstance(space, MetricSpace) else space
        features = torch.cat([base.transform(block) for block in boundary.perturbed.blocks()])
        perturbed = features = features[: boundary.n_draws * len(inputs)]
        if isinstance(space, MetricSpace):
            perturbed = space.metric.transform(features)
        rows = torch.arange(len(points), device=points.device).repeat(boundary.n_draws)
        left_out = TrustScore().fit(points, columns).class_distances(perturbed, rows)
        expected = LabelProbabilities(regression=LabelRegression(seed=boundary.seed))
        if trial is not None and (isinstance(space, MetricSpace) or trial.regression_weight):
            # Votes are those of the neighbours; the regression is a mixture of both spaces.
            own = base.transform(inputs) if isinstance(space, MetricSpace) else points
            metric = space.metric if isinstance(space, MetricSpace) else None
            regression = MetricRegression(trial, metric, seed=boundary.seed)
            expected = LabelProbabilities(regression=regression)
            expected.fit(own, columns, boundary.neighbors, boundary.weights)
        else:
            features = perturbed
            expected.fit(points, columns, boundary.neighbors, boundary.weights)
        return cls(
            fingerprint=fingerprint_of(boundary, inputs, labels, boundary.weights),
            space=boundary.space_name_,
            **{name: getattr(boundary, name) for name in _OF_BOUNDARY},
            left_out_distances=_with_absent_column(left_out),
            votes=expected.votes.votes,
            probabilities=expected.predict_proba(features),
            vote_skill=expected.skills_[0],
            regression_skill=expected.skills_[1],
        )

    @classmethod
    def load(
        cls,
        source: str | Path | Tensor,
        boundary: BoundaryUncertainty,
        inputs: Tensor,
        labels: Tensor,
        weights: Tensor | None,
    ) -> Self:
        """Read what `save` or `packed` wrote in place of `make`, and hand `boundary` its part.

        Samples are checked ones, `boundary.class_weight` is in `weights` already; all else is as in `Signals.load`.
        """
        fingerprint = fingerprint_of(boundary, inputs, labels, weights)
        expected = layout(labels.cpu().numpy(), boundary.n_neighbors, boundary.n_draws)
        if isinstance(source, Tensor):
            content: BinaryIO = io.BytesIO(source.numpy().tobytes())
            arrays = read_arrays(content, "the state", fingerprint, expected)
        else:
            arrays = read_arrays(regular_file(source), f"`{source}`", fingerprint, expected)
        space = str(arrays.pop("space"))
        fields: dict[str, Any] = {name: float(arrays.pop(name)) for name in _SKILLS}
        tensors = {name: torch.from_numpy(array).to(inputs.device) for name, array in arrays.items()}
        boundary._restore({name: tensors[name] for name in _OF_BOUNDARY}, weights, inputs, space)
        fields |= tensors | {"left_out_distances": _with_absent_column(tensors["left_out_distances"])}
        return cls(fingerprint=fingerprint, space=space, **fields)

    def save(self, path: str | Path) -> None:
        """Write a file, whole or not at all, for no other user to read."""
        with open_whole(Path(path), 0o600) as file:
            write_arrays(file, self.fingerprint, self._arrays())

    def packed(self) -> Tensor:
        """Bytes of such a file, for a state."""
        content = io.BytesIO()
        write_arrays(content, self.fingerprint, self._arrays())
        return torch.frombuffer(content.getbuffer(), dtype=torch.uint8)

    def to(self, device: torch.device | str, boundary: BoundaryUncertainty) -> Self:
        """Copy on a device, to which `boundary` has moved already."""
        moved = {name: getattr(self, name).to(device) for name in _OF_CLASSES}
        return replace(self, **moved, **{name: getattr(boundary, name) for name in _OF_BOUNDARY})

    def _tensors(self) -> dict[str, Tensor]:
        tensors = {name: getattr(self, name) for name in (*_OF_BOUNDARY, *_OF_CLASSES)}
        return tensors | {"left_out_distances": self.left_out_distances[:, :-1]}

    def _arrays(self) -> dict[str, np.ndarray]:
        arrays = {name: tensor.cpu().numpy() for name, tensor in self._tensors().items()}
        return {"space": np.array(self.space), **arrays} | {name: np.array(getattr(self, name)) for name in _SKILLS}


def fingerprint_of(boundary: BoundaryUncertainty, inputs: Tensor, labels: Tensor, weights: Tensor | None) -> str:
    """Digest of checked samples and of the settings of `boundary`, which need not be fitted."""
    settings = (boundary.n_neighbors, boundary.n_draws, boundary.seed)
    kind = boundary.kind_of_perturbation(inputs)
    words = [repr((_FORMAT, *settings, boundary.space.n_components))]
    options = (boundary.feature_extractor, boundary.perturbation)
    words += [repr(option) for option in options if isinstance(option, MixedFeatures | MixedMove)]
    words += [boundary.feature_extractor] if isinstance(boundary.feature_extractor, str) else []
    digest = hashlib.sha256("".join([*words, kind if kind in ("neighbors", "tokens") else ""]).encode())
    # An extractor and a perturbation are told by what they make of a few samples.
    few = inputs[:_PROBE]
    is_probed = callable(boundary.feature_extractor) and not boundary.may_use_module(inputs)
    probe = [boundary.space.extract(few)] if is_probed and isinstance(boundary.space, FeatureSpace) else []
    if callable(boundary.perturbation):
        generator = torch.Generator().manual_seed(boundary.seed)
        probe.append(boundary.perturbation(few.clone(), torch.ones(len(few), device=few.device), generator))
    for tensor in (inputs, labels, *probe, *([] if weights is None else [weights])):
        digest.update(repr((tuple(tensor.shape), str(tensor.dtype))).encode())
        digest.update(tensor.cpu().contiguous().numpy().data.cast("B"))
    return digest.hexdigest()


def n_comparisons(n_samples: int, n_draws: int) -> int:
    """Length of the progress bar of `Preparation.make`: the pairs of N samples that it looks at."""
    regression = LabelRegression()
    n_read = min(n_samples, regression.max_samples) + n_draws * n_samples
    return (1 + n_draws) * n_samples**2 + n_read * min(n_samples, regression.n_landmarks)


def _with_absent_column(distances: Tensor) -> Tensor:
    """Column after column in memory, in which the nearest class of many samples is found in a third of the time."""
    return torch.nn.functional.pad(distances.T.contiguous(), (0, 0, 0, 1), value=torch.inf).T


def warn_of(preparation: Preparation, inputs: Tensor) -> None:
    """Warn if most samples have an exact copy of their label, or if the others tell no more of a label than chance."""
    labels = preparation.labels
    is_copied = torch.zeros_like(labels, dtype=torch.bool)
    for rows, others in copies(inputs, preparation.neighbors):
        is_copied[rows] |= labels[others] == labels[rows]
    share = float(is_copied.double().mean())
    if share > _MOST_COPIES:
        warnings.warn(
            f"{share:.0%} of the samples have an exact copy with the same label among the others. Copies reveal"
            " each other's label, so a network that memorises labels looks better than it is. If a dataset repeats"
            " its samples, pass each once: to the callbacks, as `reference`.",
            stacklevel=4,
        )
    nearby, regression = preparation.vote_skill, preparation.regression_skill
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
