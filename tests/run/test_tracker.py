"""The heart, fed without any trainer."""

import pytest
import torch
from problems import blobs
from torch import nn

from bu_torch import Rule, Signals
from bu_torch.run import timing
from bu_torch.run.settings import Settings
from bu_torch.run.tracker import Tracker
from bu_torch.samples.samples import Samples

VALUES = dict.fromkeys(Signals.NAMES, 0.5)


def fed(tracker, *scores):
    """The tracker, with these of the next epochs."""
    for epoch, score in enumerate(scores, start=len(tracker.checks)):
        names = ("accuracy_uncertainty_trust", "expected_accuracy", "expected_auroc", "trust_score")
        tracker.add(epoch, VALUES | dict.fromkeys(names, score))
    return tracker


@pytest.mark.parametrize(
    ("again", "places"),
    [((3, 8), [(3, 4), (3, 8)]), ((3, 9), [(3, 4), (3, 8), (3, 9)]), ((4, 8), [(3, 4), (3, 8), (4, 8)])],
)
def test_a_check_of_the_same_epoch_and_step_takes_the_place_of_the_last(again, places):
    """Steps stand still where a module steps its optimiser itself: then epochs tell checks apart."""
    tracker = Tracker(Settings(patience=2))
    tracker.add(3, VALUES | {"expected_accuracy": 0.5}, 4)
    tracker.add(3, VALUES | {"expected_accuracy": 0.3}, 8)
    entry = tracker.add(again[0], VALUES | {"expected_accuracy": 0.4}, again[1])
    assert [(entry["epoch"], entry["step"]) for entry in tracker.checks] == places
    assert tracker.checks[-1] is entry
    assert tracker.history.verdict.wait == len(places) - 1


SAMPLES = Samples(*blobs(), torch.arange(120), 120)


def prepared():
    tracker = Tracker(Settings(n_neighbors=20, n_draws=2))
    tracker.start(lambda: SAMPLES)
    return tracker


def test_the_standard_error_is_of_the_gain_over_the_highest_expected_accuracy_before():
    tracker = prepared()
    probabilities = tracker.check_setup.signals.probabilities.double()
    read: list[torch.Tensor] = []
    for epoch, share in enumerate((0.0, 0.1, 0.9, 0.2, 0.3, 0.15)):
        noise = torch.randn(240, 3, generator=torch.Generator().manual_seed(epoch), dtype=torch.float64)
        read.append((1 - share) * noise + share * 5 * probabilities)
        accuracies = [entry["expected_accuracy"] for entry in tracker.checks]
        values = tracker.measure(read[-1])
        if epoch:
            best = read[accuracies.index(max(accuracies))]
            own, others = (probabilities[range(240), of.argmax(dim=1)].view(2, -1) for of in (read[-1], best))
            expected = float((own - others).mean(dim=0).std(correction=0)) / 120**0.5
            assert values["standard_error"] == pytest.approx(expected, rel=1e-6)
            assert values["standard_error"] > 0
        tracker.add(epoch, values)
        if epoch == 3:  # the highest is not the last
            assert accuracies.index(max(accuracies)) == 2
            state = tracker.state_dict()
            assert state["predictions"].dtype == torch.uint8
            assert state["best_contributions"].shape == (120,)
            tracker = Tracker(Settings(n_neighbors=20, n_draws=2))
            tracker.load_state_dict(state)
            assert tracker.start(lambda: SAMPLES)


def test_with_another_patience_all_before_counts_and_this_run_s_holds():
    first, said = fed(Tracker(Settings(patience=9)), 0.5, 0.1, 0.1), []
    second = Tracker(Settings(patience=4), said.append)
    second.load_state_dict(first.state_dict())
    assert [fed(second, 0.1).history.verdict.should_stop for _ in range(2)] == [False, True]
    assert said == []


class Weighted(Rule):
    name, signals = "weighted", ("trust_score",)

    def __init__(self, weight):
        self.weight = weight

    def settings(self):
        return {"weight": self.weight}

    def score(self, values):
        return self.weight * values["trust_score"]


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"averaging": 0.5}, "averaging=0.5 instead of averaging="),
        ({"max_samples": 50}, "max_samples=50 instead of max_samples=None"),
        ({"metric": "auroc"}, "metric='auroc' instead of rule="),
        ({"rule": "trust_score"}, "rule='trust_score' instead of rule='weighted'"),
        ({"rule": Weighted(3.0)}, "rule.weight=3.0 instead of rule.weight=2.0"),
        ({"seed": 1}, "seed=1 instead of seed=0"),
        ({"start_from_epoch": 1}, "start_from_epoch=1 instead of start_from_epoch=0"),
    ],
)
def test_with_other_settings_nothing_before_is_compared(changed, told):
    settings = {"patience": 2} | ({} if "metric" in changed else {"rule": Weighted(2.0)})
    first, said = fed(Tracker(Settings(**settings)), 0.9), []
    second = Tracker(Settings(**settings | changed), said.append)
    second.load_state_dict(first.state_dict())
    assert len(said) == 1
    assert said[0].startswith("The run resumes with ")
    assert told in said[0]
    assert fed(second, 0.1).history.kept is second.checks[-1]
    assert [check["epoch"] for check in second.checks] == [0, 1]


def test_a_preparation_that_a_state_holds_is_for_its_own_samples():
    """Features of the network as it was at the start cannot be read again."""
    module = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 3))

    def start(samples, state=None):
        tracker = Tracker(Settings(n_neighbors=20, n_draws=1, feature_extractor="module"))
        if state is not None:
            tracker.load_state_dict(state)
        return tracker, tracker.start(lambda: samples, module=module)

    first, _ = start(SAMPLES)
    first.add(0, VALUES)
    module[0].weight.data.normal_(generator=torch.Generator().manual_seed(0))
    flipped = SAMPLES._replace(inputs=SAMPLES.inputs.flip(1))
    for samples, is_expected in ((SAMPLES, True), (flipped, False)):
        again, is_continued = start(samples, first.state_dict())
        assert is_continued == is_expected
        same = first if is_expected else start(samples)[0]
        found, expected = (one.check_setup.signals for one in (again, same))
        assert torch.equal(found.boundary.neighbors, expected.boundary.neighbors)
        assert torch.equal(found.boundary.probabilities, expected.boundary.probabilities)


@pytest.mark.filterwarnings("ignore:The nearest neighbours predict")
@pytest.mark.parametrize(("n_classes", "is_warned"), [(40, False), (41, True)])
def test_nearly_as_many_labels_as_samples_are_warned_of(n_classes, is_warned):
    said = []
    samples = Samples(blobs()[0], torch.arange(120) % n_classes, torch.arange(120), 120)
    Tracker(Settings(n_neighbors=20, n_draws=1), said.append).start(lambda: samples)
    assert any("the task is a regression" in one for one in said) == is_warned


@pytest.mark.parametrize(
    ("accuracies", "is_warned"),
    [((0.1, 0.1, 0.1), True), ((0.2, 0.3, 0.1), False), ((0.1, 0.15, 0.2), False), ((0.1, 0.15, 0.2, 0.1, 0.1), True)],
)
def test_worse_than_chance_is_warned_of_where_it_does_not_get_better(accuracies, is_warned):
    tracker, said = prepared(), []
    tracker.warn = said.append
    fed(tracker, *accuracies)
    assert [f"Expected accuracy is {accuracies[-1]:.2f}" in one for one in said] == [True] * is_warned


@pytest.mark.parametrize(
    ("n_columns", "accuracy", "is_warned"), [(16, 0.06, True), (16, 0.3, False), (4, 0.2, True), (3, 0.06, False)]
)
def test_more_columns_than_classes_that_predict_worse_than_chance_are_warned_of_at_once(n_columns, accuracy, is_warned):
    tracker, said = prepared(), []
    tracker.warn = said.append
    logits = torch.randn(240, n_columns, generator=torch.Generator().manual_seed(0))
    tracker.add(0, tracker.measure(logits) | {"expected_accuracy": accuracy})
    tracker.add(1, VALUES | {"expected_accuracy": 0.9})
    start = f"The network gives {n_columns} columns, and the labels have 3 classes. Expected accuracy is {accuracy:.2f}"
    assert [one.startswith(start) for one in said] == [True] * is_warned


def test_saving_is_a_part_of_the_cost(monkeypatch):
    seconds = iter([100.0, 110.0, 113.0, 130.0])
    tracker = Tracker(Settings())
    monkeypatch.setattr(timing.time, "perf_counter", lambda: next(seconds))
    tracker.timer.begin(90.0)
    with tracker.timer.counting("saving_seconds"):
        pass
    assert tracker.timer.saving_seconds == 3.0
    assert tracker.timer.describe_cost() == "bu-torch took at least 13.0 s on top of 27.0 s of training."
