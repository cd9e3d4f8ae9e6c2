"""Faults that users of other libraries have reported, one test each."""

import pytest
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from problems import Classifier, Given, blobs, fit_again, in_order
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from bu_torch import BoundaryUncertaintyStopping

X, Y = blobs()
OTHER_UNITS = 100 * X + 50


class Scaled(DataLoader):
    """Prepares batches when it is iterated, where no copy of it is."""

    def __iter__(self):
        for inputs, labels in super().__iter__():
            yield (inputs - 50) / 100, labels


class Scaling(Callback):
    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        batch[0].sub_(50).div_(100)


class Interrupting(Callback):
    """Stands behind the check of an epoch, and before its weights are saved."""

    def __init__(self, kind):
        self.kind = kind

    def on_train_epoch_end(self, trainer, pl_module):
        if trainer.current_epoch == 2:
            raise self.kind


class Step(Classifier):
    def __init__(self, step):
        super().__init__()
        self.step = step

    def training_step(self, batch, batch_idx):
        return self.step(self(batch[0]), batch[1])


def stopping(**settings):
    return BoundaryUncertaintyStopping(n_neighbors=10, n_draws=1, **settings)


@pytest.mark.parametrize("prepares", ["loader", "callback"])
def test_batches_that_are_prepared_where_samples_are_not_read_are_said(tmp_path, prepares):
    data = TensorDataset(OTHER_UNITS, Y)
    made = Scaled(data, 30) if prepares == "loader" else DataLoader(data, 30)
    before = [] if prepares == "loader" else [Scaling()]
    with pytest.warns(UserWarning, match="on_after_batch_transfer"):
        fit_again(tmp_path, *before, stopping(), module=Classifier(), data=made, max_epochs=1)


@pytest.mark.parametrize("kind", [KeyboardInterrupt, RuntimeError])
@pytest.mark.parametrize("has_files", [True, False])
def test_an_exception_before_weights_are_saved_leaves_the_earlier_epoch(tmp_path, kind, has_files):
    callback, module = stopping(rule=Given([0.1, 0.2, 0.3])), Classifier()
    with pytest.raises((SystemExit, RuntimeError)):
        fit_again(
            tmp_path, callback, Interrupting(kind), module=module, data=in_order(), max_epochs=4,
            enable_checkpointing=has_files,
        )  # fmt: skip
    assert len(callback.history) == 3
    assert callback.best_epoch == callback.summary["kept_epoch"] == 1
    if has_files:
        assert torch.load(callback.best_model_path, weights_only=False)["epoch"] == 1


@pytest.mark.parametrize(
    ("step", "said"),
    [
        (lambda logits, labels: F.cross_entropy(logits, labels, ignore_index=2), "label -100"),
        (
            lambda z, y: -(F.one_hot(y, 3) * z.log_softmax(1) * torch.tensor([1.0, 4.0, 2.0])).sum(1).mean(),
            "by 1, 4, 2",
        ),
        (
            lambda z, y: torch.einsum(
                "n,n->", F.cross_entropy(z, y, reduction="none"), torch.tensor([1.0, 4.0, 2.0])[y]
            ),
            "by 1, 4, 2",
        ),
        (
            lambda z, y: F.cross_entropy(z, y, reduction="none") @ torch.tensor([1.0, 4.0, 2.0])[y] / len(y),
            "by 1, 4, 2",
        ),
    ],
)
def test_ways_to_weigh_classes_are_seen(tmp_path, log, step, said):
    fit_again(tmp_path, stopping(), module=Step(step), data=in_order(), max_epochs=1)
    assert said in log.text


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"perturbation": lambda inputs: inputs}, r"`perturbation` must take three arguments"),
        ({"input_key": "image", "label_key": "target"}, r"`input_key='image'` is a key of a dict"),
        ({"output_key": "zz"}, r"`output_key=` names the logits"),
    ],
)
def test_an_argument_that_does_not_fit_is_named(tmp_path, settings, named):
    with pytest.raises(MisconfigurationException, match=named):
        fit_again(tmp_path, stopping(**settings), module=Classifier(), data=in_order(), max_epochs=1)


def test_places_may_come_from_a_command_line(tmp_path):
    keyed, plain = stopping(input_key="0", label_key="1"), stopping()
    for callback in (keyed, plain):
        fit_again(tmp_path, callback, module=Classifier(), data=in_order(), max_epochs=1)
    assert keyed.history[0]["expected_accuracy"] == pytest.approx(plain.history[0]["expected_accuracy"], abs=0.2)
