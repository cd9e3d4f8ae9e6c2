"""Signals of a check, from one pass of logits: U, trust, expected accuracy, and agreement with neighbours."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from importlib import import_module
from typing import Any, Self

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from bu_torch import functional
from bu_torch.estimators.boundary import BoundaryUncertainty
from bu_torch.estimators.space_choice import SpaceName
from bu_torch.estimators.trust import TrustScore
from bu_torch.functional.boundary import largest_uncertainty
from bu_torch.functional.checks import check_tensor
from bu_torch.functional.probabilities import as_probabilities, scale_to_shares, shares_of
from bu_torch.functional.score import cost_of_memorising
from bu_torch.functional.weights import mean_and_error
from bu_torch.internal.inputs import as_labels, check_fitted
from bu_torch.perturbation.draws import PerturbedInputs, Readings, are_rows
from bu_torch.samples.balance import weights_of
from bu_torch.signals.catalogue import OF_SHARP, SIGNALS, Prepared, SignalInputs, contributions_to, metric_values
from bu_torch.signals.details import Measurement, mean_by_rank
from bu_torch.signals.metrics import THRESHOLD, as_metric, check_on
from bu_torch.signals.preparation import fingerprint_of, warn_of


class Signals:
    """Signals of a check, for any loop: fit once to labelled samples, then measure logits.

    Args:
        n_neighbors, n_draws, seed: As in `BoundaryUncertainty`.
        also: Names of signals to measure beside those of `NAMES`: expected metrics such as `"expected_auroc"`, or
            `"parzen_uncertainty"` and `"omission"`, which read the network at the samples themselves too, after the
            perturbed ones.
        metric: A metric whose expected value is measured: a name as in `Settings`, costs or a `torchmetrics.Metric`.
        known_space: Space that an earlier fit on these samples has chosen; None to choose.
        **options: `feature_extractor`, `perturbation`, `class_weight` and `module`, as in `BoundaryUncertainty`; class
            distances are taken in its space, and the weights count in all signals.

    Attributes:
        boundary: The fitted `BoundaryUncertainty`.
        names: Names of the signals that are measured: those of `NAMES`, of `also` and of `metric`, and if the metric of
            two classes has a threshold, `"threshold"` and the expected value at it.
        vote_skill, regression_skill: As of `boundary`; less than 0.01 is warned of.
    """

    NAMES = tuple(name for name, signal in SIGNALS.items() if signal.is_default)
    fingerprint: str  # digest of the samples and settings of `fit`, 64 hexadecimal digits
    _prepared: Prepared

    def __init__(
        self,
        n_neighbors: int = 40,
        n_draws: int = 4,
        seed: int = 0,
        *,
        also: Sequence[str] = (),
        metric: Any = "accuracy",
        known_space: SpaceName | None = None,
        **options: Any,
    ) -> None:
        unknown = [name for name in also if name not in SIGNALS or name in self.NAMES]
        if unknown:
            others = ", ".join(name for name in SIGNALS if name not in self.NAMES)
            raise ValueError(f"`also` must hold names among {others}, got {unknown[0]!r}.")
        self.metric = as_metric(metric)
        named = () if self.metric is None else (self.metric.signal,)
        self.names = tuple(dict.fromkeys((*self.NAMES, *also, *named)))
        self.boundary = BoundaryUncertainty(n_neighbors, n_draws, seed, **options)
        self.boundary.known_space = known_space
        self._measured_in = {SIGNALS[name].measured_in for name in also if SIGNALS[name].reads_samples}
        self._others: list[Any] = []  # what measures signals that have no formula here

    def fit(self, features: Any, labels: Any, sample_weight: Any = None) -> Self:
        """Compute all that does not depend on the classifier, on the device of the features.

        Arguments and errors are those of `BoundaryUncertainty.fit`.
        """
        boundary = self.boundary
        inputs = boundary.as_inputs(features)
        labels = as_labels(labels, len(inputs)).to(inputs.device)
        points, perturbed = boundary.fit_inputs(inputs, labels, sample_weight)
        # Near a sample that it was made from, a perturbed one would be trusted for having that sample's label.
        sources = boundary.perturbed.sources
        if sources is None:
            sources = torch.arange(len(points), device=points.device).repeat(boundary.n_draws)
        distances = TrustScore().fit(points, boundary.classes.columns(labels)).class_distances(perturbed, sources)
        self._others = [import_module(name).prepare(boundary, points) for name in self._measured_in]
        if self._others:
            boundary.perturbed = boundary.perturbed.followed_by(inputs)
        return self._derive_from(fingerprint_of(boundary, inputs, labels, boundary.weights), distances, inputs)

    def state(self) -> dict[str, Any]:
        """What `fit` computed, as plain data on the CPU, for the state of a run; `restore` takes it back."""
        check_fitted(self, "fingerprint")
        distances = self._prepared.distances[:, :-1].cpu()
        return {"fingerprint": self.fingerprint, "left_out_distances": distances, **self.boundary.state()}

    def restore(self, state: Mapping[str, Any], features: Any, labels: Any, sample_weight: Any = None) -> Self:
        """Take what `state` gave in place of `fit(features, labels, sample_weight)`; perturbed inputs are drawn again.

        Raises ValueError if the state is of other samples or settings, or `also` names a signal of the papers; KeyError
        or TypeError if it is damaged.
        """
        inputs, labels, weights = self._read(features, labels, sample_weight)
        fingerprint = fingerprint_of(self.boundary, inputs, labels, weights)
        if state["fingerprint"] != fingerprint or self._measured_in:
            raise ValueError("`state` must be of the same samples and settings.")
        self.boundary.restore(state, inputs, weights)
        return self._derive_from(fingerprint, state["left_out_distances"].to(inputs.device), inputs)

    def _derive_from(self, fingerprint: str, distances: Tensor, inputs: Tensor) -> Self:
        self.fingerprint, boundary = fingerprint, self.boundary
        self.vote_skill, self.regression_skill = boundary.vote_skill, boundary.regression_skill
        columns = boundary.classes.columns(boundary.labels)
        repeated, probabilities = boundary.repeated_weights, boundary.probabilities_of_present
        most = largest_uncertainty(probabilities)

        def counting_once(weighted: Tensor) -> Tensor:
            return weighted if repeated is None else scale_to_shares(weighted, shares_of(columns, None))

        plain = sharp = counting_once(probabilities)
        if boundary.sharpness > 1 and any(name in self.names for name in OF_SHARP):
            sharp = counting_once(as_probabilities(probabilities.double() ** boundary.sharpness))
        is_reading = isinstance(boundary.perturbation, Readings)  # there probabilities leave a sample's own label out
        self._prepared = Prepared(
            # In column-major memory the nearest class is found in a third of the time.
            distances=torch.nn.functional.pad(distances.T.contiguous(), (0, 0, 0, 1), value=torch.inf).T,
            label_columns=columns.repeat(boundary.n_draws),
            most_uncertainty=most,
            plain_probabilities=plain,
            sharp_probabilities=sharp,
            attainable=functional.attainable(probabilities, distances, repeated),
            attainable_crossing=mean_by_rank(most, -most, repeated),
            skill=min(max(self.skill, 0.0), 1.0),
            are_rows=are_rows(boundary.perturbation, inputs),
            label_weight=cost_of_memorising(probabilities, repeated) * (is_reading / 2),
        )
        if self.metric is not None:
            check_on(self.metric, boundary.classes.expand(plain, 0.0))
            if self.metric.of_counts is not None and boundary.classes.n_classes == 2:
                self.names = tuple(dict.fromkeys((*self.names, *self.metric.entries)))
        warn_of(boundary, inputs)
        return self

    @property
    def skill(self) -> float:
        """The larger of `vote_skill` and `regression_skill`."""
        return max(self.vote_skill, self.regression_skill)

    @property
    def attainable(self) -> functional.Attainable:
        """Most that expected accuracy, boundary uncertainty and trust reach at the perturbed samples."""
        check_fitted(self, "fingerprint")
        return self._prepared.attainable

    @property
    def class_distances(self) -> Tensor:
        """Distance (n_draws * N, J) from each perturbed sample to each class, the sample itself left out."""
        return self.boundary.classes.expand(self._prepared.distances, torch.inf)

    @property
    def probabilities(self) -> Tensor:
        """Class probabilities at each perturbed sample, (n_draws * N, J), float32 (`LabelProbabilities`)."""
        return self.boundary.probabilities.flatten(0, 1)

    def plain_probabilities(self, n_columns: int) -> Tensor:
        """The same if each sample counts once, with `n_columns` >= J columns, as metrics take them."""
        plain = self.boundary.classes.expand(self._prepared.plain_probabilities, 0.0)
        return torch.nn.functional.pad(plain, (0, max(0, n_columns - plain.shape[1])))

    @property
    def perturbed_inputs(self) -> Tensor:
        """Points at which a classifier is read, (n_draws * N, ...); for signals of the papers N samples follow."""
        return self.perturbed.whole()

    @property
    def perturbed(self) -> PerturbedInputs:
        """Perturbed samples, made batch by batch."""
        check_fitted(self, "fingerprint")
        return self.boundary.perturbed

    @property
    def is_fitted(self) -> bool:
        """Whether `fit` or `restore` has been called."""
        return hasattr(self, "fingerprint")

    def fingerprint_of(self, features: Any, labels: Any, sample_weight: Any = None) -> str:
        """Fingerprint that `fit` with these arguments would give."""
        return fingerprint_of(self.boundary, *self._read(features, labels, sample_weight))

    def _read(self, features: Any, labels: Any, sample_weight: Any) -> tuple[Tensor, Tensor, Tensor | None]:
        inputs = self.boundary.as_inputs(features)
        labels = as_labels(labels, len(inputs)).to(inputs.device)
        return inputs, labels, weights_of(labels, self.boundary.class_weight, sample_weight)

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
        boundary, device = self.boundary, self.boundary.labels.device
        n_samples, n_perturbed = len(boundary.labels), boundary.n_draws * len(boundary.labels)
        if before is not None:
            check_tensor("before", before, (n_perturbed,), device, below=torch.inf)
        if best is not None:
            check_tensor("best", best, (n_samples,))
        logits = boundary.as_class_logits(logits)
        logits, own = logits[:n_perturbed], logits[n_perturbed:]
        inputs = SignalInputs(boundary, self._prepared, logits, before)
        is_finite = inputs.uncertainty.isfinite()
        formulas = {name: SIGNALS[name].formula for name in self.names if name in SIGNALS}
        values = {name: formula(inputs) for name, formula in formulas.items() if formula is not None}
        if self.metric is not None:
            values = metric_values(self.metric, inputs, has_threshold=THRESHOLD in self.names) | values
        for measurer in self._others:
            is_finite = is_finite & own.isfinite().all()
            values |= measurer.measure(logits, own)
        values = {name: torch.where(is_finite, values[name], torch.nan) for name in self.names}
        contributions, counted = contributions_to(self.metric, inputs, values)
        error = torch.zeros_like(inputs.accuracy)
        if best is not None and len(contributions):
            error = mean_and_error(contributions - best, counted)[1]
        return Measurement(values, inputs.predictions, contributions, torch.where(is_finite, error, torch.nan), inputs)

    def to(self, device: torch.device | str) -> Self:
        """Move what `fit` computed to `device`, in place."""
        check_fitted(self, "fingerprint")
        self.boundary.to(device)
        named = {field.name: getattr(self._prepared, field.name) for field in fields(Prepared)}
        self._prepared = Prepared(**pytree.tree_map_only(Tensor, lambda tensor: tensor.to(device), named))
        for measurer in self._others:
            measurer.to(device)
        return self
