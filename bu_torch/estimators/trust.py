"""Trust score: the agreement of a classifier with the nearest classes."""

import math
import warnings
from typing import Any, Literal, Self

import torch
from torch import Tensor

from bu_torch.functional.checks import check_choice, check_tensor
from bu_torch.functional.score import trust_score
from bu_torch.internal.inputs import as_flat_features, as_labels, as_tensor, check_fitted, check_integer, check_number
from bu_torch.neighbors.graph import class_distances


class TrustScore:
    """Trust score of any classifier's predictions: fit once on the labelled samples, then score many classifiers.

    Jiang et al. (2018), Algorithms 1 and 2: distance to the nearest class other than the predicted one, over distance
    to the predicted class. Samples may be filtered out of their class first, at most floor(alpha n):

    - `"density"`, Algorithm 1: in each class, the samples with the largest k-NN radius leave. A sample is its own first
      neighbour.
    - `"disagreement"`, Remark 2, which the paper does not specify: of all classes together, those samples leave
      that have the largest share of other labels among their k nearest other samples, and of equal shares the largest
      radius. A sample whose neighbours all agree stays.

    Distances are to the nearest sample of a class, as in Algorithm 2; google/TrustScore and alibi take the second
    nearest (here `left_out` excludes samples), and add 1e-12 to the divisor. `bu_torch.evaluation.select_alpha` chooses
    alpha.

    Args:
        filtering: None, `"density"` or `"disagreement"`.
        alpha: Fraction of samples to filter out, 0 <= alpha < 1.
        n_neighbors: k of the filters, >= 1.

    Attributes:
        class_sizes_: Samples left in each class, (J,) int64; J is the largest label + 1.
        kept_: True for each sample of `fit` that was kept, (N,) bool.

    Example:
        >>> trust = TrustScore().fit(torch.tensor([[0.0], [4.0]]), torch.tensor([0, 1]))
        >>> trust.score(torch.tensor([[1.0]]), torch.tensor([0]))
        tensor([3.])
    """

    def __init__(
        self, filtering: Literal["density", "disagreement"] | None = None, alpha: float = 0.0, n_neighbors: int = 10
    ) -> None:
        self.filtering = check_choice("filtering", filtering, (None, "density", "disagreement"))
        self.alpha = check_number("alpha", alpha, 0, 1)
        self.n_neighbors = check_integer("n_neighbors", n_neighbors, 1)

    def fit(self, features: Any, labels: Any) -> Self:
        """Keep the (high-density) samples of each class; a warning names classes that filtering emptied.

        Takes samples (N, d), finite, in a space of Euclidean distances, and classes (N,), integers >= 0.
        """
        features = as_flat_features(features)
        labels = as_labels(labels, features.shape[0]).to(features.device)
        n_classes = int(labels.max()) + 1
        self.kept_ = torch.ones_like(labels, dtype=torch.bool)
        if self.filtering is not None:
            from bu_torch.papers.trust import kept_by_density, kept_by_disagreement

            kept_by = kept_by_density if self.filtering == "density" else kept_by_disagreement
            self.kept_ = kept_by(features, labels, self.alpha, self.n_neighbors)
        self._features, self._labels = features, torch.where(self.kept_, labels, -1)
        self.class_sizes_ = labels[self.kept_].bincount(minlength=n_classes)
        present = labels.unique()
        if empty := present[self.class_sizes_[present] == 0].tolist():
            warnings.warn(
                f"Filtering ({self.filtering!r}, alpha={self.alpha}) left no sample of classes {empty}: they count as"
                " infinitely far, and predicting them scores 0. A smaller `alpha` keeps them.",
                stacklevel=2,
            )
        return self

    def class_distances(self, features: Any, left_out: Any = None) -> Tensor:
        """Distance of points (n, d), with the d of `fit`, to the nearest kept sample of each class: (n, J).

        It is inf for an empty class. `left_out` (n,), or (n, k) for k samples each, are rows of `fit`'s features that
        count as missing for a point (those it was made from, say); None for none.
        """
        check_fitted(self, "_labels")
        features = as_flat_features(features, n_features=self._features.shape[1])
        if left_out is not None:
            left_out = as_tensor(left_out, "left_out").cpu()
            left_out = left_out.unsqueeze(1) if left_out.ndim == 1 else left_out
            check_tensor("left_out", left_out, (len(features), "k"), below=len(self._labels))
            left_out = left_out.long().to(features.device)
        samples = self._features.to(features), self._labels.to(features.device), len(self.class_sizes_)
        return class_distances(features, *samples, left_out).to(features.dtype)

    def score(self, features: Any, predictions: Any) -> Tensor:
        """Trust score of each prediction, (n,), in [0, inf]; above 1 the prediction is the nearest class.

        Takes points (n, d) and predicted classes (n,), integers >= 0; a class that `fit` never saw is an empty one.
        Samples of `fit` find themselves, and score inf as labelled, unless `class_distances` leaves them out.
        """
        distances = self.class_distances(features)
        predictions = as_labels(predictions, distances.shape[0], "predictions").to(distances.device)
        missing = int(predictions.max()) + 1 - distances.shape[1]
        if missing > 0:
            distances = torch.nn.functional.pad(distances, (0, missing), value=math.inf)
        return trust_score(distances, predictions)
