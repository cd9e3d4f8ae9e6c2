"""Values of a metric at a check: expected, at the best threshold, and what each sample contributes."""

import warnings

import torch
from torch import Tensor

from bu_torch.functional.accuracy import predicted_probabilities
from bu_torch.functional.metrics import best_threshold, influence
from bu_torch.functional.probabilities import as_probabilities
from bu_torch.functional.weights import mean_and_error, sum_by_group
from bu_torch.signals.catalogue import SignalInputs
from bu_torch.signals.metrics import METRICS, THRESHOLD, ExpectedMetric, MisfitError

OF_SHARP = [metric.signal for metric in METRICS.values() if metric.is_of_sharp]


def counting_once(probabilities: Tensor, columns: Tensor, weights: Tensor | None) -> Tensor:
    """Class probabilities (D * N, C) if each sample counts once, from those of weighted samples.

    Each class is divided by the mean of the weights (N,) of its samples, those whose `columns` (N,) name it (Saerens et
    al. 2002). Without weights they are the probabilities themselves.
    """
    if weights is None:
        return probabilities
    n_classes = probabilities.shape[1]
    counted, drawn = (sum_by_group(one, columns, n_classes) for one in (torch.ones_like(weights), weights))
    return as_probabilities(probabilities * (counted / drawn))


def metric_values(metric: ExpectedMetric, inputs: SignalInputs, *, has_threshold: bool) -> dict[str, Tensor]:
    """Expected value, and for two classes the threshold and the value there.

    A metric of the user's that fails in the midst of a training is NaN, with a warning.
    """
    try:
        values = {metric.signal: inputs.expected(metric)}
    except MisfitError:
        raise
    except Exception as error:  # the user's code may raise anything
        what = f"{type(error).__name__}: {error}"
        warnings.warn(f"The metric {metric.title} failed, so its value is NaN: {what}", stacklevel=2)
        values = {metric.signal: torch.full_like(inputs.accuracy, torch.nan)}
    if has_threshold and metric.of_counts is not None:
        threshold, best = best_threshold(metric.of_counts, inputs.logits, inputs.of_metric(metric))
        values |= {THRESHOLD: threshold, metric.at_threshold: metric.sign * best}
        if not metric.is_at_threshold:
            values |= _unless_clear(metric, inputs, values)
    return values


def _unless_clear(metric: ExpectedMetric, inputs: SignalInputs, values: dict[str, Tensor]) -> dict[str, Tensor]:
    """Threshold and the value there: 0.5 and the value as it is, unless it gains more than two standard errors."""
    likely = inputs.logits.double().softmax(dim=1)[:, 1]
    moved = torch.stack((values[THRESHOLD].expand_as(likely), likely), dim=1)
    given = inputs.of_metric(metric), inputs.n_draws
    there, here = (influence(metric.formula, logits, *given) for logits in (moved, inputs.logits))
    gain = metric.sign * (values[metric.at_threshold] - values[metric.signal])
    is_clear = gain > 2 * mean_and_error(there - here, None)[1]
    return {
        THRESHOLD: torch.where(is_clear, values[THRESHOLD], 0.5),
        metric.at_threshold: torch.where(is_clear, values[metric.at_threshold], values[metric.signal]),
    }


def contributions_to(metric: ExpectedMetric | None, inputs: SignalInputs) -> tuple[Tensor, Tensor | None]:
    """Contribution of each of N samples to a metric, or accuracy, (N,), empty if unknown; and weights of samples."""
    if metric is None:
        found = predicted_probabilities(inputs.label_probabilities, inputs.columns.unsqueeze(1))
        return inputs.by_sample(found.squeeze(1)).mean(dim=0), inputs.weights
    if metric.is_drawn:
        return inputs.accuracy.new_empty(0), None
    return influence(metric.formula, inputs.logits, inputs.of_metric(metric), inputs.n_draws), None
