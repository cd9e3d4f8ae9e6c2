"""All that a check measures, from one pass of logits: U, trust, expected accuracy, and agreement with what is near."""

import hashlib
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from bu_torch import functional
from bu_torch._cache import Samples, read_cache, write_cache
from bu_torch._inputs import as_features, as_labels
from bu_torch.boundary import FITTED, BoundaryUncertainty, Perturbation
from bu_torch.details import Details, describe
from bu_torch.functional._checks import as_logits, check_index
from bu_torch.functional.omission import cluster_counts, omission_of_counts
from bu_torch.regression import LabelRegression
from bu_torch.trust import TrustScore, widen_distances
from bu_torch.votes import LabelVotes

_FORMAT = 4  # of the file, to be raised when what it holds, or how that is computed, changes
_PROBE = 64
_LEAST_SKILL = 0.01  # of votes that tell more than chance: from 400 random labels on, that is seldom exceeded
_MOST_COPIES = 0.5
_OWN = ("class_distances", "left_out_distances", "votes", "probabilities")
_WIDENED = ("class_distances", "left_out_distances")  # by `measure`, where there are more logits than classes
_SKILLS = ("vote_skill", "regression_skill")


class Signals:
    """What the callbacks measure at each check, for any loop: fit once on labelled samples, then measure logits.

    Holds a `BoundaryUncertainty`, the class distances of a `TrustScore` with and without the sample that was moved, and
    `LabelVotes`, and the class probabilities that these and a `LabelRegression` expect, all of the same samples.

    Args:
        n_neighbors: Size M of a cluster, the sample itself included, >= 2.
        n_draws: Independent perturbations of each sample, >= 1.
        seed: Seed of all random choices, 0 <= seed < 2**64.
        feature_extractor: As for `BoundaryUncertainty`; class distances are those between its features too.
        n_components: As for `BoundaryUncertainty`, likewise.
        perturbation: As for `BoundaryUncertainty`.

    Attributes:
        boundary: The fitted `BoundaryUncertainty`.
        class_distances: Distance from each moved sample to each class, (n_draws * N, J).
        left_out_distances: The same, the sample that was moved left out.
        votes: Votes of the labels near each sample, (N, J).
        probabilities: Class probabilities at each moved sample, (n_draws * N, J), float32: a mixture of the votes near
            the sample and of a `LabelRegression`, with the weights that predict left-out labels best (Brier score).
        vote_skill: How well the labels nearby predict a sample's label, 1 is certain and 0 chance (`LabelVotes`).
        regression_skill: How well a regression on all other samples does (`LabelRegression`). Where the first is below
            0.01, `fit` and `load` warn that what asks the neighbours cannot be relied on, and nothing at all where both
            are; they warn as well where more than half of the samples have an exact copy with the same label.

    Example:
        >>> labels = torch.arange(200) % 2
        >>> features = torch.randn(200, 3, generator=torch.Generator().manual_seed(0)) + 2 * labels.unsqueeze(1)
        >>> signals = Signals().fit(features, labels)
        >>> values, predictions = signals.measure(signals.perturbed_inputs @ torch.ones(3, 1) - 3)
        >>> bool(values["label_agreement"] > 0.9), len(predictions)
        (True, 800)
    """

    NAMES = (
        "boundary_uncertainty",
        "trust_score",
        "expected_accuracy",
        "label_agreement",
        "vote_agreement",
        "neighbor_agreement",
        "prediction_changes",
        "omission",
    )

    boundary: BoundaryUncertainty
    class_distances: Tensor
    left_out_distances: Tensor
    votes: Tensor
    probabilities: Tensor
    vote_skill: float
    regression_skill: float
    _counts: tuple[Tensor, Tensor, Tensor]  # of the labels in each cluster
    _label_trust: Tensor  # trust scores of the labels at the moved samples, (n_draws * N,)
    _last: tuple[Tensor, Tensor]  # predictions and trust scores of the last check
    _fingerprint: str

    def __init__(
        self,
        n_neighbors: int = 40,
        n_draws: int = 4,
        seed: int = 0,
        *,
        feature_extractor: Callable[[Tensor], Any] | None = None,
        n_components: int | None = None,
        perturbation: Perturbation | None = None,
    ) -> None:
        self.boundary = BoundaryUncertainty(
            n_neighbors,
            n_draws,
            seed,
            feature_extractor=feature_extractor,
            n_components=n_components,
            perturbation=perturbation,
        )

    def fit(self, features: Any, labels: Any) -> Self:
        """Compute all that does not depend on the classifier.

        Args:
            features: Training inputs, shape (N, d) or (N, ...) with N >= n_neighbors, tensor or array of numbers,
                finite.
            labels: Classes, shape (N,), integers >= 0; at least two different ones.

        Returns:
            The fitted estimator, on the device of the features.

        Raises:
            ValueError: As for `BoundaryUncertainty.fit`.
            TypeError: As for `BoundaryUncertainty.fit`.
        """
        inputs = as_features(features, keep_integers=self.boundary.perturbation is not None)
        boundary = self.boundary.fit(inputs, labels)
        points = boundary.space.transform(inputs)
        trust = TrustScore().fit(points, boundary.labels)
        moved = boundary.space.transform(boundary.perturbed_inputs.flatten(0, 1))
        rows = torch.arange(len(points), device=moved.device).repeat(boundary.n_draws)
        self.left_out_distances = trust.class_distances(moved, rows)
        # With the sample that was moved, its own class is as near as the nearer of it and the rest of the class.
        own = boundary.labels[rows].unsqueeze(1)
        step = (moved - points[rows]).norm(dim=1, keepdim=True)
        nearer = torch.minimum(self.left_out_distances.gather(1, own), step)
        self.class_distances = self.left_out_distances.scatter(1, own, nearer)
        votes = LabelVotes().fit(boundary.labels, boundary.neighbors)
        self.votes, self.vote_skill = votes.votes, votes.skill_
        regression = LabelRegression(seed=boundary.seed).fit(points, boundary.labels)
        self.regression_skill = regression.skill_
        known = regression.rows_
        weight = functional.mixing_weight(votes.left_out[known], regression.left_out, boundary.labels[known])
        self.probabilities = regression.predict_proba(moved)
        for draw in self.probabilities.view(boundary.n_draws, *self.votes.shape):
            torch.lerp(self.votes, draw, weight, out=draw)
        self._fingerprint = self._of(inputs, boundary.labels)
        self._warn_of_copies(inputs)
        return self._completed()

    def _warn_of_copies(self, inputs: Tensor) -> None:
        labels = self.boundary.labels
        is_copied = torch.zeros_like(labels, dtype=torch.bool)
        rows = torch.arange(len(labels), device=labels.device)
        for others in self.boundary.neighbors[:, 1:].unbind(dim=1):  # nearest first, so that copies are
            rows = rows[(inputs[others[rows]] == inputs[rows]).flatten(1).all(dim=1)]
            if not len(rows):
                break
            is_copied[rows] |= labels[others[rows]] == labels[rows]
        share = float(is_copied.double().mean())
        if share > _MOST_COPIES:
            warnings.warn(
                f"{share:.0%} of the samples have an exact copy with the same label among the others. Copies tell each"
                " other's label, so that a network that learns labels by heart looks better than it is. Where a dataset"
                " repeats its samples, pass each once: to the callbacks, as `reference`.",
                stacklevel=3,
            )

    @property
    def perturbed_inputs(self) -> Tensor:
        """Where a classifier is read, (n_draws * N, ...), in the units and the shape of the inputs."""
        self._check_fitted()
        return self.boundary.perturbed_inputs.flatten(0, 1)

    @property
    def fingerprint(self) -> str:
        """Of the samples and settings of `fit`, 64 hexadecimal digits."""
        self._check_fitted()
        return self._fingerprint

    @property
    def is_fitted(self) -> bool:
        """Whether `fit` or `load` has been called."""
        return hasattr(self, "votes")

    def is_of(self, features: Any, labels: Any) -> bool:
        """Whether these Signals are fitted, and on just these samples: `features` and `labels` as for `fit`."""
        if not self.is_fitted:
            return False
        inputs = as_features(features, keep_integers=self.boundary.perturbation is not None)
        return self._fingerprint == self._of(inputs, as_labels(labels, inputs.shape[0]))

    def n_comparisons(self, n_samples: int) -> int:
        """How far `fit` moves a progress bar that is shown: the pairs of N samples that it looks at."""
        regression = LabelRegression()
        n_read = min(n_samples, regression.max_samples) + self.boundary.n_draws * n_samples
        return (1 + self.boundary.n_draws) * n_samples**2 + n_read * min(n_samples, regression.n_landmarks)

    def measure(self, logits: Tensor, before: Tensor | None = None) -> tuple[dict[str, Tensor], Tensor]:
        """All signals of logits that were read at `perturbed_inputs`; waits for no device.

        Args:
            logits: Shape (n_draws * N, J) with J at least the number of classes, floating point, on the device of the
                fitted tensors; (n_draws * N, 1) or (n_draws * N,) for two classes.
            before: The predictions that the last call gave, shape (n_draws * N,); None at the first.

        Returns:
            Scalars by name, float64, NaN if any logit is not finite; and the predictions, shape (n_draws * N,), int64.
            `BoundaryUncertaintyMonitor` says what each is; `prediction_changes` is 1 without `before`.

        Raises:
            RuntimeError: If `fit` has not been called.
            TypeError: If the logits are not a floating-point tensor, or `before` not an integer one.
            ValueError: If one of them has the wrong shape.
        """
        self._check_fitted()
        if before is not None:
            n_rows = self.boundary.n_draws * len(self.boundary.labels)
            check_index("before", before, (n_rows,), self.votes.device)
        uncertainty = self.boundary.score_logits(logits)
        predictions = as_logits(logits).argmax(dim=1)
        n_columns = max(2, logits.shape[1] if logits.ndim == 2 else 1)
        self.class_distances = widen_distances(self.class_distances, n_columns)
        self.left_out_distances = widen_distances(self.left_out_distances, n_columns)
        trust, left_out = (
            functional.trust_score(distances, predictions, validate_args=False)
            for distances in (self.class_distances, self.left_out_distances)
        )
        values = (
            uncertainty.double(),
            functional.mean_trust_score(trust),
            functional.vote_agreement(self.probabilities, predictions, validate_args=False),
            (predictions.view(self.boundary.n_draws, -1) == self.boundary.labels).double().mean(),
            functional.vote_agreement(self.votes, predictions, validate_args=False),
            functional.neighbor_agreement(left_out),
            torch.ones_like(uncertainty).double() if before is None else (predictions != before).double().mean(),
            omission_of_counts(*self._counts, predictions, self.boundary._members),
        )
        self._last = predictions, left_out
        is_finite = uncertainty.isfinite()
        named = zip(self.NAMES, values, strict=True)
        return {name: torch.where(is_finite, value, torch.nan) for name, value in named}, predictions

    def details(self, n_doubtful: int = 50) -> Details:
        """What the last call of `measure` saw, by pair of classes and by sample; waits for the device once.

        Args:
            n_doubtful: So many of the least trusted samples are told, >= 1.

        Raises:
            RuntimeError: If nothing has been measured yet.
        """
        if not hasattr(self, "_last"):
            raise RuntimeError("These Signals have measured nothing yet: call `measure` first.")
        predictions, trust = self._last
        return describe(self.boundary, predictions, trust, self._label_trust, self.left_out_distances, n_doubtful)

    def to(self, device: torch.device | str) -> Self:
        """Move what `fit` computed to `device`, in place."""
        self._check_fitted()
        self.boundary.to(device)
        for name in _OWN:
            setattr(self, name, getattr(self, name).to(device))
        counts, most, commonest = self._counts
        self._counts = counts.to(device), most.to(device), commonest.to(device)
        self._label_trust = self._label_trust.to(device)
        return self

    def save(self, path: str | Path) -> None:
        """Write what `fit` computed to a file (npz, nothing executable in it), whole or not at all.

        Raises:
            RuntimeError: If `fit` has not been called.
        """
        self._check_fitted()
        tensors = {name: getattr(self.boundary, name) for name in FITTED}
        tensors |= {name: getattr(self, name) for name in _OWN}
        for name in _WIDENED:
            tensors[name] = tensors[name][:, : self.votes.shape[1]]
        arrays = {name: tensor.cpu().numpy() for name, tensor in tensors.items()}
        arrays |= {name: np.array(getattr(self, name)) for name in _SKILLS}
        write_cache(Path(path), self._fingerprint, arrays)

    def load(self, path: str | Path, features: Any, labels: Any) -> Self:
        """Take what `save` wrote in place of `fit(features, labels)`.

        Args:
            path: The file.
            features: As for `fit`; the file must have been made of the same.
            labels: As for `fit`.

        Returns:
            The fitted estimator, on the device of the features.

        Raises:
            FileNotFoundError: If there is no such file.
            ValueError: If the file is none of ours or damaged, or was made of other samples or settings.
        """
        inputs = as_features(features, keep_integers=self.boundary.perturbation is not None)
        labels = as_labels(labels, inputs.shape[0])
        wanted = self._of(inputs, labels)
        dtype = inputs.new_empty(0).cpu().numpy().dtype
        samples = Samples(
            tuple(inputs.shape), dtype, labels.cpu().numpy(), self.boundary.n_neighbors, self.boundary.n_draws
        )
        arrays = read_cache(path, wanted, samples)
        for name in _SKILLS:
            setattr(self, name, float(arrays.pop(name)))
        tensors = {name: torch.from_numpy(array).to(inputs.device) for name, array in arrays.items()}
        self.boundary._restore({name: tensors[name] for name in FITTED})
        for name in _OWN:
            setattr(self, name, tensors[name])
        self._fingerprint = wanted
        self._warn_of_copies(inputs)
        return self._completed()

    def _completed(self) -> Self:
        """With what follows from what `fit` computes and a file holds; a warning where that tells nothing."""
        shares = functional.label_votes(self.boundary.labels, self.boundary.neighbors, 0.0)
        self._counts = cluster_counts(shares, self.boundary.n_neighbors)
        labels = self.boundary.labels.repeat(self.boundary.n_draws)
        self._label_trust = functional.trust_score(self.left_out_distances, labels, validate_args=False)
        if self.vote_skill < _LEAST_SKILL <= self.regression_skill:
            warnings.warn(
                "The labels of the nearest neighbours tell no more of a sample's label than chance (Brier skill score"
                f" {self.vote_skill:.2f}), a regression on all samples does ({self.regression_skill:.2f}): expected"
                " accuracy can be relied on, boundary uncertainty, trust score and agreement with neighbours cannot.",
                stacklevel=3,
            )
        elif self.vote_skill < _LEAST_SKILL:
            warnings.warn(
                "The other samples tell no more of a sample's label than chance (Brier skill score"
                f" {self.vote_skill:.2f} by the nearest, {self.regression_skill:.2f} by regression on all): either"
                " nearly all labels are noise, or nearby inputs do not mean nearby things. What is measured then says"
                " little of a classifier. A `feature_extractor` may give a space in which distances mean something.",
                stacklevel=3,
            )
        return self

    def _check_fitted(self) -> None:
        if not self.is_fitted:
            raise RuntimeError("These Signals are not fitted yet: call `fit` first.")

    def _of(self, inputs: Tensor, labels: Tensor) -> str:
        """Fingerprint of samples and settings."""
        settings = (self.boundary.n_neighbors, self.boundary.n_draws, self.boundary.seed)
        digest = hashlib.sha256(repr((_FORMAT, *settings, self.boundary.space.n_components)).encode())
        # An extractor and a perturbation are told by what they make of a few samples.
        few = inputs[:_PROBE]
        probe = [] if self.boundary.space.feature_extractor is None else [self.boundary.space.extract(few)]
        if self.boundary.perturbation is not None:
            generator = torch.Generator().manual_seed(self.boundary.seed)
            probe.append(self.boundary.perturbation(few.clone(), torch.ones(len(few), device=few.device), generator))
        for tensor in (inputs, labels, *probe):
            digest.update(repr((tuple(tensor.shape), str(tensor.dtype))).encode())
            digest.update(tensor.cpu().contiguous().numpy().data.cast("B"))
        return digest.hexdigest()
