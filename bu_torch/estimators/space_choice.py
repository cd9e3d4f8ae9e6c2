"""Choice of the space whose distances predict labels best: inputs, patches, tokens, a network, a learnt metric."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from bu_torch.estimators.label_regression import LabelRegression
from bu_torch.estimators.metric_choice import MetricTrial
from bu_torch.internal.progress import uncounted
from bu_torch.samples.balance import stratified_rows
from bu_torch.space.features import FeatureSpace, MixedFeatures, name_of
from bu_torch.space.layers import LayerFeatures
from bu_torch.space.metric import LabelMetric, MetricSpace

SpaceName = Literal["inputs", "patches", "tokens", "metric"]  # that follows from the samples alone
FeatureExtractor = SpaceName | Literal["module"] | Callable[[Tensor], Any] | MixedFeatures

_log = logging.getLogger(__name__)
_COMPARED = 1500  # samples
_ALL_COMPARED = 2000  # up to here all are, and no copy of most of them is made
_MOST_CHANNELS = 16  # more are feature maps, and patches of them are too many numbers to whiten
_MOST_FEATURES = 1024  # the cost of a metric grows with their square
_MOST_OPERATIONS = 1e10  # to learn a metric once: some seconds
_LEAST_SAMPLES = 150  # to try one: with fewer, it gains next to nothing
_MODULE_BATCH = 64  # no more than a training batch mostly is: a network needs more memory for more


class ChosenSpace(NamedTuple):
    """Space of neighbours, and what was compared."""

    name: str
    space: FeatureSpace | MetricSpace
    skills: dict[str, float]  # skill of each candidate, if there were several
    points: Tensor | None = None  # all samples in the space, if they were computed
    trial: MetricTrial | None = None  # trial of the metric, if it was a candidate


@dataclass(frozen=True)
class SpaceChoice:
    """Spaces that the settings of `BoundaryUncertainty` allow, and the choice among them."""

    feature_extractor: FeatureExtractor | None
    n_components: int | None
    seed: int
    module: nn.Module | None
    known: SpaceName | None = None
    takes_integers: bool = False  # if the inputs are some
    learns_metric: bool = False  # if a metric is a candidate, where no space is asked for

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

    def choose(self, inputs: Tensor, labels: Tensor, weights: Tensor | None, *, is_of_tokens: bool) -> ChosenSpace:
        """Space of neighbours, the one asked for or the best."""
        candidates = self._candidates(inputs, is_of_tokens)
        with uncounted():
            if len(candidates) == 1:
                chosen = ChosenSpace(*next(iter(candidates.items())), {})
            else:
                name, skills, points = choose_space(inputs, labels, candidates, weights=weights, seed=self.seed)
                chosen = ChosenSpace(name, candidates[name], skills, points)
            return self._with_metric(chosen, inputs, labels, weights, is_of_tokens=is_of_tokens)

    def _with_metric(
        self, chosen: ChosenSpace, inputs: Tensor, labels: Tensor, weights: Tensor | None, *, is_of_tokens: bool
    ) -> ChosenSpace:
        """Put the metric on a space if it is asked for, or clearly better; a trial says which."""
        is_forced = self.known == "metric" or self._asks_for_metric()
        is_open = self.learns_metric and (self.feature_extractor is None or name_of(self.feature_extractor) == "mixed")
        is_base = chosen.name in (_base_of(inputs, is_of_tokens=is_of_tokens), "mixed")
        if not (is_forced or (is_open and is_base)):
            return chosen
        space = chosen.space
        assert isinstance(space, FeatureSpace)  # noqa: S101
        points = space.fit_transform(inputs) if chosen.points is None else chosen.points
        trial = None
        if self.learns_metric and _is_worth_trying(points, labels):
            trial = MetricTrial.of(points, labels, weights, self.seed)
        is_preferred = trial is not None and trial.prefers_metric and self.known in (None, "metric")
        if not (is_forced or is_preferred):
            return chosen._replace(points=points, trial=trial)
        moved = MetricSpace(space, self.seed)
        points = moved.metric.fit(points, labels, weights).transform(points)
        skills = {} if trial is None else dict(zip((chosen.name, "metric"), trial.vote_skills, strict=True))
        return ChosenSpace("metric", moved, skills, points, trial)

    def _asks_for_metric(self) -> bool:
        return isinstance(self.feature_extractor, str) and self.feature_extractor == "metric"

    def _is_of_module(self) -> bool:
        return isinstance(self.feature_extractor, str) and self.feature_extractor == "module"

    def _candidates(self, inputs: Tensor, is_of_tokens: bool) -> dict[str, FeatureSpace]:
        settings = (self.n_components, self.seed)
        if self._is_of_module():
            return {"module": self._module_space(inputs)}
        if self._asks_for_metric() or self.known == "metric":
            base: Any = _base_of(inputs, is_of_tokens=is_of_tokens)
            return {base: FeatureSpace(base, *settings)}
        if self.feature_extractor is not None:
            extractor: Any = self.feature_extractor
            return {name_of(extractor): FeatureSpace(extractor, *settings, self.module)}
        if self.known is not None:
            return {self.known: FeatureSpace(self.known, *settings)}
        first: Literal["tokens", "inputs"] = "tokens" if is_of_tokens else "inputs"
        candidates: dict[str, FeatureSpace] = {first: FeatureSpace(first, *settings)}
        if _base_of(inputs, is_of_tokens=is_of_tokens) == "patches":
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


def _base_of(inputs: Tensor, *, is_of_tokens: bool) -> Literal["inputs", "patches", "tokens"]:
    """Features among which a metric is learnt."""
    if is_of_tokens:
        return "tokens"
    is_image = inputs.ndim == 4 and inputs.is_floating_point() and inputs.shape[1] <= _MOST_CHANNELS
    return "patches" if is_image else "inputs"


def _is_worth_trying(points: Tensor, labels: Tensor) -> bool:
    metric = LabelMetric()
    n_samples, n_landmarks = min(len(points), metric.max_samples), min(len(points), metric.n_landmarks)
    n_operations = n_samples * n_landmarks * points.shape[1] * len(labels.unique())
    return len(points) >= _LEAST_SAMPLES and points.shape[1] <= _MOST_FEATURES and n_operations <= _MOST_OPERATIONS


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
