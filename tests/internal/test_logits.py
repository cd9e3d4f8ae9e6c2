"""Networks that give probabilities."""

import pytest
import torch
from problems import assert_same_checks, blobs
from torch import nn

from bu_torch import BoundaryUncertaintyStopper


def checks_of(n_outputs, function):
    """Checks at two states of a network, of whose logits something is made, as a plain loop makes them."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, n_outputs))
    features, labels = blobs()
    stopper = BoundaryUncertaintyStopper(features, labels % 2, patience=10)
    for _ in range(2):
        stopper.check(lambda inputs: function(network(inputs)))
        with torch.no_grad():
            for weights in network.parameters():
                weights.mul_(3.0)
    return stopper.history


@pytest.mark.parametrize(
    ("n_outputs", "function"),
    [
        (1, torch.sigmoid),
        (1, lambda logits: logits.sigmoid().clamp(1e-6, 1 - 1e-6).squeeze(1)),
        (2, torch.sigmoid),
        (2, lambda logits: logits.softmax(dim=1)[:, 1]),
        (2, nn.Softmax(dim=1)),
        (3, nn.Softmax(dim=1)),
    ],
)
def test_a_network_that_gives_probabilities_has_the_checks_of_its_logits(n_outputs, function, recwarn):
    assert_same_checks(checks_of(n_outputs, function), checks_of(n_outputs, torch.clone), abs=1e-4)
    assert not [warning for warning in recwarn if "probabilities" in str(warning.message)]


def test_logits_in_the_unit_interval_are_read_as_they_are_with_a_warning():
    def small(logits):
        return 0.4 + 0.01 * logits.sigmoid()

    with pytest.warns(UserWarning, match="in one column") as caught:
        checks = checks_of(1, small)
    assert sum("in one column" in str(warning.message) for warning in caught) == 1
    in_two_columns = checks_of(1, lambda logits: torch.cat((torch.zeros_like(logits), small(logits)), dim=1) + 2)
    assert_same_checks(checks, in_two_columns, abs=1e-4)
