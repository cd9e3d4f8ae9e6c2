"""Arguments that no entry point takes: refused with the argument's name, before anything is computed."""

import inspect
import math
from dataclasses import fields
from functools import cache, partial

import numpy as np
import pytest
import torch
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from sklearn.linear_model import LogisticRegression
from torch import nn

import bu_torch
from bu_torch import evaluation, functional
from bu_torch.internal.inputs import check_flag, check_integer, check_number
from bu_torch.run.settings import REMOVED, Settings, SettingsDict

NAN, INF = math.nan, math.inf
X = torch.randn(60, 3, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] > 0).long()
RING = (torch.arange(60).unsqueeze(1) + torch.arange(5)) % 60
LABELS = torch.tensor([0, 1, 2, 0, 1, 2])
LOGITS, UNCERTAIN = torch.eye(3)[LABELS], torch.full((6, 3), 1 / 3)
NEIGHBORS = (torch.arange(5) + torch.arange(6).unsqueeze(1)) % 6
PAIRS = torch.tensor([[0, 1]] * 6)
Z, EDGES = torch.tensor([0.0, 1.0]), torch.tensor([0.5])
SCORES = {"scores": torch.tensor([1.0, 2.0]), "is_correct": torch.tensor([True, False])}
FEW = {"features": X[:6, :2], "labels": LABELS % 2}

W = torch.rand(6, generator=torch.Generator().manual_seed(0)) + 0.1
NO_WEIGHTS = (W - 2, W / 0, W * NAN, W[1:], W.unsqueeze(1), W.long() + 1, W.tolist(), W.to("meta"), W * (LABELS > 0))
NUMBERS = (NAN, INF, "1", None, True)
NOT_FLOATING = (LOGITS.long(), [[0.0]], LOGITS[:0])
NO_FEATURES = (X[0], X / 0, X[:, :0], "a", X * 1j, X.to_sparse())
NO_LABELS = (Y[1:], Y - 1, Y + 0.5, Y / 0, ["a"] * 60, Y * 10**9, torch.eye(2)[Y])
SIZE, SEED = (0, 1.5, True, "2"), {"seed": (-1, 1.5, np.float64(1), 2**64)}
SPACE = {"feature_extractor": (3, "nowhere")}
MEASURED = {"n_neighbors": (1, 2.0), "n_draws": SIZE, "perturbation": ("noise",), **SPACE, **SEED}
RULE = {"rule": ("accuracy",), "start_from_epoch": (-1,)}
CALLBACK = {
    "output_key": (1.5, True),
    "every_n_epochs": (0,),
    "every_n_train_steps": (2.5,),
    "reference": (X,),
    "perturbation": ("noise", lambda inputs: inputs),
    "verbose": ("yes",),
}
STOPPING = {
    "averaging": (-0.1, 1.0, "x", NAN),
    "restore_best_weights": (1,),
    "dirpath": (3,),
    "filename": (0,),
    "save_weights_only": (1,),
}


@cache
def fitted(make):
    """An estimator that is fitted to the samples above."""
    arguments = {bu_torch.LabelVotes: (Y, RING), bu_torch.LabelProbabilities: (X, Y, RING), bu_torch.TrustScore: (X, Y)}
    return make().fit(*arguments.get(make, (X, Y)))


def method(make, name):
    return lambda **arguments: getattr(fitted(make), name)(**arguments)


# By entry point: arguments that it takes, and by argument values that it does not take in place of those.
CALLS = {
    functional.boundary_uncertainty: (
        {"logits": LOGITS, "probabilities": UNCERTAIN},
        {
            "weights": NO_WEIGHTS,
            "logits": (*NOT_FLOATING, LOGITS.to_sparse()),
            "probabilities": (
                UNCERTAIN[:2],
                UNCERTAIN[:, :1],
                UNCERTAIN.long(),
                UNCERTAIN.tolist(),
                -UNCERTAIN,
                9 * UNCERTAIN,
                UNCERTAIN / 0,
                UNCERTAIN.to("meta"),
            ),
        },
    ),
    functional.expected_accuracy: (
        {"probabilities": LOGITS, "predictions": LABELS},
        {
            "weights": NO_WEIGHTS,
            "probabilities": (*NOT_FLOATING, LOGITS[0]),
            "predictions": ([0, 1], LABELS.float(), LABELS[:5], LABELS - 1),
        },
    ),
    functional.label_votes: (
        {"labels": LABELS, "neighbors": NEIGHBORS, "decay": 1.0, "n_classes": 3},
        {
            "weights": NO_WEIGHTS,
            "labels": (LABELS - 1, LABELS + 1),
            "decay": (-1.0, NAN, "1"),
            "neighbors": (NEIGHBORS[:, :1],),
        },
    ),
    functional.mean_trust_score: ({"scores": LOGITS[:, 0]}, {"scores": ([1.0], LOGITS[:0]), "weights": NO_WEIGHTS}),
    functional.trust_score: (
        {"class_distances": LOGITS, "predictions": LABELS},
        {"class_distances": (LOGITS[0],), "predictions": (LABELS + 1, LABELS.float())},
    ),
    functional.omission: (
        {"shares": LOGITS, "predictions": LABELS, "neighbors": NEIGHBORS},
        {
            "weights": NO_WEIGHTS,
            "shares": (LOGITS[0], LOGITS[:, :1], LOGITS / 0),
            "predictions": (LABELS.float(), LABELS - 1),
            "neighbors": (NEIGHBORS[:5], NEIGHBORS + 1),
            "significance": ("2", 2.5),
        },
    ),
    functional.parzen_uncertainty: (
        {"logits": LOGITS, "labels": LABELS, "neighbors": NEIGHBORS, "bayes_pairs": PAIRS},
        {
            "weights": NO_WEIGHTS,
            "logits": (*NOT_FLOATING, LOGITS.to_sparse(), LOGITS.unsqueeze(0)),
            "labels": (LABELS[:5], LABELS.float(), LABELS + 1),
            "neighbors": (NEIGHBORS[:, :1], NEIGHBORS + 1),
            "bayes_pairs": (0 * PAIRS, 3 * PAIRS),
            "predicted_pairs": (PAIRS[:5], PAIRS.float(), PAIRS.flip(1), 3 * PAIRS),
            "min_weight": (-1.0, "0"),
            "bandwidth": ("scott",),
        },
    ),
    functional.silverman_bandwidth: ({"values": LOGITS}, {"values": (LOGITS[0], LOGITS[:, :1], LOGITS.long())}),
    evaluation.generalization_interval: (
        {**FEW, "n_bootstrap": 3},
        {
            "method": ("cv",),
            "confidence": (1.0, "0.9"),
            "n_tested": (NAN, 0),
            "n_bootstrap": (0,),
            "labels": (Y[:6] + 1, Y[:5]),
            "features": (X[:1], X[:6] / 0),
            "seed": (0.5,),
        },
    ),
    evaluation.cud_supremum: ({**FEW, "counts": [1] * 6}, {"counts": (Y[:6], [2, -1, 1, 2, 1, 1])}),
    evaluation.trustworthy_precision: (
        SCORES,
        {
            "scores": ("a", Z * 1j, torch.ones(0), Z * NAN),
            "is_correct": (Y[:2], torch.tensor([True])),
            "percentiles": ([100], 5),
        },
    ),
    evaluation.suspicious_precision: (SCORES, {"percentiles": ([100], 5)}),
    evaluation.select_alpha: (
        {**FEW, "predictions": 1 - LABELS % 2, "n_neighbors": 1, "n_folds": 2},
        {"n_folds": (1,), "predictions": (LABELS % 2,)},
    ),
    evaluation.data_error_rate: (
        {"z": Z, "edges": EDGES, "sigma_delta": 1},
        {
            "z": ("a", Z > 0, Z[:0], Z / 0),
            "edges": (EDGES[:0], [1.0, 1.0], [1.0, 1.0 + 1e-9], [NAN]),
            "sigma_delta": (-1, Z, *NUMBERS),
        },
    ),
    evaluation.minimal_error_rate: ({"z": Z, "edges": EDGES, "sigma_epsilon": 1}, {"sigma_epsilon": (-1,)}),
    evaluation.error_count: ({"predictions": [0, 1], "z": Z, "edges": EDGES}, {"predictions": ([0, 2], [0], [0.5, 1])}),
    evaluation.error_count_bounds: ({"count": 0.1, "data_error": 0}, {"count": (1.5,), "data_error": (None,)}),
    evaluation.sigma_epsilon_of_replicates: ({"z": Z, "groups": [0, 0], "sigma_delta": 0}, {"groups": ([0, 1],)}),
    evaluation.sigma_epsilon_of_residuals: (
        {"z": Z, "fitted": Z, "sigma_delta": 0},
        {"fitted": ([0.0],), "n_parameters": (2,)},
    ),
    evaluation.sigma_epsilon_of_neighbors: (
        {"z": X[:6, 0], "features": X[:6], "sigma_delta": 0, "n_neighbors": 2},
        {"features": (X[:1],), "n_neighbors": (6,)},
    ),
    bu_torch.NeighborGraph: ({}, {"n_neighbors": (1, 2.0)}),
    bu_torch.BoundaryUncertainty: ({}, MEASURED),
    bu_torch.Signals: ({}, {**MEASURED, "also": (["accuracy"],)}),
    bu_torch.FeatureSpace: ({}, {**SPACE, **SEED}),
    bu_torch.PatchFeatures: ({}, {"n_patches": SIZE, "size": SIZE, "n_cells": SIZE, **SEED}),
    bu_torch.TokenFeatures: ({}, {"n_components": SIZE, **SEED}),
    bu_torch.LayerFeatures: (
        {"model": nn.Linear(3, 2)},
        {"model": (torch.clone,), "layer": ("tail",), "batch_size": SIZE},
    ),
    bu_torch.PrototypeClassifier: ({}, {"n_prototypes": (0, "bic"), **SEED}),
    bu_torch.TrustScore: ({}, {"filtering": ("uncertainty",), "alpha": (1.0, -0.1, NAN, "0.1"), "n_neighbors": SIZE}),
    bu_torch.LabelRegression: ({}, {"n_landmarks": SIZE, "max_samples": SIZE, **SEED}),
    bu_torch.BisectionAnchorUncertainty: (
        {},
        {
            "prior_correction": ("no",),
            "max_size": (7,),
            "max_anchors": SIZE,
            "n_repeats": SIZE,
            "measure": ("gini",),
            **SEED,
        },
    ),
    bu_torch.GradientAnchorUncertainty: ({}, {"measure": ("gini",), "gap": ("all",)}),
    bu_torch.SelectionRule: ({}, RULE),
    Settings: (
        {},
        {**MEASURED, **RULE, "max_samples": (39,), "patience": (-1,), "min_delta": (NAN, -0.1), "verbose": ("no",)},
    ),
    bu_torch.BoundaryUncertaintyStopper: (
        {"inputs": X, "labels": Y},
        {"folder": (3,), "process_group": ("gloo",), "sample_weight": (torch.ones(7),)},
    ),
    bu_torch.BoundaryUncertaintyMonitor: ({}, CALLBACK),
    bu_torch.BoundaryUncertaintyStopping: ({}, CALLBACK | STOPPING),
    bu_torch.NeighborGraph(10).fit: ({"features": X}, {"features": (*NO_FEATURES, X[:9])}),
    bu_torch.PrototypeClassifier().fit: ({"features": X, "labels": Y}, {"features": NO_FEATURES, "labels": NO_LABELS}),
    bu_torch.TrustScore().fit: ({"features": X, "labels": Y}, {"features": NO_FEATURES, "labels": NO_LABELS}),
    bu_torch.BoundaryUncertainty(10).fit: (
        {"features": X, "labels": Y},
        {"features": NO_FEATURES, "labels": (*NO_LABELS, 0 * Y), "sample_weight": (X[:, 0] - 9, Y[1:] + 1, Y > -1)},
    ),
    bu_torch.Signals(10, 1).fit: (
        {"features": X, "labels": Y},
        {"features": NO_FEATURES, "labels": (*NO_LABELS, 0 * Y)},
    ),
    bu_torch.LabelRegression().fit: ({"features": X, "labels": Y}, {"features": NO_FEATURES, "labels": NO_LABELS}),
    bu_torch.LabelProbabilities().fit: ({"features": X, "labels": Y, "neighbors": RING}, {"labels": NO_LABELS}),
    bu_torch.LabelVotes().fit: ({"labels": Y, "neighbors": RING}, {"labels": NO_LABELS}),
}
# The same of methods, on what is fitted to the samples above.
METHODS = {
    (bu_torch.BoundaryUncertainty, "score"): ({"model": lambda x: x[:, :2]}, {"model": (LogisticRegression(), None)}),
    (bu_torch.BoundaryUncertainty, "score_logits"): ({"logits": X[:, :2]}, {"logits": (X[:9, :2], X[:, :0], Y, None)}),
    (partial(bu_torch.Signals, n_draws=1), "measure"): (
        {"logits": X[:, :2]}, {"before": (torch.zeros(5).long(), torch.zeros(60), [0] * 60)}
    ),
    (bu_torch.LabelProbabilities, "predict_proba"): ({"perturbed": X}, {"perturbed": (X[:59], X / 0)}),
    (bu_torch.LabelProbabilities, "score"): ({"perturbed": X, "predictions": Y}, {"predictions": (Y[1:],)}),
    (bu_torch.LabelRegression, "predict_proba"): ({"features": X}, {"features": (X[:, :1], X / 0)}),
    (bu_torch.TrustScore, "class_distances"): ({"features": X}, {"features": (X[:, :2],), "left_out": (Y + 59,)}),
    (bu_torch.TrustScore, "score"): ({"features": X, "predictions": Y}, {"predictions": (Y[1:],)}),
}  # fmt: skip
CALLS |= {method(*of): row for of, row in METHODS.items()}
ROWS = [
    pytest.param(call, {**taken, name: value}, name, id=f"{number}-{name}-{place}")
    for number, (call, (taken, refused)) in enumerate(CALLS.items())
    for name, values in refused.items()
    for place, value in enumerate(values)
]


@pytest.mark.parametrize(("call", "arguments", "name"), ROWS)
def test_a_bad_argument_is_refused_by_name(call, arguments, name):
    with pytest.raises((TypeError, ValueError, MisconfigurationException), match=f"`(model\\.)?{name}`|`{name}="):
        call(**arguments)


@pytest.mark.parametrize(("call", "taken"), [(call, taken) for call, (taken, _) in CALLS.items()])
def test_the_arguments_that_were_changed_are_taken(call, taken):
    assert call(**taken) is not None


def test_arguments_that_exclude_each_other_are_refused():
    with pytest.raises(MisconfigurationException, match="`every_n_epochs`"):
        bu_torch.BoundaryUncertaintyMonitor(every_n_train_steps=5, every_n_epochs=2)
    with pytest.raises(ValueError, match="`labels`"):
        functional.label_votes(LABELS, NEIGHBORS, 1.0, n_classes=2)
    with pytest.raises(ValueError, match="n_neighbors=10"):
        bu_torch.TrustScore("disagreement").fit(X[:10], Y[:10])
    with pytest.raises(ValueError, match="`probabilities`"):
        functional.boundary_uncertainty(LOGITS[:, :2], UNCERTAIN)


def test_nan_distances_give_nan():
    assert functional.trust_score(torch.full((2, 3), NAN), torch.tensor([0, 1])).isnan().all()


@pytest.mark.parametrize("name", REMOVED)
def test_an_option_that_is_no_more_is_refused_with_what_to_do_instead(name):
    callbacks = (bu_torch.BoundaryUncertaintyMonitor, bu_torch.BoundaryUncertaintyStopping)
    for make in (*callbacks, partial(bu_torch.BoundaryUncertaintyStopper, X, Y)):
        with pytest.raises(TypeError, match=f"`{name}` is no option any more: "):
            make(**{name: None})


@pytest.mark.parametrize("kind", [bu_torch.BoundaryUncertaintyMonitor, bu_torch.BoundaryUncertaintyStopping])
def test_no_other_arguments_are_taken(kind):
    assert type("Own", (kind,), {})(n_neighbors=7).settings.n_neighbors == 7
    for name in ("monitor", "mode", "class_weights"):
        with pytest.raises(TypeError, match=f"unexpected keyword argument '{name}'"):
            kind(**{name: "val_loss"})


def test_the_lists_of_settings_are_the_same():
    settings = {field.name: field.default for field in fields(Settings) if field.name != "decides"}
    arguments = inspect.signature(bu_torch.BoundaryUncertaintyStopping).parameters
    assert list(SettingsDict.__annotations__) == list(settings)
    assert {name: arguments[name].default for name in settings} == settings


def test_numbers_and_flags_of_numpy_are_taken_and_truth_values_are_no_numbers():
    settings = Settings(patience=np.int64(3), min_delta=np.float32(0.5), verbose=np.bool_(False), seed=np.uint8(3))
    assert (settings.patience, settings.min_delta, settings.verbose, settings.seed) == (3, 0.5, False, 3)
    assert {type(value) for value in (settings.patience, settings.seed)} == {int}
    for check, values in ((check_integer, (True, 2.0, "2", None)), (check_number, NUMBERS)):
        for value in values:
            with pytest.raises((TypeError, ValueError), match="`n` must be"):
                check("n", value, 1)
    with pytest.raises(ValueError, match="`is_on` must be True or False"):
        check_flag("is_on", 1)


UNFITTED = {
    "score": lambda: bu_torch.BoundaryUncertainty().score(torch.clone),
    "state": lambda: bu_torch.Signals().state(),
    "measure": lambda: bu_torch.Signals().measure(X[:, :2]),
    "to": lambda: bu_torch.Signals().to("cpu"),
    "perturbed inputs": lambda: bu_torch.Signals().perturbed_inputs,
    "trust": lambda: bu_torch.TrustScore().score(X, Y),
    "regression": lambda: bu_torch.LabelRegression().predict_proba(X),
    "probabilities": lambda: bu_torch.LabelProbabilities().predict_proba(X),
    "expected accuracy": lambda: bu_torch.LabelProbabilities().score(X, Y),
    "pairs": lambda: bu_torch.PrototypeClassifier().top_pairs(X),
    "patches": lambda: bu_torch.PatchFeatures().transform(torch.zeros(2, 3, 8, 8)),
    "tokens": lambda: bu_torch.TokenFeatures().transform(X.long()),
    "bisection": lambda: bu_torch.BisectionAnchorUncertainty().score(torch.clone),
    "gradient": lambda: bu_torch.GradientAnchorUncertainty().score(torch.clone),
}


@pytest.mark.parametrize("call", UNFITTED.values(), ids=UNFITTED)
def test_before_a_fit_nothing_is_said_but_that(call):
    with pytest.raises(RuntimeError, match="not fitted yet"):
        call()
