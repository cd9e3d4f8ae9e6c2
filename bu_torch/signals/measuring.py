"""Signals of a check, from one pass of logits: U, trust, expected accuracy, and agreement with neighbours."""

import hashlib
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Self

import torch
from torch import Tensor

from bu_torch.estimators.boundary import BoundaryUncertainty
from bu_torch.functional.checks import check_choice, check_tensor, mean_and_error
from bu_torch.functional.metrics import best_threshold, decided_at, influence, left_out_thresholds
from bu_torch.functional.probabilities import as_probabilities, scale_to_shares, shares_of
from bu_torch.functional.score import Attainable, attainable, cost_of_memorising, top_two, uncertainty_between
from bu_torch.internal.inputs import check_fitted
from bu_torch.neighbors.graph import class_distances, copies
from bu_torch.perturbation.draws import PerturbedInputs, Readings, are_rows, followed_by, kind_of
from bu_torch.samples.samples import weights_of
from bu_torch.signals.catalogue import SIGNALS, Measurement, NetworkOutputs
from bu_torch.signals.metrics import ACCURACY, THRESHOLD, ExpectedMetric, as_metric, check_metric

_FORMAT = 19  # raise it if the tensors of a state change, or the way in which they are computed
_LEAST_SKILL = 0.01  # votes on 400 random labels or more seldom have a higher skill
_MOST_COPIES = 0.5
_MOST_CLASSES_A_SAMPLE = 1 / 3
_RARE = 0.5  # part of an equal share; the kept check recognised rarer classes clearly less often


class Signals:
    """Signals of a check, for any loop: fit once to labelled samples, then measure logits.

    Args:
        n_neighbors, n_draws, seed: As in `BoundaryUncertainty`.
        also: Names of signals to measure beside those of `NAMES`: expected metrics such as `"expected_auroc"`, or
            `"parzen_uncertainty"` and `"omission"`, which read the network at samples too, after the perturbed ones.
        metric: A metric whose expected value is measured: a name as in `Settings`, costs or a `torchmetrics.Metric`.
        **options: `feature_extractor`, `perturbation`, `class_weight`, `module` and `known_space`, as in
            `BoundaryUncertainty`; class distances are taken in its space, and the weights count in all signals.

    Attributes:
        boundary: The fitted `BoundaryUncertainty`.
        attainable: Most that expected accuracy, boundary uncertainty and trust reach (`Attainable`).
        names: Names of the signals that are measured: those of `NAMES`, of `also` and of `metric`, and if the metric of
            two classes has a threshold, `"threshold"` and the expected value at it.
        vote_skill, regression_skill: As of `boundary`; less than 0.01 is warned of. `skill` is the larger of both.
    """

    NAMES = tuple(name for name, signal in SIGNALS.items() if signal.is_default)
    fingerprint: str  # digest of samples and settings, 64 hexadecimal digits
    _counting_once: dict[float, Tensor]  # by sharpness

    def __init__(
        self,
        n_neighbors: int = 40,
        n_draws: int = 4,
        seed: int = 0,
        *,
        also: Sequence[str] = (),
        metric: Any = "accuracy",
        **options: Any,
    ) -> None:
        for name in also:
            check_choice("also", name, [other for other in SIGNALS if other not in self.NAMES])
        self.metric = as_metric(metric)
        self.names = tuple(dict.fromkeys((*self.NAMES, *also, self.metric.signal)))
        self.boundary = BoundaryUncertainty(n_neighbors, n_draws, seed, **options)
        self._reads_unmoved = any(SIGNALS[name].reads_unmoved for name in also)
        self._of_papers: Any = None  # `ProposalSignals`

    def fit(self, features: Any, labels: Any, sample_weight: Any = None) -> Self:
        """Compute all that does not depend on the classifier, on the device of the features.

        Arguments and errors are those of `BoundaryUncertainty.fit`.
        """
        boundary, (inputs, labels) = self.boundary, self.boundary.as_samples(features, labels)
        points, perturbed = boundary.fit_to(inputs, labels, sample_weight)
        # Near a sample that it was made from, a perturbed one would be trusted for having that sample's label.
        sources = [torch.arange(len(labels), device=labels.device).repeat(boundary.n_draws)]
        if isinstance(boundary.perturbed, PerturbedInputs):
            sources.append(boundary.perturbed.targets)
        left_out, n_classes = torch.stack(sources, dim=1), boundary.classes.n_present
        distances = class_distances(perturbed, points, boundary.label_columns, n_classes, left_out)
        if self._reads_unmoved:
            from bu_torch.papers.proposal2 import ProposalSignals

            self._of_papers = ProposalSignals(boundary, points)
            boundary.perturbed = followed_by(boundary.perturbed, inputs)
        fingerprint = fingerprint_of(boundary, inputs, labels, sample_weight)
        return self._prepare(inputs, fingerprint, distances.to(perturbed.dtype))

    def state(self) -> dict[str, Any]:
        """What `fit` computed, as plain data on the CPU, for the state of a run; `restore` takes it back."""
        check_fitted(self, "fingerprint")
        distances = self.distances[:, :-1].cpu()
        return {"fingerprint": self.fingerprint, "left_out_distances": distances, **self.boundary.state()}

    def restore(self, state: Mapping[str, Any], features: Any, labels: Any, sample_weight: Any = None) -> Self:
        """Take what `state` gave in place of `fit(features, labels, sample_weight)`; perturbed inputs are drawn again.

        Raises ValueError if it is of other samples or settings, or `also` names a signal of the papers; KeyError or
        TypeError if it is damaged.
        """
        if self._reads_unmoved:
            raise ValueError(
                "`state` must be of signals that read perturbed samples alone, not of those of the papers."
            )
        inputs, labels = self.boundary.as_samples(features, labels)
        fingerprint = fingerprint_of(self.boundary, inputs, labels, sample_weight)
        if state["fingerprint"] != fingerprint:
            raise ValueError("`state` must be of the same samples and settings.")
        self.boundary.restore(state, inputs, labels, sample_weight)
        return self._prepare(inputs, fingerprint, state["left_out_distances"].to(inputs.device))

    def _prepare(self, inputs: Tensor, fingerprint: str, distances: Tensor) -> Self:
        """Compute what checks read, with distances (D * N, C) to each class, of which sources are left out."""
        boundary = self.boundary
        warn_about_samples(boundary, inputs)
        self.are_rows, self.fingerprint, self._counting_once = are_rows(inputs), fingerprint, {}
        # In column-major memory the nearest class is found in a third of the time.
        self.distances = torch.nn.functional.pad(distances.T.contiguous(), (0, 0, 0, 1), value=torch.inf).T
        probabilities, weights = boundary.probabilities_of_present, boundary.repeated_weights
        self.most_uncertainty = uncertainty_between(probabilities, top_two(probabilities))  # (D * N,) float64
        self.attainable = attainable(probabilities, distances, weights)
        # Weight of the agreement with the labels in the score, where samples are read again and expected accuracy is
        # that by the other samples: half of what a memorised label costs, so that memorising never pays.
        is_reading = isinstance(boundary.perturbation, Readings)
        self.label_weight = float(cost_of_memorising(probabilities, weights)) / 2 if is_reading else 0.0
        self.vote_skill, self.regression_skill = boundary.vote_skill, boundary.regression_skill
        self.skill = max(self.vote_skill, self.regression_skill)
        n_classes = boundary.classes.n_classes
        if self.metric != ACCURACY:
            # The network may have outputs that no label has.
            check_metric(self.metric, self.counting_once(max(n_classes, self.metric.n_classes or 0)))
        if self.metric.of_counts is not None and n_classes == 2:
            self.names = tuple(dict.fromkeys((*self.names, *self.metric.entries)))
        return self

    def counting_once(self, n_columns: int, *, is_sharpened: bool = False) -> Tensor:
        """Label probabilities as metrics take them: each sample counts once, whatever its weight.

        Shape (D * N, n_columns), at least the largest label + 1. Sharpened, they are as certain as left-out labels
        allow.
        """
        boundary, sharpness = self.boundary, self.boundary.sharpness if is_sharpened else 1
        if sharpness not in self._counting_once:
            probabilities = boundary.probabilities_of_present
            if sharpness != 1:
                probabilities = as_probabilities(probabilities.double() ** sharpness)
            if boundary.weights is not None:  # each class gets the mass of its samples
                probabilities = scale_to_shares(probabilities, shares_of(boundary.label_columns, None))
            self._counting_once[sharpness] = probabilities
        return boundary.classes.expand(self._counting_once[sharpness], n_columns)

    @property
    def probabilities(self) -> Tensor:
        """Class probabilities at each perturbed sample, (n_draws * N, J), float32 (`LabelProbabilities`)."""
        return self.boundary.probabilities.flatten(0, 1)

    @property
    def perturbed_inputs(self) -> Tensor:
        """Points at which a classifier is read, (n_draws * N, ...); for signals of the papers N samples follow."""
        return self.boundary.perturbed_inputs.flatten(0, 1)

    def measure(self, logits: Tensor, before: Tensor | None = None, best: Tensor | None = None) -> Measurement:
        """Measure all signals of logits at `perturbed_inputs`, without waiting for the device.

        Args:
            logits: Shape (n_draws * N, J), or with `also` ((n_draws + 1) * N, J), with J at least the number of
                classes, floating point, on the device of the fitted tensors; one column, or none, for two classes.
            before: The predictions of the last measurement, shape (n_draws * N,); None at the first.
            best: The contributions of the measurement to compare this one with, shape (N,); None for none.

        Returns:
            The measurement; its values are NaN if any logit is not finite, `prediction_changes` 1 without `before`.
        """
        check_fitted(self, "fingerprint")
        n_samples, metric = len(self.boundary.labels), self.metric
        n_perturbed = self.boundary.n_draws * n_samples
        if before is not None:
            check_tensor("before", before, (n_perturbed,), self.boundary.labels.device, below=torch.inf)
        if best is not None:
            check_tensor("best", best, (n_samples,))
        logits = self.boundary.as_class_logits(logits)
        metric.check_columns(logits.shape[1])
        outputs, at_samples = NetworkOutputs(self, logits[:n_perturbed], before), logits[n_perturbed:]
        known = [SIGNALS[name] for name in self.names if name in SIGNALS]
        values = {
            signal.name: getattr(outputs, signal.name) if signal.metric is None else outputs.expected(signal.metric)
            for signal in known
            if not signal.reads_unmoved
        }
        if metric.signal not in values:
            values[metric.signal] = outputs.expected(metric)
        if THRESHOLD in self.names:
            values |= _values_at_threshold(metric, outputs, values[metric.signal])
        if self._of_papers is not None:
            values |= self._of_papers.measure(outputs.logits, at_samples)
        is_finite = outputs.boundary_uncertainty.isfinite() & at_samples.isfinite().all()
        values = {name: torch.where(is_finite, values[name], torch.nan) for name in self.names}
        contributions, error = contributions_to(metric, outputs, values), torch.zeros_like(outputs.boundary_uncertainty)
        if best is not None and len(contributions):
            error = mean_and_error(contributions - best, self.boundary.weights if metric == ACCURACY else None)[1]
        error = torch.where(is_finite, error, torch.nan)
        return Measurement(values, outputs.predictions, contributions, error, outputs)

    def to(self, device: torch.device | str) -> Self:
        """Move what `fit` computed to `device`, in place."""
        check_fitted(self, "fingerprint")
        self.boundary.to(device)
        if self._of_papers is not None:
            self._of_papers.to(device)
        self.distances, self.most_uncertainty = self.distances.to(device), self.most_uncertainty.to(device)
        self.attainable = Attainable(*(most.to(device) for most in self.attainable))
        self._counting_once.clear()
        return self


def _values_at_threshold(metric: ExpectedMetric, outputs: NetworkOutputs, value: Tensor) -> dict[str, Tensor]:
    """Threshold of class 1 of two, and the metric there; NaN if the network has more outputs.

    Another threshold counts only if it gains more than two standard errors where it was not chosen.
    """
    if metric.of_counts is None or outputs.logits.shape[1] > 2:
        return dict.fromkeys((THRESHOLD, metric.at_threshold), torch.full_like(value, torch.nan))
    given = outputs.label_probabilities_for(metric), outputs.boundary.n_draws
    threshold, best = best_threshold(metric.of_counts, outputs.logits, given[0])
    crossed = decided_at(outputs.logits, left_out_thresholds(metric.of_counts, outputs.logits, *given))
    after, before = (influence(metric.formula, logits, *given) for logits in (crossed, outputs.logits))
    gain = metric.sign * (metric.formula(crossed, given[0], None) - value)
    is_clear = gain > 2 * mean_and_error(after - before, None)[1]
    there = torch.where(is_clear, metric.sign * best, value)
    return {THRESHOLD: torch.where(is_clear, threshold, metric.threshold), metric.at_threshold: there}


def contributions_to(metric: ExpectedMetric, outputs: NetworkOutputs, values: Mapping[str, Tensor]) -> Tensor:
    """Contribution of each of N samples to a metric, (N,); empty if unknown."""
    n_draws = outputs.boundary.n_draws
    if metric == ACCURACY:
        return outputs.of_predicted.view(n_draws, -1).mean(dim=0)
    if metric.is_drawn:
        return outputs.boundary_uncertainty.new_empty(0)
    logits = decided_at(outputs.logits, values[THRESHOLD]) if metric.is_at_threshold else outputs.logits
    return influence(metric.formula, logits, outputs.label_probabilities_for(metric), n_draws)


def fit_or_on_cpu(signals: Signals, inputs: Tensor, labels: Tensor, sample_weight: Tensor | None) -> None:
    """Call `Signals.fit`, on the CPU if the memory of the device of `inputs` is too small: training may still fit."""
    try:
        signals.fit(inputs, labels, sample_weight)
    except torch.OutOfMemoryError:
        signals.fit(inputs.cpu(), labels, sample_weight)


def fingerprint_of(boundary: BoundaryUncertainty, inputs: Tensor, labels: Tensor, sample_weight: Any) -> str:
    """Digest of checked samples and of the settings of `boundary`, which need not be fitted; callables by name."""
    settings = [one for one in (boundary.feature_extractor, boundary.perturbation) if not isinstance(one, Readings)]
    named = [getattr(option, "__qualname__", type(option)) if callable(option) else option for option in settings]
    words = _FORMAT, boundary.n_neighbors, boundary.n_draws, boundary.seed, kind_of(boundary.perturbation, inputs)
    readings = boundary.perturbation.inputs[: boundary.n_draws] if isinstance(boundary.perturbation, Readings) else None
    digest = hashlib.sha256(repr((*words, *named)).encode())
    for tensor in (inputs, labels, weights_of(labels, boundary.class_weight, sample_weight), readings):
        if tensor is not None:
            digest.update(repr((tuple(tensor.shape), str(tensor.dtype))).encode())
            digest.update(tensor.cpu().contiguous().numpy().data.cast("B"))
    return digest.hexdigest()


def warn_about_samples(boundary: BoundaryUncertainty, inputs: Tensor) -> None:
    """Warn of labels that look like numbers to predict, of copied samples, and if neighbours predict like chance."""
    labels, n_present = boundary.labels, boundary.classes.n_present
    if n_present > _MOST_CLASSES_A_SAMPLE * len(labels):
        warnings.warn(
            f"The {len(labels)} samples in use have {n_present} different labels, so neighbours say little about a"
            " label: use more samples. If the labels are numbers to predict, the task is a regression, which has no"
            " decision boundary: this is for classifiers.",
            stacklevel=4,
        )
    is_copied = torch.zeros_like(labels, dtype=torch.bool)
    for rows, others in copies(inputs, boundary.neighbors):
        is_copied[rows] |= labels[others] == labels[rows]
    if (share := float(is_copied.double().mean())) > _MOST_COPIES:
        warnings.warn(
            f"{share:.0%} of the samples have an exact copy with the same label among the others, so a network that"
            " memorises labels looks better than it is: pass each sample once, to the callbacks as `reference`.",
            stacklevel=4,
        )
    nearby, regression = boundary.vote_skill, boundary.regression_skill
    if nearby < _LEAST_SKILL:
        meaning = (
            "rely on expected accuracy, not on boundary uncertainty, trust score and agreement with neighbours."
            if regression >= _LEAST_SKILL
            else "nearly all labels are noise, or distances between inputs mean nothing, so the scores say little. A"
            " `feature_extractor` may give a space in which distances mean something."
        )
        warnings.warn(
            "The nearest neighbours predict a sample's label no better than chance (Brier skill score"
            f" {nearby:.2f}; a regression on all samples: {regression:.2f}): {meaning}",
            stacklevel=4,
        )


def describe_doubt(signals: Signals) -> str:
    """Say that a metric may be of the wrong class, or tells networks apart badly, or that a class hardly counts."""
    boundary, metric = signals.boundary, signals.metric
    if metric == ACCURACY:
        rare = rare_class(boundary.labels, boundary.weights) if boundary.class_weight is None else None
        if rare is None:
            return ""
        return (
            f"Class {rare[0]} makes up {rare[1]:.1%} of what training draws, and counts that much in expected accuracy."
            " Pass another `metric=...`, such as 'balanced_accuracy', to change this, or `class_weight=...` if the"
            " loss weighs the classes."
        )
    share = float((boundary.labels == 1).double().mean())
    if metric.is_of_one and boundary.classes.n_classes == 2 and share > 0.5:
        whose = f"The {metric.title} is that of class 1, {share:.0%} of the labels."
        return f"{whose} Swap the labels if you mean class 0."
    if doubt := metric.doubt(boundary.classes.n_present):
        sentence = f"{doubt[0].upper()}{doubt[1:]}"
        return f"{sentence}, so the expected {metric.title} tells networks apart badly. Let accuracy decide."
    return ""


def class_shares(labels: Tensor, weights: Tensor | None) -> tuple[Tensor, Tensor]:
    """The C classes that have samples, ascending, (C,) int64, and the weighted share of each, (C,) float64."""
    present, columns = torch.unique(labels.cpu(), return_inverse=True)
    return present, shares_of(columns, None if weights is None else weights.cpu())


def rare_class(labels: Tensor, weights: Tensor | None) -> tuple[int, float] | None:
    """The rarest class and its share, if that is below half of an equal share; else None."""
    present, shares = class_shares(labels, weights)
    share, rarest = shares.min(dim=0)
    return (int(present[rarest]), float(share)) if share < _RARE / len(present) else None
