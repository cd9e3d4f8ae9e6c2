"""A loop of one's own stops as a trainer does."""

import math
import statistics

import pytest
import torch
from problems import Given, blobs
from torch import nn

from bu_torch import BoundaryUncertaintyStopper, Rule, Signals
from bu_torch.report import read_record
from bu_torch.rule.rules import RULE_NAMES


def stopper_of(features, labels, **settings):
    return BoundaryUncertaintyStopper(features, labels, **{"n_neighbors": 20, **settings})


def learners(features, labels, shares):
    """Networks that know that share of what tells the classes apart, and are noise otherwise."""
    means = torch.stack([features[labels == label].mean(dim=0) for label in labels.unique()])
    for seed, share in enumerate(shares):
        layer, noise = nn.Linear(4, len(means)), torch.randn(means.shape, generator=torch.Generator().manual_seed(seed))
        with torch.no_grad():
            layer.weight.copy_(share * means + (1 - share) * noise)
            layer.bias.copy_(-share * means.square().sum(dim=1) / 2)
        yield layer


def separated(n):
    features, labels = blobs(n)
    return features + 2 * nn.functional.one_hot(labels, 4), labels


def test_checks_within_an_epoch_are_known_by_their_steps(tmp_path):
    stopper = stopper_of(*blobs(), n_draws=2, patience=9, folder=tmp_path)
    *models, last = learners(*blobs(), (0.0, 0.3, 1.0, 0.5))
    for model, epoch, step in zip(models, (0, 0, 1), (5, 10, 15), strict=True):
        stopper.check(model, epoch, step=step)
    stopper.check(last, step=20)
    assert [(entry["epoch"], entry["step"]) for entry in stopper.history] == [(0, 5), (0, 10), (1, 15), (1, 20)]
    best = max(stopper.history, key=lambda entry: entry["accuracy_uncertainty_trust"])
    assert (stopper.best_epoch, stopper.best_step) == (best["epoch"], best["step"])
    for arguments, message in [
        ({"step": 8.7}, "`step`"),
        ({"epoch": 8.7}, "`epoch`"),
        ({"step": 20}, "`step` .*20, got 20"),
        ({"step": 30, "epoch": 0}, "`epoch` .*1, got 0"),
        ({"epoch": 1}, "`epoch` .*1, got 1"),
    ]:
        with pytest.raises((TypeError, ValueError), match=message):
            stopper.check(last, **arguments)
    stopper.restore(last)
    record = read_record(tmp_path)
    assert record.places == [5, 10, 15, 20]
    assert (record.axis, record.kept) == ("step", stopper.best_step)


def test_any_callable_is_checked_and_outputs_with_logits_are_understood():
    weights, stopper = torch.randn(4, 3), stopper_of(*blobs())
    stopper.check(lambda x: (x @ weights).numpy())
    stopper.check(lambda x: {"logits": x @ weights}, epoch=4)
    stopper.check(lambda x: x @ weights)
    assert [entry["epoch"] for entry in stopper.history] == [0, 4, 5]
    assert len({entry[stopper.score_name] for entry in stopper.history}) == 1
    with pytest.raises(RuntimeError, match="no weights to restore"):
        stopper.restore(nn.Linear(4, 3))
    with pytest.raises(ValueError, match=r"`model` must.*`perturbation="):
        stopper_of(*blobs()).check("model")


def test_a_reason_holds_until_a_better_epoch():
    stopper, (first, better) = stopper_of(*blobs(), patience=1), learners(*blobs(), (0.0, 1.0))
    assert [stopper.check(first) for _ in range(2)] == [False, True]  # the same weights are no better
    assert stopper.stopping_reason
    assert not stopper.check(better)
    assert stopper.stopping_reason == ""
    assert stopper.stopped_epoch is None
    stopper.close()
    with pytest.warns(UserWarning, match="another stopper"):
        stopper.check(better)


class Accurate(Rule):
    """Expected accuracy under another name: its standard error is not known."""

    name, signals = "accurate", ("expected_accuracy",)

    def score(self, values):
        return values["expected_accuracy"]


JUDGED = ("word", "skill", "gain", "n_equals", "n_checks", "n_samples", "doubts", "expected_accuracy")


@pytest.mark.parametrize(
    ("rule", "is_judged"),
    [*((name, "accuracy" in name) for name in RULE_NAMES if name != "parzen_uncertainty"), (Accurate(), False)],
)
def test_a_choice_is_judged_if_expected_accuracy_has_made_it(rule, is_judged):
    stopper = stopper_of(*blobs(), rule=rule)
    for model in learners(*blobs(), (0.0, 0.5, 1.0)):
        stopper.check(model)
    stopper.close()
    assert {stopper.summary[name] is not None for name in JUDGED} == {is_judged}
    assert stopper.summary["score"] == stopper.best_score


def hopeless(n):
    return blobs(n)[0], torch.randint(3, (n,), generator=torch.Generator().manual_seed(0))


RISING, FLAT = (0.0, 0.2, 1.0, 0.98, 0.5), (0.0, *[1.0] * 21)


@pytest.mark.filterwarnings("ignore:::bu_torch")
@pytest.mark.parametrize(
    ("samples", "n", "shares", "word"),
    [
        (separated, 600, RISING, "clear"),
        (separated, 600, FLAT, "clear"),
        (separated, 300, RISING, "unsure"),
        (separated, 300, FLAT, "plateau"),
        (separated, 600, (1.0,), "unsure"),
        (hopeless, 600, RISING, "blind"),
    ],
)
def test_the_word_of_confidence_and_its_numbers(samples, n, shares, word):
    data = samples(n)
    stopper = stopper_of(
        *data, averaging=None, n_draws=1, rule="expected_accuracy", patience=99, feature_extractor="inputs"
    )
    for model in learners(*data, shares):
        stopper.check(model)
    stopper.close()
    summary, accuracies = stopper.summary, [entry["expected_accuracy"] for entry in stopper.history]
    errors = [entry["standard_error"] for entry in stopper.history if entry["standard_error"] > 0]
    error, best = statistics.median(errors) if errors else 0, max(accuracies)
    gain = (best - accuracies[0]) / error if error else 0
    n_equals = sum(one >= best - error for one in accuracies)
    assert (summary["word"], summary["n_equals"], summary["n_samples"]) == (word, n_equals, n)
    assert (summary["n_checks"], summary["first_accuracy"]) == (len(shares), accuracies[0])
    assert (summary["expected_accuracy"], summary["gain"]) == pytest.approx((best, gain))
    assert len(summary["doubts"]) == (n < 500) + (best < 0.7) + (gain <= 1)
    signals = Signals(20, 1, feature_extractor="inputs").fit(*data)
    assert summary["skill"] == pytest.approx(signals.skill)
    shares_of_classes = signals.probabilities.mean(dim=0)
    assert summary["one_class_accuracy"] == pytest.approx(float(shares_of_classes.max()), abs=1e-6)


def test_the_standard_error_is_of_the_gain_over_the_highest_expected_accuracy_before():
    data, shares = separated(120), (0.0, 0.3, 0.9, 0.2, 0.3, 0.15)
    signals = Signals(20, 2).fit(*data)
    stopper, before = stopper_of(*data, n_draws=2, averaging=None), []
    for model in learners(*data, shares):
        with torch.no_grad():
            chosen = model(signals.perturbed_inputs).argmax(dim=1)
        stopper.check(model)
        before.append(signals.probabilities.double()[range(240), chosen].view(2, -1))
        accuracies = [entry["expected_accuracy"] for entry in stopper.history]
        assert accuracies[-1] == pytest.approx(float(before[-1].mean()))
        if len(before) > 1:
            best = before[accuracies.index(max(accuracies[:-1]))]
            expected = float((before[-1] - best).mean(dim=0).std(correction=0)) / 120**0.5
            assert stopper.history[-1]["standard_error"] == pytest.approx(expected, rel=1e-6)
        if len(before) == 4:  # the highest is not the last
            resumed = stopper_of(*data, n_draws=2, averaging=None)
            resumed.load_state_dict(stopper.state_dict())
            stopper = resumed


class Weighted(Given):
    def __init__(self, weight=2.0):
        super().__init__((0.9, 0.1))
        self.weight = weight

    def settings(self):
        return {"weight": self.weight}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({}, ""),
        ({"patience": 1}, ""),
        ({"max_samples": 50}, "max_samples=50"),
        ({"metric": "auroc"}, "metric='auroc'"),
        ({"rule": "trust_score"}, "rule='trust_score'"),
        ({"rule": Weighted(3.0)}, "rule.weight=3.0"),
        ({"seed": 1}, "seed=1"),
        ({"start_from_epoch": 1}, "start_from_epoch=1"),
        ({"averaging": 0.5}, "averaging=0.5"),
    ],
)
def test_with_other_settings_nothing_before_is_compared(recwarn, changed, said):
    model, settings = nn.Linear(4, 3), {"rule": Weighted(), "patience": 9, "averaging": None}
    first, second = (stopper_of(*blobs(), **{**settings, **more}) for more in ({}, changed))
    first.check(model)
    second.load_state_dict(first.state_dict())
    assert ["resumes with" in str(one.message) and said in str(one.message) for one in recwarn] == [True] * bool(said)
    assert second.check(model) == ("patience" in changed)
    assert second.best_epoch == (1 if said else 0)
    assert [check["epoch"] for check in second.history] == [0, 1]


def fixed(n_columns, n_right):
    """A network that is right about so many of 120 samples, twice each."""

    def network(inputs):
        chosen = (blobs()[1] + (torch.arange(120) >= n_right)) % 3
        return (9.0 + 0 * n_right) * nn.functional.one_hot(chosen, n_columns).repeat(2, 1)[: len(inputs)]

    return network


@pytest.mark.parametrize(
    ("n_columns", "n_right", "said"),
    [
        (3, (0, 0, 0), ""),
        (3, (60, 90, 0, 0, 0), ""),
        (3, (0, 10, 20, 0, 0, 0), "at check 5"),
        (16, (0,), "16 columns"),
        (16, (60,), ""),
        (4, (0, 60), "4 columns"),
        (4, (math.nan,), ""),
    ],
)
def test_worse_than_chance_is_warned_of_once(recwarn, n_columns, n_right, said):
    stopper = stopper_of(*separated(120), n_draws=2)
    for number in n_right:
        stopper.check(fixed(n_columns, number))
    assert ["worse than chance" in str(w.message) and said in str(w.message) for w in recwarn] == [True] * bool(said)


@pytest.mark.parametrize(("n_classes", "is_warned"), [(40, False), (41, True)])
def test_nearly_as_many_labels_as_samples_are_warned_of(recwarn, n_classes, is_warned):
    stopper_of(blobs()[0], torch.arange(120) % n_classes).check(nn.Linear(4, n_classes))
    assert any("task is a regression" in str(one.message) for one in recwarn) == is_warned


def test_features_of_the_model_may_be_the_space_of_images_only_if_it_is_prepared_before_training():
    features, labels = blobs()
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    prepared, checked, resumed = (stopper_of(features.view(-1, 1, 2, 2), labels) for _ in range(3))
    prepared.prepare(model)
    checked.check(model)
    resumed.load_state_dict(checked.state_dict())
    resumed.prepare(model)  # which has learnt
    compared = [stopper.engine.fitted.signals.boundary.skills_.keys() for stopper in (prepared, checked, resumed)]
    assert compared == [{"inputs", "patches", "module"}, *[{"inputs", "patches"}] * 2]
