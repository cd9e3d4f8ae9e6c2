"""Samples that `collate_fn` mixes with one another (mixup, CutMix), read before it does."""

import copy
from collections.abc import Callable
from typing import Any

from torch import nn
from torch.utils.data import DataLoader, IterableDataset, default_collate

from bu_torch.callbacks.watch import difference_of
from bu_torch.samples.samples import Samples, UnreadableError

_SHARES_APART = 0.1  # of a class, between samples that are mixed and others


def before_mixing(loader: DataLoader[Any], samples: Samples, read: Callable[..., Samples]) -> DataLoader[Any] | None:
    """Loader without `collate_fn` if that gives shares of classes in place of labels, and samples have a label each.

    None if it does not, or if a sample cannot be read without it, or is of another shape then.
    """
    is_mixed = samples.labels.ndim == 2 and samples.labels.shape[1] > 1 and samples.labels.is_floating_point()
    if not is_mixed or isinstance(loader.dataset, IterableDataset) or loader.collate_fn is default_collate:
        return None
    before = copy.copy(loader)
    before.collate_fn = default_collate
    try:
        first = read(before, lambda n_training: 1)
    except (UnreadableError, TypeError, ValueError):
        return None
    is_alike = first.inputs.shape[1:] == samples.inputs.shape[1:] and (first.packing is None) == (
        samples.packing is None
    )
    return before if is_alike and first.labels.ndim == 1 else None


def is_mixture(samples: Samples, mixed: Samples) -> bool:
    """True if these samples, mixed with one another, may have become the others, with shares (N, J) as labels."""
    shares = nn.functional.one_hot(samples.labels.long(), mixed.labels.shape[1]).double().mean(dim=0)
    is_alike = samples.inputs.is_floating_point() == mixed.inputs.is_floating_point()
    is_alike &= bool((shares - mixed.labels.double().mean(dim=0)).abs().max() < _SHARES_APART)
    return is_alike and not difference_of(samples.inputs, mixed.inputs)
