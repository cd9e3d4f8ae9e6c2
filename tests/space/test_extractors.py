"""Extractors that are methods of a network: what they get."""

import pytest
import torch
from torch import nn

from bu_torch import BoundaryUncertaintyStopper
from bu_torch.space.features import FeatureSpace

LABELS = torch.arange(60) % 2
NUMBERS = torch.randn(60, 3, generator=torch.Generator().manual_seed(0)) + LABELS.unsqueeze(1)
LARGE = 2**25 + 1  # an id that float32 does not hold
SEEN = set()  # not in the network, whose attributes are put back


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(3, 3), nn.Linear(3, 2)

    def features(self, numbers):
        return self.first(numbers)

    def features_of_both(self, both):
        SEEN.update(both["ids"].flatten().tolist())
        return self.first(both["numbers"])

    def forward(self, numbers, ids=None):
        return self.last(self.first(numbers))


@pytest.mark.gpu
def test_samples_come_to_the_device_of_the_network(accelerator):
    network = Network()
    there = FeatureSpace(network.features).fit_transform(NUMBERS)
    network.to(accelerator)
    points = FeatureSpace(network.features).fit_transform(NUMBERS)
    assert points.device.type == "cpu"
    torch.testing.assert_close(points, there)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_of_several_tensors_ids_stay_as_they_are(dtype):
    SEEN.clear()
    network = Network().to(dtype)
    both = {"numbers": NUMBERS, "ids": LARGE + torch.arange(60).unsqueeze(1) % 5}
    stopper = BoundaryUncertaintyStopper(
        both, LABELS, n_neighbors=10, cache=None, feature_extractor=network.features_of_both
    )
    stopper.check(network)
    assert set(range(LARGE, LARGE + 5)) == SEEN
