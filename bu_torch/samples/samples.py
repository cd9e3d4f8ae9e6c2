"""Training samples as tensors, how much each weighs, the choice of some of them, and copies among them."""

import math
from collections.abc import Callable, Iterator, Mapping
from numbers import Integral
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Subset, TensorDataset

from bu_torch.functional.checks import relative_weights
from bu_torch.functional.probabilities import shares_of
from bu_torch.internal.inputs import as_features, as_labels, as_tensor
from bu_torch.internal.network import Packing, as_inputs

# As in scikit-learn: "balanced" makes all classes weigh the same, a dict names them. A list is a loss's `weight`.
ClassWeight = Literal["balanced"] | dict[int, float] | list[float]

IGNORED = -100  # default `ignore_index` of torch's losses
_BLOCK_ELEMENTS = 2**22  # compared at once
_RARE = 0.5  # part of an equal share; the kept check recognised rarer classes clearly less often


class Samples(NamedTuple):
    """Training samples in the order of their dataset: all of them or a subset."""

    inputs: Tensor  # (n, ...), of the dtype and on the device that the dataset gives
    labels: Tensor  # (n, ...), as the dataset gives them; estimators check that these are classes
    rows: Tensor  # (n,) int64, places in the dataset; 0, 1, ... if the places are not known
    n_training: int  # samples to choose from
    classes: list[str] | None = None  # names, if the dataset has them
    weights: Tensor | None = None  # how often training draws each, (n,) float64, > 0; None if it draws all alike
    n_ignored: int = 0  # samples that were left out because their label is `IGNORED`
    packing: Packing | None = None  # layout of several tensors in `inputs`; None if there is one
    # Reads the samples at these `rows` so many times; None unless inputs then differ, and nothing else.
    reread: Callable[[list[int], int], tuple[Any, Tensor]] | None = None

    def at(self, rows: Tensor) -> "Samples":
        """Some of the samples, by their places here."""
        names = ("inputs", "labels", "rows", "weights")
        parts = {name: part[rows.to(part.device)] for name in names if (part := getattr(self, name)) is not None}
        return self._replace(**parts)


class UnreadableError(ValueError):
    """Samples cannot be read. The message names neither the argument nor the remedy: the caller adds both."""


def samples_of(inputs: Any, labels: Tensor) -> Samples:
    """Samples of inputs from `as_inputs` and labels."""
    packing = None if isinstance(inputs, Tensor) else Packing.of(inputs)
    inputs = inputs if packing is None else packing.pack(inputs)
    return Samples(inputs, labels, torch.arange(len(inputs), device="cpu"), len(inputs), packing=packing)


def whole_samples(inputs: Any, labels: Any, sample_weight: Any = None, *, keep_integers: bool = False) -> Samples:
    """All samples that a user gives, checked as the estimators check them, without those whose label is -100."""
    samples = samples_of(as_inputs(inputs, "inputs"), as_tensor(labels, "labels"))
    keep_integers |= samples.packing is not None and samples.packing.form == "rows"
    inputs = as_features(samples.inputs, "inputs", keep_integers=keep_integers, keep_bytes=True)
    weights = None if sample_weight is None else as_weights(sample_weight, len(inputs)).to(inputs.device)
    samples = without_ignored(samples._replace(inputs=inputs, weights=weights))
    n_left = len(samples.inputs)
    return samples._replace(labels=as_labels(samples.labels, n_left), n_training=n_left)


def subsample(samples: Samples, n_wanted: int, seed: int) -> Samples:
    """Random subset of samples, in which each class keeps its share; all of them if as many are wanted."""
    n_samples = len(samples.inputs)
    if n_wanted >= n_samples:
        return samples
    return samples.at(stratified_rows(n_samples, n_wanted, seed, _as_strata(samples.labels, n_samples)))


def choose_among(inputs: Any, labels: Tensor, n_wanted: int, seed: int) -> Samples:
    """Choose `n_wanted` of the given samples whose label is not -100, or all."""
    samples = without_ignored(samples_of(inputs, labels))
    return subsample(samples._replace(n_training=len(samples.inputs)), n_wanted, seed)


def without_ignored(samples: Samples) -> Samples:
    """The same without samples whose label is -100, counted in `n_ignored`; all samples if none would be left."""
    labels, n_samples = samples.labels, len(samples.inputs)
    if labels.is_complex() or labels.numel() != n_samples:
        return samples
    is_ignored = labels.detach().reshape(-1).double() == IGNORED  # a byte of 156 is not -100
    n_ignored = int(is_ignored.sum())
    if n_ignored in (0, n_samples):
        return samples
    return samples.at((~is_ignored).nonzero().squeeze(1))._replace(n_ignored=n_ignored)


def known_labels(dataset: Any, label_key: str | int | None = None) -> Tensor | None:
    """Labels (N,) int64 that need no sample to be read, of a dataset or a `Subset` of it; None if there are none."""
    labels: Any
    try:
        if isinstance(dataset, Subset):
            known = known_labels(dataset.dataset, label_key)
            return None if known is None else known[torch.as_tensor(dataset.indices, device="cpu")]
        if isinstance(dataset, TensorDataset):
            labels = dataset.tensors[label_key if isinstance(label_key, int) else -1]
        elif hasattr(dataset, "column_names"):  # of Hugging Face, whose collators take `label` for `labels`
            is_singular = label_key == "labels" and "labels" not in dataset.column_names
            labels = dataset["label" if is_singular else label_key][:]
        else:
            labels = dataset.targets  # torchvision has them
        labels = labels if isinstance(labels, Tensor) else np.asarray(labels)
        return _as_strata(torch.as_tensor(labels, device="cpu"), len(dataset))
    except Exception:  # a user's property may raise anything, and nothing but the strata depends on it
        return None


def _as_strata(labels: Tensor, n_samples: int) -> Tensor | None:
    """Labels as int64 (N,) to stratify by; None if samples do not have one whole number each."""
    if labels.shape != (n_samples,) or labels.is_complex():
        return None
    whole = labels.long()
    return whole if not labels.is_floating_point() or bool((whole == labels).all()) else None


def copies(features: Tensor, neighbors: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield rows (R,) of samples (N, ...) and of an exact copy of each, one neighbour rank at a time.

    `neighbors` (N, M) come from `NeighborGraph`. Each yield holds only rows that the one before held, R >= 1.
    """
    rows = torch.arange(len(features), device=features.device)
    for others in neighbors[:, 1:].unbind(dim=1):
        blocks = rows.split(max(1, _BLOCK_ELEMENTS // features[0].numel()))
        rows = torch.cat([part[(features[others[part]] == features[part]).flatten(1).all(dim=1)] for part in blocks])
        if not len(rows):
            return
        yield rows, others[rows].long()


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
    own = torch.ones(len(labels), device="cpu") if sample_weight is None else sample_weight
    weights = as_weights(own, len(labels)).cpu()
    weights = weights / weights.max()
    if class_weight is not None:
        present, columns = torch.unique(labels.cpu(), return_inverse=True)
        if isinstance(class_weight, str):
            total = torch.zeros_like(present, dtype=torch.float64).index_add_(0, columns, weights)
            of_class = total.sum() / (len(present) * total)
        else:
            of_class = torch.tensor(_listed(class_weight, present.tolist()), dtype=torch.float64, device="cpu")
        weights = weights * of_class[columns]
    relative = relative_weights(weights, weights.shape, weights.device)
    return None if relative is None else relative.to(labels.device)


def _listed(class_weight: dict[int, float] | list[float], present: list[int]) -> list[float]:
    """Weights of the classes that have samples; a dict may lack some of these, and a list may have more."""
    if isinstance(class_weight, dict):
        named, unfit, fault = class_weight, class_weight.keys() - set(present), "names classes without a sample"
    else:
        named = dict(enumerate(class_weight))
        unfit, fault = set(present) - named.keys(), "has no weight for classes"
    if unfit:
        raise ValueError(f"`class_weight` must fit the classes of the labels, and {fault}: {sorted(unfit)}.")
    return [named.get(label, 1.0) for label in present]


def class_shares(labels: Tensor, weights: Tensor | None) -> tuple[Tensor, Tensor]:
    """The C classes that have samples, ascending, (C,) int64, and the weighted share of each, (C,) float64."""
    present, columns = torch.unique(labels.cpu(), return_inverse=True)
    return present, shares_of(columns, None if weights is None else weights.cpu())


def rare_class(labels: Tensor, weights: Tensor | None) -> tuple[int, float] | None:
    """The rarest class and its share, if that is below half of an equal share; else None."""
    present, shares = class_shares(labels, weights)
    share, rarest = shares.min(dim=0)
    return (int(present[rarest]), float(share)) if share < _RARE / len(present) else None


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
