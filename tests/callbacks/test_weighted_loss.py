"""A loss that weighs its classes: the callbacks measure with its weights, or say that they do not."""

import re

import lightning.pytorch as pl
import pytest
import torch
from problems import Classifier, blobs, loader, trainer
from torch import nn
from torch.nn.functional import cross_entropy

from bu_torch.callbacks import BoundaryUncertaintyMonitor, BoundaryUncertaintyStopping
from bu_torch.callbacks.loss_weights import weights_in_graph, weights_of_losses

X, Y = blobs()
WEIGHTS = [1.0, 4.0, 2.0]


class OfModule(Classifier):
    """Has its loss as a part."""

    def __init__(self, weights=WEIGHTS):
        super().__init__()
        self.loss = nn.CrossEntropyLoss(None if weights is None else torch.tensor(weights))

    def training_step(self, batch, batch_idx):
        return self.loss(self(batch[0]), batch[1])


class OfFunction(Classifier):
    """Calls the function with weights."""

    def training_step(self, batch, batch_idx):
        return cross_entropy(self(batch[0]), batch[1], weight=torch.tensor(WEIGHTS))


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
            "Boundary uncertainty weighs the classes by 1, 4, 2, as the module's loss does. To change it:"
            " `class_weight=[1.0] * 3` counts all samples alike."
        ]
        given, plain = (fit(tmp_path, OfModule, class_weight=weights) for weights in (WEIGHTS, [1.0] * 3))
        assert len(lines(log)) == 1
        assert found.history == given.history
        assert found.history != plain.history
        assert found.class_weight is None

    @pytest.mark.parametrize("weights", [None, [2.0] * 3, [1.0, 0.0, 1.0], [1.0, 4.0, 2.0, 1.0]])
    def test_without_weights_of_these_classes_changes_nothing(self, tmp_path, log, weights):
        class Wider(OfModule):
            def __init__(self):
                super().__init__(weights)
                self.net[-1] = nn.Linear(16, 3 if weights is None else len(weights))

        found = fit(tmp_path, Wider)
        assert lines(log) == []
        assert found.history == fit(tmp_path, Wider, class_weight=[1.0] * 3).history

    def test_is_that_of_the_checkpoint_when_a_run_resumes(self, tmp_path, log, recwarn):
        """They are a buffer of the loss, which Lightning loads."""
        path = fit(tmp_path, OfModule, BoundaryUncertaintyStopping).best_model_path
        again = BoundaryUncertaintyStopping(n_neighbors=10, n_draws=1)
        trainer(tmp_path, again, max_epochs=4).fit(OfModule([1.0, 1.0, 3.0]), loader(X, Y), ckpt_path=path)
        assert [check["epoch"] for check in again.history] == [0, 1, 2, 3]
        assert again.tracker.checks.n_not_compared == 0
        assert lines(log)[1] == lines(log)[0]
        assert not [one for one in recwarn if "cannot be compared" in str(one.message)]


def compiled():
    torch._dynamo.reset()
    module = OfFunction()
    module.net.compile(backend="aot_eager")
    return module


@pytest.mark.parametrize("module", [OfFunction, compiled])
def test_weights_that_only_the_function_gets_are_told_once(tmp_path, log, module):
    fit(tmp_path, module)
    assert lines(log) == [
        "The loss weighs the classes by 1, 4, 2, boundary uncertainty by 1, 1, 1. To change it: pass the weights of the"
        " loss as `class_weight=`."
    ]
    fit(tmp_path, OfFunction, class_weight=[1.0] * 3)
    assert len(lines(log)) == 1


def test_a_weighted_loss_that_training_does_not_use_is_told(tmp_path, log):
    class Validates(OfModule):
        def training_step(self, batch, batch_idx):
            return cross_entropy(self(batch[0]), batch[1])

    fit(tmp_path, Validates)
    assert re.match("The loss weighs the classes by 1, 1, 1, boundary uncertainty by 1, 4, 2.", lines(log)[1])


class TestWeightsInTheGraph:
    @pytest.mark.parametrize(
        ("loss", "expected"),
        [
            (lambda x, y: cross_entropy(x, y), [1.0] * 3),
            (lambda x, y: cross_entropy(x, y, weight=torch.tensor(WEIGHTS), label_smoothing=0.1) / 2, WEIGHTS),
            (lambda x, y: cross_entropy(x, y, weight=torch.ones(3)) + cross_entropy(x, y), [1.0] * 3),
            (lambda x, y: cross_entropy(x, y, weight=torch.tensor(WEIGHTS)) + cross_entropy(x, y), None),
            (lambda x, y: cross_entropy(x, y, weight=torch.tensor([1.0, 0.0, 1.0])), None),
            (lambda x, y: (x - y.unsqueeze(1)).square().mean(), None),
            (lambda x, y: x.detach().sum(), None),
        ],
    )
    def test_are_those_that_the_loss_was_given(self, loss, expected):
        logits = torch.randn(120, 3, requires_grad=True)
        assert weights_in_graph(loss(logits * 1, Y), 3) == expected

    def test_of_one_logit_weigh_the_second_class(self):
        loss = nn.BCEWithLogitsLoss(pos_weight=torch.tensor([19.0]))
        value = loss(torch.randn(120, requires_grad=True), (Y > 0).float())
        assert weights_in_graph(value, 2) == weights_of_losses(loss, 2) == [1.0, 19.0]
        assert weights_in_graph(value, 3) is weights_of_losses(loss, 3) is None


def test_losses_that_disagree_give_no_weights():
    one, other = (nn.CrossEntropyLoss(torch.tensor(weights)) for weights in (WEIGHTS, [1.0, 2.0, 4.0]))
    assert weights_of_losses(nn.ModuleList([one, nn.CrossEntropyLoss()]), 3) == WEIGHTS
    assert weights_of_losses(nn.ModuleList([one, other]), 3) is None


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
