"""Base of the earlier estimators of boundary uncertainty, which look for points on the decision boundary."""

from collections.abc import Callable
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from bu_torch.internal.inputs import as_features, as_labels, check_fitted, check_two_classes
from bu_torch.internal.logits import read_logits
from bu_torch.papers.anchor_formulas import bisect_segments
from bu_torch.space.features import standardization, standardize


class Anchors(NamedTuple):
    """Points on the decision boundary (S, ...), the classes on their two sides (S, 2), and their samples (S,)."""

    points: Tensor
    pairs: Tensor
    samples: Tensor


class AnchorEstimator:
    """Base of the estimators by anchors: it holds the samples and reads logits of a model."""

    n_halvings: int
    inputs: Tensor
    labels: Tensor
    mean_: Tensor
    scale_: Tensor

    def fit(self, features: Any, labels: Any) -> Self:
        """Keep inputs (N, d) or (N, ...), finite, and classes (N,); compute what does not depend on the classifier.

        Raises:
            TypeError, ValueError: If an argument has the wrong type, shape or values, or there are too few samples or
                classes.
        """
        inputs = as_features(features)
        labels = as_labels(labels, inputs.shape[0]).to(inputs.device)
        check_two_classes(labels)
        self.mean_, self.scale_ = standardization(inputs.flatten(1))
        self._standardized = standardize(inputs, self.mean_, self.scale_)
        self._prepare()
        self.inputs, self.labels = inputs, labels
        return self

    def to(self, device: torch.device | str) -> Self:
        """Move what `fit` computed to `device`, in place."""
        check_fitted(self, "inputs")
        for name, value in vars(self).items():
            if isinstance(value, Tensor):
                setattr(self, name, value.to(device))
        return self

    def _prepare(self) -> None:
        """Compute what a subclass needs, before the samples are kept."""

    def _read(self, model: Callable[[Tensor], Any], points: Tensor) -> Tensor:
        """Logits (n, J) at flat points (n, d), on the device of the samples."""
        logits = read_logits(model, points.view(-1, *self.inputs.shape[1:])).to(self.labels.device)
        n_classes = int(self.labels.max()) + 1
        if logits.shape[1] < n_classes:
            raise ValueError(
                f"`model` must give at least {n_classes} columns, one for each class of `fit`, got {logits.shape[1]}."
            )
        return logits

    def _bisect(self, model: Callable[[Tensor], Any], start: Tensor, end: Tensor) -> tuple[Tensor, Tensor]:
        return bisect_segments(lambda x: self._read(model, x).argmax(dim=1), start, end, n_halvings=self.n_halvings)
