"""What the paper of the trust score has beside it: filters of samples, precision curves, and the choice of alpha.

Jiang et al. (2018), Algorithm 1, Remark 2 and section 5.
"""

import math
import warnings
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from bu_torch.estimators.trust import TrustScore
from bu_torch.internal.inputs import as_flat_features, as_labels, as_tensor, check_integer, check_seed
from bu_torch.neighbors.graph import nearest
from bu_torch.papers.continuum import as_real

_ALPHAS = (0.0, *(2.0**-power for power in range(7, 0, -1)))


def kept_by_density(features: Tensor, labels: Tensor, alpha: float, n_neighbors: int) -> Tensor:
    """In each class, those with a k-NN radius up to the (1 - alpha)-quantile; a sample is its own first neighbour."""
    kept = torch.ones_like(labels, dtype=torch.bool)
    too_small = []
    for label in labels.unique().tolist():
        members = (labels == label).nonzero().squeeze(1)
        if len(members) < n_neighbors:
            too_small.append(label)
        elif n_neighbors > 1:  # else every radius is 0
            radius = nearest(features[members], None, n_neighbors - 1)[0][:, -1]
            kept[members] = radius <= radius.sort().values[len(radius) - math.floor(alpha * len(radius)) - 1]
    if too_small:
        kept_all = f"Classes {too_small} have fewer than n_neighbors={n_neighbors} samples, which are all kept."
        warnings.warn(kept_all, stacklevel=3)
    return kept


def kept_by_disagreement(features: Tensor, labels: Tensor, alpha: float, n_neighbors: int) -> Tensor:
    """All but those with the largest share of other labels among their neighbours, then with the largest radius."""
    if len(features) <= n_neighbors:
        raise ValueError(f"`features` must hold more than n_neighbors={n_neighbors} samples, got {len(features)}.")
    distances, rows = nearest(features, None, n_neighbors)
    disagreement = (labels[rows] != labels.unsqueeze(1)).double().mean(dim=1)
    order = distances[:, -1].argsort(stable=True)
    order = order[disagreement[order].argsort(stable=True)]
    n_removed = min(math.floor(alpha * len(labels)), int((disagreement > 0).sum()))
    kept = torch.ones_like(labels, dtype=torch.bool)
    kept[order[len(labels) - n_removed :]] = False
    return kept


class AlphaChoice(NamedTuple):
    """The chosen fraction, and the precision of each candidate, (A,) float64."""

    alpha: float
    precisions: Tensor


def trustworthy_precision(scores: Any, is_correct: Any, percentiles: Any = None) -> Tensor:
    """Precision against percentile of the scores: accuracy on the samples that score highest.

    Jiang et al. (2018), section 5. At percentile p the floor(p n / 100) samples with the lowest scores are left out.
    Samples with equal scores at the threshold count fractionally: the mean over all orders of them. A perfect score
    reaches accuracy 1 from the percentile of the error rate on.

    Args:
        scores: Score of each sample, larger for more trustworthy predictions, shape (n,), real, may be infinite.
        is_correct: True if the prediction is right, shape (n,), bool.
        percentiles: Shape (P,), in [0, 100); None for 0, 1, ..., 99.

    Returns:
        Shape (P,), in [0, 1], float64, on the device of the scores.

    Raises:
        TypeError, ValueError: If an argument has the wrong dtype, shape or values.

    Example:
        >>> scores, is_correct = torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor([False, True, False, True])
        >>> trustworthy_precision(scores, is_correct, [0, 25, 75])
        tensor([0.5000, 0.6667, 1.0000], dtype=torch.float64)
    """
    scores, is_correct, n_kept = _check(scores, is_correct, percentiles)
    return _precision_of_top(scores, is_correct, n_kept)


def suspicious_precision(scores: Any, is_correct: Any, percentiles: Any = None) -> Tensor:
    """Precision against percentile of the negated scores: error rate on the samples that score lowest.

    Jiang et al. (2018), section 5. At percentile p the floor(p n / 100) samples with the highest scores are left out. A
    perfect score reaches 1 from the percentile of the accuracy on. Ties count as in `trustworthy_precision`.

    Arguments and errors are those of `trustworthy_precision`. Returns a tensor of shape (P,), in [0, 1], float64,
    on the device of the scores.
    """
    scores, is_correct, n_kept = _check(scores, is_correct, percentiles)
    return _precision_of_top(-scores, ~is_correct, n_kept)


def select_alpha(
    features: Any,
    labels: Any,
    predictions: Any,
    *,
    filtering: Literal["density", "disagreement"] = "density",
    n_neighbors: int = 10,
    n_folds: int = 5,
    seed: int = 0,
) -> AlphaChoice:
    """Choose the fraction that `TrustScore` filters out, by cross-validation on the training samples.

    Jiang et al. (2018), section 5: alpha is 0 or a power of 1/2, here 2^-7 to 2^-1, and k is fixed. The criterion is
    the precision in finding suspicious examples at the percentile of the classifier's accuracy: the share of errors
    among the m lowest scores of a fold with m errors, pooled over the folds. The first of equally good fractions is
    taken.

    Args:
        features: Labelled samples, shape (N, d), as in `TrustScore.fit`.
        labels: Classes, shape (N,), integers >= 0.
        predictions: Prediction for each sample by a classifier trained without it, shape (N,), integers >= 0, as by
            `sklearn.model_selection.cross_val_predict`: on its own training samples a classifier makes few errors.
        filtering: As in `TrustScore`, as is `n_neighbors`.
        n_neighbors: k of the filters, >= 1.
        n_folds: Stratified folds, >= 2; each is scored by a trust score fitted on the others.
        seed: Seed of the folds, 0 <= seed < 2**64.

    Returns:
        The fraction, and the precision of each candidate.

    Raises:
        TypeError, ValueError: If an argument has the wrong dtype or shape, or no prediction is wrong.
    """
    from sklearn.model_selection import StratifiedKFold

    features = as_flat_features(features)
    labels = as_labels(labels, len(features)).to(features.device)
    predictions = as_labels(predictions, len(features), "predictions").to(features.device)
    is_correct = predictions == labels
    if bool(is_correct.all()):
        raise ValueError("`predictions` must hold at least one wrong prediction, got none.")
    scorers = [TrustScore(filtering, alpha, n_neighbors) for alpha in _ALPHAS]
    random_state = check_seed(seed) % 2**32  # scikit-learn takes 32 bits
    folds = StratifiedKFold(check_integer("n_folds", n_folds, 2), shuffle=True, random_state=random_state)
    found = torch.zeros(len(scorers), dtype=torch.float64, device=features.device)
    for kept, held_out in folds.split(features.cpu(), labels.cpu()):
        fitted, scored = (torch.from_numpy(rows).to(features.device) for rows in (kept, held_out))
        n_wrong = (~is_correct[scored]).sum()
        if n_wrong > 0:
            for column, scorer in enumerate(scorers):
                scores = scorer.fit(features[fitted], labels[fitted]).score(features[scored], predictions[scored])
                found[column] += n_wrong * _precision_of_top(-scores, ~is_correct[scored], n_wrong)
    precisions = found / (~is_correct).sum()
    return AlphaChoice(_ALPHAS[int(precisions.argmax())], precisions)


def _check(scores: Any, is_correct: Any, percentiles: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Checked scores and hits, and the number of samples above each percentile."""
    scores, is_correct = as_tensor(scores, "scores").detach(), as_tensor(is_correct, "is_correct")
    if scores.is_complex() or scores.ndim != 1 or len(scores) == 0 or bool(scores.isnan().any()):
        raise ValueError(f"`scores` must be real, (n,) with n >= 1 and without NaN, got {tuple(scores.shape)}.")
    if is_correct.dtype != torch.bool or is_correct.shape != scores.shape:
        got = f"{tuple(is_correct.shape)}, {is_correct.dtype}"
        raise ValueError(f"`is_correct` must be bool, one entry a score, {tuple(scores.shape)}, got {got}.")
    percentiles = as_real(torch.arange(100) if percentiles is None else percentiles, "percentiles")
    percentiles = percentiles.to(scores.device).double()
    if percentiles.ndim != 1 or not bool(((percentiles >= 0) & (percentiles < 100)).all()):
        raise ValueError(f"`percentiles` must have shape (P,) and lie in [0, 100), got {percentiles.tolist()}.")
    n_kept = len(scores) - (percentiles * len(scores) / 100 + 1e-9).floor().long()  # 1e-9 undoes rounding
    return scores if scores.is_floating_point() else scores.double(), is_correct.to(scores.device), n_kept


def _precision_of_top(scores: Tensor, is_hit: Tensor, n_top: Tensor) -> Tensor:
    """Share of hits among the `n_top` highest scores, averaged over the orders of equal scores."""
    order = scores.argsort(descending=True)
    _, group, size = scores[order].unique_consecutive(return_inverse=True, return_counts=True)
    share = torch.zeros_like(size, dtype=torch.float64).index_add_(0, group, is_hit[order].double()) / size
    return share[group].cumsum(0)[n_top - 1] / n_top
