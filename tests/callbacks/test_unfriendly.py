"""Bad and odd training data and outputs, in a real fit: handled, or refused by name before the first step."""

import itertools

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
from lightning.pytorch.utilities import CombinedLoader
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from problems import Classifier, Made, blobs, loader, trainer
from readable import Stream
from torch import nn
from torch.utils.data import DataLoader, default_collate

from bu_torch.callbacks import BoundaryUncertaintyStopping

X, Y = blobs()
FINE, TOKENS = loader(X, Y), loader((X.abs() * 5).long(), Y)
COSTS = (np.ones((4, 4)) - np.eye(4)).tolist()


class Lenient(Classifier):
    """Trains on anything, so that what comes is what the callback says of it."""

    def __init__(self, output=lambda z: z, **kwargs):
        super().__init__(**kwargs)
        self.output = output

    def forward(self, x):
        return self.output(self.net(x.reshape(len(x), -1).float()))

    def training_step(self, batch, batch_idx):
        return self.net[0].weight.square().sum()


class Words(Lenient):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(50, 4)

    def forward(self, x):
        return self.net(self.words(x).mean(dim=1))


class Masked(Lenient):
    def forward(self, x, mask):
        return self.net(x * mask)


class Fixed(Lenient):
    """Has no parameters."""

    def __init__(self):
        pl.LightningModule.__init__(self)

    def forward(self, x):
        return x[:, :3]

    def training_step(self, batch, batch_idx):
        return None

    def configure_optimizers(self):
        return None


def of(item, **kwargs):
    return DataLoader(Made(item), batch_size=30, **kwargs)


def differing(item):
    """Samples from a function of the index and of the number of those that were read before."""
    numbers = itertools.count()
    return of(lambda i: item(i, next(numbers)))


def mixed(samples):
    x, y = default_collate(samples)
    return (x + x.flip(0)) / 2, (y + y.flip(0)) / 2


def fit(folder, data=FINE, module=None, kind=BoundaryUncertaintyStopping, max_epochs=1, **kwargs):
    callback = kind(n_neighbors=10, n_draws=1, **kwargs)
    trainer(folder, callback, max_epochs=max_epochs).fit(module or Lenient(), data)
    return callback


def pair(z):
    return z, "words"


READ = {"perturbation": "reading"}
AGAIN = "`perturbation='reading'` needs"
# By what is wrong: what is said; and where it is not the usual, the data, the output, the module and settings.
REFUSED = {
    "pictures": ("Made cannot be read .*`reference=", {"data": of(lambda i: (object(), 0))}),
    "a list of loaders": ("DataLoader`, got list", {"data": [FINE, FINE]}),
    "loaders in turn": ("got list", {"data": CombinedLoader([FINE, FINE], "sequential")}),
    "one-hot labels that collate_fn mixes": (
        "`labels`.*`reference=",
        {"data": of(lambda i: (X[i], torch.eye(3)[Y[i]]), collate_fn=mixed)},
    ),
    "token ids": ("`perturbation='tokens'`", {"data": TOKENS, "make": Words}),
    "numbers as tokens": ("token ids", {"make": Words, "perturbation": "tokens"}),
    "a forward of two tensors": ("Masked|tensors", {"make": Masked}),
    "a short reference": ("`reference`", {"reference": (X[:7], Y[:7])}),
    "a narrow reference": ("shape", {"reference": (X[:, :3], Y)}),
    "no such place": ("`output_key=7`", {"output": pair, "output_key": 7}),
    "no such name": ("`output_key='scores'`", {"output": pair, "output_key": "scores"}),
    "a name in a tensor": ("`output_key=`", {"output_key": "scores"}),
    "one reading of tensors": (AGAIN, READ),
    "readings of other samples": (AGAIN, {"data": differing(lambda i, n: (X[i], (Y[i] + (n >= 120)) % 3)), **READ}),
    "class weights of two": ("`class_weight`", {"class_weight": [1.0, 2.0]}),
    "costs of four": ("`metric`", {"metric": COSTS}),
    "no such place of labels": ("`label_key=3`", {"input_key": 0, "label_key": 3}),
    "names in a tuple": ("`input_key='image'`", {"input_key": "image", "label_key": "target"}),
    "a name that is no template": ("`filename`", {"filename": "{epoch"}),
}


@pytest.mark.parametrize("wrong", REFUSED)
def test_what_cannot_be_measured_is_refused_before_it_trains(tmp_path, wrong):
    message, settings = REFUSED[wrong]
    settings = dict(settings)
    made = settings.pop("make", Lenient)(**({"output": settings.pop("output")} if "output" in settings else {}))
    with pytest.raises(MisconfigurationException, match=message):
        fit(tmp_path, module=made, **settings)
    assert made.trainer.global_step == 0


def swapped(inputs, nearest_distance, generator):
    return torch.where(torch.rand(inputs.shape, generator=generator) < 0.3, inputs.roll(1, dims=0), inputs)


# By what is odd: the training data, the module and settings, as far as they are not the usual.
HANDLED = {
    "pictures of bytes": {"data": loader((X * 20 + 100).clamp(0, 255).byte().reshape(120, 1, 2, 2), Y)},
    "absent classes": {"data": loader(X, (Y > 0).long() * 7), "module": Lenient(n_outputs=8)},
    "a stream of a wrong length": {"data": DataLoader(Stream(length=1000), batch_size=32)},
    "one loader in a combined one": {"data": CombinedLoader(loader(X, Y), "min_size")},
    "token ids, exchanged": {"data": TOKENS, "module": Words(), "perturbation": swapped},
    "half precision": {"module": Lenient(lambda z: z.half())},
    "logits by name": {"module": Lenient(lambda z: {"logits": z})},
    "more columns than labels": {"module": Lenient(lambda z: nn.functional.pad(z, (0, 4)))},
    "logits in a tuple": {"module": Lenient(lambda z: (z.sum(), z)), "output_key": 1},
    "logits in a dict": {"module": Lenient(lambda z: {"first": z.sum(), "second": z}), "output_key": "second"},
    "logits as scores": {"module": Lenient(lambda z: type("Output", (), {"scores": z})()), "output_key": "scores"},
    "no parameters": {"module": Fixed()},
}


@pytest.mark.filterwarnings("ignore:Expected accuracy is")
@pytest.mark.parametrize("odd", HANDLED)
def test_what_is_odd_is_measured(tmp_path, odd):
    (entry,) = fit(tmp_path, **HANDLED[odd]).history
    assert np.isfinite(list(entry.values())).all()
