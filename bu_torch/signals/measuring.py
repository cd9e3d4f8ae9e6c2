"""All that a check measures, from one pass of logits: U, trust, expected accuracy, and agreement with what is near."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from bu_torch import functional
from bu_torch.estimators.boundary import BoundaryUncertainty
from bu_torch.estimators.label_probabilities import LabelProbabilities
from bu_torch.estimators.label_regression import LabelRegression
from bu_torch.estimators.space_choice import FeatureExtractor
from bu_torch.estimators.trust import TrustScore
from bu_torch.functional.checks import as_logits, check_index
from bu_torch.functional.expected_accuracy import standard_error_of_gain
from bu_torch.functional.omission import cluster_counts
from bu_torch.internal.classes import PresentClasses
from bu_torch.internal.inputs import as_features, as_labels
from bu_torch.perturbation.draws import Perturbation, PerturbedInputs
from bu_torch.perturbation.moves import keeps_integers
from bu_torch.samples.balance import ClassWeight, weights_of
from bu_torch.signals.cache import PREPARED, Samples, check_prepared, read_cache, write_cache
from bu_torch.signals.catalogue import SIGNALS, Reading
from bu_torch.signals.fingerprint import fingerprint_of_samples
from bu_torch.signals.fitness import check_size, warn_of_copies, warn_of_little_skill
from bu_torch.signals.measurement import Measurement

_OWN = ("class_distances", "left_out_distances", "votes", "probabilities")
_SKILLS = ("vote_skill", "regression_skill")


def _with_absent_column(distances: Tensor) -> Tensor:
    """Class distances with a last column for classes that have no samples: infinitely far."""
    return torch.nn.functional.pad(distances, (0, 1), value=torch.inf)


class Signals:
    """Signals that a check measures, for any loop: fit once on labelled samples, then measure logits.

    Args:
        n_neighbors: Size M of a cluster, the sample itself included, >= 2.
        n_draws: Independent perturbations of each sample, >= 1.
        seed: Seed of all random choices, 0 <= seed < 2**64.
        feature_extractor: As for `BoundaryUncertainty`; class distances are those between its features too.
        n_components: As for `BoundaryUncertainty`, likewise.
        perturbation: As for `BoundaryUncertainty`.
        module: As for `BoundaryUncertainty`.
        class_weight: As for `BoundaryUncertainty`; all signals, votes and probabilities are those of classes so
            weighted.

    Attributes:
        boundary: The fitted `BoundaryUncertainty`.
        class_distances: Distance from each perturbed sample to each class, (n_draws * N, J).
        left_out_distances: The same, the sample that was perturbed left out.
        votes: Votes of the labels near each sample, (N, J), float32 (`LabelVotes`).
        probabilities: Class probabilities at each perturbed sample, (n_draws * N, J), float32 (`LabelProbabilities`).
        vote_skill: Skill of the labels nearby at predicting a sample's label, 1 is certain, 0 chance (`LabelVotes`).
        regression_skill: Skill of a regression on all other samples (`LabelRegression`). `fit` and `load` warn of
            skills below 0.01, and if more than half of the samples have an exact copy with the same label.

    Example:
        >>> labels = torch.arange(200) % 2
        >>> features = torch.randn(200, 3, generator=torch.Generator().manual_seed(0)) + 2 * labels.unsqueeze(1)
        >>> signals = Signals().fit(features, labels)
        >>> measured = signals.measure(signals.perturbed_inputs @ torch.ones(3, 1) - 3)
        >>> bool(measured.values["label_agreement"] > 0.9), len(measured.predictions)
        (True, 800)
    """

    NAMES = tuple(SIGNALS)

    boundary: BoundaryUncertainty
    vote_skill: float
    regression_skill: float
    _counts: tuple[Tensor, Tensor, Tensor]  # of the labels in each cluster
    _label_trust: Tensor  # trust scores of the labels at the perturbed samples, (n_draws * N,)
    _nearest_class: Tensor  # there, the sample that was perturbed left out, (n_draws * N,)
    # With a column for each class that has samples, and one more for all others: infinitely far.
    _class_distances: Tensor
    _left_out_distances: Tensor
    # With a column for each class that has samples.
    _votes: Tensor
    _probabilities: Tensor
    _classes: PresentClasses
    _fingerprint: str

    def __init__(
        self,
        n_neighbors: int = 40,
        n_draws: int = 4,
        seed: int = 0,
        *,
        feature_extractor: FeatureExtractor | None = None,
        n_components: int | None = None,
        perturbation: Perturbation | None = None,
        class_weight: ClassWeight | None = None,
        module: nn.Module | None = None,
    ) -> None:
        self.boundary = BoundaryUncertainty(
            n_neighbors,
            n_draws,
            seed,
            feature_extractor=feature_extractor,
            n_components=n_components,
            perturbation=perturbation,
            class_weight=class_weight,
            module=module,
        )

    def fit(self, features: Any, labels: Any, sample_weight: Any = None) -> Self:
        """Compute all that does not depend on the classifier.

        Args:
            features: Training inputs, shape (N, d) or (N, ...) with N >= n_neighbors, tensor or array of numbers,
                finite.
            labels: Classes, shape (N,), integers >= 0; at least two different ones.
            sample_weight: As for `BoundaryUncertainty.fit`.

        Returns:
            The fitted estimator, on the device of the features.

        Raises:
            ValueError: As for `BoundaryUncertainty.fit`.
            TypeError: As for `BoundaryUncertainty.fit`.
        """
        inputs = as_features(features, keep_integers=keeps_integers(self.boundary.perturbation))
        labels = as_labels(labels, len(inputs)).to(inputs.device)
        self._classes = PresentClasses(labels)
        boundary = self.boundary
        check_size(boundary.n_draws, len(inputs), len(self._classes))
        points = boundary.fit_points(inputs, labels, sample_weight)
        columns = self._classes.columns(boundary.labels)
        perturbed = torch.cat([boundary.space.transform(block) for block in boundary.perturbed.blocks()])
        rows = torch.arange(len(points), device=perturbed.device).repeat(boundary.n_draws)
        left_out = TrustScore().fit(points, columns).class_distances(perturbed, rows)
        # With the sample that was perturbed, its own class is as near as the nearer of it and the rest of the class.
        own = columns[rows].unsqueeze(1)
        step = (perturbed - points[rows]).norm(dim=1, keepdim=True)
        nearer = torch.minimum(left_out.gather(1, own), step)
        self._left_out_distances = _with_absent_column(left_out)
        self._class_distances = self._left_out_distances.scatter(1, own, nearer)
        expected = LabelProbabilities(regression=LabelRegression(seed=boundary.seed))
        expected.fit(points, columns, boundary.neighbors, boundary.weights)
        self._votes, self.vote_skill = expected.votes.votes, expected.votes.skill_
        self.regression_skill = expected.regression.skill_
        self._probabilities = expected.predict_proba(perturbed)
        self._fingerprint = fingerprint_of_samples(self.boundary, inputs, boundary.labels, boundary.weights)
        warn_of_copies(inputs, self.boundary)
        return self._completed()

    @property
    def class_distances(self) -> Tensor:
        """Distance from each perturbed sample to each class, (n_draws * N, J)."""
        return self._classes.spread(self._class_distances, torch.inf)

    @property
    def left_out_distances(self) -> Tensor:
        """These distances without the sample that was perturbed."""
        return self._classes.spread(self._left_out_distances, torch.inf)

    @property
    def votes(self) -> Tensor:
        """Votes of the labels near each sample, (N, J)."""
        return self._classes.spread(self._votes, 0.0)

    @property
    def probabilities(self) -> Tensor:
        """Class probabilities at each perturbed sample, (n_draws * N, J)."""
        return self._classes.spread(self._probabilities, 0.0)

    @property
    def perturbed_inputs(self) -> Tensor:
        """Inputs at which a classifier is read, (n_draws * N, ...), in the units and the shape of the samples."""
        return self.perturbed.whole()

    @property
    def perturbed(self) -> PerturbedInputs:
        """These inputs, made batch by batch."""
        self._check_fitted()
        return self.boundary.perturbed

    @property
    def fingerprint(self) -> str:
        """Digest of the samples and settings of `fit`, 64 hexadecimal digits."""
        self._check_fitted()
        return self._fingerprint

    @property
    def is_fitted(self) -> bool:
        """True if `fit` or `load` has been called."""
        return hasattr(self, "_votes")

    def is_of(self, features: Any, labels: Any, sample_weight: Any = None) -> bool:
        """True if these Signals are fitted, and on just these samples: arguments as for `fit`."""
        return self.is_fitted and self._fingerprint == self.fingerprint_of(features, labels, sample_weight)

    def fingerprint_of(self, features: Any, labels: Any, sample_weight: Any = None) -> str:
        """The `fingerprint` after `fit` with these arguments."""
        return fingerprint_of_samples(self.boundary, *self._read(features, labels, sample_weight))

    def _read(self, features: Any, labels: Any, sample_weight: Any) -> tuple[Tensor, Tensor, Tensor | None]:
        """Inputs, labels and weights of samples, checked."""
        inputs = as_features(features, keep_integers=keeps_integers(self.boundary.perturbation))
        labels = as_labels(labels, inputs.shape[0]).to(inputs.device)
        return inputs, labels, weights_of(labels, self.boundary.class_weight, sample_weight)

    def n_comparisons(self, n_samples: int) -> int:
        """Length of the progress bar of `fit`: the pairs of N samples that it looks at."""
        regression = LabelRegression()
        n_read = min(n_samples, regression.max_samples) + self.boundary.n_draws * n_samples
        return (1 + self.boundary.n_draws) * n_samples**2 + n_read * min(n_samples, regression.n_landmarks)

    def prepared(self) -> dict[str, Tensor]:
        """Results of `fit` that cannot be computed again once a network has been trained on, on the CPU, for `restore`.

        Perturbed inputs are not among it: they follow from the samples.
        """
        return {name: tensor.detach().cpu().clone() for name, tensor in self._prepared().items()}

    def restore(self, prepared: Mapping[str, Any], features: Any, labels: Any, sample_weight: Any = None) -> Self:
        """Take what `prepared` gave in place of `fit(features, labels, sample_weight)`.

        Raises:
            ValueError: If it is not of these samples and settings, or damaged.
        """
        inputs, labels, weights = self._read(features, labels, sample_weight)
        if unknown := sorted(set(prepared) - set(PREPARED)):
            raise ValueError(f"`prepared` must hold {', '.join(PREPARED)}, got {', '.join(unknown)[:100]} besides.")
        arrays = {name: value.detach().numpy() for name, value in prepared.items() if isinstance(value, Tensor)}
        check_prepared(arrays, self._as_samples(labels))
        return self._take(arrays, inputs, labels, weights, "module")

    def _as_samples(self, labels: Tensor) -> Samples:
        return Samples(labels.cpu().numpy(), self.boundary.n_neighbors, self.boundary.n_draws)

    def _take(
        self, arrays: dict[str, np.ndarray], inputs: Tensor, labels: Tensor, weights: Tensor | None, space: str
    ) -> Self:
        """Complete these from arrays that have been checked."""
        for name in _SKILLS:
            setattr(self, name, float(arrays.pop(name)))
        tensors = {name: torch.from_numpy(array).to(inputs.device) for name, array in arrays.items()}
        of_boundary = {name: tensor for name, tensor in tensors.items() if name not in _OWN}
        self.boundary._restore({**of_boundary, "labels": labels}, weights, inputs, space)
        self._classes = PresentClasses(self.boundary.labels)
        for name in _OWN:
            setattr(self, f"_{name}", tensors[name])
        self._left_out_distances = _with_absent_column(self._left_out_distances)
        self._class_distances = _with_absent_column(self._class_distances)
        self._fingerprint = fingerprint_of_samples(self.boundary, inputs, labels, weights)
        warn_of_copies(inputs, self.boundary)
        return self._completed()

    def measure(self, logits: Tensor, before: Tensor | None = None, best: Tensor | None = None) -> Measurement:
        """All signals of logits that were read at `perturbed_inputs`; waits for no device.

        Args:
            logits: Shape (n_draws * N, J) with J at least the number of classes, floating point, on the device of the
                fitted tensors; (n_draws * N, 1) or (n_draws * N,) for two classes.
            before: The predictions of the last measurement, shape (n_draws * N,); None at the first.
            best: The predictions of the measurement to compare the expected accuracy with, likewise; None for none.

        Returns:
            The measurement. Its values are NaN if any logit is not finite; `prediction_changes` is 1 without `before`.

        Raises:
            RuntimeError: If `fit` has not been called.
            TypeError: If the logits are not a floating-point tensor, or `before` or `best` not an integer one.
            ValueError: If one of them has the wrong shape.
        """
        self._check_fitted()
        n_rows = self.boundary.n_draws * len(self.boundary.labels)
        for name, given in (("before", before), ("best", best)):
            if given is not None:
                check_index(name, given, (n_rows,), self._votes.device)
        terms = self.boundary.terms(logits)
        predictions = torch.cat([of_draw.predictions for of_draw in terms])
        columns = self._classes.columns(predictions)
        known = columns.clamp(max=len(self._classes))  # the last column is that of classes without samples
        trust, left_out_trust = (
            functional.trust_score(distances, known, validate_args=False)
            for distances in (self._class_distances, self._left_out_distances)
        )
        reading = Reading(
            logits=as_logits(logits),
            terms=terms,
            pairs=self.boundary._pairs,
            pair_index=self.boundary._pair_index,
            uncertainty=self.boundary.score_terms(terms).to(as_logits(logits).dtype),
            labels=self.boundary.labels,
            predictions=predictions,
            predictions_before=before,
            columns=columns,
            trust=trust,
            left_out_trust=left_out_trust,
            label_probabilities=self._probabilities,
            label_votes=self._votes,
            cluster_counts=self._counts,
            members=self.boundary._members,
            weights=self.boundary.weights,
        )
        is_finite = reading.uncertainty.isfinite()
        values = {name: torch.where(is_finite, signal.formula(reading), torch.nan) for name, signal in SIGNALS.items()}
        error = torch.zeros_like(values["expected_accuracy"])
        if best is not None:
            others = self._classes.columns(best)
            error = standard_error_of_gain(
                self._probabilities, columns, others, self.boundary.n_draws, self.boundary.weights
            )
        return Measurement(values, predictions, torch.where(is_finite, error, torch.nan), reading, self)

    def to(self, device: torch.device | str) -> Self:
        """Move what `fit` computed to `device`, in place."""
        self._check_fitted()
        self.boundary.to(device)
        for name in _OWN:
            setattr(self, f"_{name}", getattr(self, f"_{name}").to(device))
        self._classes.to(device)
        counts, most, commonest = self._counts
        self._counts = counts.to(device), most.to(device), commonest.to(device)
        self._label_trust = self._label_trust.to(device)
        self._nearest_class = self._nearest_class.to(device)
        return self

    def save(self, path: str | Path) -> None:
        """Write what `fit` computed to a file (npz, nothing executable in it), whole or not at all.

        Raises:
            RuntimeError: If `fit` has not been called.
            ValueError: If they are of features of `module`, which no file can know again.
        """
        self._check_fitted()
        if self.boundary.is_of_module:
            raise ValueError("These Signals are of features of `module`, which may have changed since: fit them anew.")
        arrays = {name: tensor.cpu().numpy() for name, tensor in self._prepared().items()}
        arrays |= {"labels": self.boundary.labels.cpu().numpy(), "space": np.array(self.boundary.space_name_)}
        write_cache(Path(path), self._fingerprint, arrays)

    @property
    def n_bytes(self) -> int:
        """Size of a file that `save` would write, but for its headers and the labels."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self._prepared().values())

    def _prepared(self) -> dict[str, Tensor]:
        self._check_fitted()
        tensors = {name: getattr(self.boundary, name) for name in PREPARED if name not in (*_OWN, *_SKILLS)}
        tensors |= {name: getattr(self, f"_{name}")[:, : len(self._classes)] for name in _OWN}
        return tensors | {name: torch.tensor(getattr(self, name), dtype=torch.float64) for name in _SKILLS}

    def load(
        self, path: str | Path, features: Any, labels: Any, sample_weight: Any = None, *, is_own: bool = False
    ) -> Self:
        """Take what `save` wrote in place of `fit(features, labels)`; perturbed inputs are drawn again.

        Args:
            path: The file.
            features: As for `fit`; the file must have been made of the same.
            labels: As for `fit`.
            sample_weight: As for `fit`.
            is_own: Refuse links, and files of other users.

        Returns:
            The fitted estimator, on the device of the features.

        Raises:
            FileNotFoundError: If there is no such file.
            PermissionError: If it cannot be opened, or is another user's.
            ValueError: If the file is none of ours or damaged, or was made of other samples or settings.
        """
        inputs, labels, weights = self._read(features, labels, sample_weight)
        wanted = fingerprint_of_samples(self.boundary, inputs, labels, weights)
        arrays = read_cache(path, wanted, self._as_samples(labels), is_own=is_own)
        space = str(arrays.pop("space"))
        return self._take(arrays, inputs, labels, weights, space)

    def settle_space(self, features: Any, labels: Any, sample_weight: Any = None) -> str:
        """Choose the space of neighbours for a `fit` or `load` of the same samples, which then do not choose.

        Returns:
            `boundary.space_name_` to come.

        Raises:
            ValueError: As for `fit`.
            TypeError: As for `fit`.
        """
        inputs = as_features(features, keep_integers=keeps_integers(self.boundary.perturbation))
        labels = as_labels(labels, len(inputs)).to(inputs.device)
        return self.boundary.settle_space(inputs, labels, sample_weight)

    def _completed(self) -> Self:
        """Add what follows from what `fit` computes and a file holds; warn if that tells nothing."""
        columns = self._classes.columns(self.boundary.labels)
        weights, neighbors = self.boundary.weights, self.boundary.neighbors
        shares = functional.label_votes(columns, neighbors, 0.0, weights=weights)
        self._counts = cluster_counts(shares, neighbors, weights)
        repeated = columns.repeat(self.boundary.n_draws)
        self._label_trust = functional.trust_score(self._left_out_distances, repeated, validate_args=False)
        self._nearest_class = self._classes.classes[self._left_out_distances[:, :-1].argmin(dim=1)]
        warn_of_little_skill(self.vote_skill, self.regression_skill)
        return self

    def _check_fitted(self) -> None:
        if not self.is_fitted:
            raise RuntimeError("These Signals are not fitted yet: call `fit` first.")
