"""Settings that the callbacks and the plain loop's stopper share, and their checks."""

from dataclasses import dataclass
from typing import Any, TypedDict

from torch import nn

from bu_torch.estimators.space_choice import FeatureExtractor, SpaceName
from bu_torch.internal.inputs import check_flag, check_integer, check_number, check_seed
from bu_torch.perturbation.draws import Perturbation
from bu_torch.rule.rules import DEFAULT_RULE, MetricRule, Rule, RuleName, as_rule
from bu_torch.samples.samples import ClassWeight, check_class_weight
from bu_torch.signals.measuring import Signals
from bu_torch.signals.metrics import ACCURACY, as_metric

AVERAGING = 0.7  # about the last three checks


class SettingsDict(TypedDict, total=False):
    """Options that the plain loop, Hugging Face and skorch take; `Settings` explains them."""

    patience: int
    min_delta: float
    start_from_epoch: int
    rule: RuleName | Rule
    n_neighbors: int
    n_draws: int | None
    max_samples: int | None
    seed: int
    feature_extractor: FeatureExtractor | None
    perturbation: Perturbation | None
    class_weight: ClassWeight | None
    metric: Any
    averaging: float | None
    output_key: str | int | None
    verbose: bool


@dataclass(kw_only=True, eq=False, repr=False)
class Settings:
    """How a check measures, and how its score decides.

    Args:
        patience: Stop after this many checks in a row without improvement, >= 0. As with Lightning's `EarlyStopping`, 0
            stops at the first check without improvement, and so does 1. A score that is NaN or infinite stops at once.
        min_delta: Least amount by which an improvement must exceed the best, >= 0. It does not change what is kept.
        start_from_epoch: First epoch that counts, >= 0. Earlier checks are measured and logged, but count neither for
            the patience nor as best.
        rule: What decides. The check with the largest score is kept. `"accuracy_uncertainty_trust"` is a weighted
            mean of three shares of what any classifier can reach: of expected accuracy, of boundary uncertainty, and of
            the logarithm of trust (`bu_torch.functional.accuracy_uncertainty_trust`). On images and texts it is the
            first share alone. `"expected_accuracy"`, `"boundary_uncertainty"` and `"trust_score"` decide by one signal,
            and `"parzen_uncertainty"` by the boundary uncertainty of Proposal 2, which is measured only then. A
            `bu_torch.Rule` of your own may decide, too. With another `metric` than accuracy, the default rule keeps the
            check of its best expected value.
        n_neighbors: Size M of a cluster of neighbours, the sample itself included, >= 2. Training data with fewer
            samples is refused.
        n_draws: Independent perturbations of each sample, >= 1; all numbers are means over them. More draws make them
            steadier and cost more forward passes. None chooses up to 4, more for smaller data.
        max_samples: Measure at no more than this many training samples, >= `n_neighbors`. They are drawn with `seed`,
            stratified if labels are known without reading the samples; of an `IterableDataset` they are the first ones.
            None takes as many as fit into a GiB and into the price of a check, but no fewer than a cluster, and no more
            than the first 10,000 of an `IterableDataset`. The price is counted in forward passes, not timed, so that
            runs repeat: 0.15 of the training samples that an epoch visits, or more for small data (docs/cost.md).
        seed: Seed of all random choices, from 0 to 2**64 - 1. Global random numbers are left as they are.
        feature_extractor: Space in which distances between samples are measured; they are perturbed in input space all
            the same. `"inputs"` are the standardised inputs, `"patches"` are `bu_torch.PatchFeatures` of images,
            `"tokens"` are `bu_torch.TokenFeatures` of token ids, and `"module"` are the inputs of the network's last
            `nn.Linear`, with the weights that it has before training. `"metric"` is one of these in the metric that
            labels teach. A callable from inputs (n, ...) to features (n, k), such as a frozen module, is used as it is
            before training. None takes the space that predicts left-out labels best, for vectors (N, d) of numbers
            their own, and its metric if that is clearly better.
        perturbation: Way to perturb samples. `"random"` moves them in a random direction by the distance to the nearest
            neighbour, and `"neighbors"` a part of the way to a near sample. `"tokens"` exchanges token ids for those of
            a near text. `"reading"` reads a sample again, if random augmentation changes it each time. A callable may
            perturb what cannot be moved along a straight line, see `BoundaryUncertainty`. None takes readings where two
            of them differ, else `"random"` for vectors (N, d) and `"neighbors"` for images and other inputs of more
            dimensions.
        class_weight: Weight of each class in all signals but metrics, in scikit-learn's words: `"balanced"` for all
            classes alike, a dict of weights by class, or one weight for each class (as a loss has them). None takes
            samples as training draws them; the callbacks then take the weights of the module's loss, if it has some.
        metric: Metric whose expected value is measured and logged as `expected_<name>`, each sample counting once:
            `"accuracy"`, `"balanced_accuracy"`, `"auroc"`, `"average_precision"`, `"f1"`, `"log_loss"` or
            `"brier_score"`, of two classes for class 1, of several the mean over the classes; a matrix of costs, a row
            for each true class and a column for each predicted one; or a `torchmetrics.Metric`, which takes labels
            drawn from the label probabilities.
        averaging: Largest weight of the past in an exponential moving average of the network's weights at the checks,
            0 <= averaging < 1; at the first checks it is smaller, n / (n + 10) after n. This average is measured and
            kept, and training continues without it. None measures the network as each check finds it.
        output_key: Place of the logits in the network's output: a key, an attribute, or an index of a tuple. None takes
            a tensor, or an output with `logits`.
        verbose: Log all lines. False logs what was kept, why training ended and what it cost, and doubts.
        decides: False only measures: nothing is kept, and nothing stops the training.

    Raises ValueError or TypeError for an argument out of range or of the wrong type.
    """

    patience: int = 20
    min_delta: float = 0.0
    start_from_epoch: int = 0
    rule: RuleName | Rule = DEFAULT_RULE
    n_neighbors: int = 40
    n_draws: int | None = None
    max_samples: int | None = None
    seed: int = 0
    feature_extractor: FeatureExtractor | None = None
    perturbation: Perturbation | None = None
    class_weight: ClassWeight | None = None
    metric: Any = "accuracy"
    averaging: float | None = AVERAGING
    output_key: str | int | None = None
    verbose: bool = False
    decides: bool = True

    def __post_init__(self) -> None:
        self.patience = check_integer("patience", self.patience, 0)
        self.min_delta = check_number("min_delta", self.min_delta, 0)
        self.start_from_epoch = check_integer("start_from_epoch", self.start_from_epoch, 0)
        self.n_neighbors = check_integer("n_neighbors", self.n_neighbors, 2)
        self.n_draws = None if self.n_draws is None else check_integer("n_draws", self.n_draws, 1)
        if self.max_samples is not None:
            self.max_samples = check_integer("max_samples", self.max_samples, self.n_neighbors)
        self.seed = check_seed(self.seed)
        if self.averaging is not None:
            self.averaging = check_number("averaging", self.averaging, 0, below=1)
        is_key = isinstance(self.output_key, str | int) and not isinstance(self.output_key, bool)
        if self.output_key is not None and not is_key:
            raise TypeError(f"`output_key` must be a name, a place or None, got {self.output_key!r}.")
        self.verbose = check_flag("verbose", self.verbose)
        if not isinstance(self.metric, str):
            self.metric = as_metric(self.metric)  # a copy of what its owner may go on to use
        self.make_signals(n_draws=1)  # checks the rest
        self.class_weight = check_class_weight(self.class_weight)

    @property
    def also(self) -> tuple[str, ...]:
        """Signals to measure that no check measures unless a rule reads them."""
        measured = (*Signals.NAMES, *as_metric(self.metric).entries)
        return tuple(name for name in self.deciding_rule.signals if name not in measured)

    @property
    def deciding_rule(self) -> Rule:
        """The rule, which is that of the metric if another metric than accuracy is asked for and no rule."""
        metric = as_metric(self.metric)
        is_of_metric = metric != ACCURACY and self.rule == DEFAULT_RULE
        return MetricRule(metric) if is_of_metric else as_rule(self.rule, metric)

    def refuse_too_few(self, n_samples: int, what: str) -> None:
        if n_samples < self.n_neighbors:
            raise ValueError(
                f"{what} has {n_samples} samples, fewer than a cluster of `n_neighbors={self.n_neighbors}`: pass more"
                " samples, or a smaller `n_neighbors`."
            )

    def make_signals(
        self,
        n_draws: int,
        module: nn.Module | None = None,
        *,
        class_weight: ClassWeight | None = None,
        known_space: SpaceName | None = None,
    ) -> Signals:
        """`Signals` with these settings, not fitted yet; `class_weight` applies if the settings have none."""
        named = {name: getattr(self, name) for name in ("feature_extractor", "perturbation", "also", "metric")}
        named |= {"class_weight": class_weight if self.class_weight is None else self.class_weight}
        return Signals(self.n_neighbors, n_draws, self.seed, module=module, known_space=known_space, **named)
