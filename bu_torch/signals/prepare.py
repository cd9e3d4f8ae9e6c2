"""All that signals need of the samples and that does not depend on the network: `fit_prepared` and `Prepared`."""

import hashlib
import warnings
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from bu_torch.estimators.boundary import BoundaryUncertainty
from bu_torch.estimators.trust import TrustScore
from bu_torch.functional.checks import sum_by_group
from bu_torch.functional.probabilities import as_probabilities, scale_to_shares
from bu_torch.functional.score import Attainable, attainable, cost_of_memorising, largest_uncertainty
from bu_torch.perturbation.draws import Readings, are_rows, kind_of
from bu_torch.samples.samples import copies, weights_of

_FORMAT = 19  # raise it if the tensors of a state change, or the way in which they are computed
_LEAST_SKILL = 0.01  # votes on 400 random labels or more seldom have a higher skill
_MOST_COPIES = 0.5


@dataclass(frozen=True)
class Prepared:
    """What checks read, for D draws of N samples and the C classes that have samples, in ascending order.

    What follows from the fields is computed where it is first read.
    """

    boundary: BoundaryUncertainty  # fitted: samples, neighbours, perturbed inputs, label probabilities, weights
    distances: Tensor  # (D * N, C + 1) to each class, without samples it is made from, and inf
    are_rows: bool  # samples are rows of a table: no images, no texts
    fingerprint: str  # digest of samples and settings, 64 hexadecimal digits
    paper_signals: tuple[Any, ...] = ()  # what measures signals that have no formula (`Signal.measured_in`)

    @cached_property
    def label_columns(self) -> Tensor:
        """Columns of the labels, (D * N,)."""
        return self.boundary.classes.columns(self.boundary.labels).repeat(self.boundary.n_draws)

    @cached_property
    def most_uncertainty(self) -> Tensor:
        """Uncertainty between the two likeliest classes, (D * N,) float64."""
        return largest_uncertainty(self.boundary.probabilities_of_present)

    @cached_property
    def attainable(self) -> Attainable:
        """Most that accuracy, uncertainty and trust reach."""
        boundary = self.boundary
        return attainable(boundary.probabilities_of_present, self.distances[:, :-1], boundary.repeated_weights)

    @cached_property
    def label_weight(self) -> Tensor:
        """Weight of the agreement with the labels beside expected accuracy, a float64 scalar."""
        is_reading = isinstance(self.boundary.perturbation, Readings)  # there samples' own labels are left out
        cost = cost_of_memorising(self.boundary.probabilities_of_present, self.boundary.repeated_weights)
        return cost * (is_reading / 2)

    def counting_once(self, n_columns: int, *, is_sharp: bool = False) -> Tensor:
        """Label probabilities as metrics take them: each sample counts once, whatever its weight.

        Shape (D * N, n_columns), at least the largest label + 1. Sharp ones are as certain as left-out labels allow.
        """
        return self.boundary.classes.expand(self._sharp if is_sharp else self._plain, n_columns)

    @cached_property
    def _plain(self) -> Tensor:
        return self._scaled(self.boundary.probabilities_of_present)

    @cached_property
    def _sharp(self) -> Tensor:
        if self.boundary.sharpness == 1:
            return self._plain
        sharp = self.boundary.probabilities_of_present.double() ** self.boundary.sharpness
        return self._scaled(as_probabilities(sharp))

    def _scaled(self, probabilities: Tensor) -> Tensor:
        """Probabilities (D * N, C), each class with the mass of its samples if these count once."""
        if self.boundary.weights is None:
            return probabilities
        counts = sum_by_group(torch.ones_like(self.label_columns), self.label_columns, probabilities.shape[1])
        return scale_to_shares(probabilities, counts / counts.sum())


def fit_prepared(
    boundary: BoundaryUncertainty,
    inputs: Tensor,
    labels: Tensor,
    sample_weight: Any,
    measured_in: Collection[str] = (),
    state: Mapping[str, Any] | None = None,
) -> Prepared:
    """Fit `boundary` to checked samples, and compute all else that does not depend on the network.

    `measured_in` names modules that bring signals of their own; with a `state` of `Signals`, nothing is computed again.
    Warns if labels cannot be predicted, or most samples have copies.
    """
    fingerprint, paper_signals = fingerprint_of(boundary, inputs, labels, sample_weight), ()
    if state is None:
        points, perturbed = boundary.fit_checked(inputs, labels, sample_weight)
        # Near a sample that it was made from, a perturbed one would be trusted for having that sample's label.
        sources = boundary.perturbed.sources
        if sources is None:
            sources = torch.arange(len(points), device=points.device).repeat(boundary.n_draws)
        distances = TrustScore().fit(points, boundary.classes.columns(labels)).class_distances(perturbed, sources)
        paper_signals = tuple(import_module(name).prepare(boundary, points) for name in measured_in)
        if paper_signals:
            boundary.perturbed = boundary.perturbed.followed_by(inputs)
    elif state["fingerprint"] != fingerprint:
        raise ValueError("`state` must be of the same samples and settings.")
    else:
        boundary.restore(state, inputs, labels, sample_weight)
        distances = state["left_out_distances"].to(inputs.device)
    warn_about_samples(boundary, inputs)
    # In column-major memory the nearest class is found in a third of the time.
    padded = torch.nn.functional.pad(distances.T.contiguous(), (0, 0, 0, 1), value=torch.inf).T
    return Prepared(boundary, padded, are_rows(boundary.perturbation, inputs), fingerprint, paper_signals)


def fingerprint_of(boundary: BoundaryUncertainty, inputs: Tensor, labels: Tensor, sample_weight: Any) -> str:
    """Digest of checked samples and of the settings of `boundary`, which need not be fitted; callables by name."""
    settings = boundary.feature_extractor, boundary.perturbation
    named = [getattr(option, "__qualname__", type(option)) if callable(option) else option for option in settings]
    words = _FORMAT, boundary.n_neighbors, boundary.n_draws, boundary.seed, kind_of(boundary.perturbation, inputs)
    readings = boundary.perturbation.inputs[: boundary.n_draws] if isinstance(boundary.perturbation, Readings) else None
    named = [option for option in named if not isinstance(option, Readings)]
    digest = hashlib.sha256(repr((*words, *named)).encode())
    for tensor in (inputs, labels, weights_of(labels, boundary.class_weight, sample_weight), readings):
        if tensor is not None:
            digest.update(repr((tuple(tensor.shape), str(tensor.dtype))).encode())
            digest.update(tensor.cpu().contiguous().numpy().data.cast("B"))
    return digest.hexdigest()


def warn_about_samples(boundary: BoundaryUncertainty, inputs: Tensor) -> None:
    """Warn if most samples have an exact copy with the same label, or if neighbours predict labels like chance."""
    labels = boundary.labels
    is_copied = torch.zeros_like(labels, dtype=torch.bool)
    for rows, others in copies(inputs, boundary.neighbors):
        is_copied[rows] |= labels[others] == labels[rows]
    if (share := float(is_copied.double().mean())) > _MOST_COPIES:
        warnings.warn(
            f"{share:.0%} of the samples have an exact copy with the same label among the others, so a network that"
            " memorises labels looks better than it is: pass each sample once, to the callbacks as `reference`.",
            stacklevel=4,
        )
    nearby, regression = boundary.vote_skill, boundary.regression_skill
    if nearby < _LEAST_SKILL:
        meaning = (
            "rely on expected accuracy, not on boundary uncertainty, trust score and agreement with neighbours."
            if regression >= _LEAST_SKILL
            else "nearly all labels are noise, or distances between inputs mean nothing, so the scores say little. A"
            " `feature_extractor` may give a space in which distances mean something."
        )
        warnings.warn(
            "The nearest neighbours predict a sample's label no better than chance (Brier skill score"
            f" {nearby:.2f}; a regression on all samples: {regression:.2f}): {meaning}",
            stacklevel=4,
        )
