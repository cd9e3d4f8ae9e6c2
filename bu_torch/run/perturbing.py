"""Perturbation of the samples of a run: further readings of them, or moves that suit the tensors of a sample."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from bu_torch.internal.inputs import as_features
from bu_torch.internal.logits import as_taken
from bu_torch.internal.packing import Packing
from bu_torch.perturbation.draws import ASKED_TO_READ, WITHOUT_READING
from bu_torch.perturbation.moves import MixedMove, Readings
from bu_torch.run.settings import MeasurementSettings
from bu_torch.samples.readings import read_again
from bu_torch.samples.samples import Samples, UnreadableError
from bu_torch.space.features import MixedFeatures


def with_readings(
    samples: Samples, n_draws: int, settings: MeasurementSettings, warn: Callable[[str], None]
) -> Samples:
    """Read the samples again, `n_draws` times, if two readings differ and the settings name no other perturbation.

    Readings that are none of the same samples end in a warning, and the samples are moved; in a ValueError if the
    settings ask for readings.
    """
    if not may_be_read_again(settings):
        return samples
    why_unlike = samples.why_unlike
    if samples.is_random and samples.again is not None:
        try:
            return read_again(samples, n_draws)
        except UnreadableError as error:
            why_unlike = str(error)
    found = f"a second reading of the same samples {why_unlike or 'gives the same inputs'}"
    if settings.perturbation == "reading":
        found = "these are read once" if samples.again is None else found
        raise ValueError(f"{ASKED_TO_READ}: {found}. {WITHOUT_READING}")
    if why_unlike:
        warn(
            f"Samples: {found}. That is no augmentation, so a check perturbs the first reading. Let the dataset give"
            " the same sample for the same index, augmented or not, or pass samples as `reference=(inputs, labels)`."
        )
    return samples


def may_be_read_again(settings: MeasurementSettings) -> bool:
    """Return True if readings may take the place of perturbed samples."""
    return settings.perturbation is None or settings.perturbation == "reading"


def settings_for(settings: MeasurementSettings, samples: Samples) -> MeasurementSettings:
    """Settings adapted to samples: further readings perturb them; the user's callables get tensors as training does.

    By default, rows of indices (token ids and their masks) are exchanged as tokens, images are moved as images and
    tables as tables. Numbers beside indices are moved, and the indices exchanged (`MixedMove`).
    """
    perturbation, extractor, packing = settings.perturbation, settings.feature_extractor, samples.packing
    if samples.readings is not None:
        flat = as_features(samples.readings.flatten(0, 1), "further readings", keep_integers=True)
        perturbation = Readings(flat.unflatten(0, samples.readings.shape[:2]))
    if packing is None:
        return replace(settings, perturbation=perturbation)
    if callable(perturbation):
        perturbation = _Perturbation(perturbation, packing)
    elif packing.has_indices and perturbation in ("random", "neighbors"):
        names = [name for name, dtype in zip(packing.names, packing.dtypes, strict=True) if dtype is not None]
        raise ValueError(
            f"`perturbation={perturbation!r}` moves numbers along a line, but {', '.join(names)} hold integers: pass"
            " None, or a callable (inputs, nearest_distance, generator) that takes these tensors as the network does."
        )
    elif perturbation is None and packing.form == "rows":
        perturbation = "tokens"
    elif perturbation is None and packing.has_indices:
        perturbation = MixedMove(packing.n_numbers, packing.n_rows_of_indices)
    elif perturbation is None and not packing.is_table:
        perturbation = "neighbors"
    if callable(extractor):
        extractor = _Extractor(extractor, packing)
    elif extractor is None and packing.form == "columns" and not packing.is_table:
        extractor = MixedFeatures(packing)
    return replace(settings, perturbation=perturbation, feature_extractor=extractor)


class _Perturbation:
    """Perturbation of the user that takes and returns several tensors."""

    def __init__(self, perturbation: Callable[..., Any], packing: Packing) -> None:
        self._perturbation, self._packing = perturbation, packing

    def __call__(self, inputs: Tensor, *args: Any) -> Tensor:
        perturbed = self._perturbation(self._packing.unpack(inputs), *args)
        shapes = [getattr(tensor, "shape", None) for tensor in pytree.tree_leaves(perturbed)]
        expected = [torch.Size((len(inputs), *shape)) for shape in self._packing.shapes]
        if shapes != expected:
            raise ValueError(f"`perturbation` must give tensors of the shapes of the inputs, {expected}, got {shapes}.")
        return self._packing.pack(perturbed)


class _Extractor:
    def __init__(self, extractor: Callable[..., Any], packing: Packing) -> None:
        self._extractor, self._packing = extractor, packing
        self.__self__ = extractor if isinstance(extractor, nn.Module) else getattr(extractor, "__self__", None)

    def __call__(self, inputs: Tensor) -> Any:
        tree = self._packing.unpack(inputs)
        return self._extractor(pytree.tree_map(lambda tensor: as_taken(self.__self__, tensor), tree))
