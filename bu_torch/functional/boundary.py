"""Boundary uncertainty: are the labels most uncertain where the decision boundary runs?"""

import torch
from torch import Tensor

from bu_torch.functional.checks import as_logits, check_tensor, relative_weights

HALF_WIDTH = 0.3  # the kernel ends at this share of the samples


def boundary_uncertainty(logits: Tensor, probabilities: Tensor, *, weights: Tensor | None = None) -> Tensor:
    """Boundary uncertainty U of a classifier: how uncertain the labels are along its decision boundary.

    The local uncertainty of Ha et al. (2021), Eq. 37 and 38, is u = 1 - |2p - 1|, for the share p of one of two classes
    that meet. Here p is a label probability in place of a ratio of Parzen counts: u = 2 min(P_i, P_j) for the network's
    own pair {i, j}, its two largest logits. For several classes it is low where the wrong ones meet, as Eq. 18 asks.
    U is the mean of u with weights of nearness to the boundary, a triangular kernel over the rank of F (Eq. 12), the
    difference of the two largest logits, which ends at 30 % of the samples. Samples with equal F share their mean rank.
    `parzen_uncertainty` is the paper's own estimate, by pairs of classes and clusters.

    Args:
        logits: Classifier outputs at the perturbed samples, shape (N, J), floating point, of any scale. Shape (N, 1) or
            (N,) counts as the two classes [0, z].
        probabilities: Probabilities of the labels there, shape (N, C) with 2 <= C <= J, floating point, rows sum to 1;
            a class beyond these has probability 0.
        weights: Relative frequency of each sample in training, shape (N,), > 0, floating point; None for equal ones.

    Returns:
        Scalar in [0, 1], float64; NaN if any logit is not finite.

    Raises:
        TypeError, ValueError: If an argument has the wrong dtype, shape, device or values.

    Example:
        >>> probabilities = torch.tensor([[0.5, 0.5], [0.75, 0.25], [0.0, 1.0], [1.0, 0.0]])
        >>> boundary_uncertainty(torch.tensor([[0.1, 0.0], [1.0, 0.0], [0.0, 2.0], [3.0, 0.0]]), probabilities)
        tensor(1., dtype=torch.float64)
    """
    logits = as_logits(logits)
    check_tensor("probabilities", probabilities, (len(logits), "C"), logits.device)
    if not 2 <= probabilities.shape[1] <= logits.shape[1]:
        n_columns = f"2 to {logits.shape[1]} columns, as `logits`, got {probabilities.shape[1]}"
        raise ValueError(f"`probabilities` must have {n_columns}.")
    low, high = (float(end) for end in torch.aminmax(probabilities))
    if not (low >= 0 and high <= 1 + 1e-3):
        raise ValueError(f"`probabilities` must lie in [0, 1], got values from {low} to {high}.")
    weights = relative_weights(weights, (len(logits),), logits.device)
    classes = top_two(logits)
    kernel = boundary_weights(half_gap(logits, classes), weights)
    return uncertainty_along_boundary(logits, uncertainty_between(probabilities, classes), kernel)


def predicted_probabilities(probabilities: Tensor, predictions: Tensor) -> Tensor:
    """Probability of each prediction (N,) or (N, D) by probabilities (N, J), float64; 0 for classes >= J."""
    n_points, n_classes = probabilities.shape
    columns = predictions.long().reshape(n_points, -1)
    likely = probabilities.gather(1, columns.clamp(max=n_classes - 1))
    return torch.where(columns < n_classes, likely, 0.0).double().view(predictions.shape)


def uncertainty_between(probabilities: Tensor, classes: Tensor) -> Tensor:
    """Uncertainty u = 2 min(P_i, P_j) (N,), float64, of the classes of two columns (N, 2) of probabilities (N, C)."""
    return 2 * predicted_probabilities(probabilities, classes).amin(dim=1)


def largest_uncertainty(probabilities: Tensor) -> Tensor:
    """Uncertainty (N,) between the two likeliest classes at each point, the most of any two."""
    return uncertainty_between(probabilities, top_two(probabilities))


def top_two(scores: Tensor) -> Tensor:
    """The two classes (N, 2) of largest score (N, J), J >= 2, largest first; ties go to the lower class."""
    first = scores.max(dim=1, keepdim=True).indices  # on a CPU twice as fast as `argmax` or `topk`
    if scores.shape[1] == 2:
        return torch.cat((first, 1 - first), dim=1)
    lowest = -torch.inf if scores.is_floating_point() else torch.iinfo(scores.dtype).min
    second = scores.scatter(1, first, lowest).max(dim=1, keepdim=True).indices
    # If all other scores equal the fill value, the second is the lowest index that is not the first.
    return torch.cat((first, torch.where(second == first, (first == 0).long(), second)), dim=1)


def top_pairs(scores: Tensor) -> Tensor:
    """The two classes of largest score in each row (N, J), J >= 2, ascending (N, 2); ties go to the lower class."""
    return top_two(scores).sort(dim=1).values


def half_gap(logits: Tensor, classes: Tensor) -> Tensor:
    """Half of the difference of the logits (N, J) of two classes (N, 2), (N,) float64; the whole may overflow."""
    first, second = (logits.gather(1, classes).double() / 2).unbind(dim=1)
    return first - second


def boundary_weights(gap: Tensor, weights: Tensor | None = None) -> Tensor:
    """Nearness of samples to the boundary times their weights, (N,) float64, from the gaps of their logits.

    The nearness is 1 on the boundary, 0 from the nearest 30 % on. Samples with equal gaps share the midpoint of their
    ranks. If those on the boundary reach beyond the kernel, they alone count.
    """
    order = gap.argsort()
    ordered = gap[order]
    drawn = torch.ones_like(gap) if weights is None else weights[order]
    until = torch.cat((drawn.new_zeros(1), drawn.cumsum(dim=0)))
    # Of each group of equal gaps: the first place, and the one after the last.
    places, is_new = torch.arange(len(gap) + 1, device=gap.device), torch.ones_like(until, dtype=torch.bool)
    is_new[1:-1] = ordered[1:] != ordered[:-1]
    first = torch.where(is_new, places, 0).cummax(dim=0).values[:-1]
    after = torch.where(is_new, places, len(gap)).flip(0).cummin(dim=0).values.flip(0)[1:]
    rank = (until[first] + until[after]) / (2 * until[-1])
    kernel = (1 - rank / HALF_WIDTH).clamp(min=0)
    kernel = torch.where(kernel[0] > 0, kernel, (first == 0).double())
    return torch.empty_like(kernel).scatter_(0, order, kernel * drawn)


def uncertainty_along_boundary(logits: Tensor, local: Tensor, kernel: Tensor) -> Tensor:
    """Mean of `local` (N,), float64, weighted by the `boundary_weights` (N,) of logits (N, J)."""
    mean = torch.dot(kernel, local) / kernel.sum()
    is_finite = torch.stack(torch.aminmax(logits)).isfinite().all()  # NaN passes through
    return torch.where(is_finite, mean.clamp(0, 1), torch.nan)
