"""Training samples as tensors: from batches, how much each weighs, the choice of some of them."""

import itertools
import math
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Integral
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils import _pytree as pytree
from torch.utils.data import Subset, TensorDataset

from bu_torch.functional.checks import relative_weights
from bu_torch.internal.inputs import as_features, as_labels, as_tensor
from bu_torch.internal.network import Packing, as_inputs, is_mask, names_taken, takes
from bu_torch.internal.output import log_line, outline

# As in scikit-learn: "balanced" makes all classes weigh the same, a dict names them. A list is a loss's `weight`.
ClassWeight = Literal["balanced"] | dict[int, float] | list[float]
InputKey = str | int | Sequence[str | int] | None

IGNORED = -100  # default `ignore_index` of torch's losses
LEFT_OUT = f"{{}} samples have the label {IGNORED}, which torch's losses ignore: they are left out."
_LABELS = ("labels", "label", "targets", "target", "y")
_PADDED = " Pad all batches to one length; ids that come with a mask of 0 and 1 may be padded batch by batch."
_SILENT = 3  # seconds of reading before a line is logged


class Samples(NamedTuple):
    """Training samples in the order of their dataset: all of them or a subset."""

    inputs: Tensor  # (n, ...), of the dtype and on the device that the dataset gives
    labels: Tensor  # (n, ...), as the dataset gives them; estimators check that these are classes
    rows: Tensor | None  # (n,) int64, places in the dataset, or in a stream; None if they are not known
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


class Keys(NamedTuple):
    """Keys or places of inputs and labels in a batch; without them, inputs are what the `network` has arguments for."""

    inputs: InputKey = None
    labels: str | int | None = None
    network: Any = None


def concatenate(
    batches: Iterable[Any], keys: Keys, transform: Callable[[Any], Any] | None, limit: int | None = None
) -> tuple[Any, Tensor]:
    """Inputs and labels of all batches, up to `limit` samples; a line says so if it takes some seconds."""
    n_left, n_skipped, started = sys.maxsize if limit is None else limit, 0, time.perf_counter()
    read: list[tuple[Any, Tensor]] = []
    for batch in batches:
        if batch is None:  # a training step may skip it
            n_skipped += 1
            continue
        both = split_batch(batch if transform is None else transform(batch), keys)
        if not len(both[1]):
            continue
        if transform is not None:  # it has moved them to the network's device
            both = pytree.tree_map(Tensor.cpu, both)
        # Tensors of a worker lie in shared memory, of which there may be little, and hold an open file each.
        read.append(pytree.tree_map(lambda tensor, most=n_left: tensor[:most].detach().clone(), both))
        n_left -= len(read[-1][1])
        if time.perf_counter() - started > _SILENT:
            log_line(f"bu-torch has read {sum(len(labels) for _, labels in read)} samples so far, and goes on.")
            started = math.inf
        if not n_left:
            break
    if n_skipped:
        warnings.warn(f"{n_skipped} batches that are None are left out.", stacklevel=2)
    if not read:
        raise UnreadableError("there must be at least one sample, got none.")
    return joined(read)


def joined(read: list[tuple[Any, Tensor]]) -> tuple[Any, Tensor]:
    """Inputs and labels of batches as those of one batch; frees the batches.

    Rows are padded to the longest, if each batch is padded to its own length and a mask marks the padding: on the same
    side as in the batches, with the value that these have where the mask is 0.
    """
    spec = pytree.tree_structure(read[0])
    if any(pytree.tree_structure(both) != spec for both in read):
        raise UnreadableError("all batches must have the same inputs, got others in some.")
    *columns, labels = map(list, zip(*map(pytree.tree_leaves, read), strict=True))  # of each input, all batches
    read.clear()
    is_ragged = any(tensor.shape[1:] != column[0].shape[1:] for column in columns for tensor in column)
    masks = next((column for column in columns if all(mask.ndim == 2 and is_mask(mask) for mask in column)), None)
    if is_ragged and masks is not None and len(columns) > 1:
        side = "left" if any(bool((mask[:, 0] == 0).any()) for mask in masks) else "right"
        for place, column in enumerate(columns):
            if [row.shape for row in column] == [mask.shape for mask in masks]:
                hidden = torch.cat([row[mask == 0] for row, mask in zip(column, masks, strict=True)])
                value = float(hidden[0]) if len(hidden) else 0.0
                rows = list(itertools.chain(*column))
                columns[place] = [pad_sequence(rows, batch_first=True, padding_value=value, padding_side=side)]
    for tensors in (*columns, labels):
        shapes = sorted({tuple(tensor.shape[1:]) for tensor in tensors})
        if len(shapes) > 1:
            raise UnreadableError(f"all samples must have one shape, got {', '.join(map(str, shapes[:3]))}.{_PADDED}")
    whole: tuple[Any, Tensor] = pytree.tree_unflatten(map(torch.cat, (*columns, labels)), spec)
    return whole


def split_batch(batch: Any, keys: Keys) -> tuple[Any, Tensor]:
    """Inputs and labels of a batch, dense tensors of one length; raises `UnreadableError` and `TypeError`."""
    if not isinstance(batch, Mapping | tuple | list):
        raise UnreadableError(f"batches must be pairs (inputs, labels), tuples or dicts, got {type(batch).__name__}.")
    input_key, label_key = _guessed_keys(batch, keys) if isinstance(batch, Mapping) else _guessed_places(batch, keys)
    if input_key is None or label_key is None:
        raise UnreadableError(
            f"a batch must be a pair (inputs, labels), got a {outline(batch)}: name inputs and labels by both"
            " `input_key=`, which may be a list, and `label_key=`, keys or places."
        )
    is_one = isinstance(input_key, str) or not isinstance(input_key, Sequence)
    input_keys: Any = [input_key] if is_one else input_key
    places = [*input_keys, label_key]
    if not isinstance(batch, Mapping):  # a command line gives places as strings
        places = [int(place) if str(place).isdecimal() else place for place in places]
    try:
        *entries, labels = (batch[place] for place in places)
    except (KeyError, IndexError, TypeError) as error:
        raise UnreadableError(
            f"`input_key={input_key!r}` and `label_key={label_key!r}` must be in a batch, which is a {outline(batch)}."
        ) from error
    several = dict(zip(input_keys, entries, strict=True)) if isinstance(batch, Mapping) else tuple(entries)
    inputs, labels = as_inputs(entries[0] if is_one else several, "inputs"), as_tensor(labels, "labels")
    shapes = [tuple(tensor.shape) for tensor in (*pytree.tree_leaves(inputs), labels)]
    if not all(shapes) or len({shape[0] for shape in shapes}) > 1:
        raise UnreadableError(f"inputs and labels must be equally long, got {', '.join(map(str, shapes))}.")
    return inputs, labels


def _guessed_keys(batch: Mapping[Any, Any], keys: Keys) -> tuple[InputKey, str | int | None]:
    """Keys of inputs and labels; missing ones are guessed from names and what the network takes, if it is known."""
    input_key, label_key, network = keys
    if network is None:
        return input_key, label_key
    if label_key is None:
        guesses = [name for name in _LABELS if name in batch]
        label_key = guesses[0] if len(guesses) == 1 else None
    if input_key is None and label_key is not None:
        trees = [key for key, value in batch.items() if key != label_key and pytree.tree_all(torch.is_tensor, value)]
        others = [key for key in trees if isinstance(batch[key], Tensor)]
        whole = others if takes(network, batch) else None  # `forward` takes the dict itself
        input_key = names_taken(network, trees) or (others[0] if len(others) == 1 else whole or None)
    return input_key, label_key


def _guessed_places(batch: Sequence[Any], keys: Keys) -> tuple[InputKey, str | int | None]:
    """Places that are named, of a pair, or of what the network takes and then the only entry that may be labels."""
    input_key, label_key, network = keys
    if input_key is not None or label_key is not None:  # they go together
        return input_key, label_key
    if len(batch) == 2:
        return 0, 1
    if network is None or len(batch) < 2 or not all(isinstance(value, Tensor) for value in batch):
        return None, None
    may_be_labels = [value.ndim == 1 and not value.is_floating_point() for value in batch]
    is_clear = not any(may_be_labels[:-1]) or not takes(network, *batch[:-2])
    if may_be_labels[-1] and is_clear and takes(network, *batch[:-1]):
        return range(len(batch) - 1), -1
    return None, None


def samples_of(inputs: Any, labels: Tensor) -> Samples:
    """Samples of inputs from `as_inputs` and labels."""
    packing = None if isinstance(inputs, Tensor) else Packing.of(inputs)
    inputs = inputs if packing is None else packing.pack(inputs)
    if not inputs.numel():
        raise UnreadableError(f"`inputs` must have at least one value a sample, got shape {tuple(inputs.shape)}.")
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
    return samples.at(stratified_rows(n_samples, n_wanted, seed, samples.labels))


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
    """Labels (N, ...) that need no sample to be read, of a dataset or a `Subset` of it; None if there are none."""
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
        known = as_tensor(labels, "labels").cpu()
        return known if len(known) == len(dataset) else None
    except Exception:  # a user's property may raise anything, and nothing but the strata depends on it
        return None


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

    With labels (n_samples,), whole numbers, each class keeps its share, and at least one sample if there is room for
    all. Other labels are no classes.
    """
    n_chosen = min(n_chosen, n_samples)
    order = torch.randperm(n_samples, generator=torch.Generator().manual_seed(seed), device="cpu")
    values = None if labels is None or labels.is_complex() else labels.cpu().double()
    if values is not None and values.shape == (n_samples,) and bool((values == values.round()).all()):
        classes = values.long()
        order = order[classes[order].argsort(stable=True)]
        is_first = torch.nn.functional.pad(classes[order].diff() != 0, (1, 0), value=True)
        if int(is_first.sum()) > n_chosen:
            is_first[:] = False
        first, rest = order[is_first], order[~is_first]
        n_rest = n_chosen - len(first)
        # Evenly spaced among the samples in order of their classes: each class gets its share, rounded.
        places = (torch.arange(n_rest, dtype=torch.float64, device="cpu") + 0.5) * (len(rest) / max(n_rest, 1))
        order = torch.cat((first, rest[places.long()]))
    return order[:n_chosen].sort().values
