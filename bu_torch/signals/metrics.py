"""Metrics whose expected value a check measures: by name, by costs, or a metric of torchmetrics."""

import copy
import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from bu_torch.functional import expected_accuracy
from bu_torch.functional import metrics as formulas
from bu_torch.internal.inputs import as_tensor

# Rank correlation with the same on test data: 0.1 for log loss and 0.0 for the Brier score, and 0.9 with two classes.
_MANY_CLASSES = 4
_N_DRAWS = 5  # labels are drawn so often for a metric of torchmetrics
THRESHOLD = "threshold"  # entry of a check: threshold of class 1 of two, from which it is to be predicted


@dataclass(frozen=True)
class ExpectedMetric:
    """A metric of predictions and labels, in expectation over the label probabilities."""

    name: str
    title: str  # name in words
    is_larger_better: bool  # False for losses and costs
    # A scalar from logits and label probabilities (N, J), and weights (N,) or None.
    formula: Callable[[Tensor, Tensor, Tensor | None], Tensor] = field(compare=False)
    compares_probabilities: bool = False  # it takes label probabilities as certain as left-out labels allow
    settings: Any = None  # what tells it from another one of this name, as plain data
    # Values, larger is better, from hits, false alarms, positives and negatives of two classes; None without threshold.
    of_counts: formulas.OfCounts | None = field(default=None, compare=False)
    threshold: float = 0.5  # of class 1 of two unless another is clearly better; 0.5, or the one that prices imply
    is_at_threshold: bool = False  # its value is that at the threshold of the check, in place of 0.5
    n_classes: int | None = None  # that it is of; None if it takes any number
    is_of_one: bool = False  # of two classes it is that of class 1
    is_drawn: bool = False  # it is computed from drawn labels, so that it has no derivative

    def __str__(self) -> str:
        return f"{self.name}{self.settings or ''}"

    @property
    def signal(self) -> str:
        """Name of its signal in histories, logs and records."""
        return f"expected_{self.name}"

    @property
    def at_threshold(self) -> str:
        """Name of the entry that holds its expected value at the threshold of the check."""
        return self.signal if self.is_at_threshold else f"{self.signal}_at_threshold"

    @property
    def entries(self) -> tuple[str, ...]:
        """Names of the entries of a check that hold its values; those of a threshold are there with two classes."""
        return (self.signal,) if self.of_counts is None else (self.signal, self.at_threshold, THRESHOLD)

    @property
    def sign(self) -> float:
        """1.0 if larger values are better, else -1.0."""
        return 1.0 if self.is_larger_better else -1.0

    @property
    def prices(self) -> str:
        """Costs of two classes in words; "" for another metric."""
        if not self.is_at_threshold:
            return ""
        (of_rejection, of_alarm), (of_miss, of_hit) = self.settings
        words = (
            f"Class 0 predicted as 1 costs {of_alarm:g}, and as 0 {of_rejection:g}. Class 1 predicted as 0 costs"
            f" {of_miss:g}, and as 1 {of_hit:g}."
        )
        is_odd = of_rejection >= of_alarm or of_hit >= of_miss
        return f"{words} A right prediction does not cost less than a wrong one: is that meant?" if is_odd else words

    def check_columns(self, n_columns: int) -> None:
        """Raise ValueError unless it takes so many columns of logits, one a class."""
        if self.n_classes not in (None, n_columns):
            raise ValueError(f"`metric` must be of the {n_columns} classes that there are, got {self.n_classes}.")

    def doubt(self, n_classes: int) -> str:
        """Reason why its expected value says little with so many classes, in words; "" if it tells networks apart."""
        if not self.compares_probabilities or n_classes < _MANY_CLASSES:
            return ""
        return f"with {n_classes} classes, label probabilities are less certain than a good network"

    def baseline(self, probabilities: Tensor) -> float:
        """Best expected value, by label probabilities (N, J), of a common class or of the shares for all points."""
        shares = probabilities.double().mean(dim=0)
        single = torch.eye(len(shares), dtype=torch.float64, device=shares.device)[shares.topk(min(20, len(shares)))[1]]
        candidates = [*(1e3 * single), *([] if self.is_drawn else [shares.clamp(min=1e-12).log()])]
        values = [float(self.formula(one.expand_as(probabilities), probabilities, None)) for one in candidates]
        return self.sign * max((self.sign * value for value in values if math.isfinite(value)), default=math.nan)


def _accuracy(logits: Tensor, probabilities: Tensor, weights: Tensor | None) -> Tensor:
    return expected_accuracy(probabilities, logits.argmax(dim=1), weights=weights)


def _balanced(hits: Tensor, alarms: Tensor, positives: Tensor, negatives: Tensor) -> Tensor:
    return (hits / positives + 1 - alarms / negatives) / 2


def _f1(hits: Tensor, alarms: Tensor, positives: Tensor, negatives: Tensor) -> Tensor:
    return 2 * hits / (hits + alarms + positives)


METRICS = {
    metric.name: metric
    for metric in (
        ExpectedMetric(
            "balanced_accuracy", "balanced accuracy", True, formulas.expected_balanced_accuracy, of_counts=_balanced
        ),
        ExpectedMetric("auroc", "area under the ROC curve", True, formulas.expected_auroc),
        ExpectedMetric(
            "average_precision", "average precision", True, formulas.expected_average_precision, is_of_one=True
        ),
        ExpectedMetric("f1", "F1 score", True, formulas.expected_f1, of_counts=_f1, is_of_one=True),
        ExpectedMetric("log_loss", "log loss", False, formulas.expected_log_loss, compares_probabilities=True),
        ExpectedMetric("brier_score", "Brier score", False, formulas.expected_brier_score, compares_probabilities=True),
    )
}
# Expected accuracy itself, in which samples count by their weights and those of their classes.
ACCURACY = ExpectedMetric("accuracy", "accuracy", True, _accuracy)
_NAMED = {"accuracy": ACCURACY, **METRICS}
METRIC_HELP = f"{', '.join(_NAMED)}, or costs such as '[[0, 10], [100, 10]]', a row for each true class"


def as_metric(metric: Any) -> ExpectedMetric:
    """Metric whose expected value is measured, after checks.

    Raises ValueError or TypeError unless it is a name, costs (J, J), or a `torchmetrics.Metric` of known direction.
    """
    if isinstance(metric, str):
        if metric not in _NAMED:
            names = ", ".join(map(repr, _NAMED))
            raise ValueError(f"`metric` must be one of {names}, costs or a `torchmetrics.Metric`, got {metric!r}.")
        return _NAMED[metric]
    if isinstance(metric, ExpectedMetric):
        return metric
    if hasattr(metric, "higher_is_better") and hasattr(metric, "update") and not isinstance(metric, type):
        return _of_torchmetrics(metric)
    return _of_costs(metric)


def metric_from(text: str) -> Any:
    """Metric from a command line: a name, or costs as in `[[0, 10], [100, 10]]`."""
    try:
        return json.loads(text)
    except ValueError:
        if text.lstrip().startswith("["):
            raise ValueError(f"`metric` cannot be read as a matrix of costs: {text!r:.200}.") from None
        return text


def _of_costs(matrix: Any) -> ExpectedMetric:
    try:
        costs = as_tensor(matrix, "metric").detach().cpu().double()
    except (TypeError, ValueError, RuntimeError, OverflowError):
        raise TypeError(
            "`metric` must be a name, a square matrix of costs (a row for each true class, a column for each predicted"
            f" one) or an instance of `torchmetrics.Metric`, got {matrix!r:.200}."
        ) from None
    if costs.ndim != 2 or len(costs) < 2 or len(costs) != costs.shape[1]:
        raise ValueError(f"`metric` must be a square matrix of costs, got the shape {tuple(costs.shape)}.")
    if not bool(costs.isfinite().all()) or bool((costs == costs[:, :1]).all()):
        raise ValueError(f"`metric` must have finite costs that depend on the prediction, got {costs.tolist()}.")
    prices, of_two = costs.tolist(), dict[str, Any]()
    if len(costs) == 2:
        threshold = _implied_threshold(prices)
        of_two = {"of_counts": partial(_negative_cost, prices), "threshold": threshold, "is_at_threshold": True}
    formula = partial(_cost, costs, of_two.get("threshold", 0.5))
    return ExpectedMetric("cost", "cost", False, formula, settings=prices, n_classes=len(costs), **of_two)


def _implied_threshold(prices: list[list[float]]) -> float:
    """Threshold by which calibrated probabilities of two classes cost least (Elkan 2001, Eq. 2)."""
    (of_rejection, of_alarm), (of_miss, of_hit) = prices
    lost, saved = of_alarm - of_rejection, of_miss - of_hit
    return lost / (lost + saved) if lost > 0 and saved > 0 else float(lost >= saved)


def _negative_cost(
    prices: list[list[float]], hits: Tensor, alarms: Tensor, positives: Tensor, negatives: Tensor
) -> Tensor:
    (of_rejection, of_alarm), (of_miss, of_hit) = prices
    of_class_0 = of_rejection * (negatives - alarms) + of_alarm * alarms
    return -(of_class_0 + of_miss * (positives - hits) + of_hit * hits) / (positives + negatives)


def _cost(costs: Tensor, threshold: float, logits: Tensor, probabilities: Tensor, weights: Tensor | None) -> Tensor:
    """Cost of the predictions; of two classes by the threshold that the prices imply."""
    logits = formulas.decided_at(logits, threshold) if len(costs) == 2 else logits
    return formulas.expected_cost(logits, probabilities, costs.to(logits.device), weights)


def _of_torchmetrics(metric: Any) -> ExpectedMetric:
    name = type(metric).__name__
    if not isinstance(metric.higher_is_better, bool):
        raise ValueError(
            f"`metric` must tell if larger or smaller is better, got {name}: pass a metric of one number, not one that"
            " wraps, counts or draws."
        )
    try:
        blank = copy.deepcopy(metric)  # its owner may go on to use it
    except Exception as error:  # it may hold predictions with gradients, which cannot be copied
        why = f"{type(error).__name__}: {error}"
        raise ValueError(f"`metric` ({name}) cannot be copied ({why}): pass a new one, which saw nothing.") from error
    blank.reset()
    for part in blank.modules():  # one process computes it, while others wait
        part.distributed_available_fn = bool  # False
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", " ", name).lower()
    if words.replace(" ", "_") in ("cost", *_NAMED):  # a class of the user's, named as one of ours
        words = f"own {words}"
    is_binary = any(base.__name__.startswith("Binary") for base in type(metric).__mro__)
    own = {key: value for key, value in vars(metric).items() if isinstance(value, bool | int | float | str)}
    options = repr({key: value for key, value in own.items() if not key.startswith("_") and key != "training"})
    n_classes = 2 if is_binary else getattr(metric, "num_classes", None)
    given = words.replace(" ", "_"), words, metric.higher_is_better, partial(_drawn, blank, is_binary)
    return ExpectedMetric(*given, settings=options, n_classes=n_classes, is_drawn=True)


def _drawn(metric: Any, is_binary: bool, logits: Tensor, probabilities: Tensor, _: Tensor | None) -> Tensor:
    """Mean of a metric over labels that are drawn from the probabilities, the same at each check."""
    generator = torch.Generator(device="cpu").manual_seed(0)
    predicted = logits.float().softmax(dim=1)
    predicted = predicted[:, 1] if is_binary else predicted
    limits, values = probabilities.double().cumsum(dim=1), []
    for _draw in range(_N_DRAWS):
        place = torch.rand(len(logits), 1, generator=generator, dtype=torch.float64, device="cpu").to(logits.device)
        fresh = copy.deepcopy(metric).to(logits.device)
        fresh.update(predicted, (limits < place * limits[:, -1:]).sum(dim=1))
        values.append(torch.as_tensor(fresh.compute(), dtype=torch.float64, device=logits.device))
    return torch.stack(values).mean(dim=0)


def check_metric(metric: ExpectedMetric, probabilities: Tensor) -> None:
    """Raise ValueError unless a metric gives a finite number for label probabilities (N, J) as predictions."""
    n_classes = probabilities.shape[1]
    metric.check_columns(n_classes)
    what = f"`metric` ({metric.title}) must compute a finite number from predictions and labels of {n_classes} classes"
    try:
        value = metric.formula(probabilities.clamp(min=1e-6).log(), probabilities, None)
    except Exception as error:  # the user's code may raise anything
        raise ValueError(f"{what}; it raised {type(error).__name__}: {error}") from error
    if value.ndim or not bool(value.isfinite()):
        raise ValueError(f"{what}, got {value.tolist()}.")
