"""Odd samples, outputs and loaders, by every way in: measured, or refused before the first step."""

import itertools
from functools import cache

import lightning.pytorch as pl
import numpy as np
import pandas as pd
import pytest
import torch
from lightning.pytorch.utilities import CombinedLoader
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from problems import Made, blobs, loader, trainer
from readable import Stream
from torch import nn
from torch.utils.data import DataLoader, default_collate

from bu_torch import BoundaryUncertainty, BoundaryUncertaintyStopper, BoundaryUncertaintyStopping, Signals
from bu_torch.estimators.trust import TrustScore
from bu_torch.internal.inputs import as_features, as_labels
from bu_torch.neighbors.graph import NeighborGraph
from bu_torch.papers.prototypes import PrototypeClassifier
from bu_torch.ranking.rank import rank_checkpoints

X, Y = blobs()
M, FEW = 10, {"n_neighbors": 10, "n_draws": 1}
UNCHANGED = nn.Identity()


class Network(pl.LightningModule):
    """The same weights each time; trains by them alone, so that what comes is what is said of samples and outputs."""

    def __init__(self, output=UNCHANGED):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.layers = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 8))
        self.output = output

    def forward(self, x):
        return self.output(self.layers(x.reshape(len(x), -1).float())[:, :3])

    def training_step(self, batch, batch_idx):
        return self.layers[0].weight.square().sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


def rows(inputs, labels):
    return Made(lambda i: (inputs[i], labels[i]), len(inputs))


def fit(folder, data, module=None, **settings):
    callback = BoundaryUncertaintyStopping(**FEW, **settings)
    trainer(folder, callback, max_epochs=1).fit(module or Network(), data)
    return callback.history


def by_stopping(folder, x, y, output):
    return fit(folder, DataLoader(rows(x, y), batch_size=30), Network(output))


def by_stopper(folder, x, y, output):
    stopper = BoundaryUncertaintyStopper(x, y, **FEW)
    stopper.check(Network(output))
    return stopper.history


def by_signals(folder, x, y, output):
    signals = Signals(**FEW).fit(x, y)
    return [signals.measure(Network(output)(signals.perturbed_inputs)).values]


def by_files(folder, x, y, output):
    torch.save(Network().state_dict(), folder / "one.pt")
    return [rank_checkpoints(folder, Network(output), rows(x, y), signals=Signals(**FEW)).best.signals]


def by_transformers(folder, x, y, output):
    pytest.importorskip("accelerate")
    transformers = pytest.importorskip("transformers")
    from bu_torch.integrations.transformers import BoundaryUncertaintyCallback

    class Trainer(transformers.Trainer):
        def compute_loss(self, model, inputs, *args, **kwargs):
            return model.training_step(inputs, 0)

    how = {"num_train_epochs": 1, "save_strategy": "no", "remove_unused_columns": False, "report_to": "none"}
    arguments = transformers.TrainingArguments(str(folder), use_cpu=True, disable_tqdm=True, **how)
    named = Made(lambda i: {"x": x[i], "labels": y[i]}, len(x))
    data = {"train_dataset": named, "data_collator": default_collate}
    Trainer(Network(output), arguments, callbacks=[ours := BoundaryUncertaintyCallback(**FEW)], **data).train()
    return ours.stopper.history


def by_skorch(folder, x, y, output):
    skorch = pytest.importorskip("skorch")
    from bu_torch.integrations.skorch import BoundaryUncertaintyEarlyStopping

    class Net(skorch.NeuralNet):
        def get_loss(self, *args, **kwargs):
            return self.module_.training_step(args, 0)

    how = {"train_split": None, "max_epochs": 1, "verbose": 0, "criterion": nn.CrossEntropyLoss}
    made = Net(Network(output), callbacks=[("ours", BoundaryUncertaintyEarlyStopping(**FEW))], **how)
    return dict(made.fit(rows(x, y), None).callbacks_)["ours"].stopper_.history


ways = pytest.mark.parametrize("way", [by_stopping, by_stopper, by_signals, by_files, by_transformers, by_skorch])


def numbers(way, folder, x=X, y=Y, output=UNCHANGED):
    """All that the one check of a way measures."""
    (entry,) = way(folder, x, y, output)
    return [float(value) for value in entry.values()]


# By what is odd: what is said, inputs, labels, and what becomes of the logits.
SAMPLES = {
    "NaN": ("must be finite", torch.where(torch.arange(120)[:, None] == 3, torch.nan, X), Y, UNCHANGED),
    "no samples": ("at least one (value a )?sample|num_samples=0", X[:0], Y[:0], UNCHANGED),
    "too few samples": ("n_neighbors=10", X[:9], Y[:9], UNCHANGED),
    "one class": ("`labels` must hold at least two classes", X, 0 * Y + 2, UNCHANGED),
    "fractions": ("`labels` must hold integer classes", X, Y + 0.5, UNCHANGED),
    "negative": ("`labels` must hold integer classes", X, Y - 1, UNCHANGED),
    "strings": ("labels.*must be a tensor", X.numpy(), np.array(list("abc") * 40), UNCHANGED),
    "few columns": ("logits in 2 columns|at least 3 columns, .*got 2", X, Y, lambda z: z[:, :2]),
}


@pytest.mark.parametrize("what", SAMPLES)
@ways
def test_samples_that_cannot_be_measured_are_refused(tmp_path, way, what):
    message, *samples = SAMPLES[what]
    if what == "no samples" and way is by_stopping:  # Lightning then trains nothing
        assert way(tmp_path, *samples) == []
        return
    with pytest.raises((TypeError, ValueError, MisconfigurationException), match=message):
        way(tmp_path, *samples)


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return cache(lambda way: numbers(way, tmp_path_factory.mktemp("plain")))


def test_probabilities_of_a_file_are_read_as_their_logits(tmp_path, plain):
    assert numbers(by_files, tmp_path, output=nn.Softmax(dim=1)) == pytest.approx(plain(by_files), abs=1e-4)


@pytest.mark.parametrize("labels", [Y.byte(), Y.to(torch.uint16), Y.numpy().astype("u4"), Y.double()])
@ways
def test_labels_of_any_kind_are_the_same(tmp_path, way, labels, plain):
    assert np.isfinite(plain(way)).all()
    assert numbers(way, tmp_path, y=labels) == plain(way)


@pytest.mark.filterwarnings("ignore:::bu_torch")
@ways
def test_logits_that_are_not_finite_have_no_score(tmp_path, way):
    is_odd = torch.arange(120).unsqueeze(1) % 50 == 0
    assert np.isnan(numbers(way, tmp_path, output=lambda z: torch.where(is_odd[: len(z)], -torch.inf, z))).any()


Whole = type("Whole", (torch.Tensor,), {"__getitem__": None})  # cannot be cut
FINE, TOKENS = loader(X, Y), loader((X.abs() * 5).long(), Y)


class Masked(Network):
    def forward(self, x, mask):
        return super().forward(x * mask)


class Words(Network):
    def forward(self, x):
        return super().forward(nn.functional.embedding(x, torch.eye(50, 4)).mean(dim=1))


class Fixed(Network):
    """Has no parameters, and so nothing to train."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Identity()

    def training_step(self, *_): ...

    def configure_optimizers(self): ...


def of(item, **kwargs):
    return DataLoader(Made(item), batch_size=30, **kwargs)


def changed_labels():
    """A loader of samples whose labels are others when they are read again."""
    numbers = itertools.count()
    return of(lambda i: (X[i], (Y[i] + (next(numbers) >= 120)) % 3))


def mixed(samples):
    x, y = default_collate(samples)
    return (x + x.flip(0)) / 2, (y + y.flip(0)) / 2


def swapped(inputs, nearest_distance, generator):
    return torch.where(torch.rand(inputs.shape, generator=generator) < 0.3, inputs.roll(1, dims=0), inputs)


AGAIN = "`perturbation='reading'` needs"
# By what is wrong: what is said, and what is not the usual: the data, the output, the module and settings.
REFUSED = {
    "pictures": ("Made cannot be read .*`reference=", {"data": of(lambda i: (object(), 0))}),
    "a list of loaders": ("DataLoader`, got list", {"data": [FINE, FINE]}),
    "loaders in turn": ("got list", {"data": CombinedLoader([FINE, FINE], "sequential")}),
    "mixed labels": ("`labels`.*`reference=", {"data": of(lambda i: (X[i], torch.eye(3)[Y[i]]), collate_fn=mixed)}),
    "token ids": ("`perturbation='tokens'`", {"data": TOKENS, "make": Words}),
    "numbers as tokens": ("token ids", {"perturbation": "tokens"}),
    "a forward of two tensors": ("Masked|tensors", {"make": Masked}),
    "batches of 32 alone": ("Network", {"output": lambda z: z.reshape(32, 3)}),
    "a short reference": ("`reference`", {"reference": (X[:7], Y[:7])}),
    "a narrow reference": ("shape", {"reference": (X[:, :3], Y)}),
    "no such place": ("`output_key=7`", {"output": lambda z: (z, "words"), "output_key": 7}),
    "no such name": ("`output_key='scores'`", {"output": lambda z: (z, "words"), "output_key": "scores"}),
    "a name in a tensor": ("`output_key=`", {"output_key": "scores"}),
    "one reading of tensors": (AGAIN, {"perturbation": "reading"}),
    "readings of other samples": (AGAIN, {"data": changed_labels(), "perturbation": "reading"}),
    "class weights of two": ("`class_weight`", {"class_weight": [1.0, 2.0]}),
    "a weight of no class": ("`class_weight`", {"class_weight": {0: 1.0, 7: 2.0}}),
    "costs of four": ("`metric`", {"metric": (1 - torch.eye(4)).tolist()}),
    "no such place of labels": ("`label_key=3`", {"input_key": 0, "label_key": 3}),
    "names in a tuple": ("`input_key='image'`", {"input_key": "image", "label_key": "target"}),
    "a name that is no template": ("`filename`", {"filename": "{epoch"}),
}


@pytest.mark.parametrize("wrong", REFUSED)
def test_what_cannot_be_measured_is_refused_before_it_trains(tmp_path, wrong):
    message, settings = REFUSED[wrong]
    settings = {"data": FINE, "make": Network, "output": UNCHANGED, **settings}
    module = settings.pop("make")(settings.pop("output"))
    with pytest.raises(MisconfigurationException, match=message):
        fit(tmp_path, module=module, **settings)
    assert module.trainer.global_step == 0


# By what is odd: the data, the module and settings, as far as they are not the usual.
HANDLED = {
    "pictures of bytes": {"data": loader((X * 20 + 100).clamp(0, 255).byte().reshape(120, 1, 2, 2), Y)},
    "absent classes": {"data": loader(X, 2 * (Y > 0).long())},
    "a stream of a wrong length": {"data": DataLoader(Stream(length=1000), batch_size=32)},
    "a named entry that is no tensor": {"data": of(lambda i: {"x": [X[i]], "place": i, "labels": Y[i]})},
    "one loader in a combined one": {"data": CombinedLoader(loader(X, Y), "min_size")},
    "token ids, exchanged": {"data": TOKENS, "module": Words(), "perturbation": swapped},
    "batches that cannot be cut": {"data": DataLoader([(X.as_subclass(Whole), Y)], batch_size=None)},
    "half precision": {"module": Network(lambda z: z.half())},
    "more columns than labels": {"module": Network(lambda z: nn.functional.pad(z, (0, 4)))},
    "logits in a tuple": {"module": Network(lambda z: (z.sum(), z)), "output_key": 1},
    "logits in a dict": {"module": Network(lambda z: {"first": z.sum(), "second": z}), "output_key": "second"},
    "no parameters": {"module": Fixed()},
    "logits as scores": {"module": Network(lambda z: type("Output", (), {"scores": z})()), "output_key": "scores"},
}


@pytest.mark.filterwarnings("ignore:::bu_torch")
@pytest.mark.parametrize("odd", HANDLED)
def test_what_is_odd_is_measured(tmp_path, odd):
    (entry,) = fit(tmp_path, **{"data": FINE, **HANDLED[odd]})
    assert np.isfinite(list(entry.values())).all()


# Of samples of any scale: three classes, of a linear network.
def linear(x):
    x = torch.as_tensor(x).flatten(1).double()
    return (x[:, :3] - x[:, :3].mean()) / x.abs().max()


def signals_of(x, y):
    signals = Signals(M, 2).fit(x, y)
    return [float(value) for value in signals.measure(linear(signals.perturbed_inputs)).values.values()]


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


@estimators(OF_SAMPLES | OF_FEATURES)
@pytest.mark.parametrize(("exponent", "dtype"), [(100, torch.float32), (-90, torch.float32), (-300, torch.float64)])
def test_a_power_of_two_as_the_unit_changes_nothing_to_the_bit(way, exponent, dtype):
    assert way(X.to(dtype) * 2.0**exponent, Y) == way(X.to(dtype), Y)


CONSTANT = torch.cat((X, torch.full((120, 1), 0.1)), dim=1)


@pytest.mark.filterwarnings("ignore:::bu_torch")
@pytest.mark.parametrize("x", [torch.ones(120, 4), torch.eye(3)[Y], CONSTANT], ids=["all", "a class", "a feature"])
@estimators(OF_SAMPLES)
def test_equal_samples_and_a_constant_feature_are_measured(way, x):
    assert np.isfinite(way(x, Y)).all()


@estimators(OF_SAMPLES | OF_FEATURES)
def test_a_class_of_one_sample_is_measured(way):
    assert len(way(X, torch.where(torch.arange(120) == 5, 2, Y % 2))) > 0


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
    "text in columns of one name": pd.DataFrame([["x", None]] * 120, columns=["odd", "odd"]),
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


NO_LOGITS = [lambda z: z[:, :, None, None], lambda z: z[:, 0], lambda z: z[:, :0], lambda z: z.sum()]
NO_LOGITS += [lambda z: torch.cat((z, z)), lambda z: z.argmax(dim=1), lambda z: z.to(torch.complex64)]
NO_LOGITS += [lambda z: z.to_sparse(), lambda z: None, lambda z: {"out": z}, lambda z: (z, z)]


@pytest.mark.parametrize("output", NO_LOGITS)
def test_what_is_no_logits_is_refused(output):
    for call in (BoundaryUncertainty(M, 2).fit(X, Y).score, BoundaryUncertaintyStopper(X, Y, **FEW).check):
        with pytest.raises((TypeError, ValueError), match=r"`(logits|model)`"):
            call(lambda x: output(linear(x)))
