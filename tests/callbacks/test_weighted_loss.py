"""Losses that weigh classes: the callbacks measure with the weights of the losses that are modules of the network."""

import pytest
import torch
from problems import blobs, loader, trainer
from scenarios import Model, normed
from torch import nn

from bu_torch.callbacks import BoundaryUncertaintyMonitor

X, Y = blobs()
W = torch.tensor([1.0, 4.0, 2.0])
CE, NLL, BCE = nn.CrossEntropyLoss, nn.NLLLoss, nn.BCEWithLogitsLoss
ASKS = "`class_weight=...`"
LOSSES = {  # their number of classes, and their weights or what a line says
    "two that agree": ([CE(W), NLL(W)], 3, W.tolist()),
    "of one logit": ([BCE(pos_weight=torch.tensor([3.0]))], 2, [1.0, 3.0]),
    "two that do not": ([CE(W), CE(W.flip(0))], 3, ASKS),
    "one without": ([CE(W), CE()], 3, ASKS),
    "too few": ([CE(W[:2])], 3, ASKS),
    "of many labels": ([BCE(pos_weight=W)], 3, ASKS),
    "a class that does not count": ([CE(W - 1)], 3, ASKS),
    "all alike": ([CE(), BCE(), NLL(torch.full((3,), 2.0))], 3, ""),
}


class Weighing(Model):
    def training_step(self, batch, batch_idx):
        return nn.functional.cross_entropy(self(batch[0]), batch[1])


@pytest.mark.parametrize("losses", LOSSES)
def test_weights_of_loss_modules_count_if_they_agree(tmp_path, log, losses):
    modules, n_classes, expected = LOSSES[losses]

    def fit(modules, **settings):
        torch.manual_seed(3)
        module = Weighing(normed(n_classes), nn.ModuleList(modules))
        monitor = BoundaryUncertaintyMonitor(n_neighbors=10, n_draws=1, **settings)
        trainer(tmp_path, monitor, max_epochs=1).fit(module, loader(X, Y.clamp(max=n_classes - 1)))
        return monitor.history

    found = fit(modules)
    assert (ASKS in log.text) == (expected == ASKS)
    log.clear()
    is_weighted = isinstance(expected, list)
    assert found == fit([], class_weight=expected if is_weighted else [1.0] * n_classes)
    assert not is_weighted or found != fit([])
