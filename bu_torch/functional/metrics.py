"""Expected values of metrics: what a metric would be if the labels were drawn from label probabilities.

All take logits (N, J) and probabilities of the labels (N, J) at the same points, one class a column, unchecked. A point
counts with each label as often as the label is likely there, times its weight (N,); None for equal weights. Results are
scalars, float64. Means over several classes leave out classes that no label has. The formulas are our own use of label
probabilities; the metrics are those of torchmetrics and scikit-learn with these weights of samples.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from bu_torch.functional.checks import sum_below

_CERTAIN = 1e3  # difference of two logits
_N_FOLDS = 5
OfCounts = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]  # hits, false alarms, positives, negatives -> values
_OfOneClass = Callable[[Tensor, Tensor, Tensor], Tensor]  # scores, masses of positive and negative labels (N,)


def expected_balanced_accuracy(logits: Tensor, probabilities: Tensor, weights: Tensor | None = None) -> Tensor:
    """Mean recall of the classes, in [0, 1]."""
    hits, _, labelled = _counts(logits, probabilities, weights)
    return _mean_of_present(_share(hits, labelled), labelled)


def expected_f1(logits: Tensor, probabilities: Tensor, weights: Tensor | None = None) -> Tensor:
    """F1 score of class 1 of two, or the mean over several classes, in [0, 1]; 0 for a class never predicted."""
    hits, predicted, labelled = _counts(logits, probabilities, weights)
    return _of_one_or_mean(_share(2 * hits, predicted + labelled), labelled)


def expected_auroc(logits: Tensor, probabilities: Tensor, weights: Tensor | None = None) -> Tensor:
    """Area under the ROC curve of class 1 of two, or the mean over several classes against the rest, in [0, 1].

    It is the share of pairs of a positive and a negative whose positive has the larger score; ties count half.
    """

    def area(scores: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        order, below, until = sum_below(scores, negative)
        mass = positive[order]
        return _share(torch.dot(mass, (below + until) / 2), mass.sum() * until[-1])

    return _mean_over_classes(area, logits, probabilities, weights)


def expected_average_precision(logits: Tensor, probabilities: Tensor, weights: Tensor | None = None) -> Tensor:
    """Mean precision at the scores of the positives, of class 1 of two or on average over several, in [0, 1]."""

    def precision(scores: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        order, _, until = sum_below(-scores, torch.stack((positive, negative), dim=1))
        hits, alarms = until.unbind(dim=1)
        return _share(torch.dot(positive[order], _share(hits, hits + alarms)), hits[-1])

    return _mean_over_classes(precision, logits, probabilities, weights)


def expected_log_loss(logits: Tensor, probabilities: Tensor, weights: Tensor | None = None) -> Tensor:
    """Cross-entropy of the network's probabilities, >= 0; less is better."""
    return _mean(-(probabilities.double() * logits.double().log_softmax(dim=1)).sum(dim=1), weights)


def expected_brier_score(logits: Tensor, probabilities: Tensor, weights: Tensor | None = None) -> Tensor:
    """Squared distance of the network's probabilities from the one-hot label, in [0, 2]; less is better."""
    predicted = logits.double().softmax(dim=1)
    return _mean(predicted.square().sum(dim=1) - 2 * (predicted * probabilities).sum(dim=1) + 1, weights)


def expected_cost(logits: Tensor, probabilities: Tensor, costs: Tensor, weights: Tensor | None = None) -> Tensor:
    """Mean cost of the predictions; `costs` (J, J) are those of predicting a column's class where a row's is true."""
    each = (probabilities.double() @ costs.double()).gather(1, logits.argmax(dim=1, keepdim=True)).squeeze(1)
    return _mean(each, weights)


def _mean(each: Tensor, weights: Tensor | None) -> Tensor:
    return each.mean() if weights is None else torch.dot(each, weights) / weights.sum()


def _mass(probabilities: Tensor, weights: Tensor | None) -> Tensor:
    return probabilities.double() if weights is None else probabilities.double() * weights.unsqueeze(1)


def _counts(logits: Tensor, probabilities: Tensor, weights: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Expected numbers (J,) of hits, predictions and labels of each class."""
    mass = _mass(probabilities, weights)
    is_predicted = torch.zeros_like(mass).scatter_(1, logits.argmax(dim=1, keepdim=True), 1.0)
    return (is_predicted * mass).sum(dim=0), (is_predicted * mass.sum(dim=1, keepdim=True)).sum(dim=0), mass.sum(dim=0)


def _share(part: Tensor, whole: Tensor) -> Tensor:
    """Quotient, 0 where both are 0, with derivatives that are finite there too."""
    return part / torch.where(whole > 0, whole, 1.0)


def _mean_of_present(values: Tensor, labelled: Tensor) -> Tensor:
    return torch.where(labelled > 0, values, 0.0).sum() / (labelled > 0).sum()


def _of_one_or_mean(values: Tensor, labelled: Tensor) -> Tensor:
    """Value of class 1 of two, even if the network knows more classes, or the mean over several."""
    return torch.where(labelled[2:].any(), _mean_of_present(values, labelled), values[1])


def _mean_over_classes(of_one: _OfOneClass, logits: Tensor, probabilities: Tensor, weights: Tensor | None) -> Tensor:
    mass = _mass(probabilities, weights)
    others = mass.sum(dim=1, keepdim=True) - mass
    if logits.shape[1] == 2:
        return of_one(logits[:, 1].double() - logits[:, 0].double(), mass[:, 1], others[:, 1])
    # As precise as those of torchmetrics: equal ones tie on all devices.
    columns = zip(logits.double().softmax(dim=1).float().T, mass.T, others.T, strict=True)
    return _of_one_or_mean(torch.stack([of_one(*column) for column in columns]), mass.sum(dim=0))


def decided_at(logits: Tensor, threshold: Tensor | float) -> Tensor:
    """Logits (N, 2), float64, certain of class 1 where its probability is at least a threshold, a number or (N,)."""
    is_first = (logits.double().softmax(dim=1)[:, 1] >= threshold).double()
    return _CERTAIN * torch.stack((1 - is_first, is_first), dim=1)


def influence(formula: Callable[..., Tensor], logits: Tensor, probabilities: Tensor, n_draws: int) -> Tensor:
    """Influence of each of N samples on a metric of n_draws * N points, (N,), with mean 0.

    The derivative by the sample's weight, times N: the infinitesimal jackknife (Jaeckel 1972), by which the standard
    error of the metric is their standard deviation by the root of N.
    """
    with torch.inference_mode(False), torch.enable_grad():
        given = logits.detach().clone(), probabilities.detach().clone()  # they may be from inference mode
        weights = torch.ones(len(logits), dtype=torch.float64, device=logits.device, requires_grad=True)
        (slopes,) = torch.autograd.grad(formula(*given, weights), weights)
    return slopes.view(n_draws, -1).sum(dim=0) * (len(logits) // n_draws)


def best_threshold(
    of_counts: OfCounts, logits: Tensor, probabilities: Tensor, weights: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Threshold on the network's probability of class 1 of two that a metric is best at, and the metric there.

    `of_counts` gives values, larger is better, from the expected numbers of hits and of false alarms at each threshold,
    and of positives and negatives in all. The threshold lies halfway between two probabilities, or at an end; of equal
    ones it is the lowest. With weights (K, N) there are K thresholds and values.
    """
    ordered, order = logits.double().softmax(dim=1)[:, 1].sort()
    masses = [mass if weights is None else mass * weights[..., order] for mass in probabilities.double()[order].T]
    negative, positive = (torch.nn.functional.pad(mass.cumsum(dim=-1), (1, 0)) for mass in masses)
    totals = positive[..., -1:], negative[..., -1:]
    values = of_counts(totals[0] - positive, totals[1] - negative, *totals)
    edges = torch.cat((ordered.new_zeros(1), ordered, ordered.new_ones(1)))
    is_open = torch.cat((edges[1:-1] > edges[:-2], edges.new_ones(1, dtype=torch.bool)))  # not between equal ones
    best = torch.where(is_open, values, -torch.inf).argmax(dim=-1)
    between = ((edges[1:] + edges[:-1]) / 2).take(best)  # indexing would wait for the device
    return between, values.gather(-1, best.unsqueeze(-1)).squeeze(-1)


def left_out_thresholds(of_counts: OfCounts, logits: Tensor, probabilities: Tensor, n_draws: int) -> Tensor:
    """The `best_threshold` of the other samples for each of n_draws * N points; every fifth sample is left out."""
    folds = torch.arange(_N_FOLDS, device=logits.device)
    fold = (torch.arange(len(logits) // n_draws, device=logits.device) % _N_FOLDS).repeat(n_draws)
    return best_threshold(of_counts, logits, probabilities, (fold != folds.unsqueeze(1)).double())[0][fold]
