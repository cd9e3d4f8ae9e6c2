"""Losses that weigh classes: the callbacks measure with the weights of the losses that are modules of the network."""

import pytest
import torch
from problems import blobs, loader, trainer
from scenarios import Model, normed
from torch import nn

from bu_torch.callbacks import BoundaryUncertaintyMonitor
from bu_torch.callbacks.losses import loss_weights
from bu_torch.report import read_record

X, Y = blobs()
WEIGHTS, ASKS, ALIKE = [1.0, 4.0, 2.0], "pass `class_weight=`", ""
W = torch.tensor(WEIGHTS)
CE, NLL, BCE = nn.CrossEntropyLoss, nn.NLLLoss, nn.BCEWithLogitsLoss
LOSSES = [  # and their weights, or what a line says
    ([CE(W), NLL(W)], WEIGHTS),
    ([BCE(pos_weight=torch.tensor([3.0]))], [1.0, 3.0]),
    ([CE(W), CE(W.flip(0))], ASKS),
    ([CE(W), CE()], ASKS),
    ([CE(W[:2])], ASKS),
    ([BCE(pos_weight=W)], ASKS),
    ([CE(W - 1)], ASKS),  # a class that does not count
    ([CE(), BCE(), NLL(torch.full((3,), 2.0))], ALIKE),
]


@pytest.mark.parametrize(("losses", "expected"), LOSSES)
def test_weights_of_loss_modules_count_if_they_agree(losses, expected):
    weights, line = loss_weights(nn.ModuleList(losses), len(expected) if isinstance(expected, list) else 3)
    assert weights == (expected if isinstance(expected, list) else None)
    assert (ASKS in line, line == "") == (expected == ASKS, expected == ALIKE)


def test_they_weigh_what_is_measured(tmp_path, log):
    def fit(**settings):
        torch.manual_seed(3)
        monitor = BoundaryUncertaintyMonitor(n_neighbors=10, n_draws=1, **settings)
        trainer(tmp_path, monitor, max_epochs=1).fit(Model(normed(), CE(W)), loader(X, Y))
        return monitor

    found, given, plain = fit(), fit(class_weight=WEIGHTS), fit(class_weight=[1.0] * 3)
    assert found.history == given.history != plain.history
    assert sum("by 1, 4, 2, as the loss" in line for line in log.messages) == 1
    assert read_record(found.record_path).settings["class_weight"] == repr(WEIGHTS)
