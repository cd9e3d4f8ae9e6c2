"""The images of the benchmark, and the networks for them."""

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
