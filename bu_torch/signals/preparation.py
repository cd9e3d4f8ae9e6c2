"""Around `Signals.fit`: its progress, what a state keeps of it, a fingerprint of the samples, and warnings.

A state holds no inputs: perturbed inputs are drawn again from samples and seed, or were read with them.
"""

import hashlib
import warnings
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from bu_torch.estimators.boundary import BoundaryUncertainty
from bu_torch.estimators.label_probabilities import LabelRegression
from bu_torch.internal.printing import progress
from bu_torch.perturbation.draws import MixedMove, Readings, kind_of
from bu_torch.samples.samples import copies
from bu_torch.space.features import MixedFeatures

if TYPE_CHECKING:
    from bu_torch.signals.measuring import Signals

_FORMAT = 18  # raise it if the tensors change, or the way in which they are computed
_PROBE = 64
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


def fingerprint_of(boundary: BoundaryUncertainty, inputs: Tensor, labels: Tensor, weights: Tensor | None) -> str:
    """Digest of checked samples and of the settings of `boundary`, which need not be fitted."""
    settings = (boundary.n_neighbors, boundary.n_draws, boundary.seed)
    kind = kind_of(boundary.perturbation, inputs)
    words = [repr((_FORMAT, *settings))]
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
