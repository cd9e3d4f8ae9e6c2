"""Boundary uncertainty of one classifier after another on the same labelled samples, perturbed once."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Self, get_args

import torch
from torch import Tensor, nn

from bu_torch.estimators.label_probabilities import LabelProbabilities
from bu_torch.estimators.space_choice import ChosenSpace, FeatureExtractor, SpaceName, choose_space
from bu_torch.functional.checks import as_logits, check_choice
from bu_torch.functional.score import (
    boundary_weights,
    half_gap,
    top_two,
    uncertainty_along_boundary,
    uncertainty_between,
)
from bu_torch.internal.inputs import as_features, as_labels, check_fitted, check_integer, check_seed
from bu_torch.internal.network import read_logits, takes, was_one_column
from bu_torch.neighbors.graph import NeighborGraph
from bu_torch.perturbation import draws
from bu_torch.samples.reading import ASKED_TO_READ, WITHOUT_READING
from bu_torch.samples.samples import ClassWeight, check_class_weight, weights_of
from bu_torch.space.extractors import as_tokens
from bu_torch.space.features import FeatureSpace

MOST_ENTRIES = 2**28  # in an array with a column for each class: a gibibyte in float32; there are three such arrays
_BATCH, _BATCH_ELEMENTS = 64, 2**24  # of what features are taken: a multiple of 64 rows and about 2**24 values
_TENSORS = ("neighbors", "nearest_distance", "probabilities_of_present", "votes_of_present")


class PresentClasses:
    """The C classes among labels (N,), ascending, and their columns; `n_present` is C, `n_classes` the largest + 1.

    Public shapes have `n_classes` columns; cost and memory depend only on the classes that have samples.
    """

    def __init__(self, labels: Tensor) -> None:
        self.classes = torch.unique(labels)
        self.n_present, self.n_classes = len(self.classes), int(self.classes[-1]) + 1

    def columns(self, classes: Tensor) -> Tensor:
        """Columns of classes, int64: below C for those present; each other class has one of its own, from C on."""
        places = torch.searchsorted(self.classes, classes.contiguous()).clamp(max=self.n_present - 1)
        return torch.where(self.classes[places] == classes, places, self.n_present + classes)

    def expand(self, columns: Tensor, n_columns: int | None = None) -> Tensor:
        """Expand an array (n, C) to a column for each class, (n, J), or to more; classes without samples get 0."""
        n_columns = self.n_classes if n_columns is None else n_columns
        if self.n_present == n_columns:
            return columns
        return columns.new_zeros(len(columns), n_columns).index_copy_(1, self.classes, columns)


class PerturbedEstimator:
    """Labelled samples, each perturbed `n_draws` times: the base of estimators that are fitted once and score many.

    A subclass defines `fit_to`, which calls `fit_neighbors`, and `score_logits`. Arguments: `BoundaryUncertainty`.
    """

    learns_metric = False  # True if the metric is one more space to choose where `feature_extractor` is None

    def __init__(
        self,
        n_neighbors: int = 40,
        n_draws: int = 1,
        seed: int = 0,
        *,
        feature_extractor: FeatureExtractor | None = None,
        perturbation: draws.Perturbation | None = None,
        class_weight: ClassWeight | None = None,
        module: nn.Module | None = None,
        known_space: SpaceName | None = None,
    ) -> None:
        self.n_neighbors = check_integer("n_neighbors", n_neighbors, 2)
        self.n_draws = check_integer("n_draws", n_draws, 1)
        self.seed = check_seed(seed)
        if isinstance(feature_extractor, str):
            check_choice("feature_extractor", feature_extractor, (*get_args(SpaceName), "module"))
        if callable(perturbation) and not takes(perturbation, None, None, None):
            raise TypeError("`perturbation` must take (inputs, nearest_distance, generator), got other arguments.")
        if not (callable(perturbation) or isinstance(perturbation, draws.MixedMove | draws.Readings | None)):
            check_choice("perturbation", perturbation, get_args(draws.PerturbationName))
        self.feature_extractor, self.perturbation = feature_extractor, perturbation
        self.class_weight = check_class_weight(class_weight)
        extractor: Any = None if feature_extractor in ("module", "metric") else feature_extractor
        self.space = FeatureSpace(extractor, seed, module)
        self.module, self.known_space = module, known_space
        self.skills_: dict[str, float] = {}

    def fit(self, features: Any, labels: Any, sample_weight: Any = None) -> Self:
        """Compute all that does not depend on the classifier.

        Args:
            features: Training inputs, shape (N, d) or (N, ...) with N >= n_neighbors, finite; a tensor, an array or a
                frame of pandas. Integers beyond 2^24 are computed in float64, others and half precision in float32.
            labels: Classes, shape (N,), integers >= 0 and below 100,000; at least two different ones.
            sample_weight: Relative frequency of each sample in training, (N,), positive; `class_weight` multiplies it.
        """
        self.fit_to(*self.as_samples(features, labels), sample_weight)
        return self

    def as_samples(self, features: Any, labels: Any, name: str = "features") -> tuple[Tensor, Tensor]:
        """Features as floating-point numbers, token ids, or images in bytes; and labels, checked and on one device."""
        keeps_integers, keeps_bytes = draws.keeps_integers(self.perturbation), not callable(self.feature_extractor)
        inputs = as_features(features, name, keep_integers=keeps_integers, keep_bytes=keeps_bytes)
        return inputs, as_labels(labels, len(inputs), are_several=True).to(inputs.device)

    def fit_to(self, inputs: Tensor, labels: Tensor, sample_weight: Any) -> Any:
        """`fit` to samples that `as_samples` has checked."""
        raise NotImplementedError(f"{type(self).__name__} must define `fit_to`.")

    def fit_neighbors(self, inputs: Tensor, labels: Tensor, sample_weight: Any) -> ChosenSpace:
        """Choose the space, find neighbours of checked samples there, and perturb the samples; gives the space."""
        if self.perturbation == "reading":
            raise ValueError(f"{ASKED_TO_READ}: tensors cannot be read again. {WITHOUT_READING}")
        if draws.kind_of(self.perturbation, inputs) == "tokens":
            as_tokens(inputs, "features")
        self.weights = weights_of(labels, self.class_weight, sample_weight)
        chosen = choose_space(self, inputs, labels)
        self.space, self.space_name_, self.skills_ = chosen.space, chosen.name, chosen.skills
        graph = NeighborGraph(self.n_neighbors).fit(chosen.points)
        self.set_neighbors(inputs, labels, graph.neighbors, graph.nearest_distance)
        return chosen

    def set_neighbors(self, inputs: Tensor, labels: Tensor, neighbors: Tensor, nearest_distance: Tensor) -> None:
        """Take what was found or saved, and draw the perturbed inputs, which follow from it and the seed."""
        self.labels, self.neighbors, self.nearest_distance = labels, neighbors, nearest_distance
        self.classes = PresentClasses(labels)
        self.label_columns = self.classes.columns(labels)  # in arrays with C columns, (N,) int64
        # Of each perturbed sample, (n_draws * N,) float64.
        self.repeated_weights = None if self.weights is None else self.weights.repeat(self.n_draws)
        in_space = neighbors, nearest_distance, self.space_name_
        self.perturbed = draws.draw_perturbed(inputs, self.perturbation, self.n_draws, self.seed, *in_space)

    @property
    def perturbed_inputs(self) -> Tensor:
        """Points at which a classifier is read, (n_draws, N, ...); made when they are read, and not kept."""
        check_fitted(self, "perturbed")
        return self.perturbed[:].unflatten(0, (-1, len(self.labels)))

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
            if isinstance(value, Tensor | draws.PerturbedInputs):
                setattr(self, name, value.to(device))
        self.classes = PresentClasses(self.labels)
        return self

    def as_class_logits(self, logits: Tensor) -> Tensor:
        """Logits in float32 or float64 with a row for each perturbed input and a column for each class."""
        check_fitted(self, "perturbed")
        logits, n_classes = as_logits(logits).detach(), self.classes.n_classes
        if logits.shape[1] < n_classes:
            n_columns = 1 if was_one_column(logits) else logits.shape[1]  # waits for the device
            raise ValueError(f"`logits` must have at least {n_classes} columns, one a class, got {n_columns}.")
        if len(logits) != len(self.perturbed):
            raise ValueError(f"`logits` must have a row for each of {len(self.perturbed)} inputs, got {len(logits)}.")
        return logits


class BoundaryUncertainty(PerturbedEstimator):
    """Boundary uncertainty: are the labels most uncertain where a classifier's decision boundary runs?

    All that does not depend on the classifier is computed once, in `fit`: neighbours, perturbed samples (Ha et al.
    2021, Algorithm 1), and the probabilities of the labels there, as `LabelProbabilities` estimates them. Each
    classifier then costs one forward pass over the perturbed samples, and
    `bu_torch.functional.boundary_uncertainty`. `ParzenUncertainty` is the paper's own estimate.

    Args:
        n_neighbors: Size M of a cluster, the sample itself included, >= 2. Data with fewer samples is refused.
        n_draws: Independent perturbations of each sample, >= 1.
        seed: Seed of all random choices, 0 <= seed < 2**64. Global random numbers are neither used nor changed.
        feature_extractor: As in `bu_torch.run.settings.Settings`; `"module"` takes the features of `module`,
            and `"metric"` learns a metric from the labels (`LabelMetric`), in the inputs, for images in patches and for
            token ids in tokens. None compares inputs, patches and `module` for images, tokens and `module` for token
            ids that are perturbed as such, and inputs and `module` for all others but vectors (N, d). Then it tries the
            metric (`MetricTrial`).
        perturbation: As there: `"random"` (`perturb`, Algorithm 1), `"neighbors"` (`perturb_toward_neighbors`) or
            `"tokens"` (`exchange_tokens`). For other inputs (graphs as tensors), a callable of the inputs (N, ...), the
            distance of each to its nearest neighbour (N,) in the space of neighbours, and a `torch.Generator` on the
            CPU with `seed`; it gives inputs of the same shape and is called once a draw, also for a saved preparation.
        class_weight: Positive weights of the classes, in scikit-learn's words: `"balanced"`, a dict of weights by class
            (1 for missing ones), or one weight for each class. The weights of a sampler are given to `fit`.
        module: A network whose own features, the inputs of the `nn.Linear` that runs last, are a space to choose. They
            are read in `fit`: useful if it is pretrained.
        known_space: Space that an earlier fit on these samples has chosen; None to choose.

    Attributes:
        perturbed_inputs: Points at which a classifier is read, (n_draws, N, ...), in the units of the inputs.
        labels: (N,) int64.
        neighbors: (N, n_neighbors) int64.
        probabilities: Probabilities of the labels at the perturbed inputs, (n_draws, N, J) float32.
        votes: Votes of the labels near each sample, (N, J) float32 (`LabelVotes`).
        vote_skill, regression_skill: Skill of the votes, and of a regression on all other samples, at predicting a
            sample's label: 1 is certain, 0 chance.
        sharpness: As `LabelProbabilities.sharpness_`.
        space_name_: Space of neighbours: `"inputs"`, `"patches"`, `"tokens"`, `"mixed"`, `"metric"`, `"module"` or
            `"custom"`.
        skills_: Skill of predicting left-out labels in each space that was compared; with `"metric"`, by votes alone.
        weights: Weight of each sample, (N,) float64 with mean 1; None if all count alike.

    Example:
        >>> import torch
        >>> generator = torch.Generator().manual_seed(0)
        >>> labels = torch.arange(400) % 2
        >>> features = torch.randn(400, 1, generator=generator) + labels.unsqueeze(1)
        >>> uncertainty = BoundaryUncertainty().fit(features, labels)
        >>> bool(uncertainty.score(lambda x: x - 0.5) > uncertainty.score(lambda x: x - 1.5))
        True
    """

    learns_metric = True

    def fit_to(self, inputs: Tensor, labels: Tensor, sample_weight: Any) -> tuple[Tensor, Tensor]:
        """`fit` to checked samples; gives samples (N, k) and perturbed samples (n_draws * N, k) as points."""
        estimate, chosen = self.fit_probabilities(inputs, labels, sample_weight)
        self.vote_skill, self.regression_skill = estimate.skills_
        self.sharpness = estimate.sharpness_
        n_rows = _BATCH * max(1, _BATCH_ELEMENTS // inputs[0].numel() // _BATCH)
        features = torch.cat([self.space.transform(batch) for batch in self.perturbed.split(n_rows)])
        # The network is read at another reading of the sample itself, where its own label would reward memorising it.
        left_out = chosen.features if isinstance(self.perturbation, draws.Readings) else None
        self.probabilities_of_present = estimate.predict_proba(features, left_out)
        self.votes_of_present = estimate.votes.votes
        return chosen.points, features if chosen.metric is None else chosen.metric.transform(features)

    def fit_probabilities(
        self, inputs: Tensor, labels: Tensor, sample_weight: Any
    ) -> tuple[LabelProbabilities, ChosenSpace]:
        """Perturb checked samples, and estimate label probabilities from features of the chosen space."""
        n_entries = self.n_draws * len(labels) * len(labels.unique())
        if n_entries > MOST_ENTRIES:
            raise ValueError(
                f"{self.n_draws} draws of {len(labels)} samples of {len(labels.unique())} classes need arrays of more"
                f" than {MOST_ENTRIES:.1e} numbers: pass fewer draws or samples (`n_draws`, `max_samples`)."
            )
        chosen = self.fit_neighbors(inputs, labels, sample_weight)
        estimate = LabelProbabilities(chosen.regression)
        return estimate.fit(chosen.features, self.label_columns, self.neighbors, self.weights), chosen

    def state(self) -> dict[str, Any]:
        """What was fitted, as plain data on the CPU, for `restore`."""
        tensors = {name: getattr(self, name).cpu() for name in _TENSORS}
        skills = [self.vote_skill, self.regression_skill, self.sharpness]
        return {"skills": skills, "space": self.space_name_, **tensors}

    def restore(self, state: Mapping[str, Any], inputs: Tensor, labels: Tensor, sample_weight: Any) -> None:
        """Take what `state` gave, of these checked samples; draw the perturbed inputs again."""
        self.weights, self.space_name_ = weights_of(labels, self.class_weight, sample_weight), state["space"]
        self.vote_skill, self.regression_skill, self.sharpness = state["skills"]
        tensors = (state[name].to(inputs.device) for name in _TENSORS)
        neighbors, nearest_distance, self.probabilities_of_present, self.votes_of_present = tensors
        self.set_neighbors(inputs, labels, neighbors, nearest_distance)

    @property
    def probabilities(self) -> Tensor:
        return self.classes.expand(self.probabilities_of_present).unflatten(0, (-1, len(self.labels)))

    @property
    def votes(self) -> Tensor:
        return self.classes.expand(self.votes_of_present)

    def score_logits(self, logits: Tensor) -> Tensor:
        logits = self.as_class_logits(logits)
        classes = top_two(logits)
        local = uncertainty_between(self.probabilities_of_present, self.classes.columns(classes))
        nearness = boundary_weights(half_gap(logits, classes), self.repeated_weights)
        return uncertainty_along_boundary(logits, local, nearness)


class DoubtfulLabels(NamedTuple):
    """Training samples in the order of doubt, by `doubtful_labels`."""

    rows: Tensor  # (N,) int64, the samples, the least likely label first
    probability: Tensor  # (N,) float32, of the label by all other samples
    likeliest: Tensor  # (N,) int64, the most probable class


def doubtful_labels(features: Any, labels: Any, **settings: Any) -> DoubtfulLabels:
    """Sort training samples by how likely their labels are by all other samples: wrong labels come first.

    The probability is that of `LabelProbabilities` at the sample itself, whose own label is left out. No network is
    trained. This ranking is this project's own.

    Args:
        features: As in `BoundaryUncertainty.fit`.
        labels: As in `BoundaryUncertainty.fit`.
        **settings: Arguments of `BoundaryUncertainty`.

    Returns:
        Rows, probabilities and most probable classes, on the device of the features.

    Raises:
        TypeError, ValueError: As `BoundaryUncertainty` and its `fit`.

    Example:
        >>> labels = torch.arange(200) % 2
        >>> features = 4.0 * labels.unsqueeze(1) + torch.randn(200, 2, generator=torch.Generator().manual_seed(0))
        >>> labels[7] = 0
        >>> found = doubtful_labels(features, labels)
        >>> int(found.rows[0]), int(found.likeliest[0])
        (7, 1)
    """
    estimator = BoundaryUncertainty(**settings)
    inputs, labels = estimator.as_samples(features, labels)
    estimate, chosen = estimator.fit_probabilities(inputs, labels, None)
    probabilities = estimate.predict_proba(chosen.features, chosen.features)
    of_label = probabilities.gather(1, estimator.label_columns.unsqueeze(1)).squeeze(1)
    rows = of_label.argsort(stable=True)
    return DoubtfulLabels(rows, of_label[rows], estimator.classes.classes[probabilities.argmax(dim=1)][rows])
