"""The samples that a check chooses by itself take no more than a GiB."""

import sys

import pytest
import torch
from problems import Classifier

from bu_torch import BoundaryUncertaintyStopper
from bu_torch.report import read_record

pytestmark = pytest.mark.filterwarnings("ignore:The nearest neighbours predict", "ignore:The labels of the nearest")

N, SIDE = 300, 16
EACH = 3 * SIDE * SIDE * 4
FITTING = 60
BOUND = FITTING * EACH + 17
IMAGES = torch.rand(N, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(N) % 2


def bound_bytes(monkeypatch, n_bytes):
    for module in [module for name, module in sys.modules.items() if name.startswith("bu_torch")]:
        if "MAX_BYTES" in vars(module):
            monkeypatch.setattr(module, "MAX_BYTES", n_bytes)


@pytest.mark.parametrize(
    ("bound", "settings", "expected"), [(1, {}, 10), (1, {"max_samples": 200}, 200), (BOUND, {}, FITTING)]
)
def test_a_cluster_is_looked_at_all_the_same_and_as_many_samples_as_asked_for(
    tmp_path, monkeypatch, bound, settings, expected
):
    bound_bytes(monkeypatch, bound)
    stopper = BoundaryUncertaintyStopper(IMAGES, LABELS, n_neighbors=10, folder=tmp_path, **settings)
    stopper.check(Classifier(d=3 * SIDE * SIDE))
    assert read_record(tmp_path).data["n_samples"] == expected


def test_a_network_gets_few_large_inputs_at_a_time():
    n_rows = []
    images = torch.rand(40, 3, 320, 320, generator=torch.Generator().manual_seed(0))
    stopper = BoundaryUncertaintyStopper(images, torch.arange(40) % 2, n_neighbors=10, averaging=None)
    stopper.check(lambda inputs: n_rows.append(len(inputs)) or inputs.flatten(1)[:, :2])
    assert max(n_rows) <= 32
