"""skorch's own nets."""

import pickle

import pytest
import torch
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from torch import nn

skorch = pytest.importorskip("skorch")

from problems import blobs, same  # noqa: E402

from bu_torch.integrations.skorch import BoundaryUncertaintyEarlyStopping  # noqa: E402

INPUTS, LABELS = (part.numpy() for part in blobs())


def stopping(**options):
    return BoundaryUncertaintyEarlyStopping(**{"n_draws": 1, "averaging": None, "rule": "expected_accuracy", **options})


def net(callback=None, *, is_softmax=False, epochs=60, **options):
    torch.manual_seed(0)
    layers = [nn.Linear(4, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 3)]
    return skorch.NeuralNetClassifier(
        nn.Sequential(*layers, *([nn.Softmax(dim=1)] if is_softmax else [])),
        **{
            "criterion": nn.NLLLoss if is_softmax else nn.CrossEntropyLoss,
            "optimizer": torch.optim.Adam,
            "lr": 0.05,
            "max_epochs": epochs,
            "batch_size": 30,
            "train_split": None,
            "callbacks": [("boundary", callback)] if callback else None,
            "verbose": 0,
            **options,
        },
    )


def fit(callback=None, **options):
    made = net(callback, **options)
    torch.manual_seed(1)
    return made.fit(INPUTS, LABELS)


def of(made):
    return dict(made.callbacks_)["boundary"].stopper_


def test_it_stops_and_loads_the_best_epoch_and_training_before_is_the_same_to_the_bit():
    stopped = fit(stopping(patience=3))
    stopper = of(stopped)
    assert len(stopped.history) == stopper.stopped_epoch + 1 == stopper.best_epoch + 4 < 60
    for name in ("expected_accuracy", "boundary_uncertainty"):
        assert stopped.history[:, name] == [check[name] for check in stopper.history]
    plain = fit(epochs=len(stopped.history))
    assert stopped.history[:, "train_loss"] == plain.history[:, "train_loss"]
    best = fit(epochs=stopper.best_epoch + 1).module_.state_dict()
    stopper.restore(plain.module_)
    assert all(same(made.module_.state_dict(), best) for made in (stopped, plain))


def test_probabilities_of_skorch_s_default_criterion_are_read_as_their_logarithm(recwarn):
    made = fit(stopping(), is_softmax=True, epochs=2)
    with torch.no_grad():
        read = dict(made.callbacks_)["boundary"].network_.eval()(torch.from_numpy(INPUTS))
        expected = made.module_.eval()[:-1](torch.from_numpy(INPUTS)).log_softmax(dim=1)
    assert torch.allclose(read, expected, rtol=1e-3)
    assert not [one for one in recwarn if "probabilities" in str(one.message)]


def test_classes_weigh_as_in_the_criterion():
    weights = torch.tensor([1.0, 2.0, 4.0])
    assert of(fit(stopping(), epochs=1, criterion__weight=weights)).settings.class_weight == weights.tolist()


def test_samples_that_are_held_out_are_not_read():
    made = fit(stopping(), epochs=1, train_split=skorch.dataset.ValidSplit(4, stratified=False))
    assert of(made).engine.preparation["plan"][0] == 90


def test_a_pickled_net_holds_the_results_and_no_samples():
    made = fit(stopping(), epochs=2)
    assert INPUTS[0].tobytes() not in (pickled := pickle.dumps(made))
    assert of(pickle.loads(pickled)).history == of(made).history  # noqa: S301  (these are our own bytes)


def test_options_are_parameters_that_survive_a_copy_and_a_search():
    made = clone(net(stopping(patience=7))).initialize()
    assert made.get_params()["callbacks__boundary__patience"] == 7
    tried = {"callbacks__boundary__patience": [1, 9]}
    search = GridSearchCV(net(stopping(), epochs=4), tried, cv=2, scoring="accuracy").fit(INPUTS, LABELS)
    assert of(search.best_estimator_).settings.patience == search.best_params_["callbacks__boundary__patience"]
