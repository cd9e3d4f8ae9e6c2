"""Settings for samples of several tensors, which checks hold as one: a perturbation and a space for each kind."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from bu_torch.internal.network import as_taken
from bu_torch.internal.packing import Packing
from bu_torch.perturbation.draws import MixedMove
from bu_torch.run.settings import MeasurementSettings
from bu_torch.space.mixed import MixedFeatures

_Settings = TypeVar("_Settings", bound=MeasurementSettings)


def settings_for(settings: _Settings, packing: Packing | None) -> _Settings:
    """The settings as packed samples need them; a callable of the user gets the tensors as training has them.

    By default rows of indices (token ids and their masks) are exchanged as tokens, images moved as images are, and
    tables as tables; numbers and indices at once are moved and exchanged (`MixedMove`).

    Raises:
        ValueError: If the samples hold indices, and a perturbation was asked for that moves them as numbers.
    """
    if packing is None:
        return settings
    perturbation, extractor = settings.perturbation, settings.feature_extractor
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
    """A perturbation of the user, which takes and gives several tensors."""

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
    """A feature extractor of the user, which takes several tensors."""

    def __init__(self, extractor: Callable[..., Any], packing: Packing) -> None:
        self._extractor, self._packing = extractor, packing
        self.__self__ = extractor if isinstance(extractor, nn.Module) else getattr(extractor, "__self__", None)

    def __call__(self, inputs: Tensor) -> Any:
        tree = self._packing.unpack(inputs)
        return self._extractor(pytree.tree_map(lambda tensor: as_taken(self._extractor, tensor), tree))
