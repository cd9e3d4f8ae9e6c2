"""Boundary uncertainty of one classifier after another on the same labelled samples."""

from collections.abc import Callable
from typing import Any, Self, get_args

from torch import Tensor, nn

from bu_torch import functional
from bu_torch.estimators.cluster_scores import ClusterScores, PairsAt
from bu_torch.estimators.space_choice import FeatureExtractor, MetricTrial, SpaceChoice, SpaceName
from bu_torch.functional.checks import check_choice
from bu_torch.functional.parzen import BANDWIDTHS, Bandwidth
from bu_torch.internal.inputs import (
    as_features,
    as_flat_features,
    as_labels,
    check_fitted,
    check_flag,
    check_integer,
    check_seed,
    check_two_classes,
)
from bu_torch.internal.logits import read_logits, warn_of_probabilities
from bu_torch.neighbors.graph import NeighborGraph
from bu_torch.neighbors.prototypes import PrototypeClassifier
from bu_torch.perturbation.draws import (
    Perturbation,
    check_perturbation,
    draw_perturbed,
    keeps_integers,
    kind_of,
)
from bu_torch.samples.balance import ClassWeight, check_class_weight, weights_of
from bu_torch.space.features import FeatureSpace, is_pooled, standardization, standardize
from bu_torch.space.metric import MetricSpace
from bu_torch.space.tokens import check_tokens

_NAMED_SPACES = ("inputs", "patches", "tokens", "metric", "module")


class BoundaryUncertainty(ClusterScores):
    """Boundary uncertainty (Proposal 2): all that does not depend on the classifier is computed once, in `fit`.

    Ha et al. (2021), Algorithm 3: standardised features, clusters of `n_neighbors` samples, perturbed samples, likely
    Bayes pairs. Each classifier then costs one forward pass over the perturbed samples. The paper makes one draw, which
    is noisy on small data; here `n_draws` may be averaged.

    Raises TypeError or ValueError for an argument of the wrong type, shape or values, RuntimeError before `fit`.

    Args:
        n_neighbors: Size M of a cluster, the sample itself included, >= 2. Data with fewer samples is refused.
        n_draws: Independent perturbations of each sample, >= 1; U is the mean over them.
        seed: Seed of all random choices, 0 <= seed < 2**64. Global random numbers are neither used nor changed.
        feature_extractor: As in `FeatureSpace`: neighbours and likely Bayes pairs are found among the features it
            gives; samples are perturbed in input space all the same, by the distance there to the nearest of the
            neighbours. `"module"` takes the features of `module`, `"metric"` inputs (of images patches, of token ids
            tokens) in the metric that labels teach (`LabelMetric`). None takes the inputs if they are vectors (N, d) of
            numbers, else the space in which left-out labels are predicted best, among inputs, patches and `module` for
            images, tokens and `module` for token ids that are perturbed as such, inputs and `module` for all others.
        n_components: As in `FeatureSpace`.
        perturbation: `"random"` moves each sample in a random direction by the distance to its nearest neighbour, as
            Algorithm 1 does (`perturb`); `"neighbors"` a part of the way to one of the samples nearest to it
            (`perturb_toward_neighbors`). None takes the first for vectors (N, d) and the second for inputs of more
            dimensions. `"tokens"`, for token ids (N, L), puts tokens of a near text in place of some
            (`exchange_tokens`). For other inputs (graphs as tensors), a callable of the inputs (N, ...), the distance
            of each to its nearest neighbour (N,) in the space of neighbours, and a `torch.Generator` on the CPU with
            `seed`; it gives inputs of the same shape, and is called once a draw, also when a preparation is loaded.
            Integers stay integers with `"tokens"` and a callable.
        pairs_at: Place where the two likeliest classes of a sample (i and j of Eq. 27) are read: `"perturbed"`, or the
            `"sample"` itself as in the paper, for one more pass over the N samples.
        bandwidth: Width of the kernel that counts samples near the boundary, `"silverman"` as in the paper or `"cvml"`
            (`bu_torch.functional.cvml_bandwidth`), which costs many times more.
        class_weight: Positive weights of the classes, in scikit-learn's words: `"balanced"`, a dict of weights by class
            (1 for missing ones), or one weight for each class. The weights of a sampler are given to `fit`. None takes
            samples as they are.
        module: A network whose own features, the inputs of the `nn.Linear` that runs last, are a space to choose. They
            are read in `fit`: useful if it is pretrained.
        learns_metric: True if the metric is one more space to choose where `feature_extractor` is None: it is taken if
            the nearest samples in it predict unseen labels clearly better (`MetricTrial`).

    Attributes:
        perturbed_inputs: Points at which a classifier is read, (n_draws, N, ...), in the units of the inputs. With
            `pairs_at="sample"` the samples themselves follow, and n_draws is one more here and below.
        labels: (N,) int64.
        neighbors: (N, n_neighbors) int64.
        bayes_pairs: (N, 2) int64, ascending.
        space_name_: Space of neighbours, `"inputs"`, `"patches"`, `"tokens"`, `"mixed"`, `"metric"`, `"module"` or
            `"custom"`.
        skills_: Skill of predicting left-out labels in each space that was compared, 1 is certain and 0 chance; if
            `"metric"` is among them, the skill of the nearest samples alone.
        trial_: The trial of the metric; None if it was no candidate.
        weights: Weight of each sample, (N,) float64 with mean 1; None if all count alike.
        mean_, scale_: Mean and scale of each feature, (d,) float64; a constant feature has scale 1.
        logits: Logits given to `update`, (n_draws * N, J); missing rows hold NaN. None before the first update.

    Example:
        >>> import torch
        >>> generator = torch.Generator().manual_seed(0)
        >>> labels = torch.arange(400) % 2
        >>> features = torch.randn(400, 1, generator=generator) + labels.unsqueeze(1)
        >>> uncertainty = BoundaryUncertainty().fit(features, labels)
        >>> bool(uncertainty.score(lambda x: x - 0.5) > uncertainty.score(lambda x: x - 1.5))
        True
    """

    def __init__(
        self,
        n_neighbors: int = 40,
        n_draws: int = 1,
        seed: int = 0,
        *,
        feature_extractor: FeatureExtractor | None = None,
        n_components: int | None = None,
        pairs_at: PairsAt = "perturbed",
        bandwidth: Bandwidth = "silverman",
        perturbation: Perturbation | None = None,
        class_weight: ClassWeight | None = None,
        module: nn.Module | None = None,
        learns_metric: bool = False,
    ) -> None:
        self.n_neighbors = check_integer("n_neighbors", n_neighbors, 2)
        self.n_draws = check_integer("n_draws", n_draws, 1)
        self.seed = check_seed(seed)
        if isinstance(feature_extractor, str):
            check_choice("feature_extractor", feature_extractor, _NAMED_SPACES)
        self.perturbation = check_perturbation(perturbation)
        if feature_extractor == "tokens" and not keeps_integers(perturbation):
            raise ValueError(
                "`feature_extractor='tokens'` needs `perturbation='tokens'` or a callable that keeps token ids"
                f" integers, got {perturbation!r}."
            )
        self.feature_extractor = feature_extractor
        self.pairs_at: PairsAt = check_choice("pairs_at", pairs_at, get_args(PairsAt))
        self.bandwidth = check_choice("bandwidth", bandwidth, BANDWIDTHS)
        self.class_weight = check_class_weight(class_weight)
        extractor: Any = None if feature_extractor in ("module", "metric") else feature_extractor
        self.space: FeatureSpace | MetricSpace = FeatureSpace(extractor, n_components, seed, module)
        self._choice = SpaceChoice(
            feature_extractor,
            self.space.n_components,
            self.seed,
            module,
            takes_integers=keeps_integers(perturbation),
            learns_metric=check_flag("learns_metric", learns_metric),
        )
        self.known_space: SpaceName | None = None  # chosen before a run was resumed
        self.space_name_ = ""
        self.skills_: dict[str, float] = {}
        self.trial_: MetricTrial | None = None
        self.has_known_neighbors = False

    def fit(self, features: Any, labels: Any, sample_weight: Any = None, neighbors: Any = None) -> Self:
        """Compute all that does not depend on the classifier.

        Args:
            features: Training inputs, shape (N, d) or (N, ...) with N >= n_neighbors, finite; a tensor, an array or a
                frame of pandas. Inputs of more dimensions are flattened for distances. Integers beyond 2^24 are
                computed in float64, others and half precision in float32.
            labels: Classes, shape (N,), integers >= 0 and below 100,000; at least two different ones.
            sample_weight: Relative frequency of each sample in training, (N,), positive; `class_weight` multiplies it.
            neighbors: Neighbours that are known already, as in `NeighborGraph.take`; None to search for them.

        Raises:
            ValueError: If N < n_neighbors, features (extracted ones too) are not finite or too large to be perturbed,
                or there is only one class.
        """
        inputs = self.as_inputs(features)
        self.fit_points(inputs, as_labels(labels, inputs.shape[0]).to(inputs.device), sample_weight, neighbors)
        return self

    def as_inputs(self, features: Any, name: str = "features") -> Tensor:
        """Features as `fit` holds them: floating-point numbers, token ids, or images in bytes."""
        kept = {"keep_integers": keeps_integers(self.perturbation), "keep_bytes": not callable(self.feature_extractor)}
        return as_features(features, name, **kept)

    def fit_points(self, inputs: Tensor, labels: Tensor, sample_weight: Any, neighbors: Any = None) -> Tensor:
        """Fit to checked samples and return them as points (N, k) of the space, which are not kept."""
        check_two_classes(labels)
        is_of_tokens = kind_of(self.perturbation, inputs) == "tokens"
        if is_of_tokens:
            check_tokens(inputs, "features")
        self.weights = weights_of(labels, self.class_weight, sample_weight)
        choice = self._choice.choose(inputs, labels, self.weights, is_of_tokens=is_of_tokens, known=self.known_space)
        self.space_name_, self.space, self.skills_, points, self.trial_ = choice
        self.has_known_neighbors = neighbors is not None
        graph = NeighborGraph(self.n_neighbors)
        graph = graph.fit(points) if neighbors is None else graph.take(points, neighbors)
        self.labels = labels
        self.neighbors = graph.neighbors
        self.nearest_distance = graph.nearest_distance
        classes = labels.unique()
        if len(classes) == 2:
            self.bayes_pairs = classes.expand(len(labels), 2).contiguous()
        else:
            self.bayes_pairs = PrototypeClassifier(seed=self.seed).fit(points, labels).top_pairs(points)
        self._perturb(inputs)
        self._index()
        return points

    def may_use_module(self, inputs: Tensor) -> bool:
        """Return True if the space of these inputs depends on `module`."""
        return self._choice.may_use_module(inputs)

    @property
    def is_of_module(self) -> bool:
        """True if neighbours were found among features that training `module` changes."""
        return self.space_name_ == "module" or (self.space_name_ == "custom" and self._choice.extracts_by_module())

    def _perturb(self, inputs: Tensor) -> None:
        """Draw the perturbed inputs, which follow from neighbours, distances and seed."""
        self.mean_, self.scale_ = standardization(inputs.flatten(1))
        # A metric of trace d keeps the mean length of a step in a random direction.
        is_metric_of_inputs = self.space_name_ == "metric" and inputs.ndim == 2 and inputs.is_floating_point()
        self.perturbed = draw_perturbed(
            inputs,
            self.perturbation,
            self.n_draws,
            self.seed,
            neighbors=self.neighbors,
            nearest_distance=self.nearest_distance,
            standardization=(self.mean_, self.scale_),
            is_in_input_space=(self.space_name_ == "inputs" or is_metric_of_inputs)
            and self.space.n_components is None
            and not is_pooled(inputs),
            ends_with_samples=self.pairs_at == "sample",
        )

    def standardize(self, inputs: Any) -> Tensor:
        """Inputs (n, ...) in the units in which they are perturbed, one standard deviation of each feature: (n, d)."""
        check_fitted(self, "mean_")
        flat = as_flat_features(inputs, "inputs", len(self.mean_))
        return standardize(flat.to(self.mean_.device), self.mean_, self.scale_)

    def score(self, model: Callable[[Tensor], Any]) -> Tensor:
        """Boundary uncertainty of a classifier.

        Args:
            model: Any callable from inputs (n, ...) to logits (n, J): a module, a function, `decision_function` of a
                scikit-learn classifier or the logarithm of its `predict_proba`; a warning names what looks like
                probabilities. One column, or shape (n,), counts as the classes [0, z]. A module is run in eval mode, on
                its own device and in its own precision, and left as it was, as global random numbers are.

        Returns:
            Scalar in [0, 1], mean over the draws; see `bu_torch.functional.boundary_uncertainty`.

        Raises:
            TypeError, ValueError: If the model does not give finite floating-point logits with a column for each class.
        """
        check_fitted(self, "mean_")
        logits = read_logits(model, self.perturbed)
        warn_of_probabilities(logits)
        return self.score_logits(logits.to(self.labels.device))

    def omission(self, model: Callable[[Tensor], Any]) -> Tensor:
        """Share of the Bayes boundary that a classifier's boundary leaves out, which `score` cannot see.

        Takes what `score` takes; a scalar in [0, 1], float64, mean over the draws, 0 is best
        (`bu_torch.functional.omission`).
        """
        check_fitted(self, "mean_")
        logits = self._as_class_logits(read_logits(model, self.perturbed))[: self.n_draws * len(self.labels)]
        shares = functional.label_votes(self.labels, self.neighbors, 0.0, weights=self.weights)
        predictions = logits.argmax(dim=1).to(shares.device)
        return functional.omission(shares, predictions, self.neighbors, weights=self.weights)

    def _restore(self, tensors: dict[str, Tensor], weights: Tensor | None, inputs: Tensor, space: str) -> Self:
        """Take fitted tensors from a file or state; draw the perturbed inputs again, from the same samples and seed."""
        self.weights, self.has_known_neighbors = weights, False
        for name, tensor in tensors.items():
            setattr(self, name, tensor)
        self.space_name_ = space
        self._perturb(inputs)
        return self._index()
