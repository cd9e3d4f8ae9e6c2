"""What the formulas refuse beyond what stands in the test of each: by name, expectation and what came."""

import pytest
import torch

from bu_torch import BoundaryUncertainty, Signals
from bu_torch import functional as F
from bu_torch.functional.boundary import uncertainty_ceiling
from bu_torch.functional.pairs import index_pairs, top_pairs
from bu_torch.functional.probabilities import brier_score

LABELS = torch.tensor([0, 1, 2, 0, 1, 2])
LOGITS = torch.eye(3)[LABELS]
NEIGHBORS = torch.arange(4) + torch.tensor([[0], [1], [2], [0], [1], [2]])
PAIRS = torch.tensor([[0, 1]] * 6)
PROBLEM = LOGITS, LABELS, NEIGHBORS, PAIRS


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: top_pairs([[1.0, 2.0]]), TypeError, "`scores` must be a tensor of real numbers .*got list"),
        (lambda: top_pairs(LOGITS > 0), TypeError, r"`scores` must be .*got torch\.bool"),
        (lambda: uncertainty_ceiling([1.0], 40), TypeError, "`counts` must be a floating-point tensor, got list"),
        (lambda: uncertainty_ceiling(LABELS, 40), TypeError, r"`counts` must be .*got torch\.int64"),
        (lambda: uncertainty_ceiling(LOGITS, 4.5), TypeError, r"`n_neighbors` must be an integer >= 1, got 4\.5"),
        (lambda: index_pairs(PAIRS[:0]), ValueError, "`bayes_pairs` must hold at least one pair .*got none"),
        (lambda: index_pairs(-PAIRS), ValueError, r"`bayes_pairs` must hold .*got -1"),
        (lambda: index_pairs([[0, 1]]), TypeError, "`bayes_pairs` must be an integer tensor .*got list"),
        (lambda: brier_score([[0.5]], LABELS), TypeError, r"`probabilities` must be .*of shape \(N, J\), got list"),
        (lambda: brier_score(LOGITS[:, 0], LABELS), ValueError, r"must have shape \(N, J\), got \(6,\)"),
        (lambda: brier_score(LOGITS[:0], LABELS[:0]), ValueError, "`probabilities` must have shape .*got no row"),
        (lambda: F.expected_accuracy(LOGITS.long(), LABELS), TypeError, r"`probabilities` must be .*got torch\.int64"),
        (lambda: F.expected_accuracy(LOGITS[:0], LABELS), ValueError, r"with N, J >= 1, got \(0, "),
        (
            lambda: F.expected_accuracy(LOGITS, LABELS - 1),
            ValueError,
            "`predictions` must hold classes 0, 1, ..., got -1",
        ),
        (lambda: F.label_votes(LABELS, NEIGHBORS, "1"), TypeError, "`decay` must be a number >= 0, got '1'"),
        (lambda: F.label_votes(LABELS, NEIGHBORS, 0.0, 3.0), TypeError, "`n_classes` must be an integer >= 1, got 3.0"),
        (lambda: F.mean_trust_score([1.0]), TypeError, "`scores` must be a floating-point tensor, got list"),
        (lambda: F.neighbor_agreement(LABELS), TypeError, r"`scores` must be .*got torch\.int64"),
        (lambda: F.trust_score(-LOGITS, LABELS), ValueError, r"`class_distances` must be >= 0, got -1\.0"),
        (lambda: F.omission(LOGITS / 0, LABELS, NEIGHBORS), ValueError, "`shares` must be finite"),
        (lambda: F.boundary_uncertainty(LOGITS.to_sparse(), *PROBLEM[1:]), TypeError, "`logits` must be dense"),
        (
            lambda: F.boundary_uncertainty(*PROBLEM, min_weight="0"),
            TypeError,
            "`min_weight` must be a number >= 0, got '0'",
        ),
    ],
)
def test_bad_arguments_are_named(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_nan_distances_give_nan():
    assert F.trust_score(torch.full((2, 3), torch.nan), torch.tensor([0, 1])).isnan().all()


@pytest.mark.parametrize("before", [torch.zeros(5).long(), torch.zeros(120), [0] * 120])
def test_predictions_of_another_check_must_fit(before):
    features = torch.randn(120, 3)
    signals = Signals(10, 1).fit(features, torch.arange(120) % 3)
    with pytest.raises((TypeError, ValueError), match="`before` must"):
        signals.measure(signals.perturbed_inputs, before)


@pytest.mark.parametrize("output", ["features", None, [torch.zeros(2), torch.zeros(2)]])
def test_an_extractor_must_give_numbers(output):
    with pytest.raises(TypeError, match=r"`feature_extractor\(inputs\)` must be a tensor or an array of numbers"):
        BoundaryUncertainty(10, feature_extractor=lambda x: output).fit(torch.randn(120, 3), torch.arange(120) % 3)
