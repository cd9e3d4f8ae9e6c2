"""Bad and odd training data and outputs, in a real fit: handled, or refused by name before the first epoch."""

import itertools

import lightning.pytorch as pl
import numpy as np
import pandas as pd
import pytest
import torch
from lightning.pytorch.utilities import CombinedLoader
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from problems import Classifier, Made, blobs, loader, trainer
from readable import Stream
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, default_collate

from bu_torch.callbacks import BoundaryUncertaintyMonitor, BoundaryUncertaintyStopping

X, Y = blobs()


class Lenient(Classifier):
    """Trains on anything, so that what comes is what the callback says of it."""

    def __init__(self, output=None, **kwargs):
        super().__init__(**kwargs)
        self.output = output or (lambda z: z)

    def forward(self, x):
        return self.output(self.net(x.reshape(len(x), -1).float()))

    def training_step(self, batch, batch_idx):
        return self.net[0].weight.square().sum()


def of(item, **kwargs):
    return DataLoader(Made(item), batch_size=30, **kwargs)


def differing(item):
    """Samples from a function of the index and of the number of those that were read before."""
    numbers = itertools.count()
    return of(lambda i: item(i, next(numbers)))


READ = "`perturbation='reading'` needs a dataset or a loader whose samples differ each time they are read"


def collated(change, *, one_hot=False, **kwargs):
    labels = nn.functional.one_hot(Y, 3).float() if one_hot else Y
    return of(lambda i: (X[i], labels[i]), collate_fn=lambda samples: change(*default_collate(samples)), **kwargs)


def fit(folder, data, module=None, max_epochs=1, **kwargs):
    callback = BoundaryUncertaintyStopping(n_neighbors=10, n_draws=1, **kwargs)
    trainer(folder, callback, max_epochs=max_epochs).fit(Lenient() if module is None else module, data)
    return callback


def is_measured(callback):
    return all(np.isfinite(list(entry.values())).all() for entry in callback.history) and callback.history != []


class Picture:
    """As an image library has them, which no collate function knows."""


def mixed_up(x, y):
    one_hot = nn.functional.one_hot(y, 3).float() if y.ndim == 1 else y
    return (x + x.flip(0)) / 2, (one_hot + one_hot.flip(0)) / 2


class Words(Lenient):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(50, 4)

    def forward(self, x):
        return self.net(self.words(x).mean(dim=1))


class Masked(Lenient):
    def forward(self, x, mask):
        return self.net(x * mask)


class OtherShape(Lenient):
    def forward(self, x):
        return self.net(x.reshape(-1, 2))


def giving(output):
    return lambda: Lenient(output)


def fine(message, make=None, **settings):
    return FINE, message, make, settings


def of_pair():
    return Lenient(lambda z: (z, "words"))


FINE = loader(X, Y)
TOKENS = loader((X.abs() * 5).long(), Y)
# By what is wrong: the training data, what is said, the module, and settings of the callback.
COSTS = (np.ones((4, 4)) - np.eye(4)).tolist()
REFUSED = {
    "pictures": (of(lambda i: (Picture(), 0)), "^Training data: Made cannot be read .*Picture.*`reference="),
    "a list of loaders": ([FINE, FINE], "single `torch.utils.data.DataLoader`, got list"),
    "loaders in turn": (CombinedLoader([FINE, FINE], "sequential"), "single .*, got list"),
    "batches without a loader": ([(X[:60], Y[:60]), (X[60:], Y[60:])], "single .*DataLoader`, got list"),
    "one-hot labels that collate_fn mixes": (collated(mixed_up, one_hot=True), "`labels`.*`reference="),
    "token ids": (TOKENS, "token ids cannot be moved along a line, so pass `perturbation='tokens'`, or a", Words),
    "token ids, by their dtype": (TOKENS, r"dtype torch\.float32 to `Words\.forward` .*RuntimeError", Words),
    "numbers as tokens": fine("must be token ids, integers .*, got torch.float32", Words, perturbation="tokens"),
    "a forward of two tensors": fine("Name the tensors of a batch that `forward` takes", Masked),
    "a forward of another shape": fine(r"shape \(120, 4\) .*`OtherShape\.forward`.*RuntimeError", OtherShape),
    "a short reference": fine("^`reference`: it has 7 samples, fewer", reference=(X[:7], Y[:7])),
    "a narrow reference": fine(r"passes inputs of shape \(120, 3\) .*`Lenient", reference=(X[:, :3], Y)),
    "one column": fine("gives one column, but the labels have classes 0, .*A regression", giving(lambda z: z[:, 0])),
    "no output": fine("`forward` must give a tensor .*got NoneType", giving(lambda z: None)),
    "an output of two": fine("got tuple of 2.* `output_key=`", of_pair),
    "no such place": fine("must give an output with `output_key=7`, got tuple of 2", of_pair, output_key=7),
    "no such name": fine("an output with `output_key='scores'`, got tuple of 2", of_pair, output_key="scores"),
    "one reading of tensors": fine(f"{READ}: a second reading .* gives the same inputs", perturbation="reading"),
    "one reading of a reference": fine(f"{READ}: these are read once", reference=(X, Y), perturbation="reading"),
    "one reading of a stream": (
        DataLoader(Stream(), batch_size=32),
        f"{READ}: these are read once. Pass `perturbation=None`",
        None,
        {"perturbation": "reading"},
    ),
    "readings of other samples": (
        differing(lambda i, n: (X[i], (Y[i] + (n >= 120)) % 3)),
        f"{READ}: a second reading of the same samples gives other labels",
        None,
        {"perturbation": "reading"},
    ),
    "class weights of two": fine("Training data: `class_weight` must list", class_weight=[1.0, 2.0]),
    "costs of four": fine("`metric` must be of as many classes .* columns, 3, got 4", metric=COSTS),
    "no such place of labels": fine("`label_key=3`.*`reference=", input_key=0, label_key=3),
    "names in a tuple": fine("`input_key='image'`", input_key="image", label_key="target"),
    "a name in a tensor": fine("`output_key=` names the logits", output_key="scores"),
    "a name that is no template": fine(r"`filename` must be a template .* got '\{epoch'", filename="{epoch"),
}


@pytest.mark.parametrize("wrong", list(REFUSED))
def test_what_cannot_be_measured_is_refused_before_it_trains(tmp_path, wrong):
    data, message, make, settings = (*REFUSED[wrong], *(None, {})[len(REFUSED[wrong]) - 2 :])
    module = (make or Lenient)()
    with pytest.raises(MisconfigurationException, match=message):
        fit(tmp_path, data, module, **settings)
    assert module.trainer.global_step == 0


class Fixed(pl.LightningModule):
    """Has no parameters."""

    def forward(self, x):
        return x[:, :3]

    def training_step(self, batch, batch_idx):
        return None

    def configure_optimizers(self):
        return None


def swapped(inputs, nearest_distance, generator):
    return torch.where(torch.rand(inputs.shape, generator=generator) < 0.3, inputs.roll(1, dims=0), inputs)


# By what is odd: the training data, and the module.
HANDLED = {
    "pictures of bytes": (loader((X * 20 + 100).clamp(0, 255).byte().reshape(120, 1, 2, 2), Y),),
    "absent classes": (loader(X, (Y > 0).long() * 7), lambda: Lenient(n_outputs=8)),
    "a stream of a wrong length": (DataLoader(Stream(length=1000), batch_size=32),),
    "one loader in a combined one": (CombinedLoader(loader(X, Y), "min_size"),),
    "token ids, exchanged": (TOKENS, Words, {"perturbation": swapped}),
    "half precision": (FINE, giving(lambda z: z.half())),
    "logits by name": (FINE, giving(lambda z: {"logits": z})),
    "more columns than labels": (FINE, giving(lambda z: nn.functional.pad(z, (0, 4)))),
    "logits in a tuple": (FINE, giving(lambda z: (z.sum(), z)), {"output_key": 1}),
    "logits in a dict": (FINE, giving(lambda z: {"first": z.sum(), "second": z}), {"output_key": "second"}),
    "logits as scores": (FINE, giving(lambda z: type("Output", (), {"scores": z})()), {"output_key": "scores"}),
    "no parameters": (FINE, Fixed),
}


@pytest.mark.filterwarnings("ignore:The network gives [37] columns")
@pytest.mark.parametrize("odd", list(HANDLED))
def test_what_is_odd_is_measured(tmp_path, odd):
    data, make, settings = (*HANDLED[odd], *(Lenient, {})[len(HANDLED[odd]) - 1 :])
    assert is_measured(fit(tmp_path, data, make(), **settings))


REFERENCES = {
    "frames": (pd.DataFrame(X.numpy()), pd.Series(Y.numpy(), index=range(7, 127))),
    "a loader": DataLoader(TensorDataset(X, Y), batch_size=50),
    "a dataset": Made(lambda i: (X[i], Y[i])),
}


@pytest.mark.parametrize("reference", list(REFERENCES.values()), ids=list(REFERENCES))
def test_a_reference_of_any_kind_is_the_same(tmp_path, reference):
    histories = []
    for given in (reference, (X, Y)):
        pl.seed_everything(3, verbose=False)
        callback = BoundaryUncertaintyMonitor(n_neighbors=10, n_draws=1, reference=given)
        trainer(tmp_path, callback, max_epochs=2, limit_train_batches=1).fit(Lenient(), loader(X[:60], Y[:60]))
        histories.append(callback.history)
    assert histories[0] == histories[1]
