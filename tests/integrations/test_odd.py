"""Odd samples, by Hugging Face's `Trainer` and skorch."""

import numpy as np
import odd
import pytest
from odd import FEW, Network, Rows
from torch import nn
from torch.utils.data import default_collate

for package in ("accelerate", "skorch", "transformers"):
    pytest.importorskip(package)

import skorch  # noqa: E402
import transformers  # noqa: E402

from bu_torch.integrations.skorch import BoundaryUncertaintyEarlyStopping  # noqa: E402
from bu_torch.integrations.transformers import BoundaryUncertaintyCallback  # noqa: E402


class Model(nn.Module):
    """Trains by its inputs alone, so that labels of all kinds come so far."""

    def __init__(self, output):
        super().__init__()
        self.network = Network(output)

    def forward(self, x, labels=None):
        loss = None if labels is None else self.network.layers(x).square().mean()
        return {"logits": self.network(x), "loss": loss}


def by_transformers(folder, x, y, output):
    quiet = {"report_to": "none", "disable_tqdm": True, "save_strategy": "no", "logging_strategy": "no"}
    arguments = transformers.TrainingArguments(str(folder), use_cpu=True, num_train_epochs=1, **quiet)
    data = {"train_dataset": Rows(x, y, "x", "labels"), "data_collator": default_collate}
    transformers.Trainer(
        Model(output), arguments, callbacks=[ours := BoundaryUncertaintyCallback(**FEW)], **data
    ).train()
    return ours.stopper


class ByOutputs(nn.Module):
    def forward(self, outputs, labels):
        return outputs.nan_to_num().square().mean()


def by_skorch(folder, x, y, output):
    how = {"train_split": None, "max_epochs": 1, "verbose": 0}
    callbacks = [("ours", BoundaryUncertaintyEarlyStopping(**FEW))]
    made = skorch.NeuralNet(Network(output), ByOutputs, callbacks=callbacks, **how)
    return dict(made.fit(Rows(x, y), None).callbacks_)["ours"].stopper_


WAYS = {"transformers": by_transformers, "skorch": by_skorch}


@pytest.mark.parametrize("samples", odd.REFUSED)
@pytest.mark.parametrize("way", WAYS)
def test_samples_that_cannot_be_measured_are_refused(tmp_path, way, samples):
    message, *row = odd.REFUSED[samples]
    is_before = samples == "no samples" and way == "transformers"  # torch's own sampler refuses them
    with pytest.raises((TypeError, ValueError), match="num_samples=0" if is_before else message):
        WAYS[way](tmp_path, *row)


@pytest.mark.parametrize("way", WAYS)
def test_labels_of_any_kind_are_the_same(tmp_path, way):
    (expected,) = WAYS[way](tmp_path, odd.X, odd.Y, odd.unchanged).history
    assert np.isfinite(list(expected.values())).all()
    for labels in odd.LABELS.values():
        assert WAYS[way](tmp_path, odd.X, labels, odd.unchanged).history == [expected]
