"""Arrays become tensors whatever their order in memory."""

import numpy as np
import pytest
import torch

from bu_torch.internal.inputs import as_tensor


@pytest.mark.parametrize(
    "array",
    [
        np.array([1.0])[::-1],
        np.arange(3)[::-1],
        np.arange(6.0).reshape(2, 3).T,
        np.float64(3),
        np.arange(3, dtype=">i4"),
    ],
    ids=["one element backwards", "backwards", "transposed", "a number", "the other byte order"],
)
def test_values_stay(array):
    assert as_tensor(array, "features").tolist() == array.tolist()


def test_an_array_that_cannot_be_written_is_copied():
    array = np.ones(3)
    array.flags.writeable = False
    as_tensor(array, "features").zero_()
    assert torch.equal(as_tensor(array, "features"), torch.ones(3, dtype=torch.float64))
