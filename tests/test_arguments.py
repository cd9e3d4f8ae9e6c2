"""What is set when an object is made, out of its range, and what is asked before a fit: refused by name."""

import inspect
import re
from dataclasses import fields
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

import bu_torch
from bu_torch.internal.inputs import check_flag, check_integer, check_number
from bu_torch.run.settings import REMOVED, Settings, SettingsDict

X = torch.randn(20, 4, generator=torch.Generator().manual_seed(0))
Y = torch.arange(20) % 2
NAN = float("nan")

# By argument: what it must be, and values that are not that.
SIZE = ("be an integer >= 1", 0)
NEIGHBORS = {"n_neighbors": ("be an integer >= 2", 1)}
SEED = {"seed": ("be an integer >= 0", -1, 1.5, np.float64(1))}
SPACE = {"feature_extractor": ("be callable", 3)}
DRAWS = {"perturbation": ("be one of 'random', 'neighbors'", "noise"), "n_draws": SIZE}
MEASURED = NEIGHBORS | SEED | SPACE | DRAWS
MEASURE = {"measure": ("be one of 'entropy', 'triangle'", "gini")}
RULE = {"rule": ("be one of 'accuracy_uncertainty_trust',", "accuracy"), "start_from_epoch": ("be an integer >= 0", -1)}
REFUSED = {
    bu_torch.NeighborGraph: NEIGHBORS,
    bu_torch.BoundaryUncertainty: MEASURED,
    bu_torch.Signals: MEASURED,
    bu_torch.FeatureSpace: SPACE | SEED,
    bu_torch.PatchFeatures: dict.fromkeys(("n_patches", "size", "n_cells"), ("be an integer >= 1", 0, 1.5)) | SEED,
    bu_torch.TokenFeatures: {"n_components": SIZE} | SEED,
    bu_torch.PrototypeClassifier: {"n_prototypes": ("be an integer >= 1", 0, "bic")} | SEED,
    bu_torch.TrustScore: {
        "filtering": ("be one of None, 'density', 'disagreement'", "uncertainty"),
        "alpha": ("", 1.0, -0.1, NAN, "0.1"),
        "n_neighbors": SIZE,
    },
    bu_torch.LabelRegression: dict.fromkeys(("n_landmarks", "max_samples"), SIZE) | SEED,
    bu_torch.BisectionAnchorUncertainty: {
        "prior_correction": ("be True or False", "no"),
        "max_size": ("be an integer >= 8", 7),
        **dict.fromkeys(("max_anchors", "n_repeats"), SIZE),
        **MEASURE,
        **SEED,
    },
    bu_torch.GradientAnchorUncertainty: MEASURE | {"gap": ("be one of .own., .pair.", "all")},
    bu_torch.SelectionRule: RULE,
    Settings: MEASURED
    | RULE
    | {
        "max_samples": ("be an integer >= 40", 39),
        "patience": ("be an integer >= 0", -1),
        "min_delta": ("be a finite number >= 0", NAN, -0.1),
        "verbose": ("be True or False", "no"),
    },
}


@pytest.mark.parametrize(("made", "name"), [(made, name) for made, names in REFUSED.items() for name in names])
def test_what_is_out_of_range_is_refused_by_name(made, name):
    expected, *values = REFUSED[made][name]
    for value in values:
        got = type(value).__name__ if expected == "be callable" else repr(value)
        with pytest.raises((TypeError, ValueError), match=f"`{name}` must {expected}.*got {re.escape(got)}"):
            made(**{name: value})


@pytest.mark.parametrize("name", REMOVED)
def test_an_option_that_is_no_more_is_refused_with_what_to_do_instead(name):
    callbacks = (bu_torch.BoundaryUncertaintyMonitor, bu_torch.BoundaryUncertaintyStopping)
    for make in (*callbacks, partial(bu_torch.BoundaryUncertaintyStopper, X, Y)):
        with pytest.raises(TypeError, match=f"`{name}` is no option any more: "):
            make(**{name: None})


def test_the_lists_of_settings_are_the_same():
    settings = {field.name: field.default for field in fields(Settings) if field.name != "decides"}
    arguments = inspect.signature(bu_torch.BoundaryUncertaintyStopping).parameters
    assert list(SettingsDict.__annotations__) == list(settings)
    assert {name: arguments[name].default for name in settings} == settings


def test_numbers_and_flags_of_numpy_are_taken_and_truth_values_are_no_numbers():
    settings = Settings(patience=np.int64(3), min_delta=np.float32(0.5), verbose=np.bool_(False), seed=np.uint8(3))
    assert (settings.patience, settings.min_delta, settings.verbose, settings.seed) == (3, 0.5, False, 3)
    assert {type(value) for value in (settings.patience, settings.seed)} == {int}
    for value in (True, 2.0, "2", None):
        with pytest.raises(TypeError, match=f"`n` must be an integer >= 1, got {value!r}"):
            check_integer("n", value, 1)
    for value in (True, "2", None, NAN, float("inf")):
        with pytest.raises(ValueError, match=f"`x` must be a finite number >= 1, got {value!r}"):
            check_number("x", value, 1)
    with pytest.raises(ValueError, match="`is_on` must be True or False, got 1"):
        check_flag("is_on", 1)


UNFITTED = {
    "standardize": lambda: bu_torch.BoundaryUncertainty().standardize(X),
    "score": lambda: bu_torch.BoundaryUncertainty().score(torch.clone),
    "state": lambda: bu_torch.Signals().state(),
    "measure": lambda: bu_torch.Signals().measure(X[:, :2]),
    "to": lambda: bu_torch.Signals().to("cpu"),
    "perturbed inputs": lambda: bu_torch.Signals().perturbed_inputs,
    "trust": lambda: bu_torch.TrustScore().score(X, Y),
    "votes": lambda: bu_torch.LabelVotes().score(Y),
    "regression": lambda: bu_torch.LabelRegression().predict_proba(X),
    "probabilities": lambda: bu_torch.LabelProbabilities().predict_proba(X),
    "expected accuracy": lambda: bu_torch.LabelProbabilities().score(X, Y),
    "pairs": lambda: bu_torch.PrototypeClassifier().top_pairs(X),
    "patches": lambda: bu_torch.PatchFeatures().transform(torch.zeros(2, 3, 8, 8)),
    "tokens": lambda: bu_torch.TokenFeatures().transform(X.long()),
    "layers": lambda: bu_torch.LayerFeatures(nn.Linear(4, 2), n_components=2).transform(X),
    "bisection": lambda: bu_torch.BisectionAnchorUncertainty().score(torch.clone),
    "gradient": lambda: bu_torch.GradientAnchorUncertainty().score(torch.clone),
}


@pytest.mark.parametrize("call", UNFITTED.values(), ids=UNFITTED)
def test_before_a_fit_nothing_is_said_but_that(call):
    with pytest.raises(RuntimeError, match="not fitted yet"):
        call()
