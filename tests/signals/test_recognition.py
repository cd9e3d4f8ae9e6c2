"""A class that loses by what is kept is named, and none in ordinary data."""

import pytest
import torch

from bu_torch import BoundaryUncertaintyStopper, Signals
from bu_torch.signals.details import Recalls, RecallTracker

# A Bayes boundary of four to one, and one of equal classes.
HIGH, LOW = 2.0, 1.0


def samples(share, noise=0.0, n=400):
    """Two normal classes, two standard deviations apart."""
    g = torch.Generator().manual_seed(0)
    labels = (torch.arange(n) < share * n).long()
    features = torch.randn(n, 2, generator=g)
    features[:, 0] += 2 * labels
    is_wrong = torch.rand(n, generator=g) < noise
    return features, torch.where(is_wrong, 1 - labels, labels)


@pytest.fixture
def remark(caplog):
    """A function that checks networks with these thresholds, and gives the line on a class that loses."""
    caplog.set_level("INFO", logger="bu_torch")

    def remark(share, *thresholds, noise=0.0, state=None, seen=None, **settings):
        settings = {"n_neighbors": 20, "n_draws": 2, "averaging": None, "rule": "expected_accuracy", **settings}
        stopper = BoundaryUncertaintyStopper(*samples(share, noise), **settings)
        if state is not None:
            stopper.load_state_dict(state)
        for threshold in thresholds:

            def network(x, threshold=threshold):
                second = x[:, 0] - threshold
                if seen is not None:
                    seen.append(second)
                return torch.stack((torch.zeros_like(second), second), dim=1)

            stopper.check(network)
        caplog.clear()
        stopper.close()
        return stopper, "".join(line for line in caplog.messages if "recognises" in line)

    return remark


def test_a_class_that_loses_by_what_is_kept_is_named(remark):
    seen = []
    stopper, line = remark(0.2, HIGH, LOW, seen=seen)
    assert stopper.best_epoch == 0
    labelled = [f"{float((second.view(2, -1)[:, :80] > 0).double().mean()):.0%}" for second in seen]
    assert f"epoch 0 recognises {labelled[0]} of the perturbed samples of class 1" in line
    assert f"but epoch 1 recognises {labelled[1]}." in line


@pytest.mark.parametrize(
    ("share", "thresholds", "settings"),
    [
        (0.5, (LOW, 0.6, HIGH), {}),  # equal classes
        (0.2, (HIGH, 1.9), {}),  # hardly a difference
        (0.2, (HIGH, -3.0), {}),  # all of one class, at the cost of the other
        (0.2, (HIGH, LOW), {"class_weight": "balanced"}),
        (0.2, (HIGH, LOW), {"class_weight": [1.0, 1.0]}),
        (0.2, (LOW, HIGH), {"start_from_epoch": 1}),  # what does not count
    ],
)
@pytest.mark.parametrize("noise", [0.0, 0.2])
def test_otherwise_nothing_is_said(remark, share, thresholds, settings, noise):
    assert remark(share, *thresholds, noise=noise, **settings)[1] == ""


def test_a_resumed_run_knows_the_checks_before(remark):
    whole, state = remark(0.2, HIGH, LOW)[1], remark(0.2, HIGH)[0].state_dict()
    assert remark(0.2, LOW, state=state)[1] == whole != ""
    older = {**state, "checks": {name: one for name, one in state["checks"].items() if name != "recalls"}}
    assert remark(0.2, LOW, state=older)[1] == ""


def test_steps_tell_checks_of_one_epoch_apart():
    recall_tracker = RecallTracker(Recalls(0, 4, [0.9, 0.3], [0.9, 0.3]), Recalls(0, 8, [0.8, 0.6], [0.8, 0.6]))
    classes = torch.tensor([2, 5]), torch.tensor([900, 100])
    line = recall_tracker.line({"epoch": 0, "step": 4}, *classes)
    assert "the kept step 4 recognises 30% of the perturbed samples of class 5, but" in line
    assert recall_tracker.line({"epoch": 0, "step": 8}, *classes) == ""


@pytest.mark.parametrize("is_weighted", [False, True])
def test_recalls_are_those_of_a_slow_reference(is_weighted):
    g = torch.Generator().manual_seed(0)
    labels = torch.tensor([0, 4, 4, 1, 0, 1] * 20)
    features = torch.randn(120, 2, generator=g) + labels.unsqueeze(1)
    weights = torch.rand(120, generator=g) + 0.5 if is_weighted else None
    signals = Signals(n_neighbors=10, n_draws=2).fit(features, labels, weights)
    logits = torch.randn(240, 6, generator=g)
    found = signals.measure(logits).recalls
    predictions = logits.argmax(dim=1)
    counted = torch.ones(240) if weights is None else weights.repeat(2)
    expected = []
    for shares in (torch.nn.functional.one_hot(labels.repeat(2)), signals.probabilities):
        for label in (0, 1, 4):
            own = counted * shares[:, label]
            expected.append((own * (predictions == label)).sum() / own.sum())
    torch.testing.assert_close(found, torch.stack(expected).double(), atol=1e-6, rtol=1e-5)
