"""Logits of whatever a model gives."""

import numpy as np
import pytest
import torch

from bu_torch.internal.logits import logits_of


def test_a_tuple_of_one_holds_the_logits():
    output = torch.rand(4, 3)
    assert logits_of((output,), 4) is output


@pytest.mark.parametrize("output", [torch.rand(4, 3), np.random.default_rng(0).random((4, 3))], ids=["tensor", "array"])
def test_logits_stay_where_they_are_whatever_the_default_device(output):
    with torch.device("meta"):
        logits = logits_of(output, 4)
    assert logits.device.type == "cpu"
    assert np.array_equal(logits.numpy(), np.asarray(output))
