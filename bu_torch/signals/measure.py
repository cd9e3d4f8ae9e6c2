"""Numbers of a check: `measure` computes all signals from what was prepared and one pass of logits."""

import warnings
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from bu_torch.functional.boundary import predicted_probabilities
from bu_torch.functional.checks import mean_and_error
from bu_torch.functional.metrics import best_threshold, decided_at, influence, left_out_thresholds
from bu_torch.signals.catalogue import SIGNALS, SignalInputs
from bu_torch.signals.details import Measurement
from bu_torch.signals.metrics import ACCURACY, THRESHOLD, ExpectedMetric, MisfitError
from bu_torch.signals.prepare import Prepared


def measure(
    prepared: Prepared,
    logits: Tensor,
    before: Tensor | None = None,
    best: Tensor | None = None,
    *,
    names: Sequence[str],
    metric: ExpectedMetric = ACCURACY,
) -> Measurement:
    """Measure signals by their names; arguments are those of `Signals.measure`, unchecked but for the logits."""
    boundary = prepared.boundary
    n_perturbed = boundary.n_draws * len(boundary.labels)
    logits = boundary.as_class_logits(logits)
    logits, own = logits[:n_perturbed], logits[n_perturbed:]
    inputs = SignalInputs(prepared, logits, before)
    is_finite = inputs.uncertainty.isfinite()
    formulas = {name: SIGNALS[name].formula for name in names if name in SIGNALS}
    values = {name: formula(inputs) for name, formula in formulas.items() if formula is not None}
    if metric != ACCURACY:
        values = metric_values(metric, inputs, has_threshold=THRESHOLD in names) | values
    for other in prepared.others:
        is_finite = is_finite & own.isfinite().all()
        values |= other.measure(logits, own)
    values = {name: torch.where(is_finite, values[name], torch.nan) for name in names}
    contributions, counted = contributions_to(metric, inputs, values)
    error = torch.zeros_like(inputs.accuracy)
    if best is not None and len(contributions):
        error = mean_and_error(contributions - best, counted)[1]
    return Measurement(values, inputs.predictions, contributions, torch.where(is_finite, error, torch.nan), inputs)


def metric_values(metric: ExpectedMetric, inputs: SignalInputs, *, has_threshold: bool) -> dict[str, Tensor]:
    """Expected value, and for two classes the threshold and the value there, NaN if the network has more outputs.

    A metric of the user's that fails in the midst of a training is NaN, with a warning.
    """
    nan = torch.full_like(inputs.accuracy, torch.nan)
    try:
        values = {metric.signal: inputs.expected(metric)}
    except MisfitError:
        raise
    except Exception as error:  # the user's code may raise anything
        what = f"{type(error).__name__}: {error}"
        warnings.warn(f"The metric {metric.title} failed, so its value is NaN: {what}", stacklevel=2)
        values = {metric.signal: nan}
    if not has_threshold or metric.of_counts is None:
        return values
    if inputs.logits.shape[1] > 2:
        return values | {THRESHOLD: nan, metric.at_threshold: nan}
    # Another threshold counts only if it gains more than two standard errors where it was not chosen.
    given = inputs.of_metric(metric), inputs.boundary.n_draws
    threshold, best = best_threshold(metric.of_counts, inputs.logits, given[0])
    crossed = decided_at(inputs.logits, left_out_thresholds(metric.of_counts, inputs.logits, *given))
    there, here = (influence(metric.formula, logits, *given) for logits in (crossed, inputs.logits))
    gain = metric.sign * (metric.formula(crossed, given[0], None) - values[metric.signal])
    is_clear = gain > 2 * mean_and_error(there - here, None)[1]
    return values | {
        THRESHOLD: torch.where(is_clear, threshold, metric.threshold),
        metric.at_threshold: torch.where(is_clear, metric.sign * best, values[metric.signal]),
    }


def contributions_to(
    metric: ExpectedMetric, inputs: SignalInputs, values: Mapping[str, Tensor]
) -> tuple[Tensor, Tensor | None]:
    """Contribution of each of N samples to a metric, (N,), empty if unknown; and weights of samples."""
    boundary = inputs.boundary
    if metric == ACCURACY:
        likely = predicted_probabilities(boundary.probabilities_of_present, inputs.columns)
        return likely.view(boundary.n_draws, -1).mean(dim=0), boundary.weights
    if metric.is_drawn:
        return inputs.accuracy.new_empty(0), None
    logits = decided_at(inputs.logits, values[THRESHOLD]) if metric.is_at_threshold else inputs.logits
    return influence(metric.formula, logits, inputs.of_metric(metric), boundary.n_draws), None
