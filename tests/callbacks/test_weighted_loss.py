"""Losses that weigh classes: the callbacks measure with the weights of the losses that are modules of the network."""

import pytest
import torch
from torch import nn

from bu_torch.callbacks.samples import class_weights_of

W = torch.tensor([1.0, 4.0, 2.0])
CE, NLL, BCE = nn.CrossEntropyLoss, nn.NLLLoss, nn.BCEWithLogitsLoss
LOSSES = {  # their number of classes, and their weights
    "two that agree": ([CE(W), NLL(W)], 3, W.tolist()),
    "of one logit": ([BCE(pos_weight=torch.tensor([3.0]))], 2, [1.0, 3.0]),
    "two that do not": ([CE(W), CE(W.flip(0))], 3, None),
    "one without": ([CE(W), CE()], 3, None),
    "too few": ([CE(W[:2])], 3, None),
    "of many labels": ([BCE(pos_weight=W)], 3, None),
    "a class that does not count": ([CE(W - 1)], 3, None),
}


@pytest.mark.parametrize("losses", LOSSES)
def test_weights_of_loss_modules_count_if_they_agree(losses):
    modules, n_classes, expected = LOSSES[losses]
    weights, line = class_weights_of(nn.ModuleList(modules), n_classes)
    assert weights == expected
    assert "`class_weight=" in line
    assert class_weights_of(nn.ModuleList([CE(), BCE(), NLL(torch.full((3,), 2.0))]), 3) == (None, "")
