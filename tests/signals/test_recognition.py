"""A class that loses by what is kept is named, and none in ordinary data."""

import pytest
import torch

from bu_torch import Signals
from bu_torch.run.settings import Settings
from bu_torch.run.tracker import Tracker
from bu_torch.samples.samples import whole_samples
from bu_torch.signals.details import Recalls, RecallTracker

SETTINGS = {"n_neighbors": 20, "n_draws": 2, "averaging": None, "cache": None, "rule": "expected_accuracy"}
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


def tracked(share, *thresholds, noise=0.0, tracker=None, first=0, **settings):
    tracker = tracker or Tracker(Settings(**SETTINGS, **settings))
    tracker.start(lambda: whole_samples(*samples(share, noise)))
    for epoch, threshold in enumerate(thresholds, start=first):
        second = tracker.check_setup.signals.perturbed_inputs[:, 0] - threshold
        tracker.add(epoch, tracker.measure(torch.stack((torch.zeros_like(second), second), dim=1)))
    return tracker


def unrecognised(tracker):
    return tracker.last_check.unrecognised(tracker.history.kept, tracker.check_setup.signals)


def test_a_class_that_loses_by_what_is_kept_is_named():
    tracker = tracked(0.2, HIGH, LOW)
    assert tracker.history.kept["epoch"] == 0
    line = unrecognised(tracker)
    labelled = []
    for threshold in (HIGH, LOW):
        features = tracker.check_setup.signals.perturbed_inputs.view(2, -1, 2)[:, :80, 0]
        labelled.append(f"{float((features > threshold).double().mean()):.0%}")
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
def test_otherwise_nothing_is_said(share, thresholds, settings, noise):
    tracker = tracked(share, *thresholds, noise=noise, **settings)
    assert unrecognised(tracker) == ""


def test_a_resumed_run_knows_the_checks_before(tmp_path):
    first = tracked(0.2, HIGH)
    torch.save(first.state_dict(), tmp_path / "state.pt")
    state = torch.load(tmp_path / "state.pt", weights_only=True)
    second = Tracker(Settings(**SETTINGS))
    second.load_state_dict(state)
    tracked(0.2, LOW, tracker=second, first=1)
    whole = tracked(0.2, HIGH, LOW)
    assert unrecognised(second) == unrecognised(whole) != ""
    del state["recalls"]  # as of an older version
    older = Tracker(Settings(**SETTINGS))
    older.load_state_dict(state)
    tracked(0.2, LOW, tracker=older, first=1)
    assert unrecognised(older) == ""


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
