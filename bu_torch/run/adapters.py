"""Settings and functions of the user for samples of several tensors, which are packed into one."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from bu_torch.internal.logits import as_taken
from bu_torch.internal.packing import Packing
from bu_torch.perturbation.draws import MixedMove
from bu_torch.run.settings import MeasurementSettings
from bu_torch.space.features import MixedFeatures


def settings_for(settings: MeasurementSettings, packing: Packing | None) -> MeasurementSettings:
    """Settings adapted to packed samples: the user's callables get the tensors as training has them.

    By default, rows of indices (token ids and their masks) are exchanged as tokens, images are moved as images and
    tables as tables. Numbers beside indices are moved, and the indices exchanged (`MixedMove`).
    """
    if packing is None:
        return settings
    perturbation, extractor = settings.perturbation, settings.feature_extractor
    if callable(perturbation):
        perturbation = UnpackedPerturbation(perturbation, packing)
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
        extractor = UnpackedExtractor(extractor, packing)
    elif extractor is None and packing.form == "columns" and not packing.is_table:
        extractor = MixedFeatures(packing)
    return replace(settings, perturbation=perturbation, feature_extractor=extractor)


class UnpackedPerturbation:
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


class UnpackedExtractor:
    """Feature extractor of the user that takes several tensors."""

    def __init__(self, extractor: Callable[..., Any], packing: Packing) -> None:
        self._extractor, self._packing = extractor, packing
        self.__self__ = extractor if isinstance(extractor, nn.Module) else getattr(extractor, "__self__", None)

    def __call__(self, inputs: Tensor) -> Any:
        tree = self._packing.unpack(inputs)
        return self._extractor(pytree.tree_map(lambda tensor: as_taken(self.__self__, tensor), tree))
