"""Training samples as tensors, the choice of some of them, and copies among them."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Subset, TensorDataset

from bu_torch.internal.inputs import as_features, as_labels, as_tensor
from bu_torch.internal.packing import Packing, as_inputs
from bu_torch.samples.balance import as_weights, stratified_rows

IGNORED = -100  # default `ignore_index` of torch's losses
_BLOCK_ELEMENTS = 2**22  # compared at once


class Samples(NamedTuple):
    """Training samples in the order of their dataset: all of them or a subset."""

    inputs: Tensor  # (n, ...), of the dtype and on the device that the dataset gives
    labels: Tensor  # (n, ...), as the dataset gives them; estimators check that these are classes
    rows: Tensor  # (n,) int64, places in the dataset; 0, 1, ... if the places are not known
    n_training: int  # samples to choose from
    classes: list[str] | None = None  # names, if the dataset has them
    weights: Tensor | None = None  # how often training draws each, (n,) float64, > 0; None if it draws all alike
    n_ignored: int = 0  # samples that were left out because their label is `IGNORED`
    is_random: bool = False  # whether inputs differ each time they are read, and nothing else does
    packing: Packing | None = None  # layout of several tensors in `inputs`; None if there is one
    # Reads the samples at these `rows` so many times; None if they cannot be read again, or nobody looked.
    again: Callable[[list[int], int], tuple[Any, Tensor]] | None = None
    readings: Tensor | None = None  # further readings of the inputs, (n_draws, n, ...)

    def at(self, rows: Tensor) -> "Samples":
        """Some of the samples, by their places here."""
        names = ("inputs", "labels", "rows", "weights")
        parts = {name: part[rows.to(part.device)] for name in names if (part := getattr(self, name)) is not None}
        readings = None if self.readings is None else self.readings[:, rows.to(self.readings.device)]
        return self._replace(**parts, readings=readings)


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
    samples = samples._replace(inputs=inputs, weights=weights)
    if samples.labels.shape[:1] == inputs.shape[:1]:
        samples = without_ignored(samples)
    n_left = len(samples.inputs)
    return samples._replace(labels=as_labels(samples.labels, n_left), n_training=n_left)


def fewer_of(samples: Samples, n_wanted: int, seed: int) -> Samples:
    """Random subset of samples, in which each class keeps its share; all of them if as many are wanted."""
    n_samples = len(samples.inputs)
    if n_wanted >= n_samples:
        return samples
    return samples.at(stratified_rows(n_samples, n_wanted, seed, _as_strata(samples.labels, n_samples)))


def choose_among(inputs: Any, labels: Tensor, how_many: Callable[[int], int], seed: int) -> Samples:
    """Choose `how_many(n)` of the n given samples whose label is not -100."""
    samples = without_ignored(samples_of(inputs, labels))
    n_left = len(samples.inputs)
    return fewer_of(samples._replace(n_training=n_left), how_many(n_left), seed)


def without_ignored(samples: Samples) -> Samples:
    """The same without samples whose label is -100, counted in `n_ignored`; `UnreadableError` if none is left."""
    labels = samples.labels
    if labels.is_complex() or labels.numel() != len(labels):
        return samples
    is_ignored = labels.detach().reshape(-1).double() == IGNORED  # a byte of 156 is not -100
    n_ignored = int(is_ignored.sum())
    if n_ignored == len(labels):
        raise UnreadableError(f"there must be at least one sample, got {n_ignored} with the label {IGNORED} (ignored).")
    return samples.at((~is_ignored).nonzero().squeeze(1))._replace(n_ignored=n_ignored) if n_ignored else samples


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
