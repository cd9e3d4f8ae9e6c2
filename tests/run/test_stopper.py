"""A loop of one's own stops as a trainer does."""

import copy
import pickle

import pytest
import torch
from problems import blobs, data_parallel
from torch import nn

from bu_torch import BoundaryUncertaintyStopper, Rule
from bu_torch.report import read_record
from bu_torch.rule.rules import RULE_NAMES
from bu_torch.run.history import summary_of


def stopper_of(features, labels, **settings):
    return BoundaryUncertaintyStopper(features, labels, **{"n_neighbors": 20, **settings})


class Steps:
    """The same training for a loop and a trainer: full batches, so that the order of samples plays no part."""

    def __init__(self, seed=0):
        torch.manual_seed(seed)
        self.samples = self.features, self.labels = blobs(n=200)
        self.model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 3))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.5)

    def epoch(self):
        self.optimizer.zero_grad()
        nn.functional.cross_entropy(self.model(self.features), self.labels).backward()
        self.optimizer.step()


def test_checks_within_an_epoch_are_known_by_their_steps(tmp_path):
    steps = Steps()
    stopper = stopper_of(*steps.samples, n_draws=2, patience=9, folder=tmp_path)
    for epoch, step in [(0, 5), (0, 10), (1, 15)]:
        steps.epoch()
        stopper.check(steps.model, epoch, step=step)
    steps.epoch()
    stopper.check(steps.model, step=20)
    assert [(entry["epoch"], entry["step"]) for entry in stopper.history] == [(0, 5), (0, 10), (1, 15), (1, 20)]
    best = max(stopper.history, key=lambda entry: entry["accuracy_uncertainty_trust"])
    assert (stopper.best_epoch, stopper.best_step) == (best["epoch"], best["step"])
    for arguments, message in [
        ({"step": 8.7}, "`step` must be an integer"),
        ({"epoch": 8.7}, "`epoch` must be an integer"),
        ({"step": 20}, "`step` must be larger than at the last check, 20, got 20"),
        ({"step": 30, "epoch": 0}, "`epoch` must be at least that of the last check, 1, got 0"),
        ({"epoch": 1}, "`epoch` must be larger than that of the last check, 1, got 1"),
    ]:
        with pytest.raises((TypeError, ValueError), match=message):
            stopper.check(steps.model, **arguments)
    stopper.restore(steps.model)
    record = read_record(tmp_path)
    assert record.places == [5, 10, 15, 20]
    assert (record.axis, record.kept) == ("step", stopper.best_step)


def test_any_callable_is_checked_and_outputs_with_logits_are_understood():
    weights = torch.randn(4, 3)
    plain, mapped = (stopper_of(*blobs(n=200)) for _ in range(2))
    plain.check(lambda x: (x @ weights).numpy())
    mapped.check(lambda x: {"logits": x @ weights})
    assert plain.history == mapped.history
    with pytest.raises(RuntimeError, match="no weights to restore"):
        plain.restore(nn.Linear(4, 3))
    with pytest.raises(TypeError, match="`model`"):
        plain.check("model")
    plain.check(lambda x: x @ weights, epoch=4)
    plain.check(lambda x: x @ weights)
    assert [entry["epoch"] for entry in plain.history] == [0, 4, 5]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"folder": 3}, TypeError, "`folder`"),
        (
            {"process_group": "gloo"},
            TypeError,
            "`process_group` must be a group of `torch.distributed` or None, got str",
        ),
        ({"inputs": 1.5}, ValueError, "`inputs`"),
        ({"sample_weight": torch.ones(7)}, ValueError, r"`sample_weight` must have one weight a sample, \(120,\)"),
    ],
)
def test_bad_arguments_are_refused_by_name(arguments, error, message):
    features, labels = blobs()
    with pytest.raises(error, match=message):
        BoundaryUncertaintyStopper(**{"inputs": features, "labels": labels, **arguments})


def test_a_resumed_loop_compares_nothing_of_other_samples():
    model, first, others = nn.Linear(4, 3), stopper_of(*blobs()), stopper_of(*blobs(seed=1))
    first.check(model)
    others.load_state_dict(first.state_dict())
    with pytest.warns(UserWarning, match="differ from those of the loaded state"):
        others.check(model)
    assert others.best_epoch == 1
    assert others.history[-1]["prediction_changes"] == 1


def test_a_reason_holds_until_a_better_epoch():
    steps = Steps()
    stopper = stopper_of(*steps.samples, patience=1)
    assert [stopper.check(steps.model) for _ in range(2)] == [False, True]  # the same weights are no better
    assert stopper.stopping_reason
    for _ in range(5):
        steps.epoch()
    assert not stopper.check(steps.model)
    assert stopper.stopping_reason == ""
    assert stopper.stopped_epoch is None
    stopper.close()
    with pytest.warns(UserWarning, match="has ended a training, and continues it"):
        stopper.check(steps.model)


class Accurate(Rule):
    """Expected accuracy under another name: its standard error is not known."""

    name, signals = "accurate", ("expected_accuracy",)

    def score(self, values):
        return values["expected_accuracy"]


@pytest.mark.parametrize(
    ("rule", "is_judged"),
    [*((name, "accuracy" in name) for name in RULE_NAMES if name != "parzen_uncertainty"), (Accurate(), False)],
)
def test_a_choice_is_judged_if_expected_accuracy_has_made_it(caplog, rule, is_judged):
    caplog.set_level("INFO", logger="bu_torch")
    steps = Steps()
    stopper = stopper_of(*steps.samples, rule=rule)
    for _ in range(3):
        steps.epoch()
        stopper.check(steps.model)
    stopper.close()
    assert {stopper.summary[name] is not None for name in summary_of(None, None)} == {is_judged}
    assert ("The choice is" in caplog.text) == is_judged
    assert stopper.summary["score"] == stopper.best_score


def test_a_stopper_is_pickled_and_copied_with_what_it_keeps():
    stopper = stopper_of(*blobs())
    stopper.check(nn.Linear(4, 3))
    unpickled = pickle.loads(pickle.dumps(stopper))  # noqa: S301  (our own)
    for twin in (unpickled, copy.deepcopy(stopper)):
        assert twin.best_epoch == 0
        twin.restore(nn.Linear(4, 3))
        assert not twin.check(nn.Linear(4, 3))
    assert len(stopper.history) == 1


@pytest.mark.parametrize("wrap", [data_parallel, lambda model: torch.compile(model, backend="eager")])
def test_weights_are_restored_into_a_wrapper_and_out_of_one(wrap):
    plain, wrapped = nn.Linear(4, 3), wrap(nn.Linear(4, 3))
    for checked, restored in ((plain, wrapped), (wrapped, plain)):
        stopper = stopper_of(*blobs())
        stopper.check(checked)
        torch.nn.init.zeros_(next(restored.parameters()))
        stopper.restore(restored)
        assert torch.equal(next(checked.parameters()), next(restored.parameters()))
