"""Weights of samples and classes, in scikit-learn's words, and random subsets in which each class keeps its share."""

import math
from collections.abc import Mapping
from numbers import Integral
from typing import Any, Literal

import torch
from torch import Tensor

from bu_torch.functional.probabilities import shares_of
from bu_torch.internal.inputs import as_tensor

# As in scikit-learn: "balanced" makes all classes weigh the same, a dict names them. A list is a loss's `weight`.
ClassWeight = Literal["balanced"] | dict[int, float] | list[float]

_RARE = 0.5  # part of an equal share; the kept check recognised rarer classes clearly less often


def check_class_weight(class_weight: Any) -> ClassWeight | None:
    """Class weights as `"balanced"`, a dict in the order of its classes, a list, or None; refuses all others."""
    if class_weight is None or (isinstance(class_weight, str) and class_weight == "balanced"):
        return None if class_weight is None else "balanced"
    if hasattr(class_weight, "to_dict"):  # a Series of pandas has the classes in its index
        class_weight = class_weight.to_dict()
    is_dict = isinstance(class_weight, Mapping)
    try:
        items = class_weight.items() if is_dict else enumerate(class_weight)
        weights = {label: float(weight) for label, weight in sorted(items)}
        is_valid = all(isinstance(k, Integral) and int(k) >= 0 and 0 < w < math.inf for k, w in weights.items())
    except (TypeError, ValueError):
        weights, is_valid = {}, False
    if not weights or not is_valid:
        raise ValueError(
            "`class_weight` must be 'balanced', a dict of positive, finite weights by class 0, 1, ..., one such weight"
            f" for each class, or None, got {class_weight!r:.100}."
        )
    return {int(label): weight for label, weight in weights.items()} if is_dict else list(weights.values())


def weights_of(labels: Tensor, class_weight: ClassWeight | None, sample_weight: Any = None) -> Tensor | None:
    """Weights of samples (N,) float64 with mean 1: each sample's own, > 0, times that of its class; None if all alike.

    `class_weight` is what `check_class_weight` returns. `"balanced"` makes all classes weigh the same together,
    whatever the samples' own weights are. Computed on the CPU, where sums are the same in each run.
    """
    weights = torch.ones(len(labels), dtype=torch.float64, device="cpu")
    if sample_weight is not None:
        weights = as_weights(sample_weight, len(labels)).cpu()
        weights = weights / weights.max()
    if class_weight is not None:
        present, columns = torch.unique(labels.cpu(), return_inverse=True)
        if isinstance(class_weight, str):
            total = torch.zeros_like(present, dtype=torch.float64).index_add_(0, columns, weights)
            of_class = total.sum() / (len(present) * total)
        else:
            of_class = torch.tensor(_listed(class_weight, present.tolist()), dtype=torch.float64, device="cpu")
        weights = weights * of_class[columns]
    if bool((weights == weights[0]).all()):
        return None
    weights = weights / weights.max()
    return (weights / weights.mean()).to(labels.device)


def _listed(class_weight: dict[int, float] | list[float], present: list[int]) -> list[float]:
    """Weights of the classes that have samples; a dict may lack some of these, and a list may have more."""
    named = class_weight if isinstance(class_weight, dict) else dict(enumerate(class_weight))
    unfit = named.keys() - set(present) if isinstance(class_weight, dict) else set(present) - named.keys()
    if unfit:
        how = "names classes without a sample" if isinstance(class_weight, dict) else "has no weight for classes"
        raise ValueError(f"`class_weight` must have a weight for each class of the labels, and {how}: {sorted(unfit)}.")
    return [named.get(label, 1.0) for label in present]


def class_shares(labels: Tensor, weights: Tensor | None) -> tuple[Tensor, Tensor]:
    """The C classes that have samples, ascending, (C,) int64, and the weighted share of each, (C,) float64."""
    present, columns = torch.unique(labels.cpu(), return_inverse=True)
    return present, shares_of(columns, None if weights is None else weights.cpu())


def rare_class(labels: Tensor, weights: Tensor | None) -> tuple[int, float] | None:
    """The rarest class and its share, if that is below half of an equal share; else None."""
    present, shares = class_shares(labels, weights)
    rarest = int(shares.argmin())
    share = float(shares[rarest])
    return (int(present[rarest]), share) if share < _RARE / len(present) else None


def as_weights(sample_weight: Any, n_samples: int) -> Tensor:
    """Weights of samples as a tensor (N,), float64; refuses all but real, positive, finite numbers."""
    weights = as_tensor(sample_weight, "sample_weight").detach()
    if weights.is_complex() or weights.dtype == torch.bool:
        raise TypeError(f"`sample_weight` must be made of real numbers, got {weights.dtype}.")
    weights = weights.double()
    n_wrong = int((~((weights > 0) & weights.isfinite())).sum())
    if weights.shape != (n_samples,) or n_wrong:
        raise ValueError(
            f"`sample_weight` must have one weight a sample, ({n_samples},), positive and finite, got"
            f" {tuple(weights.shape)}, of which {n_wrong} are not: leave out samples that do not count."
        )
    return weights


def stratified_rows(n_samples: int, n_chosen: int, seed: int, labels: Tensor | None = None) -> Tensor:
    """Ascending rows (min(n_chosen, n_samples),) of a random subset, on the CPU.

    With labels (n_samples,), integers, each class keeps its share, and at least one sample if there is room for all.
    """
    n_chosen = min(n_chosen, n_samples)
    order = torch.randperm(n_samples, generator=torch.Generator().manual_seed(seed), device="cpu")
    if labels is not None:
        order = order[labels.cpu()[order].argsort(stable=True)]
        is_first = torch.nn.functional.pad(labels.cpu()[order].diff() != 0, (1, 0), value=True)
        if int(is_first.sum()) > n_chosen:
            is_first[:] = False
        first, rest = order[is_first], order[~is_first]
        n_rest = n_chosen - len(first)
        # Evenly spaced among the samples in order of their classes: each class gets its share, rounded.
        places = (torch.arange(n_rest, dtype=torch.float64, device="cpu") + 0.5) * (len(rest) / max(n_rest, 1))
        order = torch.cat((first, rest[places.long()]))
    return order[:n_chosen].sort().values
