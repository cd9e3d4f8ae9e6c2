import pytest
import torch
from problems import same, weights_of
from torch import nn

from bu_torch import LayerFeatures


class Network(nn.Module):
    """A body, a head, and a linear layer that is listed last but runs first."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5))
        self.head = nn.Linear(8, 3)
        self.first = nn.Linear(4, 6)
        self.unused = nn.Linear(2, 2)
        self.pairs = nn.Identity()

    def forward(self, x):
        hidden = self.body(self.first(x.flatten(1)))
        self.pairs((hidden, hidden))
        return self.head(hidden)


def network():
    torch.manual_seed(1)
    model = Network()
    model(torch.randn(50, 4))  # moves the running means
    return model


def by_hand(model, inputs):
    model.eval()
    with torch.no_grad():
        first = model.first(inputs)
        hidden = model.body(first)
        normed = model.body[1](model.body[0](first))
        found = {"logits": model.head(hidden), "penultimate": hidden, "first": first, "body.1": normed}
    model.train()
    return found


@pytest.mark.parametrize("layer", ["logits", "penultimate", "first", "body.1"])
def test_activations_are_those_of_the_layer(layer, device):
    model, inputs = network(), torch.randn(20, 4)
    expected = by_hand(model, inputs)[layer]
    found = LayerFeatures(model.to(device), layer, batch_size=7).transform(inputs)
    assert found.device == inputs.device
    torch.testing.assert_close(found, expected)


def test_the_network_is_left_as_it_was(random_states):
    model, inputs, misfit = network(), torch.randn(20, 4), torch.randn(3, 5)
    model.head.eval()
    modes, weights, states = [module.training for module in model.modules()], weights_of(model), random_states()
    LayerFeatures(model).transform(inputs)
    with pytest.raises(RuntimeError):
        LayerFeatures(model).transform(misfit)
    assert [module.training for module in model.modules()] == modes
    assert same(model.state_dict(), weights)
    assert random_states() == states
    assert not [module for module in model.modules() if module._forward_hooks]


def test_a_layer_that_gives_no_row_a_sample_is_refused():
    rows = ((network(), "unused"), (network(), "pairs"), (nn.ReLU(), "penultimate"), (nn.Flatten(0), "logits"))
    for model, layer in rows:
        with pytest.raises((TypeError, ValueError), match=f"'{layer}'|one row per sample"):
            LayerFeatures(model, layer).transform(torch.randn(10, 4))
