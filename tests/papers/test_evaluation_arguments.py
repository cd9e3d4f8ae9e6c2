"""Arguments that the evaluation refuses: by name, expectation and what came."""

import math

import pytest
import torch

from bu_torch import evaluation

X, Y = torch.randn(6, 2, generator=torch.Generator().manual_seed(0)), torch.arange(6) % 2
Z, E = torch.tensor([0.0, 1.0]), torch.tensor([0.5])
SCORES = {"scores": torch.tensor([1.0, 2.0]), "is_correct": torch.tensor([True, False]), "percentiles": None}
SAMPLES = {"features": X, "labels": Y}
NUMBER = "must be a finite number"

# By function: arguments that fit; and changes of one, with the words of the error.
BAD = {
    "generalization_interval": (
        SAMPLES,
        ({"method": "cv"}, "must be one of .*'cud'.*, got 'cv'"),
        ({"confidence": 1.0}, "must satisfy 0 < confidence < 1, got 1.0"),
        ({"n_tested": math.nan}, NUMBER),
        ({"confidence": "0.9"}, NUMBER),
        ({"n_tested": 0}, "must be > 0 and at most 1e.15, got 0"),
        ({"n_bootstrap": 0}, "must be an integer >= 1"),
        ({"seed": 0.5}, "must be an integer >= 0"),
        ({"labels": Y + 1}, "must hold the classes 0 and 1, got 2"),
        ({"labels": Y[:5]}, "must have one entry a sample, 6, got 5"),
        ({"features": X[:1]}, "must hold at least 2 samples, got 1"),
        ({"features": X / 0}, "must be finite"),
    ),
    "cud_supremum": (
        {**SAMPLES, "counts": [1] * 6},
        ({"counts": Y}, "must sum to the number of samples, 6, got 3"),
        ({"counts": [2, -1, 1, 2, 1, 1]}, "must hold classes"),
    ),
    "trustworthy_precision": (
        SCORES,
        ({"scores": "a"}, "must be a tensor or an array of numbers, got str"),
        ({"scores": SCORES["scores"] * 1j}, "must be real"),
        ({"scores": torch.ones(0)}, r"must have shape \(n,\)"),
        ({"scores": SCORES["scores"] * math.nan}, "must not be NaN, got 2 of 2"),
        ({"is_correct": Y[:2]}, "must be bool, got torch.int64"),
        ({"is_correct": torch.tensor([True])}, r"must have shape \(2,\), got \(1,"),
    ),
    "suspicious_precision": (
        SCORES,
        ({"percentiles": [100]}, r"must have .* \[0, 100\)"),
        ({"percentiles": 5}, r"must have shape \(P,\)"),
    ),
    "select_alpha": (
        {**SAMPLES, "predictions": 1 - Y, "n_neighbors": 1, "n_folds": 2},
        ({"n_folds": 1}, "must be an integer >= 2"),
        ({"predictions": Y}, "must hold at least one wrong prediction"),
    ),
    "data_error_rate": (
        {"z": Z, "edges": E, "sigma_delta": 1},
        ({"z": "a"}, "must be a tensor or an array of numbers"),
        ({"z": Z > 0}, "must be real, got torch.bool"),
        ({"z": Z[:0]}, r"must have shape \(n,\) with n >= 1"),
        ({"z": Z / 0}, "must be finite, got NaN or infinity in 2"),
        ({"edges": E[:0]}, r"must have shape \(C - 1,\)"),
        ({"edges": [1.0, 1.0]}, "must increase"),
        ({"edges": [1.0, 1.0 + 1e-9]}, "must increase in the precision of `z`"),
        ({"edges": [math.nan]}, "must increase .* hold no NaN"),
        *(({"sigma_delta": wrong}, NUMBER) for wrong in (-1, math.inf, math.nan, "1", Z, True, None)),
    ),
    "minimal_error_rate": ({"z": Z, "edges": E, "sigma_epsilon": 1}, ({"sigma_epsilon": -1}, f"{NUMBER} >= 0, got -1")),
    "error_count": (
        {"predictions": [0, 1], "z": Z, "edges": E},
        ({"predictions": [0, 2]}, r"must hold classes in \[0, 2\), got 2"),
        ({"predictions": [0]}, "must have one entry a sample, 2, got 1"),
        ({"predictions": [0.5, 1]}, "must hold integer classes"),
    ),
    "error_count_bounds": (
        {"count": 0.1, "data_error": 0},
        ({"count": 1.5}, r"must be a number in \[0, 1\], got 1.5"),
        ({"data_error": None}, "must be a number"),
    ),
    "sigma_epsilon_of_replicates": (
        {"z": Z, "groups": [0, 0], "sigma_delta": 0},
        ({"groups": [0, 1]}, "must hold at least one group of two objects"),
    ),
    "sigma_epsilon_of_residuals": (
        {"z": Z, "fitted": Z, "sigma_delta": 0},
        ({"fitted": [0.0]}, "must have one entry"),
        ({"n_parameters": 2}, "must be less than the number of samples, 2"),
    ),
    "sigma_epsilon_of_neighbors": (
        {"z": X[:, 0], "features": X, "sigma_delta": 0, "n_neighbors": 2},
        ({"features": X[:1]}, "must have one"),
        ({"n_neighbors": 6}, "must be less"),
    ),
}


@pytest.mark.parametrize(
    ("name", "change", "message"), [(name, *row) for name, (_, *rows) in BAD.items() for row in rows]
)
def test_bad_arguments_are_named(name, change, message):
    arguments, *_ = BAD[name]
    (argument,) = change
    said = message if message.startswith("`") else f"`{argument}` {message}"
    with pytest.raises((TypeError, ValueError), match=said):
        getattr(evaluation, name)(**{**arguments, **change})


@pytest.mark.parametrize("name", [name for name in BAD if name != "generalization_interval"])
def test_the_arguments_that_were_changed_are_taken(name):
    assert getattr(evaluation, name)(**BAD[name][0]) is not None
