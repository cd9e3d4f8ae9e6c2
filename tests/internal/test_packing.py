"""Several tensors as one, and back; how a function takes them, and what it gives."""

import pickle

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

from bu_torch.internal.network import PackedNetwork, Packing, as_inputs, call, logits_of
from bu_torch.samples.samples import UnreadableError, joined

N = 6
IDS = torch.arange(1, 1 + N * 4).reshape(N, 4)
MASK = torch.tensor([[1, 1, 1, 0]] * N)
NUMBERS = torch.linspace(-1, 1, N * 3).reshape(N, 3)
IMAGES = torch.linspace(0, 1, N * 2 * 5 * 5).reshape(N, 2, 5, 5)

TREES = {
    "ids and a mask": ({"ids": IDS, "mask": MASK}, "rows", (N, 2, 4)),
    "a mask of numbers": ((IDS, MASK.float()), "rows", (N, 2, 4)),
    "rows of other lengths": ((IDS, IDS[:, :2].int()), "rows", (N, 2, 4)),
    "two images": ((IMAGES, IMAGES[:, :1]), "channels", (N, 3, 5, 5)),
    "bytes": ((IMAGES.mul(255).byte(), IMAGES.mul(9).byte()), "channels", (N, 4, 5, 5)),
    "numbers and a category": ((IDS[:, 0], NUMBERS), "mixed", (N, 4)),
    "large indices": ({"a": NUMBERS, "b": IDS + 2**40}, "mixed", (N, 7)),
    "all kinds, nested": ({"x": (IMAGES, {"t": NUMBERS}), "ids": IDS, "mask": MASK.bool()}, "mixed", (N, 61)),
    "one tensor by name": ({"x": NUMBERS}, "table", (N, 3)),
}


def assert_equal(one, other):
    """Equal to the bit; floating-point numbers may be of another type."""
    tensors, spec = pytree.tree_flatten(one)
    others, other_spec = pytree.tree_flatten(other)
    assert spec == other_spec
    for value, expected in zip(tensors, others, strict=True):
        if isinstance(value, torch.Tensor):
            assert value.is_floating_point() or value.dtype == expected.dtype
            assert torch.equal(value.double(), expected.double())
        else:
            assert value == expected


@pytest.mark.parametrize(("tree", "form", "shape"), list(TREES.values()), ids=list(TREES))
def test_what_is_packed_comes_back_to_the_bit(tree, form, shape):
    packing = pickle.loads(pickle.dumps(Packing.of(tree)))  # noqa: S301  (as processes exchange it)
    packed = packing.pack(tree)
    assert (packing.form, packed.shape, packed.dtype) == (form, shape, packing.dtype)
    assert_equal(packing.unpack(packed), tree)
    rows = torch.tensor([4, 0])
    assert_equal(packing.pack(packing.unpack(packed[rows])), packed[rows])


class OfOne(nn.Module):
    def forward(self, batch):
        return ("one", batch)


class OfNames(nn.Module):
    def forward(self, ids, mask=None, *, scale=1.0):
        return ("names", ids, mask)


TREE = {"ids": IDS, "mask": MASK}


@pytest.mark.parametrize(
    ("model", "tree", "expected"),
    [
        (OfNames(), TREE, ("names", IDS, MASK)),
        (OfNames(), (IDS, MASK), ("names", IDS, MASK)),
        (OfNames(), {"text": IDS, "pad": MASK}, ("names", IDS, MASK)),
        (OfNames(), IDS, ("names", IDS, None)),
        (OfOne(), TREE, ("one", TREE)),
        (lambda **batch: batch, TREE, TREE),
        (max, (2, 5), 5),
    ],
)
def test_a_model_is_called_as_it_takes_its_inputs(model, tree, expected):
    assert_equal(call(model, tree), expected)
    if isinstance(model, nn.Module) and not isinstance(tree, torch.Tensor):
        packing = Packing.of(tree)
        assert_equal(PackedNetwork(model, packing)(packing.pack(tree)), expected)


@pytest.mark.parametrize("is_left", [False, True])
def test_batches_that_are_padded_each_to_its_own_length_become_as_long_as_the_longest(is_left):
    def batch(ids, kind, n_more):
        sides = (n_more, 0) if is_left else (0, n_more)
        padded = nn.functional.pad(torch.tensor([ids]), sides, value=9)
        return {"ids": padded, "mask": (padded != 9).long(), "kind": torch.tensor([kind])}

    short, long, expected = batch([5, 6], 3, 0), batch([7, 8], 4, 1), batch([5, 6], 3, 1)
    both = {name: torch.cat([expected[name], long[name]]) for name in short}
    assert_equal(joined([(short, torch.zeros(1)), (long, torch.ones(1))]), (both, torch.tensor([0.0, 1.0])))
    with pytest.raises(UnreadableError, match="one shape"):  # a mask alone says nothing of padding
        joined([(torch.ones(1, n), torch.ones(1)) for n in (2, 3)])


def test_inputs_are_dicts_tuples_or_one_tensor():
    assert as_inputs([IDS], "inputs") is IDS
    assert as_inputs([IDS, {"a": MASK}], "inputs") == (IDS, {"a": MASK})
    assert as_inputs({"a": [[1.0], [2.0]]}, "inputs")["a"].shape == (2, 1)


def test_a_tuple_of_one_holds_the_logits():
    output = torch.rand(4, 3)
    assert logits_of((output,), 4) is output


@pytest.mark.parametrize("output", [torch.rand(4, 3), np.random.default_rng(0).random((4, 3))], ids=["tensor", "array"])
def test_logits_stay_where_they_are_whatever_the_default_device(output):
    with torch.device("meta"):
        logits = logits_of(output, 4)
    assert logits.device.type == "cpu"
    assert np.array_equal(logits.numpy(), np.asarray(output))
