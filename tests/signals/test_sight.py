"""A score that cannot see says so."""

import json
import logging

import pytest
import torch
from torch import nn

from bu_torch import BoundaryUncertaintyStopper
from bu_torch.run.judgement import describe_blindness


def test_a_score_that_cannot_see_is_told_of():
    """Neither if one class alone scores as high, nor if left-out labels cannot be predicted by either estimate."""
    for highest, skill, is_blind in (
        (0.95, 0.01, False),
        (0.861, 0.4, True),
        (0.8, 0.4, True),
        (float("nan"), 0.4, True),
    ):
        assert bool(describe_blindness(highest, 0.86, "'no'", (skill, 0.3))) == is_blind
    assert describe_blindness(0.95, 0.86, "'no'", (0.01, 0.04))


def test_a_plain_loop_and_its_record_tell_of_a_network_that_predicts_one_class_alone(tmp_path, caplog):
    generator = torch.Generator().manual_seed(0)
    features, labels = torch.randn(200, 3, generator=generator), (torch.arange(200) < 20).long()
    features[labels == 1] += 1.5
    model = nn.Linear(3, 2)
    with torch.no_grad():
        model.weight.zero_()
        model.bias.copy_(torch.tensor([2.0, 0.0]))
    for weights in (2 * torch.rand(200, generator=generator, dtype=torch.float64) + 0.1, None):
        folder = tmp_path if weights is None else None
        stopper = BoundaryUncertaintyStopper(features, labels, n_neighbors=20, sample_weight=weights, folder=folder)
        stopper.check(model)
        caplog.clear()
        caplog.set_level(logging.INFO)
        stopper.restore(model)
        assert stopper.summary["one_class_accuracy"] == pytest.approx(stopper.history[0]["expected_accuracy"])
    blind = caplog.records[-1].message
    assert "better than always predicting class 0: " in blind
    (file,) = tmp_path.rglob("*.jsonl")
    assert json.loads(file.read_text().splitlines()[-1])["remarks"] == [blind]
