"""Which space tells most of the labels: the inputs, features of patches, or those of a network."""

import logging
from collections.abc import Mapping

import torch
from torch import Tensor

from bu_torch.estimators.labels import LabelRegression
from bu_torch.samples.subset import stratified_rows
from bu_torch.space.features import FeatureSpace

_log = logging.getLogger(__name__)
_COMPARED = 1500  # samples


def left_out_skill(points: Tensor, labels: Tensor, weights: Tensor | None = None, seed: int = 0) -> float:
    """Brier skill score of a regression on other points that predicts a point's label: 1 is certain and 0 is chance."""
    return LabelRegression(seed=seed).fit(points, labels, weights).skill_


def choose_space(
    inputs: Tensor,
    labels: Tensor,
    candidates: Mapping[str, FeatureSpace],
    *,
    weights: Tensor | None = None,
    seed: int = 0,
) -> tuple[str, dict[str, float], Tensor | None]:
    """The candidate in which left-out labels are predicted best, on a random part of the samples.

    Args:
        inputs: Samples, (N, ...).
        labels: Classes, (N,) int64.
        candidates: Spaces by name, fitted or not; the first of equally good ones is taken. `"module"` is left out where
            its features cannot be read.
        weights: How often each sample counts, (N,) float64; None where all count alike.
        seed: Seed of the part and of the regression.

    Returns:
        The name, the skill of each candidate, and all samples as points of the chosen one, which is fitted to them, or
        None where a part of the samples was compared.
    """
    rows = stratified_rows(len(inputs), _COMPARED, seed, labels).to(inputs.device)
    part, of_part = inputs[rows], labels[rows]
    columns = torch.unique(of_part, return_inverse=True)[1]
    of_rows = None if weights is None else weights[rows]
    skills: dict[str, float] = {}
    chosen, best_points = "", part
    for name, space in candidates.items():
        try:
            points = space.fit_transform(part)
        except Exception as error:  # a network may have no such layer, or not be ready: its code may raise anything
            if name != "module":
                raise
            _log.info("The network's own features cannot be read: %s: %s", type(error).__name__, error)
            continue
        skills[name] = left_out_skill(points, columns, of_rows, seed)
        if not chosen or skills[name] > skills[chosen]:
            chosen, best_points = name, points
    return chosen, skills, best_points if len(part) == len(inputs) else None
