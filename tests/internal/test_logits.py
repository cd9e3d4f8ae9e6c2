"""Networks that give probabilities."""

import pytest
import torch
from problems import Classifier, blobs, loader, trainer
from torch import nn

from bu_torch import BoundaryUncertaintyStopper, BoundaryUncertaintyStopping, rank_checkpoints


class After(nn.Module):
    """A network, and what is made of its logits."""

    def __init__(self, network, function):
        super().__init__()
        self.network, self.function = network, function

    def forward(self, inputs):
        return self.function(self.network(inputs))


def layers(n_outputs):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, n_outputs))


def two_classes():
    features, labels = blobs()
    return features, labels % 2


def checks_of(network, scale=3.0):
    """Checks at two states of a network, as a plain loop makes them."""
    stopper = BoundaryUncertaintyStopper(*two_classes(), patience=10)
    for _ in range(2):
        stopper.check(network)
        with torch.no_grad():
            for weights in network.parameters():
                weights.mul_(scale)
    return stopper.history


def clamped(logits):
    return logits.sigmoid().clamp(1e-6, 1 - 1e-6).squeeze(1)


def share_of_second(logits):
    return logits.softmax(dim=1)[:, 1]


@pytest.mark.parametrize(
    ("n_outputs", "function"),
    [
        (1, torch.sigmoid),
        (1, clamped),
        (2, torch.sigmoid),
        (2, share_of_second),
        (2, nn.Softmax(dim=1)),
        (3, nn.Softmax(dim=1)),
    ],
)
def test_a_network_that_gives_probabilities_has_the_checks_of_its_logits(n_outputs, function, recwarn):
    expected = checks_of(layers(n_outputs))
    for check, of_logits in zip(checks_of(After(layers(n_outputs), function)), expected, strict=True):
        assert check == pytest.approx(of_logits, abs=1e-4, nan_ok=True)
    assert not [warning for warning in recwarn if "probabilities" in str(warning.message)]


def test_logits_in_the_unit_interval_are_read_as_they_are_with_a_warning():
    def small(logits):
        return 0.4 + 0.01 * logits.sigmoid()

    with pytest.warns(UserWarning, match="in one column") as caught:
        checks = checks_of(After(layers(1), small))
    assert sum("in one column" in str(warning.message) for warning in caught) == 1
    in_two_columns = After(layers(1), lambda logits: torch.cat((torch.zeros_like(logits), small(logits)), dim=1) + 2)
    for check, expected in zip(checks, checks_of(in_two_columns), strict=True):
        assert check == pytest.approx(expected, abs=1e-4, nan_ok=True)


class Sigmoid(Classifier):
    def forward(self, inputs):
        return super().forward(inputs).sigmoid()

    def training_step(self, batch, batch_idx):
        return nn.functional.binary_cross_entropy(self(batch[0]).squeeze(1), batch[1].float())


class Logit(Classifier):
    def training_step(self, batch, batch_idx):
        return nn.functional.binary_cross_entropy_with_logits(self(batch[0]).squeeze(1), batch[1].float())


def test_a_sigmoid_in_forward_is_kept_and_ranked_as_its_logit_is(tmp_path):
    histories, rankings = [], []
    for kind in (Sigmoid, Logit):
        torch.manual_seed(0)
        module, stopping = kind(n_outputs=1), BoundaryUncertaintyStopping()
        trainer(tmp_path / kind.__name__, stopping, max_epochs=3).fit(module, loader(*two_classes()))
        histories.append(stopping.history)
        rankings.append(rank_checkpoints(stopping.best_model_path, module, two_classes()).best.score)
    for check, of_logits in zip(*histories, strict=True):
        assert check == pytest.approx(of_logits, abs=1e-3)
    assert rankings[0] == pytest.approx(rankings[1], abs=1e-3)
