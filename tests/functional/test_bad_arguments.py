"""Arguments that the formulas refuse: by name, expectation and what came. Weights are in `test_weights.py`."""

import pytest
import torch

from bu_torch import Signals
from bu_torch import functional as F

LABELS = torch.tensor([0, 1, 2, 0, 1, 2])
LOGITS, UNCERTAIN = torch.eye(3)[LABELS], torch.full((6, 3), 1 / 3)
NEIGHBORS = (torch.arange(5) + torch.arange(6).unsqueeze(1)) % 6
PAIRS = torch.tensor([[0, 1]] * 6)
SAMPLES = {"logits": LOGITS, "labels": LABELS, "neighbors": NEIGHBORS, "bayes_pairs": PAIRS}

# By function: arguments that fit; and changes of one, the error, and its words.
BAD = {
    "boundary_uncertainty": (
        {"logits": LOGITS, "probabilities": UNCERTAIN},
        ({"logits": LOGITS.long()}, TypeError, "must be a floating-point tensor, got torch.int64"),
        ({"logits": [[0.0]]}, TypeError, "must be a floating-point tensor, got list"),
        ({"logits": LOGITS.to_sparse()}, TypeError, "must be dense"),
        ({"logits": LOGITS[:0]}, ValueError, r"must have shape \(N, J\) with N, J >= 1"),
        ({"probabilities": UNCERTAIN[:2]}, ValueError, r"must have shape \(6, C\), got \(2, 3\)"),
        ({"probabilities": UNCERTAIN[:, :1]}, ValueError, "must have at least 2 columns.*got 1"),
        ({"logits": LOGITS[:, :2]}, ValueError, "`probabilities` must have .*the 2 of `logits`, got 3"),
        ({"probabilities": UNCERTAIN.long()}, TypeError, "must be a floating-point tensor"),
        ({"probabilities": UNCERTAIN.tolist()}, TypeError, "must be a floating-point tensor.*got list"),
        ({"probabilities": -UNCERTAIN}, ValueError, r"must lie in \[0, 1\], got values from -0.3"),
        ({"probabilities": 9 * UNCERTAIN}, ValueError, r"must lie in \[0, 1\], got values from 3"),
        ({"probabilities": UNCERTAIN / 0}, ValueError, r"must lie in \[0, 1\], got values from inf"),
        ({"probabilities": UNCERTAIN.to("meta")}, ValueError, "must be on cpu.*got meta"),
    ),
    "expected_accuracy": (
        {"probabilities": LOGITS, "predictions": LABELS},
        ({"probabilities": [[1.0]]}, TypeError, r"must be .*of shape \(N, J\), got list"),
        ({"probabilities": LOGITS.long()}, TypeError, r"must be .*got torch\.int64"),
        ({"probabilities": LOGITS[0]}, ValueError, r"must have shape \(N, J\), got \(3,\)"),
        ({"probabilities": LOGITS[:0]}, ValueError, r"with N, J >= 1, got \(0, 3\)"),
        ({"predictions": [0, 1]}, TypeError, r"must be an integer tensor of shape \(D \* N,\), got list"),
        ({"predictions": LABELS.float()}, TypeError, "must be an integer tensor .*got torch.float32"),
        ({"predictions": LABELS[:5]}, ValueError, "must hold a multiple of the 6 points, got 5"),
        ({"predictions": LABELS - 1}, ValueError, r"must hold classes 0, 1, \.\.\., got -1"),
    ),
    "label_votes": (
        {"labels": LABELS, "neighbors": NEIGHBORS, "decay": 1.0, "n_classes": 3},
        ({"labels": LABELS - 1}, ValueError, r"must hold classes in \[0, 3\)"),
        ({"labels": LABELS + 1}, ValueError, r"must hold classes in \[0, 3\)"),
        ({"decay": -1.0}, ValueError, r"must be >= 0, got -1\.0"),
        ({"decay": float("nan")}, ValueError, "must be >= 0, got nan"),
        ({"neighbors": NEIGHBORS[:, :1]}, ValueError, "M >= 2"),
        ({"decay": "1"}, TypeError, "must be a number >= 0, got '1'"),
        ({"n_classes": 2}, ValueError, r"`labels` must hold classes in \[0, 2\), got values from 0 to 2"),
    ),
    "mean_trust_score": (
        {"scores": LOGITS},
        ({"scores": [1.0]}, TypeError, "must be a floating-point tensor, got list"),
        ({"scores": LOGITS[:0]}, ValueError, "must hold at least one"),
    ),
    "trust_score": (
        {"class_distances": LOGITS, "predictions": LABELS},
        ({"class_distances": LOGITS[0]}, ValueError, r"must have shape \(N, J\)"),
        ({"class_distances": -LOGITS}, ValueError, r"must be >= 0, got -1\.0"),
        ({"predictions": LABELS + 1}, ValueError, r"must hold classes in \[0, 3\)"),
        ({"predictions": LABELS.float()}, TypeError, "must be an integer tensor"),
    ),
    # Formulas of the papers, which `functional` finds in `bu_torch.papers`.
    "omission": (
        {"shares": LOGITS, "predictions": LABELS, "neighbors": NEIGHBORS},
        ({"shares": LOGITS[0]}, ValueError, r"must have shape \(N, J\), got \(3,\)"),
        ({"shares": LOGITS[:, :1]}, ValueError, r"J >= 2, got \(6, 1\)"),
        ({"shares": LOGITS / 0}, ValueError, "must be finite"),
        ({"predictions": LABELS.float()}, TypeError, "must be an integer tensor"),
        ({"predictions": LABELS - 1}, ValueError, r"must hold classes 0, 1, \.\.\., got -1"),
        ({"neighbors": NEIGHBORS[:5]}, ValueError, r"must have shape \(6, M\)"),
        ({"neighbors": NEIGHBORS + 1}, ValueError, r"must hold sample indices in \[0, 6\)"),
        ({"significance": "2"}, TypeError, "must be a number >= 0, got '2'"),
        ({"significance": 2.5}, ValueError, r"0 <= z < sqrt\(M\) with M = 5, got 2\.5"),
    ),
    "parzen_uncertainty": (
        SAMPLES,
        ({"logits": LOGITS.long()}, TypeError, "must be a floating-point tensor, got torch.int64"),
        ({"logits": [[0.0]]}, TypeError, "must be a floating-point tensor, got list"),
        ({"logits": LOGITS.to_sparse()}, TypeError, "must be dense"),
        ({"logits": LOGITS.unsqueeze(0)}, ValueError, r"must have shape \(N, J\)"),
        ({"labels": LABELS[:5]}, ValueError, r"must have shape \(6,\), got \(5,\)"),
        ({"labels": LABELS.float()}, TypeError, "must be an integer tensor .*got torch.float32"),
        ({"labels": LABELS + 1}, ValueError, r"must hold classes .* \[0, 3\), got values from 1 to 3"),
        ({"neighbors": NEIGHBORS[:, :1]}, ValueError, "must have shape .* M >= 2"),
        ({"neighbors": NEIGHBORS + 1}, ValueError, "must hold sample indices"),
        ({"bayes_pairs": 0 * PAIRS}, ValueError, "in ascending order in each row"),
        ({"bayes_pairs": 3 * PAIRS}, ValueError, "must hold classes"),
        ({"predicted_pairs": PAIRS[:5]}, ValueError, r"must have shape \(6, 2\), got \(5, 2\)"),
        ({"predicted_pairs": PAIRS.float()}, TypeError, "must be an integer tensor"),
        ({"predicted_pairs": PAIRS.flip(1)}, ValueError, "in ascending order in each row"),
        ({"predicted_pairs": 3 * PAIRS}, ValueError, "must hold classes"),
        ({"min_weight": -1.0}, ValueError, r"must be >= 0, got -1\.0"),
        ({"min_weight": "0"}, TypeError, "must be a number >= 0, got '0'"),
        ({"bandwidth": "scott"}, ValueError, "must be one of 'silverman', 'cvml', got 'scott'"),
    ),
    "silverman_bandwidth": (
        {"values": LOGITS},
        ({"values": LOGITS[0]}, ValueError, r"must have shape \(N, M\), got \(3,\)"),
        ({"values": LOGITS[:, :1]}, ValueError, r"M >= 2, got \(6, 1\)"),
        ({"values": LOGITS.long()}, TypeError, "must be a floating-point tensor"),
    ),
}


@pytest.mark.parametrize(
    ("name", "change", "error", "message"), [(name, *row) for name, (_, *rows) in BAD.items() for row in rows]
)
def test_bad_arguments_are_named(name, change, error, message):
    arguments, *_ = BAD[name]
    (argument,) = change
    with pytest.raises(error, match=f"`{argument}` {message}" if message.startswith("must") else message):
        getattr(F, name)(**{**arguments, **change})


@pytest.mark.parametrize(("name", "arguments"), [(name, arguments) for name, (arguments, *_) in BAD.items()])
def test_the_arguments_that_were_changed_are_taken(name, arguments):
    assert getattr(F, name)(**arguments).isfinite().any()


def test_nan_distances_give_nan():
    assert F.trust_score(torch.full((2, 3), torch.nan), torch.tensor([0, 1])).isnan().all()


@pytest.mark.parametrize("before", [torch.zeros(5).long(), torch.zeros(120), [0] * 120])
def test_predictions_of_another_check_must_fit(before):
    features = torch.randn(120, 3)
    signals = Signals(10, 1).fit(features, torch.arange(120) % 3)
    with pytest.raises((TypeError, ValueError), match="`before` must"):
        signals.measure(signals.perturbed_inputs, before)
