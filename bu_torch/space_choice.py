"""Which space tells most of the labels: the inputs, features of patches, or those of a network."""

from collections.abc import Mapping

import torch
from torch import Tensor

from bu_torch.labels import LabelRegression
from bu_torch.space import FeatureSpace
from bu_torch.subset import stratified_rows

_COMPARED = 1500  # samples
_LANDMARKS = 500


def left_out_skill(points: Tensor, labels: Tensor, weights: Tensor | None = None, seed: int = 0) -> float:
    """Brier skill score of a regression on other points that predicts a point's label: 1 is certain and 0 is chance."""
    return LabelRegression(_LANDMARKS, seed=seed).fit(points, labels, weights).skill_


def choose_space(
    inputs: Tensor,
    labels: Tensor,
    candidates: Mapping[str, FeatureSpace],
    *,
    weights: Tensor | None = None,
    seed: int = 0,
) -> tuple[str, dict[str, float]]:
    """The candidate in which left-out labels are predicted best, on a random part of the samples.

    Args:
        inputs: Samples, (N, ...).
        labels: Classes, (N,) int64.
        candidates: Spaces by name, fitted or not; the first of equally good ones is taken.
        weights: How often each sample counts, (N,) float64; None where all count alike.
        seed: Seed of the part and of the regression.

    Returns:
        The name, and the skill of each candidate.
    """
    rows = stratified_rows(len(inputs), _COMPARED, seed, labels).to(inputs.device)
    part, of_part = inputs[rows], labels[rows]
    columns = torch.unique(of_part, return_inverse=True)[1]
    of_rows = None if weights is None else weights[rows]
    skills = {
        name: left_out_skill(space.fit(part).transform(part), columns, of_rows, seed)
        for name, space in candidates.items()
    }
    return max(skills, key=lambda name: skills[name]), skills
