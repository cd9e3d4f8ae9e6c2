"""Choice of the space whose distances predict most of the labels: inputs, patches, tokens, or features of a network."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from bu_torch.estimators.label_regression import LabelRegression
from bu_torch.internal.progress import uncounted
from bu_torch.samples.subset import stratified_rows
from bu_torch.space.features import FeatureSpace, name_of
from bu_torch.space.layers import LayerFeatures
from bu_torch.space.mixed import MixedFeatures

SpaceName = Literal["inputs", "patches", "tokens"]  # that follows from the samples alone
FeatureExtractor = SpaceName | Literal["module"] | Callable[[Tensor], Any] | MixedFeatures

_log = logging.getLogger(__name__)
_COMPARED = 1500  # samples
_ALL_COMPARED = 2000  # up to here all are, and no copy of most of them is made
_MOST_CHANNELS = 16  # more are feature maps, and patches of them are too many numbers to whiten
_MODULE_BATCH = 64  # no more than a training batch mostly is: a network needs more memory for more


@dataclass(frozen=True)
class SpaceChoice:
    """Spaces that the settings of `BoundaryUncertainty` allow, and the choice among them."""

    feature_extractor: FeatureExtractor | None
    n_components: int | None
    seed: int
    module: nn.Module | None
    known: SpaceName | None = None
    takes_integers: bool = False  # if the inputs are some

    def may_use_module(self, inputs: Tensor) -> bool:
        """Return True if the space of these inputs depends on the network."""
        if self.module is None:
            return False
        if self.feature_extractor is None:
            return inputs.ndim != 2 or not inputs.is_floating_point()
        return self._is_of_module() or self.extracts_by_module()

    def extracts_by_module(self) -> bool:
        """Return True if the extractor has weights that training changes."""
        extractor = getattr(self.feature_extractor, "__self__", self.feature_extractor)
        if self.module is None or not isinstance(extractor, nn.Module):
            return False
        trained = {id(parameter) for parameter in self.module.parameters() if parameter.requires_grad}
        return any(id(parameter) in trained for parameter in extractor.parameters())

    def choose(
        self, inputs: Tensor, labels: Tensor, weights: Tensor | None, *, is_of_tokens: bool
    ) -> tuple[str, FeatureSpace, dict[str, float], Tensor | None]:
        """Space of neighbours, the one asked for or the best: name, space, the skills compared, and points or None."""
        candidates = self._candidates(inputs, is_of_tokens)
        if len(candidates) == 1:
            ((name, space),) = candidates.items()
            return name, space, {}, None
        with uncounted():
            name, skills, points = choose_space(inputs, labels, candidates, weights=weights, seed=self.seed)
        return name, candidates[name], skills, points

    def _is_of_module(self) -> bool:
        return isinstance(self.feature_extractor, str) and self.feature_extractor == "module"

    def _candidates(self, inputs: Tensor, is_of_tokens: bool) -> dict[str, FeatureSpace]:
        settings = (self.n_components, self.seed)
        if self._is_of_module():
            return {"module": self._module_space(inputs)}
        if self.feature_extractor is not None:
            extractor: Any = self.feature_extractor
            return {name_of(extractor): FeatureSpace(extractor, *settings, self.module)}
        if self.known is not None:
            return {self.known: FeatureSpace(self.known, *settings)}
        first: Literal["tokens", "inputs"] = "tokens" if is_of_tokens else "inputs"
        candidates: dict[str, FeatureSpace] = {first: FeatureSpace(first, *settings)}
        if inputs.ndim == 4 and inputs.is_floating_point() and inputs.shape[1] <= _MOST_CHANNELS:
            candidates["patches"] = FeatureSpace("patches", *settings)
        if self.may_use_module(inputs):
            candidates["module"] = self._module_space(inputs)
        return candidates

    def _module_space(self, inputs: Tensor) -> FeatureSpace:
        if self.module is None:
            raise ValueError("`feature_extractor='module'` needs a `module`, got none.")
        takes_integers = self.takes_integers and not inputs.is_floating_point()
        features = LayerFeatures(self.module, batch_size=_MODULE_BATCH, keep_integers=takes_integers)
        return FeatureSpace(features.transform, self.n_components, self.seed)


def choose_space(
    inputs: Tensor,
    labels: Tensor,
    candidates: Mapping[str, FeatureSpace],
    *,
    weights: Tensor | None = None,
    seed: int = 0,
) -> tuple[str, dict[str, float], Tensor | None]:
    """Choose the candidate in which left-out labels are predicted best, on a random part of the samples.

    The first of equally good ones is taken; `"module"` is left out if its features cannot be read. Gives the name, the
    skill of each candidate, and all samples as points of the chosen space, or None if only a part was compared.
    """
    n_compared = len(inputs) if len(inputs) <= _ALL_COMPARED else _COMPARED
    rows = stratified_rows(len(inputs), n_compared, seed, labels).to(inputs.device)
    part, of_part = inputs if len(rows) == len(inputs) else inputs[rows], labels[rows]
    columns = torch.unique(of_part, return_inverse=True)[1]
    of_rows = None if weights is None else weights[rows]
    skills: dict[str, float] = {}
    best, best_points = "", part
    for name, space in candidates.items():
        try:
            points = space.fit_transform(part)
        except Exception as error:  # a network may have no such layer, or not be ready: its code may raise anything
            if name != "module":
                raise
            _log.info("The network's own features cannot be read: %s: %s", type(error).__name__, error)
            continue
        skills[name] = LabelRegression(seed=seed).fit(points, columns, of_rows).skill_
        if not best or skills[name] > skills[best]:
            best, best_points = name, points
    return best, skills, best_points if len(part) == len(inputs) else None
