"""Odd samples and outputs, by every way in that needs no other framework than Lightning."""

from contextlib import nullcontext
from functools import cache

import lightning.pytorch as pl
import numpy as np
import odd
import pandas as pd
import pytest
import torch
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from odd import FEW, Network, Rows, X, Y, unchanged
from problems import trainer
from torch.utils.data import DataLoader

from bu_torch import (
    BoundaryUncertainty,
    BoundaryUncertaintyStopper,
    BoundaryUncertaintyStopping,
    NeighborGraph,
    PrototypeClassifier,
    Signals,
    TrustScore,
    rank_checkpoints,
)
from bu_torch.internal.inputs import as_features, as_labels


class Module(pl.LightningModule):
    """Trains by its inputs alone, so that labels of all kinds come so far."""

    def __init__(self, output=unchanged):
        super().__init__()
        self.network = Network(output)

    def forward(self, x):
        return self.network(x)

    def training_step(self, batch, batch_idx):
        return self.network.layers(batch[0]).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


def numbers(values):
    return [float(value) for value in values.values()]


def by_stopping(folder, x, y, output):
    data = DataLoader(Rows(x, y), batch_size=30)
    trainer(folder, callback := BoundaryUncertaintyStopping(**FEW), max_epochs=1).fit(Module(output), data)
    return numbers(callback.history[-1]) if callback.history else None


def by_stopper(folder, x, y, output):
    stopper = BoundaryUncertaintyStopper(x, y, **FEW)
    stopper.check(Network(output))
    return numbers(stopper.history[-1])


def by_signals(folder, x, y, output):
    signals = Signals(10, 1).fit(x, y)
    return numbers(signals.measure(Network(output)(signals.perturbed_inputs)).values)


def by_files(folder, x, y, output):
    torch.save(Network().state_dict(), folder / "one.pt")
    return numbers(rank_checkpoints(folder, Network(output), Rows(x, y), signals=Signals(10, 1)).best.signals)


ways = pytest.mark.parametrize("way", [by_stopping, by_stopper, by_signals, by_files])


@pytest.mark.parametrize("what", odd.REFUSED)
@ways
def test_samples_that_cannot_be_measured_are_refused(tmp_path, way, what):
    message, *samples = odd.REFUSED[what]
    if what == "no samples" and way is by_stopping:  # Lightning then trains nothing
        assert way(tmp_path, *samples) is None
        return
    with pytest.raises((TypeError, ValueError, MisconfigurationException), match=message):
        way(tmp_path, *samples)


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return cache(lambda way: way(tmp_path_factory.mktemp("plain"), X, Y, unchanged))


@pytest.mark.parametrize("kind", odd.LABELS)
@ways
def test_labels_of_any_kind_are_the_same(tmp_path, way, kind, plain):
    assert np.isfinite(plain(way)).all()
    assert way(tmp_path, X, odd.LABELS[kind], unchanged) == plain(way)


@ways
def test_logits_that_are_not_finite_have_no_score(tmp_path, way):
    said = pytest.warns(UserWarning, match="finite score") if way is by_files else nullcontext()
    with said:
        is_odd = torch.arange(120).unsqueeze(1) % 50 == 0
        assert np.isnan(way(tmp_path, X, Y, lambda z: torch.where(is_odd[: len(z)], -torch.inf, z))).any()


M = 10


def linear(x):
    """Three classes, of inputs of any scale."""
    x = torch.as_tensor(x).flatten(1).double()
    return (x[:, :3] - x[:, :3].mean()) / x.abs().max()


def signals_of(x, y):
    signals = Signals(M, 2).fit(x, y)
    return numbers(signals.measure(linear(signals.perturbed_inputs)).values)


OF_SAMPLES = {
    "BoundaryUncertainty": lambda x, y: [float(BoundaryUncertainty(M, 2).fit(x, y).score(linear))],
    "Signals": signals_of,
}
OF_FEATURES = {
    "NeighborGraph": lambda x, y: NeighborGraph(M).fit(x).neighbors.tolist(),
    "PrototypeClassifier": lambda x, y: PrototypeClassifier().fit(x, y).top_pairs(x).tolist(),
    "TrustScore": lambda x, y: TrustScore().fit(x, y).class_distances(x).argsort(dim=1, stable=True).tolist(),
}


def estimators(these):
    return pytest.mark.parametrize("way", these.values(), ids=these)


KINDS_OF_THE_SAME = {
    "float64": (X.double(), Y),
    "lists": (X.tolist(), Y.tolist()),
    "a list of arrays": (list(X.numpy()), Y.tolist()),
    "frames": (pd.DataFrame(X.numpy()), pd.Series(Y.numpy(), index=range(500, 620))),
    "frames that may have gaps": (pd.DataFrame(X.numpy()).astype("Float32"), pd.Series(Y.numpy(), dtype="Int8")),
    "categories of numbers": (pd.DataFrame(X.numpy()), pd.Series(Y.numpy(), dtype="category")),
    "negative strides": (X.numpy()[::-1].copy()[::-1], Y.numpy()[::-1].copy()[::-1]),
    "in columns": (np.asfortranarray(X.numpy()), Y),
    "of the other byte order": (X.numpy().astype(">f4"), Y.numpy().astype(">i4")),
    "read-only": (np.broadcast_to(X.numpy(), X.shape), np.broadcast_to(Y.numpy(), Y.shape)),
    "with a gradient": (X.clone().requires_grad_(), Y.float().requires_grad_()),
    "a column of labels": (X, Y.unsqueeze(1)),
}


@pytest.mark.parametrize(("features", "labels"), KINDS_OF_THE_SAME.values(), ids=KINDS_OF_THE_SAME)
def test_the_kind_of_tensor_or_array_does_not_matter(features, labels, recwarn):
    found, classes = as_features(features), as_labels(labels, 120)
    assert torch.equal(found, X.to(found.dtype))
    assert found.is_contiguous()
    assert not found.requires_grad
    assert classes.dtype == torch.int64
    assert torch.equal(classes, Y)
    assert not [str(warning.message) for warning in recwarn if "NumPy" in str(warning.message)]


NO_NUMBERS = {
    "text": pd.DataFrame({"odd": ["x", None] * 60}),
    "dates": pd.DataFrame({"odd": pd.date_range("2020", periods=120)}),
    "gaps": pd.DataFrame({"odd": pd.Series([None, 1] * 60, dtype="Int64")}),
    "no columns": pd.DataFrame(index=range(120)),
    "masked": np.ma.masked_array(X.numpy(), mask=X.numpy() > 3),
    "without values": X.to("meta"),
}


@pytest.mark.parametrize("values", NO_NUMBERS.values(), ids=NO_NUMBERS)
def test_what_is_no_numbers_is_refused(values):
    with pytest.raises((TypeError, ValueError), match=r"^`features` must "):
        as_features(values)
    with pytest.raises((TypeError, ValueError), match=r"^`labels` must "):
        as_labels(values, 120)


@estimators(OF_SAMPLES | OF_FEATURES)
@pytest.mark.parametrize(("exponent", "dtype"), [(100, torch.float32), (-90, torch.float32), (-300, torch.float64)])
def test_a_power_of_two_as_the_unit_changes_nothing_to_the_bit(way, exponent, dtype):
    assert way(X.to(dtype) * 2.0**exponent, Y) == way(X.to(dtype), Y)


CONSTANT = torch.cat((X, torch.full((120, 1), 0.1)), dim=1)


@pytest.mark.filterwarnings("ignore:.*have an exact copy with the same label")
class TestDegenerateSamples:
    @pytest.mark.parametrize("x", [torch.ones(120, 4), torch.eye(3)[Y], CONSTANT], ids=["all", "a class", "a feature"])
    @estimators(OF_SAMPLES)
    def test_equal_samples_and_a_constant_feature_are_measured(self, way, x):
        assert np.isfinite(way(x, Y)).all()

    @estimators(OF_SAMPLES | OF_FEATURES)
    def test_a_class_of_one_sample(self, way):
        assert len(way(X, torch.where(torch.arange(120) == 5, 2, Y % 2))) > 0


class TestOutputs:
    """What a network gives."""

    fitted = BoundaryUncertainty(M, 2).fit(X, Y)

    @pytest.mark.parametrize(
        "output",
        [
            lambda z: z[:, :, None, None],
            lambda z: z[:, 0],
            lambda z: z[:, :0],
            lambda z: z.sum(),
            lambda z: torch.cat((z, z)),
            lambda z: z.argmax(dim=1),
            lambda z: z.to(torch.complex64),
            lambda z: z.to_sparse(),
            lambda z: None,
            lambda z: {"out": z},
            lambda z: (z, z),
        ],
    )
    def test_what_is_no_logits_is_refused(self, output):
        for call in (self.fitted.score, BoundaryUncertaintyStopper(X, Y, **FEW).check):
            with pytest.raises((TypeError, ValueError), match=r"`(logits|model)` must"):
                call(lambda x: output(linear(x)))
