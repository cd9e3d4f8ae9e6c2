"""Recall of each class, at the kept check and at the check that is best for all classes alike."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from bu_torch.functional.boundary import sum_by_pair

# From these losses on, and beyond two standard errors, weighting classes alike also improved the mean recall on test
# data, and data with equal classes gave no line, with or without wrong labels.
_MATERIAL = 0.05  # loss of recall of a class
_MATERIAL_MEAN = 0.01  # loss of recall, mean over the classes


@dataclass(frozen=True)
class Recalls:
    """Recall of each class at one check, by labels and by label probabilities, which memorising cannot raise."""

    epoch: int
    step: int | None
    labelled: list[float]  # share of the perturbed samples of each class that are predicted as labelled, (C,)
    expected: list[float]  # recall by label probabilities in place of labels, (C,)

    @property
    def mean(self) -> float:
        """Expected accuracy if all classes count alike."""
        return sum(self.expected) / len(self.expected)


@dataclass
class Recognition:
    """Recall at the kept check, and at the check with the best mean over the classes; None before the first."""

    kept: Recalls | None = None
    balanced: Recalls | None = None
    _last: list[float] = field(default_factory=list)  # recalls of the check that `add` takes next

    def take(self, measured: list[float]) -> None:
        """Store the result of `recalls_of` for the check that is added next."""
        self._last = measured

    def add(self, epoch: int, step: int | None, *, is_kept: bool) -> None:
        """Add a check that counts, if it was measured here."""
        measured, self._last = self._last, []
        if not measured or not all(map(math.isfinite, measured)):
            return
        half = len(measured) // 2
        recalls = Recalls(epoch, step, measured[:half], measured[half:])
        if is_kept:
            self.kept = recalls
        if self.balanced is None or recalls.mean > self.balanced.mean:
            self.balanced = recalls

    def line(self, check: Mapping[str, Any], classes: Tensor, counts: Tensor) -> str:
        """Log line on the class that loses most by the kept `check`; "" if none loses much or another check is kept."""
        kept, balanced = self.kept, self.balanced
        if kept is None or balanced is None or (kept.epoch, kept.step) != (check["epoch"], check.get("step")):
            return ""
        if not len(kept.expected) == len(balanced.expected) == len(classes):
            return ""
        gains = [after - before for before, after in zip(kept.expected, balanced.expected, strict=True)]
        loser = max(range(len(gains)), key=gains.__getitem__)
        before, after = kept.labelled[loser], balanced.labelled[loser]
        share = (before + after) / 2
        error = math.sqrt(share * (1 - share) / float(counts[loser]))
        is_material = gains[loser] >= _MATERIAL and balanced.mean - kept.mean >= _MATERIAL_MEAN
        if not is_material or after - before < max(_MATERIAL, 2 * error):
            return ""
        places = (f"epoch {kept.epoch}", f"epoch {balanced.epoch}")
        if kept.epoch == balanced.epoch:
            places = (f"step {kept.step}", f"step {balanced.step}")
        return (
            f"By the given labels, the kept {places[0]} recognises {before:.0%} of the perturbed samples of class"
            f" {int(classes[loser])}, but {places[1]} recognises {after:.0%}. To change it: `class_weight='balanced'`,"
            " which may cost accuracy."
        )

    def state_dict(self) -> dict[str, Any]:
        return {
            name: [recalls.epoch, recalls.step, torch.tensor([recalls.labelled, recalls.expected], dtype=torch.float64)]
            for name, recalls in (("kept", self.kept), ("balanced", self.balanced))
            if recalls is not None
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for name, (epoch, step, values) in state.items():
            setattr(self, name, Recalls(epoch, step, *values.tolist()))


def recalls_of(columns: Tensor, own: Tensor, probabilities: Tensor, weights: Tensor | None) -> Tensor:
    """Recall of each class by labels, then by label probabilities, (2 * C,) float64; waits for no device.

    Predictions and labels (D * N,) are columns of arrays of C classes, C or more for a prediction without samples.
    """
    n_classes = probabilities.shape[1]
    if weights is None:
        counted = torch.ones_like(own, dtype=torch.float64)
        mass = probabilities.sum(dim=0, dtype=torch.float64)
    else:
        counted = weights.double().repeat(len(own) // len(weights))
        mass = (counted.to(probabilities.dtype) @ probabilities).double()
    known = columns.clamp(max=n_classes - 1)
    expected = probabilities.gather(1, known.unsqueeze(1)).squeeze(1) * (columns < n_classes) * counted
    hits = sum_by_pair((columns == own) * counted, own, n_classes)
    by_label = hits / sum_by_pair(counted, own, n_classes)
    return torch.cat((by_label, sum_by_pair(expected, known, n_classes) / mass))
