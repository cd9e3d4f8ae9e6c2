"""Around `Signals.fit`: its progress, a fingerprint of the samples, and warnings."""

import hashlib
import warnings
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from bu_torch.estimators.boundary import BoundaryUncertainty
from bu_torch.estimators.label_probabilities import LabelRegression
from bu_torch.internal.printing import progress
from bu_torch.perturbation.draws import Readings, kind_of
from bu_torch.samples.samples import copies

if TYPE_CHECKING:
    from bu_torch.signals.measuring import Signals

_FORMAT = 19  # raise it if the tensors of a state change, or the way in which they are computed
_LEAST_SKILL = 0.01  # votes on 400 random labels or more seldom have a higher skill
_MOST_COPIES = 0.5
_BAR = "{desc}: {percentage:3.0f}%|{bar}| {elapsed}<{remaining}"


def fit_with_progress(signals: "Signals", inputs: Tensor, labels: Tensor, sample_weight: Tensor | None) -> None:
    """Call `Signals.fit` with a progress bar, on the CPU if the memory of the device of `inputs` is too small."""
    inputs = signals.boundary.as_inputs(inputs)
    try:
        with progress("bu-torch prepares", total=n_comparisons(len(inputs), signals.boundary.n_draws), bar_format=_BAR):
            signals.fit(inputs, labels, sample_weight)
    except torch.OutOfMemoryError:  # training may still fit on the device
        if inputs.is_cpu:
            raise
        fit_with_progress(signals, inputs.cpu(), labels, sample_weight)


def n_comparisons(n_samples: int, n_draws: int) -> int:
    """Length of the progress bar of `Signals.fit`: the pairs of N samples that it compares."""
    regression = LabelRegression()
    n_read = min(n_samples, regression.max_samples) + n_draws * n_samples
    return (1 + n_draws) * n_samples**2 + n_read * min(n_samples, regression.n_landmarks)


def fingerprint_of(boundary: BoundaryUncertainty, inputs: Tensor, labels: Tensor, weights: Tensor | None) -> str:
    """Digest of checked samples and of the settings of `boundary`, which need not be fitted; callables by name."""
    settings = boundary.feature_extractor, boundary.perturbation
    named = [getattr(option, "__qualname__", type(option)) if callable(option) else option for option in settings]
    words = _FORMAT, boundary.n_neighbors, boundary.n_draws, boundary.seed, kind_of(boundary.perturbation, inputs)
    readings = boundary.perturbation.inputs[: boundary.n_draws] if isinstance(boundary.perturbation, Readings) else None
    named = [option for option in named if not isinstance(option, Readings)]
    digest = hashlib.sha256(repr((*words, *named)).encode())
    for tensor in (inputs, labels, weights, readings):
        if tensor is not None:
            digest.update(repr((tuple(tensor.shape), str(tensor.dtype))).encode())
            digest.update(tensor.cpu().contiguous().numpy().data.cast("B"))
    return digest.hexdigest()


def warn_of(boundary: BoundaryUncertainty, inputs: Tensor) -> None:
    """Warn if most samples have an exact copy with the same label, or if neighbours predict labels like chance."""
    labels = boundary.labels
    is_copied = torch.zeros_like(labels, dtype=torch.bool)
    for rows, others in copies(inputs, boundary.neighbors):
        is_copied[rows] |= labels[others] == labels[rows]
    share = float(is_copied.double().mean())
    if share > _MOST_COPIES:
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
