"""A loss module that weighs its classes: the callbacks measure with its weights."""

import lightning.pytorch as pl
import pytest
import torch
from problems import blobs, loader, trainer
from scenarios import Model, normed
from torch import nn

from bu_torch.callbacks import BoundaryUncertaintyMonitor, BoundaryUncertaintyStopping
from bu_torch.callbacks.samples import weights_of_loss

X, Y = blobs()
WEIGHTS = [1.0, 4.0, 2.0]


def weighing(weights=WEIGHTS):
    return Model(normed(), nn.CrossEntropyLoss(torch.tensor(weights)))


def fit(folder, kind=BoundaryUncertaintyMonitor, **settings):
    pl.seed_everything(3, verbose=False)
    callback = kind(n_neighbors=10, n_draws=1, **settings)
    trainer(folder, callback, max_epochs=2).fit(weighing(), loader(X, Y))
    return callback


def lines(log):
    return [line for line in log.messages if "weighs the classes" in line]


class TestTheLossOfTheModule:
    def test_weighs_what_is_measured(self, tmp_path, log):
        found = fit(tmp_path)
        assert lines(log) == [
            "Boundary uncertainty weighs the classes by 1, 4, 2, as the module's `loss` does. To change it:"
            " `class_weight=[1.0] * 3` counts all samples alike."
        ]
        given, plain = (fit(tmp_path, class_weight=weights) for weights in (WEIGHTS, [1.0] * 3))
        assert len(lines(log)) == 1
        assert found.history == given.history
        assert found.history != plain.history
        assert found.settings.class_weight is None

    def test_is_that_of_the_checkpoint_when_a_run_resumes(self, tmp_path, log, recwarn):
        """They are a buffer of the loss, which Lightning loads."""
        path = fit(tmp_path, BoundaryUncertaintyStopping).best_model_path
        again = BoundaryUncertaintyStopping(n_neighbors=10, n_draws=1)
        trainer(tmp_path, again, max_epochs=4).fit(weighing([1.0, 1.0, 3.0]), loader(X, Y), ckpt_path=path)
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
