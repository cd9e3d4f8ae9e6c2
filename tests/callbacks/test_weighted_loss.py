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
W = torch.tensor([1.0, 4.0, 2.0])
CE, NLL, BCE = nn.CrossEntropyLoss, nn.NLLLoss, nn.BCEWithLogitsLoss
# By the losses: the number of classes, their weights if they count, and whether a line asks for them.
LOSSES = {
    "cross-entropy": ([CE(W)], 3, [1.0, 4.0, 2.0], False),
    "of log probabilities": ([NLL(W)], 3, [1.0, 4.0, 2.0], False),
    "of one logit": ([BCE(pos_weight=torch.tensor([3.0]))], 2, [1.0, 3.0], False),
    "two alike": ([CE(W), NLL(W)], 3, [1.0, 4.0, 2.0], False),
    "two that differ": ([CE(W), CE(W.flip(0))], 3, None, True),
    "one beside one without": ([CE(W), CE()], 3, None, True),
    "without": ([CE(), BCE()], 3, None, False),
    "all the same": ([CE(torch.full((3,), 2.0))], 3, None, False),
    "of other classes": ([CE(W[:2])], 3, None, True),
    "of each output": ([BCE(pos_weight=W)], 3, None, True),
    "a class that does not count": ([CE(torch.tensor([1.0, 0.0, 1.0]))], 3, None, True),
}


@pytest.mark.parametrize("losses", LOSSES)
def test_weights_of_loss_modules_count_if_they_agree(losses):
    modules, n_classes, expected, asks = LOSSES[losses]
    weights, line = loss_weights(nn.ModuleList(modules), n_classes)
    assert weights == expected
    assert bool(line) == (expected is not None or asks)
    assert ("pass `class_weight=`" in line) == asks


def test_they_weigh_what_is_measured(tmp_path, log):
    def fit(**settings):
        torch.manual_seed(3)
        module, monitor = Model(normed()), BoundaryUncertaintyMonitor(n_neighbors=10, n_draws=1, **settings)
        module.loss = CE(W)
        trainer(tmp_path, monitor, max_epochs=1).fit(module, loader(X, Y))
        return monitor

    found, given, plain = fit(), fit(class_weight=W.tolist()), fit(class_weight=[1.0] * 3)
    assert found.history == given.history != plain.history
    assert sum("weighs the classes by 1, 4, 2" in line for line in log.messages) == 1
    assert read_record(found.record_path).settings["class_weight"] == "[1.0, 4.0, 2.0]"
