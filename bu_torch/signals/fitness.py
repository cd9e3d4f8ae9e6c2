"""Checks of samples that signals are fitted on: their number, exact copies, and what they tell of labels."""

import warnings

import torch
from torch import Tensor

from bu_torch.estimators.boundary import BoundaryUncertainty
from bu_torch.samples.copies import copies

_LEAST_SKILL = 0.01  # of votes that tell more than chance: from 400 random labels on, that is seldom exceeded
_MOST_COPIES = 0.5
MOST_ENTRIES = 2**28  # of an array with a column for each class: a gibibyte in float32, of which there are four


def check_size(n_draws: int, n_samples: int, n_classes: int) -> None:
    """Raise a ValueError if arrays with a column for each class would be too large."""
    n_entries = n_draws * n_samples * n_classes
    if n_entries > MOST_ENTRIES:
        raise ValueError(
            f"{n_draws} draws of {n_samples} samples of {n_classes} classes need arrays of {n_entries:.1e} numbers,"
            f" more than {MOST_ENTRIES:.1e}: pass fewer draws or samples (`n_draws`, `max_samples`)."
        )


def warn_of_copies(inputs: Tensor, boundary: BoundaryUncertainty) -> None:
    """Warn if more than half of the samples have an exact copy with the same label.

    Args:
        inputs: Samples, (N, ...).
        boundary: Fitted on them.
    """
    labels = boundary.labels
    is_copied = torch.zeros_like(labels, dtype=torch.bool)
    for rows, others in copies(inputs, boundary.neighbors):
        is_copied[rows] |= labels[others] == labels[rows]
    share = float(is_copied.double().mean())
    if share > _MOST_COPIES:
        warnings.warn(
            f"{share:.0%} of the samples have an exact copy with the same label among the others. Copies tell each"
            " other's label, so that a network that learns labels by heart looks better than it is. Where a dataset"
            " repeats its samples, pass each once: to the callbacks, as `reference`.",
            stacklevel=4,
        )


def warn_of_little_skill(vote_skill: float, regression_skill: float) -> None:
    """Warn if the nearest samples, or all others, tell no more of a label than chance.

    Args:
        vote_skill: Brier skill score of the nearest samples.
        regression_skill: Brier skill score of a regression on all others.
    """
    if vote_skill < _LEAST_SKILL <= regression_skill:
        warnings.warn(
            "The labels of the nearest neighbours tell no more of a sample's label than chance (Brier skill score"
            f" {vote_skill:.2f}), a regression on all samples does ({regression_skill:.2f}): expected"
            " accuracy can be relied on, boundary uncertainty, trust score and agreement with neighbours cannot.",
            stacklevel=4,
        )
    elif vote_skill < _LEAST_SKILL:
        warnings.warn(
            "The other samples tell no more of a sample's label than chance (Brier skill score"
            f" {vote_skill:.2f} by the nearest, {regression_skill:.2f} by regression on all): either"
            " nearly all labels are noise, or nearby inputs do not mean nearby things. What is measured then says"
            " little of a classifier. A `feature_extractor` may give a space in which distances mean something.",
            stacklevel=4,
        )
