"""Trust score, looked up in precomputed distances."""

import torch
from torch import Tensor

from bu_torch.functional.checks import check_tensor
from bu_torch.functional.weights import mean_of, relative_weights


def trust_score(class_distances: Tensor, predictions: Tensor) -> Tensor:
    """Trust score of each prediction: distance to the nearest other class over distance to the predicted class.

    Jiang et al. (2018), Algorithm 2, looked up in `TrustScore.class_distances`, which do not depend on the classifier.
    0 / 0 is 1. A class without samples is infinitely far, and predicting it scores 0.

    Args:
        class_distances: Distances from points to classes, shape (N, J), floating point, >= 0, inf for an empty class.
        predictions: Predicted classes, shape (N,), integer, values in [0, J).

    Returns:
        The scores, shape (N,), in [0, inf]; above 1 if the predicted class is the nearest.

    Raises:
        TypeError, ValueError: If an argument has the wrong dtype, shape, device or values; distances below 0 pass.

    Example:
        >>> trust_score(torch.tensor([[1.0, 2.0, 4.0], [1.0, 2.0, 4.0]]), torch.tensor([0, 2]))
        tensor([2.0000, 0.2500])
    """
    check_tensor("class_distances", class_distances, ("N", "J"))
    shape, device = class_distances.shape, class_distances.device
    check_tensor("predictions", predictions, (shape[0],), device, below=shape[1])
    column = predictions.long().unsqueeze(1)
    own = class_distances.gather(1, column).squeeze(1)
    other = class_distances.clone().scatter_(1, column, torch.inf).amin(dim=1)  # a clone keeps the memory layout
    score = torch.where((own == 0) & (other == 0), 1.0, other / own)
    return torch.where(own.isinf(), 0.0, score)


def mean_trust_score(scores: Tensor, weights: Tensor | None = None) -> Tensor:
    """Geometric mean of trust scores in float64, each clipped to [1e-3, 1e3], so that duplicates do not decide alone.

    Args:
        scores: Trust scores, floating point, any shape with at least one entry, in [0, inf].
        weights: Relative weight of each score, of the shape of `scores`, > 0, floating point; None for equal weights.

    Returns:
        Scalar in [1e-3, 1e3], float64.

    Raises:
        TypeError, ValueError: If `scores` is empty, or an argument has the wrong dtype, shape or values.
    """
    check_tensor("scores", scores)
    if scores.numel() == 0:
        raise ValueError("`scores` must hold at least one trust score, got none.")
    weights = relative_weights(weights, tuple(scores.shape), scores.device)
    return mean_of(scores.double().clamp(1e-3, 1e3).log(), weights).exp()
