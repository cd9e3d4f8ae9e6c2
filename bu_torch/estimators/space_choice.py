"""Choice of the space whose distances predict labels best: inputs, patches, tokens, a network, a learnt metric."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

import torch
from torch import Tensor, nn

from bu_torch.estimators.label_probabilities import DECAYS, LabelRegression, LabelVotes
from bu_torch.functional.checks import mean_and_error
from bu_torch.functional.probabilities import best_candidate, label_votes, mixing_weight, skill
from bu_torch.perturbation.draws import are_rows, keeps_integers, kind_of
from bu_torch.samples.samples import stratified_rows, weights_of
from bu_torch.space.extractors import LayerFeatures, MixedFeatures
from bu_torch.space.features import BaseSpace, FeatureSpace, LabelMetric

if TYPE_CHECKING:
    from bu_torch.estimators.boundary import PerturbedEstimator

SpaceName = Literal[BaseSpace, "metric"]  # spaces that follow from the samples alone
FeatureExtractor = SpaceName | Literal["module"] | Callable[[Tensor], Any] | MixedFeatures

_COMPARED, _ALL_COMPARED = 1500, 2000  # samples; up to the second number, all are compared
_MOST_CHANNELS = 16  # more are feature maps, and patches of them are too many numbers to whiten
_MOST_FEATURES = 1024  # the cost of a metric grows with their square
_MOST_OPERATIONS = 1e10  # to learn a metric once: some seconds
_LEAST_SAMPLES = 150  # to try a metric: with fewer, it gains next to nothing
_MODULE_BATCH = 64  # as a usual training batch, so that memory suffices
_FOLDS = 3
_IN_TRIAL = 1200  # samples
_VOTERS = 39  # nearest samples, as many as a cluster has by default
_METRIC_LANDMARKS, _LANDMARKS = 200, 120  # fewer in the trial than later: time grows with their cube
_LEAST_UNTAUGHT = 1000  # from this many samples on, they judge better than the folds
_NEIGHBORS, _REGRESSION = 1.0, 2.0  # standard errors that a gain must exceed
_NEARLY_ALL = 0.95  # weight of one regression beside which the other is not worth its time


class MetricTrial(NamedTuple):
    """Class probabilities (n, C) of n samples in a space and in the metric, from other samples alone.

    The metric, a regression and the votes of the nearest see two of three folds of at most 1200 samples, and
    predict the third. (Leave-one-out predictions given the metric promise too much, because it has seen the label.)
    """

    labels: Tensor  # (n,)
    weights: Tensor | None  # (n,)
    votes: tuple[Tensor, Tensor]  # in the space, in the metric
    regressions: tuple[Tensor, Tensor]
    vote_skills: tuple[float, float]  # 1 is certain, 0 chance
    prefers_metric: bool  # the votes are better there by more than a standard error (Brier score)
    regression_weight: float  # of that in the metric, in [0, 1]; 0 unless the mixture gains more than two such errors

    @classmethod
    def of(cls, points: Tensor, labels: Tensor, weights: Tensor | None = None, seed: int = 0) -> Self:
        """Try both with points (N, d), labels (N,), integers >= 0, and weights (N,) of the samples."""
        labels = torch.unique(labels, return_inverse=True)[1]
        rows = stratified_rows(len(points), _IN_TRIAL, seed, labels).to(points.device)
        points, labels = points[rows], labels[rows]
        weights = None if weights is None else weights_of(labels, None, weights[rows])
        n_classes = int(labels.max()) + 1
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed), device="cpu")
        order = order[labels.cpu()[order].argsort(stable=True)].to(labels.device)
        fold = torch.empty_like(labels)
        fold[order] = torch.arange(len(labels), device=labels.device) % _FOLDS  # each class is spread over all
        votes = points.new_zeros(2, len(DECAYS), len(points), n_classes, dtype=torch.float32)
        regressions = torch.zeros_like(votes[:, 0])
        for number in range(_FOLDS):
            seen, held = fold != number, fold == number
            own = None if weights is None else weights[seen]
            metric = LabelMetric(n_landmarks=_METRIC_LANDMARKS, seed=seed).fit(points[seen], labels[seen], own)
            for place, space in enumerate((points, metric.transform(points))):
                distances = torch.cdist(space[held], space[seen])
                voters = distances.topk(min(_VOTERS, distances.shape[1]), largest=False).indices
                for column, decay in enumerate(DECAYS):
                    votes[place, column, held] = label_votes(labels[seen], voters, decay, n_classes, weights=own)
                regression = LabelRegression(_LANDMARKS, seed=seed).fit(space[seen], labels[seen], own)
                predicted = regression.predict_proba(space[held])
                regressions[place, held, : predicted.shape[1]] = predicted
        one_hot = torch.nn.functional.one_hot(labels, n_classes)
        first, second = (best_candidate(zip(DECAYS, decays, strict=True), labels, weights)[1] for decays in votes)
        skills = skill(first, labels, weights), skill(second, labels, weights)
        of_space, of_metric = regressions
        weight = float(mixing_weight(of_space, of_metric, labels, weights))
        is_clear = []
        compared = (first, second, _NEIGHBORS), (of_space, torch.lerp(of_space, of_metric, weight), _REGRESSION)
        for *both, n_errors in compared:
            squared = [(one - one_hot).double().square().sum(dim=1) for one in both]
            gain, error = mean_and_error(squared[0] - squared[1], weights)
            is_clear.append(bool(gain > n_errors * error))
        weight = (1.0 if weight > _NEARLY_ALL else weight) if is_clear[1] else 0.0
        return cls(labels, weights, (first, second), (of_space, of_metric), skills, is_clear[0], weight)


class MixedRegression:
    """Two regressions of the labels, in a space and in the metric that labels teach in it, mixed; as `LabelRegression`.

    Skills and weights, also of the mixture with votes, follow from samples that have not taught the metric if there are
    1000 or more, otherwise from the trial. `metric` is that in which neighbours vote; None if they vote in the space:
    then the second regression learns a metric of its own.
    """

    def __init__(self, trial: MetricTrial, metric: LabelMetric | None, *, seed: int = 0) -> None:
        self.trial, self.has_votes_in_metric = trial, metric is not None
        self.metric = LabelMetric(seed=seed) if metric is None else metric
        self.parts = (LabelRegression(seed=seed), LabelRegression(seed=seed, metric=self.metric))

    def fit(self, features: Tensor, labels: Tensor, sample_weight: Tensor | None = None) -> Self:
        """Fit to points (N, d) of the space, labels (N,) and weights (N,); a part of weight 0 is left out."""
        if not self.has_votes_in_metric:
            self.metric.fit(features, labels, sample_weight)
        self.weight_ = self.trial.regression_weight
        used = [part for part, weight in zip(self.parts, (1 - self.weight_, self.weight_), strict=True) if weight > 0]
        for part in used:
            part.fit(features, labels, sample_weight)
        self.rows_ = used[0].rows_
        untaught = ~torch.isin(self.rows_, self.metric.rows_)
        self._untaught = untaught if int(untaught.sum()) >= _LEAST_UNTAUGHT else None
        if self._untaught is not None and len(used) > 1:
            rows = self.rows_[untaught]
            weights = None if sample_weight is None else sample_weight[rows]
            first, second = (regression.left_out[untaught] for regression in self.parts)
            self.weight_ = float(mixing_weight(first, second, labels[rows], weights))
        self._used, left_out = used, [part.left_out for part in used]
        self.left_out = left_out[0].lerp(left_out[-1], self.weight_)  # of one part alone, its own
        return self

    def predict_proba(self, points: Tensor, *left_out: Tensor | None) -> Tensor:
        """As `LabelRegression.predict_proba`, at points (P, d) of the space; the metric has seen all samples."""
        predicted = [part.predict_proba(points, *left_out) for part in self._used]
        return predicted[0].lerp(predicted[-1], self.weight_)

    def held_out(self, votes: LabelVotes, labels: Tensor, weights: Tensor | None) -> tuple[Any, ...]:
        """As `LabelRegression.held_out`."""
        if self._untaught is None:
            labels, counted, of_votes, regressions, *_ = self.trial
            first, second = of_votes[self.has_votes_in_metric], torch.lerp(*regressions, self.weight_)
        else:
            rows = self.rows_[self._untaught]
            first, second, labels = votes.left_out[rows], self.left_out[self._untaught], labels[rows]
            counted = None if weights is None else weights_of(labels, None, weights[rows])
        vote_skill = skill(first, labels, counted) if self.has_votes_in_metric else votes.skill_
        return first, second, labels, counted, (vote_skill, skill(second, labels, counted))


def may_use_module(feature_extractor: FeatureExtractor | None, module: nn.Module | None, inputs: Tensor) -> bool:
    """Whether the space of these inputs may depend on a network that is trained."""
    if module is None:
        return False
    if feature_extractor is None:
        return not are_rows(inputs)
    extractor = getattr(feature_extractor, "__self__", feature_extractor)
    trained = {id(parameter) for parameter in module.parameters() if parameter.requires_grad}
    parameters = extractor.parameters() if isinstance(extractor, nn.Module) else ()
    return feature_extractor == "module" or any(id(parameter) in trained for parameter in parameters)


class ChosenSpace(NamedTuple):
    """Space of neighbours, how it was chosen, and the regression of the labels that is to be fitted there."""

    name: str
    space: FeatureSpace
    metric: LabelMetric | None  # moves features of the space before they are compared
    features: Tensor  # the samples (N, k) in the space
    points: Tensor  # the same in the metric, if there is one
    skills: dict[str, float]  # of each candidate if there were several
    regression: LabelRegression | MixedRegression  # takes features of the space


def choose_space(estimator: "PerturbedEstimator", inputs: Tensor, labels: Tensor) -> ChosenSpace:
    """The space that is asked for or the best, or the known one that was chosen before.

    With `learns_metric` a metric is put on it if it is clearly better; a trial says which. Integers that are read again
    may be token ids or numbers, so they are tried as both.
    """
    asked, module, weights, seed = estimator.feature_extractor, estimator.module, estimator.weights, estimator.seed
    kind, is_floating = kind_of(estimator.perturbation, inputs), inputs.is_floating_point()
    holds_pixels = is_floating or inputs.dtype == torch.uint8
    is_image = inputs.ndim == 4 and holds_pixels and inputs.shape[1] <= _MOST_CHANNELS
    names: tuple[Any, ...] = ("tokens",) if kind == "tokens" else ("inputs", "patches") if is_image else ("inputs",)
    base = names[-1]
    if kind == "reading" and not is_floating and inputs.ndim < 4:
        names = ("inputs", "tokens")
    # Samples of another kind may be given to a resumed run.
    known = estimator.known_space if estimator.known_space in ("metric", *names) else None
    is_forced = "metric" in (known, asked)
    candidates: dict[str, FeatureSpace] = {}
    if asked in (None, "metric"):
        tried = (base,) if is_forced else names if known is None else (known,)
        candidates = {name: FeatureSpace(name, seed) for name in tried}
    elif asked != "module":
        candidates[estimator.space.name] = estimator.space
    elif module is None:
        raise ValueError("`feature_extractor='module'` needs a `module`, got none.")
    is_open = asked is None and known is None and not are_rows(inputs)
    if module is not None and (is_open or asked == "module"):
        takes_integers = keeps_integers(estimator.perturbation) and not is_floating
        of_module = LayerFeatures(module, batch_size=_MODULE_BATCH, keep_integers=takes_integers)
        candidates["module"] = FeatureSpace(of_module.transform, seed)
    name, skills, features = best_space(inputs, labels, candidates, weights, seed)
    may_be_better = name == "mixed" or (name == base and asked is None)
    trial, metric, points, space = None, None, features, candidates[name]
    (n_samples, n_features), learner = features.shape, LabelMetric(seed=seed)
    n_operations = min(n_samples, learner.max_samples) * min(n_samples, learner.n_landmarks) * n_features
    is_cheap = n_features <= _MOST_FEATURES and n_operations * len(labels.unique()) <= _MOST_OPERATIONS
    if estimator.learns_metric and (is_forced or may_be_better) and n_samples >= _LEAST_SAMPLES and is_cheap:
        trial = MetricTrial.of(features, labels, weights, seed)
    if is_forced or (trial is not None and trial.prefers_metric and known is None):
        metric = learner.fit(features, labels, weights)
        points = metric.transform(features)
        skills = {} if trial is None else dict(zip((name, "metric"), trial.vote_skills, strict=True))
        name = "metric"
    regression: LabelRegression | MixedRegression = LabelRegression(seed=seed, metric=metric)
    if trial is not None and (metric is not None or trial.regression_weight > 0):
        regression = MixedRegression(trial, metric, seed=seed)
    return ChosenSpace(name, space, metric, features, points, skills, regression)


def best_space(
    inputs: Tensor, labels: Tensor, candidates: Mapping[str, FeatureSpace], weights: Tensor | None = None, seed: int = 0
) -> tuple[str, dict[str, float], Tensor]:
    """Choose the candidate in which left-out labels are predicted best, on a random part of the samples.

    The first of equally good ones is taken; `"module"` is left out if its features cannot be read. Gives the name, the
    skill of each if there are several, and all samples as points of the chosen space, which is fitted to them.
    """
    if len(candidates) == 1:
        ((name, space),) = candidates.items()
        return name, {}, space.fit_transform(inputs)
    is_whole = len(inputs) <= _ALL_COMPARED
    rows = stratified_rows(len(inputs), len(inputs) if is_whole else _COMPARED, seed, labels).to(inputs.device)
    part, counted = inputs[rows], None if weights is None else weights[rows]
    columns = torch.unique(labels[rows], return_inverse=True)[1]
    skills: dict[str, float] = {}
    best, best_points = "", part
    for name, space in candidates.items():
        try:
            points = space.fit_transform(part)
        except Exception:  # a network may have no such layer, or not be ready: its code may raise anything
            if name != "module":
                raise
            continue
        skills[name] = LabelRegression(seed=seed).fit(points, columns, counted).skill_
        if not best or skills[name] > skills[best]:
            best, best_points = name, points
    return best, skills, best_points if is_whole else candidates[best].fit_transform(inputs)
