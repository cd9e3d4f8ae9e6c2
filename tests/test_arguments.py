"""Arguments that no entry point takes: refused with the argument's name, before anything is computed."""

import inspect
import math
from dataclasses import fields
from functools import cache, partial

import numpy as np
import pytest
import torch
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from torch import nn
from torchmetrics.classification import BinaryROC

import bu_torch
from bu_torch import evaluation, functional
from bu_torch.run.settings import Settings, SettingsDict

NAN, INF = math.nan, math.inf
X = torch.randn(60, 3, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] > 0).long()
LABELS = torch.arange(60) % 3
LOGITS, UNCERTAIN = torch.eye(3)[LABELS], torch.full((60, 3), 1 / 3)
IDS = (X.abs() * 5).long()
NEIGHBORS = (torch.arange(60).unsqueeze(1) + torch.arange(5)) % 60
PAIRS = torch.tensor([[0, 1]] * 60)
Z, EDGES = torch.linspace(0, 1, 60), torch.tensor([0.5])
W = torch.rand(60, generator=torch.Generator().manual_seed(0)) + 0.1

ROC = BinaryROC()
CHOICES = ("rule", "also", "perturbation", "filtering", "measure", "gap", "prior_correction", "method", "bandwidth")
SIZES = ("n_neighbors", "max_samples", "n_prototypes", "every_n_epochs", "n_draws", "n_patches", "size", "n_cells")
SIZES += ("n_components", "batch_size", "n_landmarks", "max_anchors", "n_repeats", "n_bootstrap")
NO_FEATURES = (X[0], X / 0, X[:, :0], "a", X * 1j, X.to_sparse())
NO_LABELS = (Y[1:], Y - 1, Y + 0.5, ["a"] * 60, torch.eye(2)[Y])
NO_LOGITS = (LOGITS.long(), [[0.0]], LOGITS[:0])
NO_WEIGHTS = (W - 2, W / 0, W * NAN, W[1:], W.unsqueeze(1), W.long() + 1, W.tolist(), W.to("meta"), W * (LABELS > 0))
# By the name of an argument, wherever it is taken: values that are refused.
REFUSED = {
    "features": NO_FEATURES,
    "inputs": (X / 0, X[:, :0], (X, X[1:]), {"a": X, "b": X[1:]}, {}, (X[:, :0], X[:, :0])),
    "perturbed": (X[:59], X / 0),
    "labels": NO_LABELS,
    "logits": NO_LOGITS,
    "probabilities": (*NO_LOGITS, UNCERTAIN[0]),
    "predictions": (LABELS.float() + 0.5, LABELS[:5], LABELS[:0], LABELS - 1),
    "predicted_pairs": (PAIRS[:5], PAIRS.float(), PAIRS.flip(1), 3 * PAIRS),
    "bayes_pairs": (0 * PAIRS, 3 * PAIRS),
    "neighbors": (NEIGHBORS[:, :1], NEIGHBORS + 60, NEIGHBORS[:, 0]),
    "weights": NO_WEIGHTS,
    "sample_weight": (W - 9, W[1:], W * (LABELS > 0), W / 0, W * NAN, W > 0, ["a"] * 60),
    "class_weight": ("other", 3.0, {}, {-1: 1.0}, {"a": 1.0}, {0: 0.0}, [1.0, -1.0], {0: NAN}),
    "metric": ("auc", int, [[0, 10**400], [1, 0]], [[0, 1]], [[0, 1], [1]], [[5, 5], [1, 1]], [[0, NAN], [1, 0]], ROC),
    "class_distances": (LOGITS[0],),
    "shares": (LOGITS[0], LOGITS[:, :1], LOGITS / 0),
    "scores": ([], W * NAN),
    "values": (LOGITS[0], LOGITS[:, :1], LOGITS.long()),
    "nearest_distance": (W[1:], -W, W / 0, "far"),
    "generator": (42,),
    "tokens": (X, Y, X * 1j),
    "images": (X,),
    "before": (torch.zeros(5).long(), torch.zeros(60), [0] * 60),
    "left_out": (Y + 59,),
    "counts": (Y, [2, -1] * 30),
    "percentiles": ([100], 5),
    "is_correct": (Y[:2] > 0,),
    "z": ("a", Z > 0, Z[:0], Z / 0),
    "edges": (EDGES[:0], [1.0, 1.0], [NAN]),
    "fitted": ([0.0],),
    "sigma_delta": (-1, NAN, INF, "1", None, True),
    "significance": ("2", 25.0),
    "n_tested": (NAN, 0),
    "n_folds": (1,),
    "n_parameters": (60,),
    "max_size": (7,),
    "confidence": (1.0, "0.9"),
    "alpha": (1.0, -0.1, NAN, "0.1"),
    "averaging": (-0.1, 1.0, "x", NAN),
    "decay": (-1.0, NAN, "1"),
    "output_key": (1.5, True),
    "seed": (-1, 1.5, np.float64(1), 2**64),
    **dict.fromkeys(("model", "feature_extractor", "process_group", "dirpath", "folder"), (3,)),
    **dict.fromkeys(("min_delta", "sigma_epsilon", "min_weight", "skill"), (-1.0, NAN, "0")),
    **dict.fromkeys(("patience", "start_from_epoch"), (-1, 1.5, True, "2")),
    **dict.fromkeys(SIZES, (0, 1.5, True, "2")),
    **dict.fromkeys(("restore_best_weights", "save_weights_only", "filename"), (1,)),
    **dict.fromkeys((*CHOICES, "layer", "law"), ("none of them",)),
}


@cache
def fitted(make):
    arguments = {bu_torch.LabelVotes: (Y, NEIGHBORS), bu_torch.LabelProbabilities: (X, Y, NEIGHBORS)}
    return make().fit(*arguments.get(make, (X, Y)))


SAMPLES = {"features": X, "labels": Y}
ONE = torch.ones(())
REACHED = dict.fromkeys(("accuracy", "uncertainty", "trust"), ONE)
SIGNALS = partial(bu_torch.Signals, n_draws=1)
CONSTRUCTED = ("NeighborGraph", "BoundaryUncertainty", "Signals", "FeatureSpace", "PatchFeatures", "TokenFeatures")
CONSTRUCTED += ("PrototypeClassifier", "TrustScore", "LabelRegression", "BoundaryUncertaintyMonitor")
CONSTRUCTED += ("BisectionAnchorUncertainty", "GradientAnchorUncertainty", "BoundaryUncertaintyStopping")
# Entry points, and arguments that they take.
TAKEN = [
    (functional.boundary_uncertainty, {"logits": LOGITS, "probabilities": UNCERTAIN}),
    (functional.expected_accuracy, {"probabilities": LOGITS, "predictions": LABELS}),
    (functional.label_votes, {"labels": LABELS, "neighbors": NEIGHBORS, "decay": 1.0, "n_classes": 3}),
    (functional.mean_trust_score, {"scores": W}),
    (bu_torch.read_samples, {"dataset": (X, Y), "max_samples": 20}),
    (functional.trust_score, {"class_distances": LOGITS, "predictions": LABELS}),
    (functional.omission, {"shares": LOGITS, "predictions": LABELS, "neighbors": NEIGHBORS}),
    (functional.parzen_uncertainty, {"logits": LOGITS, "labels": LABELS, "neighbors": NEIGHBORS, "bayes_pairs": PAIRS}),
    (functional.silverman_bandwidth, {"values": LOGITS}),
    (functional.accuracy_uncertainty_trust, {**REACHED, "attainable": functional.Attainable(ONE, ONE, ONE)}),
    (bu_torch.perturb, {"features": X, "nearest_distance": W}),
    (bu_torch.perturb_toward_neighbors, {"inputs": X, "neighbors": NEIGHBORS}),
    (bu_torch.exchange_tokens, {"tokens": NEIGHBORS, "neighbors": NEIGHBORS}),
    (evaluation.generalization_interval, {**SAMPLES, "n_bootstrap": 3}),
    (evaluation.cud_supremum, {**SAMPLES, "counts": [1] * 60}),
    (evaluation.trustworthy_precision, {"scores": W, "is_correct": Y > 0}),
    (evaluation.select_alpha, {**SAMPLES, "predictions": 1 - Y, "n_neighbors": 1, "n_folds": 2}),
    (evaluation.data_error_rate, {"z": Z, "edges": EDGES, "sigma_delta": 1}),
    (evaluation.minimal_error_rate, {"z": Z, "edges": EDGES, "sigma_epsilon": 1}),
    (evaluation.error_count, {"predictions": Y, "z": Z, "edges": EDGES}),
    (evaluation.sigma_epsilon_of_residuals, {"z": Z, "fitted": Z, "sigma_delta": 0}),
    (evaluation.sigma_epsilon_of_neighbors, {"z": Z, "features": X, "sigma_delta": 0, "n_neighbors": 2}),
    *((getattr(bu_torch, name), {}) for name in CONSTRUCTED),
    (Settings, {}),
    (bu_torch.BoundaryUncertaintyStopper, {"inputs": X, "labels": Y}),
    (bu_torch.LayerFeatures, {"model": nn.Linear(3, 2)}),
    (bu_torch.NeighborGraph(10).fit, {"features": X}),
    (bu_torch.PatchFeatures().fit, {"images": X.view(60, 1, 1, 3)}),
    (bu_torch.TokenFeatures().fit, {"tokens": NEIGHBORS}),
    (bu_torch.PrototypeClassifier().fit, SAMPLES),
    (bu_torch.TrustScore().fit, SAMPLES),
    (bu_torch.BoundaryUncertainty(10).fit, SAMPLES),
    (bu_torch.Signals(10, 1).fit, SAMPLES),
    (bu_torch.LabelRegression().fit, SAMPLES),
    (bu_torch.LabelProbabilities().fit, {**SAMPLES, "neighbors": NEIGHBORS}),
    (bu_torch.LabelVotes().fit, {"labels": Y, "neighbors": NEIGHBORS}),
    (fitted(bu_torch.BoundaryUncertainty).score, {"model": lambda x: x[:, :2]}),
    (fitted(bu_torch.BoundaryUncertainty).score_logits, {"logits": X[:, :2]}),
    (fitted(SIGNALS).measure, {"logits": X[:, :2]}),
    (fitted(bu_torch.LabelProbabilities).predict_proba, {"perturbed": X}),
    (fitted(bu_torch.LabelProbabilities).score, {"perturbed": X, "predictions": Y}),
    (fitted(bu_torch.LabelRegression).predict_proba, {"features": X}),
    (fitted(bu_torch.TrustScore).class_distances, {"features": X}),
    (fitted(bu_torch.TrustScore).score, {"features": X, "predictions": Y}),
]
# Formulas do not look at all, of what is not finite there is no score, and a metric may be one of the space.
UNCHECKED = ("label_votes-labels-0", "mean_trust_score-scores-1", "omission-predictions-1", "omission-predictions-2")
UNCHECKED += ("omission-neighbors-0", "LabelRegression.predict_proba-labels", "LabelRegression.predict_proba-weights")
UNCHECKED += ("LabelRegression-metric",)
ROWS = [
    pytest.param(call, {**taken, name: value}, name, id=f"{number} {place}")
    for number, (call, taken) in enumerate(TAKEN)
    for name in inspect.signature(call).parameters
    for k, value in enumerate(REFUSED.get(name, ()))
    if not (place := f"{getattr(call, '__qualname__', '')}-{name}-{k}").startswith(UNCHECKED)
]


@pytest.mark.parametrize(("call", "arguments", "name"), ROWS)
def test_a_bad_argument_is_refused_by_name(call, arguments, name):
    with pytest.raises((TypeError, ValueError, MisconfigurationException), match=f"`(model\\.)?{name}`|`{name}="):
        call(**arguments)


@pytest.mark.parametrize(("call", "taken"), TAKEN)
def test_the_arguments_that_were_changed_are_taken(call, taken):
    assert call(**taken) is not None


def test_arguments_that_exclude_each_other_are_refused():
    with pytest.raises(MisconfigurationException, match="`every_n_epochs`"):
        bu_torch.BoundaryUncertaintyMonitor(every_n_train_steps=5, every_n_epochs=2)
    with pytest.raises(ValueError, match="n_neighbors=10"):
        bu_torch.TrustScore("disagreement").fit(X[:10], Y[:10])
    with pytest.raises(ValueError, match="`probabilities`"):
        functional.boundary_uncertainty(LOGITS[:, :2], UNCERTAIN)


def test_the_lists_of_settings_are_the_same():
    settings = {field.name: field.default for field in fields(Settings) if field.name != "decides"}
    arguments = inspect.signature(bu_torch.BoundaryUncertaintyStopping).parameters
    assert list(SettingsDict.__annotations__) == list(settings)
    assert {name: arguments[name].default for name in settings} == settings


def test_numbers_and_flags_of_numpy_are_taken():
    settings = Settings(patience=np.int64(3), min_delta=np.float32(0.5), verbose=np.bool_(False), seed=np.uint8(3))
    assert (settings.patience, settings.min_delta, settings.verbose, settings.seed) == (3, 0.5, False, 3)
    assert {type(value) for value in (settings.patience, settings.seed)} == {int}


ESTIMATORS = ("BoundaryUncertainty", "Signals", "TrustScore", "LabelRegression", "LabelProbabilities", "PatchFeatures")
ESTIMATORS += ("TokenFeatures", "PrototypeClassifier", "BisectionAnchorUncertainty", "GradientAnchorUncertainty")
FITTED = ("score", "measure", "to", "perturbed_inputs", "predict_proba", "class_distances", "top_pairs", "transform")


def read(made, name):
    taken = inspect.signature(call := getattr(made, name)).parameters.values()
    return call(*(X for one in taken if one.default is one.empty))


@pytest.mark.parametrize("name", ESTIMATORS)
def test_before_a_fit_nothing_is_said_but_that(name):
    made = getattr(bu_torch, name)()
    for way in filter(partial(hasattr, type(made)), (*FITTED, *["state"] * (name == "Signals"))):
        with pytest.raises(RuntimeError, match="not fitted yet"):
            read(made, way)


TEXTS = torch.randint(300, (400, 20), generator=torch.Generator().manual_seed(0))  # more words than axes
INTERVAL = partial(evaluation.generalization_interval, X, Y, n_bootstrap=5)
# What takes a seed, and what comes out.
SEEDED = {
    "BoundaryUncertainty": (bu_torch.BoundaryUncertainty, lambda made: made.fit(X, Y).perturbed_inputs),
    "Signals": (bu_torch.Signals, lambda made: made.fit(X, Y).probabilities),
    "PrototypeClassifier": (bu_torch.PrototypeClassifier, lambda made: made.fit(X, Y).class_distances(X)),
    "FeatureSpace": (partial(bu_torch.FeatureSpace, "tokens"), lambda made: made.fit(TEXTS).transform(TEXTS)),
    "TokenFeatures": (partial(bu_torch.TokenFeatures, 2), lambda made: made.fit(IDS).transform(IDS)),
    "LabelRegression": (bu_torch.LabelRegression, lambda made: made.fit(X, Y).left_out),
    "Bisection": (bu_torch.BisectionAnchorUncertainty, lambda made: made.fit(X, Y).score(lambda x: x[:, :2])),
    **{name: (partial(INTERVAL, method=name), torch.tensor) for name in ("cud", "yang")},
    "select_alpha": (partial(evaluation.select_alpha, X, Y, 1 - Y), lambda made: made.precisions),
}


@pytest.mark.parametrize(("take", "find"), SEEDED.values(), ids=SEEDED)
@pytest.mark.parametrize("seed", [2**32 - 1, 2**32, np.uint64(2**64 - 1)])
def test_a_seed_in_range_says_what_comes_out_and_global_random_states_stay(take, find, seed, random_states):
    before = random_states()
    first, second = (find(take(seed=seed)) for _ in range(2))
    assert random_states() == before
    assert bool(first.isfinite().all())
    assert torch.equal(first, second)
