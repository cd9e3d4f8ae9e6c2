import pytest
import torch
from torch import nn

from bu_torch.evaluation import generalization_interval, network_interval


def network(width=6, seed=0):
    generator = torch.Generator().manual_seed(seed)
    model = nn.Sequential(nn.Linear(3, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Dropout(0.5), nn.Linear(width, 2))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return model


X = torch.randn(30, 3, generator=torch.Generator().manual_seed(1))
Y = (X[:, 0] + 0.3 * X[:, 1].square() > 0).long()


def test_the_set_is_that_of_the_features_the_last_layer_gets():
    model = network()
    model.eval()
    hidden = model[:-1](X).detach()
    columns = torch.cat((torch.ones(30, 1), hidden), dim=1)
    model.train()
    found = network_interval(model, X, Y, n_components=None, n_bootstrap=20)
    assert found == pytest.approx(generalization_interval(columns, Y, n_bootstrap=20), abs=1e-6)
    assert found.upper > found.center
    assert network_interval(model, X, Y, n_components=6, n_bootstrap=20) == pytest.approx(found, abs=1e-6)


def test_two_components_are_a_plane_of_the_features():
    model = network().eval()
    hidden = model[:-1](X).detach().double()
    _, _, directions = torch.pca_lowrank(hidden, q=6)
    columns = torch.cat((torch.ones(30, 1, dtype=torch.float64), hidden @ directions[:, :2]), dim=1)
    expected = generalization_interval(columns, Y, n_bootstrap=20)
    assert network_interval(model, X, Y, n_components=2, n_bootstrap=20) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("method", ["cud", "kohavi"])
def test_the_model_is_left_as_it_was(method, random_states):
    model = network()
    before = random_states(), {name: value.clone() for name, value in model.state_dict().items()}
    network_interval(model, X, Y, method=method, n_bootstrap=5)
    assert random_states() == before[0]
    assert all(torch.equal(value, before[1][name]) for name, value in model.state_dict().items())
    assert model.training
    assert not any(module._forward_hooks for module in model.modules())
