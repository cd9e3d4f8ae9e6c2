"""A loss module that weighs its classes: the callbacks measure with its weights."""

import re

import lightning.pytorch as pl
import pytest
import torch
from problems import Classifier, blobs, loader, trainer
from torch import nn

from bu_torch.callbacks import BoundaryUncertaintyMonitor, BoundaryUncertaintyStopping
from bu_torch.callbacks.samples import weights_of_loss

X, Y = blobs()
WEIGHTS = [1.0, 4.0, 2.0]


class OfModule(Classifier):
    """Has its loss as a part."""

    def __init__(self, weights=WEIGHTS):
        super().__init__()
        self.loss = nn.CrossEntropyLoss(None if weights is None else torch.tensor(weights))

    def training_step(self, batch, batch_idx):
        return self.loss(self(batch[0]), batch[1])


def fit(folder, module, kind=BoundaryUncertaintyMonitor, **settings):
    pl.seed_everything(3, verbose=False)
    callback, module = kind(n_neighbors=10, n_draws=1, **settings), module()
    trainer(folder, callback, max_epochs=2).fit(module, loader(X, Y))
    return callback


def lines(log):
    return [line for line in log.messages if "weighs the classes" in line]


class TestTheLossOfTheModule:
    def test_weighs_what_is_measured(self, tmp_path, log):
        found = fit(tmp_path, OfModule)
        assert lines(log) == [
            "Boundary uncertainty weighs the classes by 1, 4, 2, as the module's `loss` does. To change it:"
            " `class_weight=[1.0] * 3` counts all samples alike."
        ]
        given, plain = (fit(tmp_path, OfModule, class_weight=weights) for weights in (WEIGHTS, [1.0] * 3))
        assert len(lines(log)) == 1
        assert found.history == given.history
        assert found.history != plain.history
        assert found.settings.class_weight is None

    def test_is_that_of_the_checkpoint_when_a_run_resumes(self, tmp_path, log, recwarn):
        """They are a buffer of the loss, which Lightning loads."""
        path = fit(tmp_path, OfModule, BoundaryUncertaintyStopping).best_model_path
        again = BoundaryUncertaintyStopping(n_neighbors=10, n_draws=1)
        trainer(tmp_path, again, max_epochs=4).fit(OfModule([1.0, 1.0, 3.0]), loader(X, Y), ckpt_path=path)
        assert [check["epoch"] for check in again.history] == [0, 1, 2, 3]
        assert again.tracker.checks.n_not_compared == 0
        assert lines(log)[1] == lines(log)[0]
        assert not [one for one in recwarn if "cannot be compared" in str(one.message)]


W, OTHERS = torch.tensor(WEIGHTS), torch.tensor([1.0, 2.0, 4.0])


@pytest.mark.parametrize(
    ("losses", "n_classes", "expected"),
    [
        ([nn.CrossEntropyLoss(W)], 3, ("0", WEIGHTS)),
        ([nn.CrossEntropyLoss(W), nn.CrossEntropyLoss()], 3, ("0", WEIGHTS)),
        ([nn.MSELoss(), nn.NLLLoss(W)], 3, ("1", WEIGHTS)),
        ([nn.CrossEntropyLoss(W), nn.CrossEntropyLoss(torch.ones(2))], 3, ("0", WEIGHTS)),
        ([nn.BCEWithLogitsLoss(pos_weight=torch.tensor([19.0]))], 2, ("0", [1.0, 19.0])),
        ([nn.BCEWithLogitsLoss(pos_weight=torch.tensor([19.0]))], 3, None),
        ([nn.BCEWithLogitsLoss(pos_weight=torch.ones(3))], 3, None),
        ([nn.CrossEntropyLoss(W), nn.CrossEntropyLoss(OTHERS)], 3, None),
        ([nn.CrossEntropyLoss(W), nn.NLLLoss(W)], 3, None),
        ([nn.CrossEntropyLoss(W)], 4, None),
        ([nn.CrossEntropyLoss(torch.tensor([1.0, 0.0, 1.0]))], 3, None),
        ([nn.CrossEntropyLoss(torch.full((3,), 2.0))], 3, None),
        ([], 3, None),
    ],
)
def test_weights_are_those_of_the_one_loss_that_has_some_for_these_classes(losses, n_classes, expected):
    assert weights_of_loss(nn.ModuleList(losses), n_classes) == expected


class Moved(Classifier):
    """Has its boundary at 2, then at 1."""

    def __init__(self):
        super().__init__()
        self.net = nn.ParameterList([torch.zeros(())])

    def on_train_epoch_start(self):
        nn.init.constant_(self.net[0], 2.0 - self.current_epoch)

    def forward(self, x):
        return torch.stack((torch.zeros(len(x)), x[:, 0] - self.net[0]), dim=1)

    def training_step(self, batch, batch_idx):
        return 0 * self(batch[0]).sum()


@pytest.mark.parametrize(("share", "is_said"), [(0.2, True), (0.5, False)])
def test_a_class_that_loses_by_what_is_kept_is_named_at_the_end(tmp_path, log, share, is_said):
    labels = (torch.arange(400) < share * 400).long()
    features = torch.randn(400, 2, generator=torch.Generator().manual_seed(0))
    features[:, 0] += 2 * labels
    stopping = BoundaryUncertaintyStopping(n_neighbors=20, n_draws=2, averaging=None, rule="expected_accuracy")
    trainer(tmp_path, stopping, max_epochs=2).fit(Moved(), loader(features, labels))
    said = [line for line in log.messages if line.startswith("By the given labels")]
    assert len(said) == is_said
    if is_said:
        assert re.match(
            r"By the given labels, the kept epoch 0 recognises \d\d% of the perturbed samples of class 1, but epoch 1"
            r" recognises \d\d%\. To change it: `class_weight='balanced'`, which may cost accuracy\.",
            said[0],
        )
