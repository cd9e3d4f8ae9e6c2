"""The images of the benchmark, and the networks for them."""

import pytest
import torch
from problems import same


def test_kinds_are_apart_and_what_they_say(images):
    assert not set(images.TUNING) & set(images.UNSEEN)
    (inputs, labels), (test, clean), net = images.prepare("digits_augmented", 1)
    assert (inputs.shape, len(labels)) == ((800, 1, 8, 8), 800)
    assert len(test) == len(clean) == 997
    assert net(inputs[:3]).shape == (3, 10)
    (inputs_again, _), _, net_again = images.prepare("digits_augmented", 1)
    assert torch.equal(inputs_again, inputs)
    assert same(dict(net_again.named_parameters()), dict(net.named_parameters()))


@pytest.mark.parametrize(("size", "sides"), [(8, 2), (28, 7), (32, 4), (64, 4)])
def test_networks_suit_the_size(images, size, sides):
    net = images.network(images.Kind("", 1), torch.Size((3, size, size)), 5)
    assert net[:-4](torch.zeros(1, 3, size, size)).shape[2:] == (sides, sides)
    assert net(torch.zeros(2, 3, size, size)).shape == (2, 5)
