"""What all frameworks share that train by the plain loop's stopper, and one that is not installed."""

import importlib
import sys

import pytest
import torch
from problems import Augmented, Plain, blobs, in_order
from torch import nn
from torch.utils.data import DataLoader

from bu_torch.integrations.loaders import conclude, make_stopper
from bu_torch.report import read_record

OPTIONS = {"seed": 0, "n_neighbors": 20, "perturbation": None}


def test_augmented_samples_are_read_again(tmp_path, log):
    network = Plain()
    make_stopper(network, in_order(), **OPTIONS).check(network)
    assert "further readings" not in log.text
    stopper = make_stopper(network, DataLoader(Augmented(), batch_size=30), folder=tmp_path, **OPTIONS)
    stopper.check(network)
    assert "further readings" in log.text
    assert read_record(tmp_path).data["perturbation"] == "reading"
    resumed = make_stopper(network, DataLoader(Augmented(), batch_size=30), **OPTIONS)
    resumed.load_state_dict(stopper.state_dict())
    resumed.check(network)  # without the warning that the samples differ
    first, again = resumed.history
    assert again == first | {"epoch": 1, "prediction_changes": 0, "standard_error": again["standard_error"]}


@pytest.mark.parametrize("is_uninformed", [False, True])
def test_weights_that_predict_worse_than_one_class_alone_are_not_loaded(is_uninformed):
    features, labels = blobs(n_classes=2)
    network = nn.Linear(4, 2)
    with torch.no_grad():
        network.bias.zero_()
        network.weight.copy_(torch.stack([features[labels == k].mean(dim=0) for k in (0, 1)]) * (-1) ** is_uninformed)
        stopper = make_stopper(network, in_order(features, labels), **OPTIONS)
        stopper.check(network)
        network.weight.zero_()
    conclude(stopper, network)
    assert network.weight.any() != is_uninformed
    assert stopper.best_epoch == 0


@pytest.mark.parametrize(("package", "packages"), [("transformers", "transformers accelerate"), ("skorch", "skorch")])
def test_the_error_names_what_to_install(monkeypatch, package, packages):
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, f"bu_torch.integrations.{package}", raising=False)
    with pytest.raises(ImportError, match=f"{package}` needs `pip install {packages}`"):
        importlib.import_module(f"bu_torch.integrations.{package}")
