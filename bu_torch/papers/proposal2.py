"""Boundary uncertainty by Proposal 2 of one classifier after another on the same labelled samples."""

from collections.abc import Callable
from typing import Any, Literal, Self

import torch
from torch import Tensor

from bu_torch import functional
from bu_torch.estimators.boundary import BoundaryUncertainty, PerturbedEstimator
from bu_torch.functional.checks import check_choice
from bu_torch.internal.inputs import check_fitted
from bu_torch.internal.network import read_logits
from bu_torch.papers.bandwidth import BANDWIDTHS, Bandwidth
from bu_torch.papers.parzen import Clusters, cluster_counts, mean_of_pairs, omission, omission_of_counts, top_pairs
from bu_torch.papers.prototypes import PrototypeClassifier
from bu_torch.perturbation.draws import followed_by


class ParzenUncertainty(PerturbedEstimator):
    """Boundary uncertainty as Proposal 2 estimates it: all that does not depend on the classifier is computed in `fit`.

    Ha et al. (2021), Algorithm 3: standardised features, clusters of `n_neighbors` samples, perturbed samples, likely
    Bayes pairs. Each classifier then costs one forward pass over the perturbed samples. The paper makes one draw, which
    is noisy on small data; here `n_draws` may be averaged. `BoundaryUncertainty` ranks networks better.

    Args:
        n_neighbors, n_draws, seed: As in `BoundaryUncertainty`; U is the mean over the draws.
        pairs_at: Place where the two likeliest classes of a sample (i and j of Eq. 27) are read: `"perturbed"`, or the
            `"sample"` itself as in the paper, for one more pass over the N samples.
        bandwidth: Width of the kernel that counts samples near the boundary, `"silverman"` as in the paper or `"cvml"`
            (`bu_torch.functional.cvml_bandwidth`), which costs many times more.
        **options: `feature_extractor`, `perturbation`, `class_weight` and `module`, as in
            `BoundaryUncertainty`; no metric is learnt unless it is asked for. `perturbation="uniform"` moves each
            feature on its own, by the distance to the nearest neighbour times a number in [-1, 1] (`perturb`).

    Attributes:
        perturbed_inputs: Points at which a classifier is read, (n_draws, N, ...), in the units of the inputs. With
            `pairs_at="sample"` the samples themselves follow, and n_draws is one more here and below.
        bayes_pairs: Likely Bayes pairs, (N, 2) int64, ascending.
        labels, neighbors, space_name_, skills_, weights: As in `BoundaryUncertainty`.

    Example:
        >>> import torch
        >>> generator = torch.Generator().manual_seed(0)
        >>> labels = torch.arange(400) % 2
        >>> features = torch.randn(400, 1, generator=generator) + labels.unsqueeze(1)
        >>> uncertainty = ParzenUncertainty().fit(features, labels)
        >>> bool(uncertainty.score(lambda x: x - 0.5) > uncertainty.score(lambda x: x - 1.5))
        True
    """

    def __init__(
        self,
        n_neighbors: int = 40,
        n_draws: int = 1,
        seed: int = 0,
        *,
        pairs_at: Literal["perturbed", "sample"] = "perturbed",
        bandwidth: Bandwidth = "silverman",
        **options: Any,
    ) -> None:
        super().__init__(n_neighbors, n_draws, seed, **options)
        self.pairs_at = check_choice("pairs_at", pairs_at, ("perturbed", "sample"))
        self.bandwidth = check_choice("bandwidth", bandwidth, BANDWIDTHS)

    def fit_to(self, inputs: Tensor, labels: Tensor, sample_weight: Any) -> None:
        points = self.fit_neighbors(inputs, labels, sample_weight).points
        if self.pairs_at == "sample":
            self.perturbed = followed_by(self.perturbed, inputs)
        self.bayes_pairs = likely_bayes_pairs(self, points)
        self._pairs, self._pair_index = torch.unique(self.bayes_pairs, dim=0, return_inverse=True)

    def score_logits(self, logits: Tensor) -> Tensor:
        logits = self.as_class_logits(logits)
        own = None
        if self.pairs_at == "sample":
            logits, own = logits.tensor_split([-len(self.labels)])
        clusters = Clusters(self.labels, self.neighbors, self.weights, self._pairs, self._pair_index)
        return mean_of_draws(logits, own, clusters, self.bandwidth).to(logits.dtype)

    def omission(self, model: Callable[[Tensor], Any]) -> Tensor:
        """Share of the Bayes boundary that a classifier's boundary leaves out, which `score` cannot see.

        Takes what `score` takes; a scalar in [0, 1], float64, mean over the draws, 0 is best
        (`bu_torch.functional.omission`).
        """
        check_fitted(self, "perturbed")
        logits = self.as_class_logits(read_logits(model, self.perturbed, name="`model`"))
        shares = functional.label_votes(self.labels, self.neighbors, 0.0, weights=self.weights)
        predictions = logits[: self.n_draws * len(self.labels)].argmax(dim=1).to(shares.device)
        return omission(shares, predictions, self.neighbors, weights=self.weights)


def likely_bayes_pairs(samples: PerturbedEstimator, points: Tensor) -> Tensor:
    """Likely Bayes pair (N, 2), ascending, of each sample: the two classes with the nearest prototypes (Eq. 35)."""
    present = samples.classes.classes
    if len(present) == 2:
        return present.expand(len(points), 2).contiguous()
    prototypes = PrototypeClassifier(seed=samples.seed).fit(points, samples.label_columns)
    return present[prototypes.top_pairs(points)]


def mean_of_draws(logits: Tensor, own: Tensor | None, clusters: Clusters, bandwidth: Bandwidth) -> Tensor:
    """U of logits (D * N, J), a scalar, float64; with `own`, logits (N, J) of the samples, pairs are read there."""
    predicted_pairs = None
    if own is not None:
        logits = torch.where(own.isfinite().all(), logits, torch.nan)
        predicted_pairs = top_pairs(own)
    draws = logits.split(len(clusters.labels))
    return torch.stack([mean_of_pairs(draw, clusters, predicted_pairs, bandwidth) for draw in draws]).mean()


class ProposalSignals:
    """`parzen_uncertainty` and `omission` for `Signals`; as in the paper, pairs are read at the samples themselves."""

    def __init__(self, samples: BoundaryUncertainty, points: Tensor) -> None:
        self._samples = samples
        bayes_pairs = likely_bayes_pairs(samples, points)
        self._pairs, self._pair_index = torch.unique(bayes_pairs, dim=0, return_inverse=True)
        shares = functional.label_votes(samples.label_columns, samples.neighbors, 0.0, weights=samples.weights)
        self._label_counts = cluster_counts(shares, samples.neighbors, samples.weights)

    def measure(self, logits: Tensor, own: Tensor) -> dict[str, Tensor]:
        """Both signals, scalars, float64, of logits (D * N, J) at perturbed samples and (N, J) at samples."""
        samples = self._samples
        columns = samples.classes.columns(logits.argmax(dim=1))
        left_out = omission_of_counts(self._label_counts, columns, samples.neighbors, weights=samples.weights)
        clusters = Clusters(samples.labels, samples.neighbors, samples.weights, self._pairs, self._pair_index)
        uncertainty = mean_of_draws(logits, own, clusters, "silverman")
        return {"parzen_uncertainty": uncertainty.to(logits.dtype).double(), "omission": left_out}

    def to(self, device: torch.device | str) -> Self:
        """Move all tensors but those of the samples, in place."""
        self._pairs, self._pair_index = self._pairs.to(device), self._pair_index.to(device)
        self._label_counts = self._label_counts.to(device)
        return self
