"""Boundary uncertainty of one classifier after another on the same labelled samples."""

from collections.abc import Callable
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn

from bu_torch import functional
from bu_torch.estimators.space_choice import choose_space
from bu_torch.functional.boundary import PairTerms, pair_terms
from bu_torch.functional.checks import as_logits, check_choice
from bu_torch.functional.pairs import index_pairs
from bu_torch.functional.parzen import BANDWIDTHS, Bandwidth
from bu_torch.internal.inputs import (
    as_features,
    as_flat_features,
    as_labels,
    check_integer,
    check_seed,
    check_two_classes,
    is_finite,
)
from bu_torch.internal.network import read_logits, warn_of_probabilities
from bu_torch.internal.progress import uncounted
from bu_torch.neighbors.graph import NeighborGraph, first_positive
from bu_torch.neighbors.prototypes import PrototypeClassifier
from bu_torch.perturbation.moves import (
    check_perturbed,
    exchange_tokens,
    keeps_integers,
    perturb,
    perturb_toward_neighbors,
)
from bu_torch.samples.balance import ClassWeight, check_class_weight, weights_of
from bu_torch.space.features import FeatureSpace, standardization, standardize
from bu_torch.space.layers import LayerFeatures
from bu_torch.space.tokens import check_tokens

_FITTED = ("perturbed_inputs", "labels", "neighbors", "nearest_distance", "bayes_pairs", "mean_", "scale_")
_DERIVED = ("_pairs", "_pair_index", "_members", "_member_labels", "_pair_of_draw")
PERTURBATIONS = ("random", "neighbors", "tokens")
Perturbation = Literal["random", "neighbors", "tokens"] | Callable[[Tensor, Tensor, torch.Generator], Tensor]
FeatureExtractor = Literal["inputs", "patches", "tokens", "module"] | Callable[[Tensor], Any]
_MOST_CHANNELS = 16
_MODULE_BATCH = 64  # no more than a training batch mostly is, of which a network takes more memory
_BLOCK_ELEMENTS = 2**22  # float64 temporaries of 32 MB, whatever N
_STACKED_ELEMENTS = 2**18  # members of clusters in one call: with fewer, the calls take longer than the arithmetic


class BoundaryUncertainty:
    """Boundary uncertainty (Proposal 2): what does not depend on the classifier is computed once, in `fit`.

    Ha et al. (2021), Algorithm 3: standardised features, clusters of `n_neighbors` samples, perturbed samples, likely
    Bayes pairs. Each classifier then costs one forward pass over the perturbed samples. Several independent
    perturbations (`n_draws`) may be averaged, which the paper does not do: one draw is noisy on small data.

    Args:
        n_neighbors: Size M of a cluster, the sample itself included, >= 2. Data with fewer samples is refused.
        n_draws: Independent perturbations of each sample, >= 1; U is the mean over them.
        seed: Seed of all random choices, 0 <= seed < 2**64. Global random numbers are neither used nor changed.
        feature_extractor: As for `FeatureSpace`: neighbours and likely Bayes pairs are found among the features it
            gives. Samples are perturbed in input space all the same, by the distance there to the nearest of the
            neighbours found. `"module"` takes the features of `module`. None takes the inputs where they are vectors
            (N, d) of numbers. For images it chooses among inputs, patches and `module`, for token ids that are
            perturbed as such among tokens and `module`, for all others among inputs and `module`: the space in which
            left-out labels are predicted best.
        n_components: As for `FeatureSpace`, likewise.
        perturbation: How samples are perturbed. `"random"` moves each in a random direction by the distance to its
            nearest neighbour, as Algorithm 1 does (`perturb`). `"neighbors"` moves it a part of the way to one of the
            samples nearest to it (`perturb_toward_neighbors`). None takes the first for vectors (N, d) and the second
            for inputs of more dimensions, such as images (N, C, H, W). `"tokens"`, for token ids (N, L), puts tokens of
            a near text in place of some (`exchange_tokens`). For what else cannot be moved along a straight line
            (graphs as tensors), a callable of the inputs (N, ...), the distance of each to its nearest neighbour (N,)
            in the space where neighbours are found, and a `torch.Generator` on the CPU with `seed`, that gives inputs
            of the same shape; called once a draw, and again in place of what was kept. Integer inputs stay integers
            with both. (Ha et al., section 4.2.2, leave the operation open where inputs are no vectors.)
        bandwidth: Width of the kernel that counts samples near the boundary, `"silverman"` as in the paper or `"cvml"`
            (`bu_torch.functional.cvml_bandwidth`), which costs many times more.
        class_weight: How often samples of each class count, in scikit-learn's words: `"balanced"` for all classes
            alike, a dict of weights by class (1 for those that are not in it), or one weight for each class; positive.
            None takes samples as they are. For losses with weights; what a sampler draws is given to `fit`.
        module: A network whose own features, the inputs of the `nn.Linear` that runs last, are a space to choose. They
            are those of the weights that it has in `fit`: of use where it is pretrained.

    Attributes:
        perturbed_inputs: Where a classifier is read, (n_draws, N, ...) in the units and the shape of the inputs.
        labels: (N,) int64.
        neighbors: (N, n_neighbors) int64.
        bayes_pairs: (N, 2) int64, ascending.
        space_name_: `"inputs"`, `"patches"`, `"tokens"`, `"module"` or `"custom"`: the space of neighbours.
        skills_: How well left-out labels are predicted in each space that was compared, 1 is certain and 0 chance.
        weights: How often each sample counts, (N,) float64 with mean 1; None where all count alike.
        mean_, scale_: Of the standardisation, (d,) float64; a constant feature has scale 1.
        logits: What `update` was given, (n_draws * N, J); rows that are missing hold NaN. None before the first update.

    Example:
        >>> generator = torch.Generator().manual_seed(0)
        >>> labels = torch.arange(400) % 2
        >>> features = torch.randn(400, 1, generator=generator) + labels.unsqueeze(1)
        >>> uncertainty = BoundaryUncertainty().fit(features, labels)
        >>> bool(uncertainty.score(lambda x: x - 0.5) > uncertainty.score(lambda x: x - 1.5))
        True
    """

    perturbed_inputs: Tensor
    labels: Tensor
    neighbors: Tensor
    nearest_distance: Tensor
    bayes_pairs: Tensor
    mean_: Tensor
    scale_: Tensor
    weights: Tensor | None = None
    logits: Tensor | None = None

    def __init__(
        self,
        n_neighbors: int = 40,
        n_draws: int = 1,
        seed: int = 0,
        *,
        feature_extractor: FeatureExtractor | None = None,
        n_components: int | None = None,
        bandwidth: Bandwidth = "silverman",
        perturbation: Perturbation | None = None,
        class_weight: ClassWeight | None = None,
        module: nn.Module | None = None,
    ) -> None:
        self.n_neighbors = check_integer("n_neighbors", n_neighbors, 2)
        self.n_draws = check_integer("n_draws", n_draws, 1)
        self.seed = check_seed(seed)
        if isinstance(feature_extractor, str):
            check_choice("feature_extractor", feature_extractor, ("inputs", "patches", "tokens", "module"))
        self.feature_extractor = feature_extractor
        self.module = module
        named = None if isinstance(feature_extractor, str) and feature_extractor == "module" else feature_extractor
        self.space = FeatureSpace(named, n_components, seed, module)
        self.known_space: Literal["inputs", "patches", "tokens"] | None = None  # that a run which resumes has chosen
        self.space_name_ = ""
        self.skills_: dict[str, float] = {}
        self._settled: tuple[Tensor, Tensor, Tensor | None] | None = None  # samples that the space was chosen for
        self._points: Tensor | None = None  # all samples, in the space that is settled, where the choice has made them
        self.bandwidth = check_choice("bandwidth", bandwidth, BANDWIDTHS)
        if not (perturbation is None or callable(perturbation) or isinstance(perturbation, str)):
            raise TypeError(
                "`perturbation` must be 'random', 'neighbors', 'tokens', a callable (inputs, nearest_distance,"
                f" generator) -> perturbed inputs, or None, got {type(perturbation).__name__}."
            )
        if isinstance(perturbation, str):
            check_choice("perturbation", perturbation, PERTURBATIONS)
        if isinstance(feature_extractor, str) and feature_extractor == "tokens" and not keeps_integers(perturbation):
            raise ValueError(
                "`feature_extractor='tokens'` needs `perturbation='tokens'` or a callable, with which token ids stay"
                f" integers, got {perturbation!r}."
            )
        self.perturbation = perturbation
        self.class_weight = check_class_weight(class_weight)

    def fit(self, features: Any, labels: Any, sample_weight: Any = None) -> Self:
        """Compute all that does not depend on the classifier.

        Args:
            features: Training inputs, shape (N, d) or (N, ...) with N >= n_neighbors, tensor or array of numbers,
                finite. Inputs of more dimensions (images) are flattened for distances. Integers beyond 2^24 are
                computed in float64, half precision and all other integers in float32.
            labels: Classes, shape (N,), integers >= 0 and below 100,000; at least two different ones.
            sample_weight: How often training draws each sample, relative to the others, shape (N,), positive; None
                where it draws all alike. `class_weight` multiplies it.

        Returns:
            The fitted estimator, on the device of the features.

        Raises:
            ValueError: If shapes do not fit, N < n_neighbors, features (also those of `feature_extractor`) are not
                finite or too large to be perturbed, there is only one class, or weights do not fit the labels.
            TypeError: If an argument is not made of real numbers, or token ids are not integers.
        """
        inputs = as_features(features, keep_integers=keeps_integers(self.perturbation))
        self.fit_points(inputs, as_labels(labels, inputs.shape[0]).to(inputs.device), sample_weight)
        return self

    def fit_points(self, inputs: Tensor, labels: Tensor, sample_weight: Any) -> Tensor:
        """`fit` to what has been checked; returns the samples as points (N, k) of the space, which are not kept."""
        if not self._is_settled_for(inputs, labels, sample_weight):
            self.settle_space(inputs, labels, sample_weight)
        points = self._unsettle()
        points = self.space.fit_transform(inputs) if points is None else points
        graph = NeighborGraph(self.n_neighbors).fit(points)
        self.labels = labels
        self.neighbors = graph.neighbors
        self.nearest_distance = graph.nearest_distance
        self.bayes_pairs = _likely_pairs(points, labels, self.seed)
        self._perturb(inputs)
        self._index()
        return points

    def settle_space(self, inputs: Tensor, labels: Tensor, sample_weight: Any) -> None:
        """Choose the space of a `fit_points` to come, on what has been checked."""
        self._unsettle()
        check_two_classes(labels)
        if self.kind_of_perturbation(inputs) == "tokens":
            check_tokens(inputs, "features")
        self.weights = weights_of(labels, self.class_weight, sample_weight)
        self._points = self._choose_space(inputs, labels)
        self._settled = (inputs, labels, self.weights)

    def _is_settled_for(self, inputs: Tensor, labels: Tensor, sample_weight: Any) -> bool:
        if self._settled is None:
            return False
        weights = weights_of(labels, self.class_weight, sample_weight)
        pairs = zip((inputs, labels, weights), self._settled, strict=True)
        return all(_are_equal(one, settled) for one, settled in pairs)

    @property
    def settled_space(self) -> str:
        """The space of a `fit_points` to come; "" where none has been chosen."""
        return "" if self._settled is None else self.space_name_

    def _unsettle(self) -> Tensor | None:
        points, self._points, self._settled = self._points, None, None
        return points

    def given_space(self, inputs: Tensor) -> str:
        """The space of these inputs where it follows from the settings; "" where it is chosen or a callable's."""
        if isinstance(self.feature_extractor, str):
            return "" if self.feature_extractor == "module" else self.feature_extractor
        is_vector = inputs.ndim == 2 and inputs.is_floating_point()
        return "inputs" if self.feature_extractor is None and is_vector else ""

    def may_use_module(self, inputs: Tensor) -> bool:
        """Whether the space of these inputs depends on `module`."""
        if self.module is None:
            return False
        if self._is_part_of_module():
            return True
        if self.feature_extractor not in (None, "module"):
            return False
        return self.feature_extractor == "module" or inputs.ndim != 2 or not inputs.is_floating_point()

    def _is_part_of_module(self) -> bool:
        """Whether the extractor has weights that training `module` changes."""
        extractor = getattr(self.feature_extractor, "__self__", self.feature_extractor)
        if self.module is None or not isinstance(extractor, nn.Module):
            return False
        trained = {id(parameter) for parameter in self.module.parameters() if parameter.requires_grad}
        return any(id(parameter) in trained for parameter in extractor.parameters())

    @property
    def is_of_module(self) -> bool:
        """Whether neighbours were found among features that training `module` changes."""
        return self.space_name_ == "module" or (self.space_name_ == "custom" and self._is_part_of_module())

    def _choose_space(self, inputs: Tensor, labels: Tensor) -> Tensor | None:
        """Set the space of neighbours: the one that was asked for, or the best of those that there are.

        Returns the samples as points of the space where the choice has made them of all samples.
        """
        asked = self.feature_extractor
        if asked is not None and asked != "module":
            self.space_name_ = asked if isinstance(asked, str) else "custom"
            return None
        settings = (self.space.n_components, self.seed)
        if self.known_space is not None and asked is None:
            self.space_name_, self.space = self.known_space, FeatureSpace(self.known_space, *settings)
            return None
        if self.kind_of_perturbation(inputs) == "tokens":
            candidates = {"tokens": FeatureSpace("tokens", *settings)}
        else:
            candidates = {"inputs": FeatureSpace(None, *settings)}
        # More channels are feature maps, and patches of them are too many numbers to whiten.
        is_of_images = inputs.ndim == 4 and inputs.is_floating_point() and inputs.shape[1] <= _MOST_CHANNELS
        if is_of_images:
            candidates["patches"] = FeatureSpace("patches", *settings)
        if self.may_use_module(inputs) and self.module is not None:
            takes_integers = not inputs.is_floating_point()
            features = LayerFeatures(self.module, batch_size=_MODULE_BATCH, keep_integers=takes_integers)
            candidates["module"] = FeatureSpace(features.transform, *settings)
        if asked == "module":
            if "module" not in candidates:
                raise ValueError("`feature_extractor='module'` needs a `module`, got none.")
            candidates = {"module": candidates["module"]}
        self.space_name_, points = next(iter(candidates)), None
        if len(candidates) > 1:
            with uncounted():
                self.space_name_, self.skills_, points = choose_space(
                    inputs, labels, candidates, weights=self.weights, seed=self.seed
                )
        self.space = candidates[self.space_name_]
        return points

    def _perturb(self, inputs: Tensor) -> None:
        """Draw the perturbed inputs, which follow from neighbours, distances and seed."""
        generator = torch.Generator().manual_seed(self.seed)
        kind = self.kind_of_perturbation(inputs)
        self.mean_, self.scale_ = standardization(inputs.flatten(1))
        if kind == "random":
            draws = self._perturb_at_random(inputs, generator)
        elif kind == "neighbors":
            draws = [perturb_toward_neighbors(inputs, self.neighbors, generator) for _ in range(self.n_draws)]
        elif kind == "tokens":
            draws = [exchange_tokens(inputs, self.neighbors, generator) for _ in range(self.n_draws)]
        else:
            assert callable(self.perturbation)  # noqa: S101
            draws = [
                _checked(self.perturbation(inputs.clone(), self.nearest_distance, generator), inputs)
                for _ in range(self.n_draws)
            ]
        self.perturbed_inputs = torch.stack(draws)

    def kind_of_perturbation(self, inputs: Tensor) -> Literal["random", "neighbors", "tokens", "custom"]:
        """How inputs of this shape are perturbed."""
        if callable(self.perturbation):
            return "custom"
        if self.perturbation is None:
            return "random" if inputs.ndim == 2 else "neighbors"
        return self.perturbation

    def standardize(self, inputs: Any) -> Tensor:
        """Inputs in the units in which they are perturbed, one standard deviation of each feature.

        Args:
            inputs: Shape (n, d) or (n, ...), tensor or array of numbers, finite, of as many features as in `fit`.

        Returns:
            Shape (n, d), on the device of the fitted samples, float64 for float64 inputs and integers beyond 2^24,
            float32 for all others.

        Raises:
            RuntimeError: If `fit` has not been called.
            TypeError: If `inputs` is not made of real numbers.
            ValueError: If it has another shape or number of features, or is not finite.
        """
        self._check_fitted()
        flat = as_flat_features(inputs, "inputs", len(self.mean_))
        return standardize(flat.to(self.mean_.device), self.mean_, self.scale_)

    def score(self, model: Callable[[Tensor], Any]) -> Tensor:
        """Boundary uncertainty of a classifier.

        Args:
            model: Any callable from inputs (n, ...) to logits (n, J): a module, a function, `decision_function` of a
                scikit-learn classifier or the logarithm of its `predict_proba`; of what looks like probabilities a
                warning says so. One column, or shape (n,), counts as the classes [0, z]. A module is run in eval mode,
                on its own device and in its own precision, and left in the mode it was in; no gradient is recorded, and
                random numbers it draws do not show outside.

        Returns:
            Scalar in [0, 1], mean over the draws; see `bu_torch.functional.boundary_uncertainty`.

        Raises:
            RuntimeError: If `fit` has not been called.
            TypeError: If the model cannot be called or does not give floating-point numbers.
            ValueError: If logits are not finite, have the wrong shape, or fewer columns than there are classes.
        """
        self._check_fitted()
        logits = read_logits(model, self.perturbed_inputs.flatten(0, 1))
        warn_of_probabilities(logits)
        return self.score_logits(logits.to(self.labels.device))

    def omission(self, model: Callable[[Tensor], Any]) -> Tensor:
        """How much of the Bayes boundary the boundary of a classifier leaves out: the check beside a high score.

        Args:
            model: As for `score`.

        Returns:
            Scalar in [0, 1], float64, mean over the draws, 0 is best; see `bu_torch.functional.omission`.

        Raises:
            RuntimeError: If `fit` has not been called.
            TypeError: As for `score`.
            ValueError: As for `score`.
        """
        self._check_fitted()
        logits = self._as_class_logits(read_logits(model, self.perturbed_inputs.flatten(0, 1)))
        shares = functional.label_votes(self.labels, self.neighbors, 0.0, weights=self.weights)
        predictions = logits.argmax(dim=1).to(shares.device)
        return functional.omission(shares, predictions, self.neighbors, weights=self.weights)

    def score_logits(self, logits: Tensor) -> Tensor:
        """Boundary uncertainty of logits that were read at all perturbed inputs; waits for no device.

        Args:
            logits: At `perturbed_inputs.flatten(0, 1)`, shape (n_draws * N, J) with J at least the number of classes,
                floating point, on the device of the fitted tensors; (n_draws * N, 1) or (n_draws * N,) for two classes.

        Returns:
            Scalar in [0, 1], mean over the draws, on that device, float64 for float64 logits and float32 for all
            others; NaN if any logit is not finite.

        Raises:
            RuntimeError: If `fit` has not been called.
            TypeError: If the logits are not a floating-point tensor.
            ValueError: If the logits have the wrong shape.
        """
        return self.score_terms(self.terms(logits)).to(as_logits(logits).dtype)

    def terms(self, logits: Tensor) -> list[PairTerms]:
        """What boundary uncertainty is made of, by pair of classes and by sample; waits for no device.

        Args:
            logits: As for `score_logits`.

        Returns:
            One `bu_torch.functional.boundary.PairTerms` a draw.

        Raises:
            RuntimeError: As for `score_logits`.
            TypeError: As for `score_logits`.
            ValueError: As for `score_logits`.
        """
        self._check_fitted()
        logits = self._as_class_logits(logits)
        n_samples = self.labels.shape[0]
        if logits.shape[0] != self.n_draws * n_samples:
            raise ValueError(
                f"`logits` must have one row for each of the {self.n_draws} x {n_samples} perturbed inputs,"
                f" got {logits.shape[0]}."
            )
        return [terms for part in logits.split(len(self._members)) for terms in self._of_draws(part)]

    @staticmethod
    def score_terms(terms: list[PairTerms]) -> Tensor:
        """Boundary uncertainty of what `terms` gave: a scalar, float64."""
        return torch.stack([torch.dot(of_draw.values, of_draw.shares) for of_draw in terms]).mean()

    def update(self, logits: Tensor, index: Tensor) -> None:
        """Take in the logits at some of the perturbed inputs.

        Args:
            logits: Shape (n, J) with J at least the number of classes, floating point; (n, 1) or (n,) for two classes.
            index: Rows of `perturbed_inputs.flatten(0, 1)` they belong to, shape (n,), integer. A row given twice keeps
                the later logits.

        Raises:
            RuntimeError: If `fit` has not been called.
            TypeError: If an argument has the wrong dtype.
            ValueError: If an argument has the wrong shape, an index is out of range, or J differs between calls.
        """
        self._check_fitted()
        logits = self._as_class_logits(logits)
        index = as_labels(index, logits.shape[0], "index", are_classes=False).to(logits.device)
        n_rows = self.n_draws * self.labels.shape[0]
        if int(index.max()) >= n_rows:
            raise ValueError(f"`index` must hold rows in [0, {n_rows}), got {int(index.max())}.")
        if self.logits is None:
            self.logits = logits.new_full((n_rows, logits.shape[1]), torch.nan)
            self._is_given = torch.zeros(n_rows, dtype=torch.bool, device=logits.device)
        if logits.shape[1] != self.logits.shape[1]:
            raise ValueError(f"`logits` must have {self.logits.shape[1]} columns, as before, got {logits.shape[1]}.")
        self.logits[index] = logits.to(self.logits)
        self._is_given[index] = True

    def compute(self) -> Tensor:
        """Boundary uncertainty of the logits given since `reset`.

        Returns:
            Scalar in [0, 1], mean over the draws, on the device of the logits, float64 for float64 logits and float32
            for all others; NaN if any logit is not finite.

        Raises:
            RuntimeError: If `fit` has not been called, or rows are missing; says how many.
        """
        self._check_fitted()
        n_missing = self.n_draws * self.labels.shape[0]
        if self.logits is not None:
            n_missing = int((~self._is_given).sum())
        if self.logits is None or n_missing:
            raise RuntimeError(f"{n_missing} perturbed inputs have no logits yet: call `update` with their rows first.")
        return self.to(self.logits.device).score_logits(self.logits)

    def reset(self) -> None:
        """Forget all logits."""
        self.logits = None

    def to(self, device: torch.device | str) -> Self:
        """Move what `fit` computed to `device`, in place; the perturbed inputs too."""
        self._check_fitted()
        for name in (*_FITTED, *_DERIVED):
            setattr(self, name, getattr(self, name).to(device))
        if self.weights is not None:
            self.weights = self.weights.to(device)
        return self

    def _perturb_at_random(self, inputs: Tensor, generator: torch.Generator) -> list[Tensor]:
        """Draws of the inputs, perturbed in the units of their standard deviations."""
        flat = inputs.flatten(1)
        flat = flat if flat.is_floating_point() else flat.float()
        standardized = standardize(flat, self.mean_, self.scale_)
        nearest_distance = self.nearest_distance
        if self.space_name_ != "inputs" or self.space.n_components is not None:
            nearest_distance = _nearest_distance(standardized, self.neighbors)
        draws = []
        for _ in range(self.n_draws):
            perturbed = perturb(standardized, nearest_distance, generator)
            # Adding the step, and not mapping the sum back, leaves a constant feature exactly as it was.
            step = (perturbed - standardized) * self.scale_.to(flat.dtype)
            draws.append(check_perturbed(flat + step, flat).reshape(inputs.shape))
        return draws

    def _restore(self, tensors: dict[str, Tensor], weights: Tensor | None, inputs: Tensor, space: str) -> Self:
        """Take what `fit` computed from elsewhere; perturbed inputs are drawn anew, from the same samples and seed."""
        self.weights = weights
        self._unsettle()
        for name, tensor in tensors.items():
            setattr(self, name, tensor)
        self.space_name_ = space
        self._perturb(inputs)
        return self._index()

    def _index(self) -> Self:
        self._pairs, self._pair_index = index_pairs(self.bayes_pairs)
        # As the counts read them at each check, several draws of small data in one call.
        n_stacked = min(self.n_draws, max(1, _STACKED_ELEMENTS // self.neighbors.numel()))
        draw = torch.arange(n_stacked, device=self.labels.device).repeat_interleave(len(self.labels))
        self._members = (self.neighbors.repeat(n_stacked, 1) + (draw * len(self.labels)).unsqueeze(1)).to(torch.int32)
        self._member_labels = self.labels.to(torch.int32)[self.neighbors].repeat(n_stacked, 1)
        self._pair_of_draw = self._pair_index.repeat(n_stacked) + draw * len(self._pairs)
        self._n_classes = int(self.labels.max()) + 1
        self.reset()
        return self

    def _of_draws(self, logits: Tensor) -> list[PairTerms]:
        """Terms of each of a few draws (n * N, J), measured as one draw of n times the samples and pairs of classes."""
        n_rows = len(logits)
        n_draws = n_rows // len(self.labels)
        terms = pair_terms(
            logits,
            self.labels.repeat(n_draws),
            self._members[:n_rows],
            self._pairs.repeat(n_draws, 1),
            self._pair_of_draw[:n_rows],
            bandwidth=self.bandwidth,
            weights=None if self.weights is None else self.weights.repeat(n_draws),
            member_labels=self._member_labels[:n_rows],
        )
        terms = terms._replace(shares=terms.shares * n_draws)
        return [PairTerms(*of_draw) for of_draw in zip(*(column.chunk(n_draws) for column in terms), strict=True)]

    def _as_class_logits(self, logits: Tensor) -> Tensor:
        logits = as_logits(logits).detach()
        if logits.shape[1] < self._n_classes:
            raise ValueError(
                f"`logits` must have at least {self._n_classes} columns, one for each class of `fit`,"
                f" got {logits.shape[1]}."
            )
        return logits

    def _check_fitted(self) -> None:
        if not hasattr(self, "mean_"):
            raise RuntimeError("This BoundaryUncertainty is not fitted yet: call `fit` first.")


def _likely_pairs(points: Tensor, labels: Tensor, seed: int) -> Tensor:
    """Likely Bayes pair of each sample, (N, 2): `PrototypeClassifier`'s, which two classes leave no choice."""
    classes = labels.unique()
    if len(classes) == 2:
        return classes.expand(len(labels), 2).contiguous()
    return PrototypeClassifier(seed=seed).fit(points, labels).top_pairs(points)


def _are_equal(one: Tensor | None, other: Tensor | None) -> bool:
    if one is None or other is None:
        return one is other
    return one is other or (one.device == other.device and one.dtype == other.dtype and torch.equal(one, other))


def _checked(perturbed: Any, inputs: Tensor) -> Tensor:
    """What a user's perturbation gave, of the shape, dtype and device of the inputs."""
    if not isinstance(perturbed, Tensor) or perturbed.shape != inputs.shape:
        got = tuple(perturbed.shape) if isinstance(perturbed, Tensor) else type(perturbed).__name__
        raise ValueError(
            f"`perturbation` must give a tensor of the shape of the inputs, {tuple(inputs.shape)}, got {got}."
        )
    if not is_finite(perturbed):
        raise ValueError("`perturbation` must give finite inputs, got NaN or infinity.")
    return perturbed.detach().to(inputs)


def _nearest_distance(standardized: Tensor, neighbors: Tensor) -> Tensor:
    """Distance in input space to the nearest of the neighbours at a positive distance (N,)."""
    rows = max(1, _BLOCK_ELEMENTS // (neighbors.shape[1] * standardized.shape[1]))
    distances = torch.cat(
        [
            (standardized[members[:, 1:]].double() - standardized[members[:, :1]].double()).norm(dim=2)
            for members in neighbors.split(rows)
        ]
    )
    return first_positive(standardized, distances)
