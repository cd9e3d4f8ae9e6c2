"""Labelled samples, their neighbours, and the perturbed inputs at which one classifier after another is read."""

from collections.abc import Callable
from typing import Any, Self, get_args

import torch
from torch import Tensor, nn

from bu_torch.estimators.space_choice import FeatureExtractor, MetricTrial, SpaceName, choose_space, may_use_module
from bu_torch.functional.checks import as_logits, check_choice
from bu_torch.internal.inputs import (
    PresentClasses,
    as_features,
    check_fitted,
    check_integer,
    check_seed,
    check_two_classes,
)
from bu_torch.internal.logits import read_logits, was_one_column
from bu_torch.neighbors.graph import NeighborGraph
from bu_torch.perturbation.draws import (
    TOWARD_OTHERS,
    Perturbation,
    PerturbedInputs,
    check_perturbation,
    draw_perturbed,
    keeps_integers,
    kind_of,
)
from bu_torch.samples.balance import ClassWeight, check_class_weight, weights_of
from bu_torch.samples.readings import ASKED_TO_READ, WITHOUT_READING
from bu_torch.space.features import FeatureSpace, is_pooled, standardization
from bu_torch.space.metric import LabelMetric
from bu_torch.space.tokens import check_tokens


class PerturbedSamples:
    """Labelled samples, each perturbed `n_draws` times: the base of estimators that are fitted once and score many.

    A subclass defines `score_logits`, and calls `fit_points` in its `fit`; `BoundaryUncertainty` explains arguments.
    """

    learns_metric = False  # True if the metric is one more space to choose where `feature_extractor` is None

    def __init__(
        self,
        n_neighbors: int = 40,
        n_draws: int = 1,
        seed: int = 0,
        *,
        feature_extractor: FeatureExtractor | None = None,
        perturbation: Perturbation | None = None,
        class_weight: ClassWeight | None = None,
        module: nn.Module | None = None,
    ) -> None:
        self.n_neighbors = check_integer("n_neighbors", n_neighbors, 2)
        self.n_draws = check_integer("n_draws", n_draws, 1)
        self.seed = check_seed(seed)
        if isinstance(feature_extractor, str):
            check_choice("feature_extractor", feature_extractor, (*get_args(SpaceName), "module"))
        self.perturbation = check_perturbation(perturbation)
        if feature_extractor == "tokens" and not keeps_integers(perturbation):
            raise ValueError(
                "`feature_extractor='tokens'` needs `perturbation='tokens'` or a callable that keeps token ids"
                f" integers, or 'reading', got {perturbation!r}."
            )
        self.feature_extractor = feature_extractor
        self.class_weight = check_class_weight(class_weight)
        extractor: Any = None if feature_extractor in ("module", "metric") else feature_extractor
        self.space = FeatureSpace(extractor, seed, module)
        self.module = module
        self.known_space: SpaceName | None = None  # chosen before a run was resumed
        self.label_metric: LabelMetric | None = None  # moves points of the space before they are compared
        self.trial_: MetricTrial | None = None
        self.weights: Tensor | None = None
        self.space_name_, self.skills_ = "", dict[str, float]()

    def as_inputs(self, features: Any, name: str = "features") -> Tensor:
        """Features as `fit` holds them: floating-point numbers, token ids, or images in bytes."""
        kept = {"keep_integers": keeps_integers(self.perturbation), "keep_bytes": not callable(self.feature_extractor)}
        return as_features(features, name, **kept)

    def fit_points(self, inputs: Tensor, labels: Tensor, sample_weight: Any) -> Tensor:
        """Find neighbours of checked samples, perturb them, and return them as points (N, k) of the space, not kept."""
        if self.perturbation == "reading":
            raise ValueError(f"{ASKED_TO_READ}: tensors cannot be read again. {WITHOUT_READING}")
        check_two_classes(labels)
        kind = kind_of(self.perturbation, inputs)
        is_of_tokens: bool | None = kind == "tokens"
        if is_of_tokens:
            check_tokens(inputs, "features")
        elif kind == "reading" and not inputs.is_floating_point() and inputs.ndim < 4:
            is_of_tokens = None  # ids or numbers
        self.weights = weights_of(labels, self.class_weight, sample_weight)
        self.space_name_, self.space, self.label_metric, points, self.skills_, self.trial_ = choose_space(
            inputs,
            labels,
            self.weights,
            self.feature_extractor,
            self.known_space,
            seed=self.seed,
            module=self.module,
            takes_integers=keeps_integers(self.perturbation),
            learns_metric=self.learns_metric,
            is_of_tokens=is_of_tokens,
        )
        graph = NeighborGraph(self.n_neighbors).fit(points)
        self.take_neighbors(inputs, labels, graph.neighbors, graph.nearest_distance)
        return points

    def take_neighbors(self, inputs: Tensor, labels: Tensor, neighbors: Tensor, nearest_distance: Tensor) -> None:
        """Take what was found or saved, and draw the perturbed inputs, which follow from it and the seed."""
        self.labels, self.neighbors, self.nearest_distance = labels, neighbors, nearest_distance
        self.classes = PresentClasses(labels)
        is_toward = kind_of(self.perturbation, inputs) in TOWARD_OTHERS
        # A metric of trace d keeps the mean length of a step in a random direction.
        is_metric_of_inputs = self.space_name_ == "metric" and inputs.ndim == 2 and inputs.is_floating_point()
        self.perturbed = draw_perturbed(
            inputs,
            self.perturbation,
            self.n_draws,
            self.seed,
            neighbors=neighbors,
            nearest_distance=nearest_distance,
            units=None if is_toward else standardization(inputs.flatten(1)),
            is_in_input_space=(self.space_name_ == "inputs" or is_metric_of_inputs) and not is_pooled(inputs),
        )

    def may_use_module(self, inputs: Tensor) -> bool:
        """Whether the space of these inputs depends on `module`."""
        return may_use_module(self.feature_extractor, self.module, inputs)

    @property
    def repeated_weights(self) -> Tensor | None:
        """Weight of each perturbed sample, (n_draws * N,) float64; None if all count alike."""
        return None if self.weights is None else self.weights.repeat(self.n_draws)

    @property
    def perturbed_inputs(self) -> Tensor:
        """Points at which a classifier is read, (n_draws, N, ...); made when they are read, and not kept."""
        check_fitted(self, "perturbed")
        return self.perturbed.whole().unflatten(0, (-1, len(self.labels)))

    def score(self, model: Callable[[Tensor], Any]) -> Tensor:
        """Boundary uncertainty of a classifier, a scalar in [0, 1].

        The model is any callable from inputs (n, ...) to logits (n, J): a module, a function, `decision_function` of a
        scikit-learn classifier or the logarithm of its `predict_proba`. One column counts as the classes [0, z]. A
        module is run in eval mode, on its own device and in its own precision, and left as it was. Raises TypeError or
        ValueError if it does not give finite floating-point logits with a column for each class.
        """
        check_fitted(self, "perturbed")
        logits = read_logits(model, self.perturbed, name="`model`")
        return self.score_logits(logits.to(self.labels.device))

    def score_logits(self, logits: Tensor) -> Tensor:
        """Boundary uncertainty of logits (n, J) that were read at `perturbed_inputs.flatten(0, 1)`, (n, ...).

        They have at least one column for each class (one, or none, for two). A scalar in [0, 1]; NaN if any logit is
        not finite. Waits for no device.
        """
        raise NotImplementedError(f"{type(self).__name__} must define `score_logits`.")

    def to(self, device: torch.device | str) -> Self:
        """Move what was fitted, and the perturbed inputs, to `device`, in place."""
        check_fitted(self, "perturbed")
        for name, value in vars(self).items():
            if isinstance(value, Tensor | PerturbedInputs | PresentClasses):
                setattr(self, name, value.to(device))
        return self

    def as_class_logits(self, logits: Tensor, *, has_all_rows: bool = True) -> Tensor:
        """Logits in float32 or float64 with a column for each class; with `has_all_rows`, a row for each input."""
        check_fitted(self, "perturbed")
        logits, n_classes = as_logits(logits).detach(), self.classes.n_classes
        if logits.shape[1] < n_classes:
            n_columns = 1 if was_one_column(logits) else logits.shape[1]  # waits for the device
            raise ValueError(f"`logits` must have at least {n_classes} columns, one a class, got {n_columns}.")
        n_rows = len(self.perturbed)
        if has_all_rows and len(logits) != n_rows:
            raise ValueError(f"`logits` must have one row for each of {n_rows} perturbed inputs, got {len(logits)}.")
        return logits
