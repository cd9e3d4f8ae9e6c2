"""A check by the metric that the user means: by name, costs, or a metric of torchmetrics."""

import math
import re

import pytest
import torch
from problems import blobs, weights_at_random
from torch import nn
from torchmetrics import classification, regression

from bu_torch import BoundaryUncertaintyStopper, Rule, Signals
from bu_torch.functional import metrics
from bu_torch.functional.probabilities import scale_to_shares
from bu_torch.run.settings import Settings
from bu_torch.signals.metrics import METRICS, as_metric

X, Y = blobs()
TWO = Y.clamp(max=1)


def measured(metric, labels=TWO, n_outputs=2, weights=None, **options):
    signals = Signals(n_neighbors=20, n_draws=2, metric=metric, **options).fit(X, labels, weights)
    torch.manual_seed(0)
    with torch.no_grad():
        return signals, nn.Linear(4, n_outputs)(signals.perturbed_inputs)


WEIGHTED = {"weights": weights_at_random(), "class_weight": [1.0, 9.0]}


@pytest.mark.parametrize("name", list(METRICS))
@pytest.mark.parametrize(
    ("labels", "options"),
    [(TWO, {}), (Y, {}), (torch.tensor([0, 4, 9])[Y], {}), (TWO, WEIGHTED)],
    ids=["two", "three", "some absent", "weighted"],
)
def test_a_metric_by_name_counts_each_sample_once_beside_the_other_signals(name, labels, options):
    signals, logits = measured(name, labels, int(labels.max()) + 1, **options)
    values = signals.measure(logits).values
    probabilities = signals.probabilities.double()
    if METRICS[name].compares_probabilities:
        probabilities = probabilities**signals.boundary.sharpness
        probabilities /= probabilities.sum(dim=1, keepdim=True)
    if options:
        probabilities = scale_to_shares(probabilities, labels.bincount().double() / len(labels))
    expected = getattr(metrics, f"expected_{name}")(logits, probabilities)
    assert float(values[f"expected_{name}"]) == pytest.approx(float(expected), abs=1e-6 if options else 1e-9)
    plain, _ = measured("accuracy", labels, **options)
    others = plain.measure(logits).values
    assert others == {one: values[one] for one in others}
    assert tuple(values) == signals.names


def test_what_a_metric_is_without_inputs():
    probabilities, share = torch.tensor([[0.9, 0.1], [0.5, 0.5], [1.0, 0.0]]), 0.2
    expected = {"auroc": 0.5, "balanced_accuracy": 0.5, "f1": 2 * share / (1 + share)}
    expected["brier_score"] = 2 * share * (1 - share)
    for name, value in expected.items():
        assert as_metric(name).baseline(probabilities) == pytest.approx(value, abs=1e-6)
    assert as_metric([[0, 10], [100, 10]]).baseline(probabilities) == pytest.approx(10)


@pytest.mark.parametrize("metric", ["auroc", "log_loss", [[0, 1], [3, 0]]])
def test_the_standard_error_is_that_of_the_gain_in_the_metric(metric):
    signals, first = measured(metric)
    second = first + torch.randn(first.shape, generator=torch.Generator().manual_seed(3))
    before = signals.measure(first)
    assert float(before.standard_error) == 0
    assert float(signals.measure(first, best=before.contributions).standard_error) == pytest.approx(0, abs=1e-12)
    after = signals.measure(second, best=before.contributions)
    differences = after.contributions - before.contributions
    expected = float(differences.std(correction=0)) / len(TWO) ** 0.5
    assert float(after.standard_error) == pytest.approx(expected, rel=1e-9)
    assert expected > 0


def test_a_metric_that_its_owner_goes_on_to_use_is_copied_before():
    metric = classification.BinaryAUROC()
    settings = Settings(metric=metric)
    logits = torch.randn(8, requires_grad=True)
    metric.update(logits.sigmoid(), torch.tensor([0, 1] * 4))  # with gradients, which no copy can be made of
    signals = settings.make_signals(n_draws=1).fit(X, TWO)
    assert math.isfinite(float(signals.measure(torch.randn(len(X), 2)).values["expected_binary_auroc"]))
    with pytest.raises(ValueError, match=r"`metric` \(BinaryAUROC\) "):
        Settings(metric=metric)


OF_TORCHMETRICS = [classification.BinaryMatthewsCorrCoef(), classification.BinaryAUROC()]
OF_TORCHMETRICS += [classification.MulticlassCohenKappa(2), classification.MulticlassCalibrationError(2)]


@pytest.mark.parametrize("metric", OF_TORCHMETRICS)
def test_a_metric_of_torchmetrics_takes_labels_drawn_from_the_probabilities(metric):
    signals, logits = measured(metric)
    name = signals.metric.signal
    value = signals.measure(logits).values[name]
    assert signals.measure(logits).values[name] == value  # the same labels at each check
    assert math.isfinite(float(value))
    assert not metric.update_called
    if isinstance(metric, classification.BinaryAUROC):
        expected = metrics.expected_auroc(logits, signals.probabilities)
        assert float(value) == pytest.approx(float(expected), abs=0.03)
    assert signals.metric.is_larger_better == metric.higher_is_better


class Failing(classification.BinaryAccuracy):
    """Fails from some update on."""

    n_updates = 0

    def update(self, *arguments):
        Failing.n_updates += 1
        if Failing.n_updates > 10:
            raise RuntimeError("out of luck")
        super().update(*arguments)


def test_a_metric_that_fails_in_the_midst_gives_nan_and_says_so():
    Failing.n_updates = 0
    signals, logits = measured(Failing())
    assert math.isfinite(float(signals.measure(logits).values["expected_failing"]))
    with pytest.warns(UserWarning, match="failing.*RuntimeError: out of luck"):
        values = signals.measure(logits).values
    assert values["expected_failing"].isnan()
    assert values["expected_accuracy"].isfinite()


def test_what_does_not_fit_the_labels_is_refused_before_training_and_the_network_at_the_first_check():
    several = classification.MulticlassAccuracy(2, average=None)
    for metric, labels in ((several, TWO), (regression.MeanSquaredError(), TWO), (classification.BinaryAUROC(), Y)):
        with pytest.raises(ValueError, match="`metric` "):
            measured(metric, labels)
    for metric, n_outputs in (
        ([[0, 1, 2], [1, 0, 2], [2, 2, 0]], 2),
        ([[0, 1], [1, 0]], 5),
        (classification.MulticlassAccuracy(5), 2),
        (classification.MulticlassF1Score(2), 5),
    ):
        signals, logits = measured(metric, n_outputs=n_outputs)
        with pytest.raises(ValueError, match=r"`metric` must .*class"):
            signals.measure(logits)


@pytest.mark.parametrize("metric", [(1 - torch.eye(5)).tolist(), classification.MulticlassAccuracy(5, average="micro")])
def test_a_network_may_have_outputs_that_no_label_has(metric):
    signals, logits = measured(metric, n_outputs=5)
    values = signals.measure(logits).values
    is_cost = isinstance(metric, list)
    expected = values["expected_accuracy"]
    found = 1 - values["expected_cost"] if is_cost else values["expected_multiclass_accuracy"]
    assert float(found) == pytest.approx(float(expected), abs=1e-6 if is_cost else 0.05)


class LogLoss(classification.BinaryCalibrationError):
    """A metric of the user's with a name that is ours."""


def test_a_metric_of_the_users_is_the_users_and_its_settings_stay_when_it_is_used():
    metric = LogLoss()
    before = as_metric(metric)
    assert before.signal == "expected_own_log_loss"
    metric.update(torch.tensor([0.2, 0.7]), torch.tensor([0, 1]))
    assert as_metric(metric.eval()).settings == before.settings


DECIDING = {"expected_auroc": "auroc", "expected_balanced_accuracy": "balanced_accuracy", "neg_log_loss": "log_loss"}


@pytest.mark.parametrize(("score", "metric"), [*DECIDING.items(), ("neg_cost", [[0, 1], [3, 0]])])
def test_it_decides_in_place_of_the_default_rule(score, metric, log):
    stopper = BoundaryUncertaintyStopper(X, TWO, n_neighbors=20, n_draws=2, metric=metric, patience=50)
    model = nn.Linear(4, 2)
    for _ in range(12):
        model.reset_parameters()
        stopper.check(model)
    signal = score.replace("neg_", "expected_")
    values = [check[signal] * (1 if signal == score else -1) for check in stopper.history]
    best = values.index(max(values))
    assert (stopper.score_name, stopper.best_score, stopper.best_epoch) == (score, max(values), best)
    stopper.restore(model)
    threshold = stopper.history[best].get("threshold")
    assert (threshold is None) == (metric in ("auroc", "log_loss"))
    assert stopper.summary.get("threshold") == threshold
    assert ("Predict class 1" in log.text) == (threshold not in (None, 0.5))


@pytest.mark.parametrize("metric", ["balanced_accuracy", "f1"])
def test_a_network_of_more_outputs_than_two_classes_has_no_threshold(metric):
    signals, logits = measured(metric)
    assert signals.measure(nn.functional.pad(logits, (0, 1), value=-100.0)).values["threshold"].isnan()
    stopper = BoundaryUncertaintyStopper(X, TWO, n_neighbors=20, n_draws=2, metric=metric)
    stopper.check(nn.Linear(4, 3))
    stopper.close()
    assert stopper.summary["threshold"] is None


def linear(*weights):
    """A network without bias; a row of weights for each output."""
    net = nn.Linear(len(weights[0]), len(weights), bias=False)
    net.weight.data = torch.tensor(weights, dtype=torch.float32)
    return net


def summary(x, y, metric, *weights):
    """Of a run whose only check is of a linear network."""
    stopper, net = BoundaryUncertaintyStopper(x, y, n_neighbors=20, n_draws=1, metric=metric), linear(*weights)
    stopper.check(net)
    stopper.restore(net)
    return stopper.summary


@pytest.mark.parametrize(("metric", "is_doubted"), [("log_loss", True), ("auroc", False)])
def test_a_metric_that_tells_networks_apart_badly_is_doubted(metric, is_doubted, caplog):
    caplog.set_level("INFO", logger="bu_torch")
    x, y = blobs(n=600, n_classes=4)
    doubts = summary(x, y, metric, *[x[y == k].mean(dim=0).tolist() for k in range(4)])["doubts"]
    assert any(doubt.startswith("with 4 classes") for doubt in doubts) == ("4 classes" in caplog.text) == is_doubted
    rare = (torch.arange(len(X)) % 12 == 0).long()
    doubts = summary(X, rare, metric, (0.0,) * 4, (1.0,) * 4)["doubts"]
    assert any(doubt.startswith("class 1 has 1") for doubt in doubts) != is_doubted


@pytest.mark.parametrize(("weights", "is_blind"), [(((0.0, 0.0), (9.0, 0.0)), True), (((3.0, 0.0), (0.0, 3.0)), False)])
def test_a_metric_says_when_no_check_beats_a_prediction_without_inputs(weights, is_blind):
    y = (torch.arange(600) % 10 == 0).long()
    x = torch.randn(600, 1, generator=torch.Generator().manual_seed(0)) / 4 + 2 * y.unsqueeze(1)
    x = torch.cat((torch.ones_like(x), x), dim=1)  # a constant, so the first network makes an offer to all
    found = summary(x, y, [[0, 10], [100, 10]], *weights)
    assert (found["word"] == "blind") == is_blind
    assert found["one_class_cost"] == pytest.approx(10, abs=0.5)


def test_prices_of_two_classes_imply_a_threshold():
    metric = as_metric([[0, 10], [100, 30]])
    assert {"0", "10", "100", "30"} <= set(re.findall(r"\d+", metric.prices))
    likely = torch.linspace(0, 1, 1001, dtype=torch.float64)
    costs = (1 - likely) * 10 + likely * 30, likely * 100  # of an alarm, and of none
    assert metric.threshold == pytest.approx(float(likely[(costs[0] < costs[1]).nonzero()[0]]), abs=2e-3)
    assert [as_metric(costs).threshold for costs in ([[0, -10], [100, 0]], [[0, 10], [0, 100]])] == [0, 1]
    assert [as_metric(costs).prices.endswith("?") for costs in ([[0, 1], [1, 0]], [[1, 0], [0, 1]])] == [False, True]
    assert as_metric("f1").prices == ""


def test_costs_of_two_classes_are_those_at_the_threshold_that_is_to_be_used():
    costs = [[0, 10], [100, 10]]
    signals, _ = measured(costs)
    likely = signals.probabilities.clamp(1e-6, 1 - 1e-6).log()
    for logits, is_implied in ((likely, True), (likely + torch.tensor([0.0, 9.0]), False)):
        values = signals.measure(logits).values
        assert (values["threshold"] == pytest.approx(0.1)) == is_implied
        offers = logits.softmax(dim=1)[:, 1] >= values["threshold"]
        at_it = torch.stack((offers.logical_not(), offers), dim=1).double()
        expected = metrics.expected_cost(at_it, signals.probabilities, torch.tensor(costs))
        assert values["expected_cost"].item() == pytest.approx(expected.item(), rel=1e-6)


class Cheapest(Rule):
    name = "cheapest"
    signals = ("expected_cost", "threshold", "expected_auroc")

    def score(self, values):
        return values["expected_auroc"] - values["expected_cost"] - (values["threshold"] > 0.5)


def test_a_rule_of_ones_own_reads_what_the_metric_measures_and_other_expected_metrics():
    stopper = BoundaryUncertaintyStopper(X, TWO, n_neighbors=20, rule=Cheapest(), metric=[[0, 1], [9, 0]])
    stopper.check(linear((0.0,) * 4, (1.0,) * 4))
    check = stopper.history[-1]
    assert check["cheapest"] == check["expected_auroc"] - check["expected_cost"] - (check["threshold"] > 0.5)
    with pytest.raises(ValueError, match=r"`rule\.signals`.*'expected_cost'"):
        BoundaryUncertaintyStopper(X, TWO, rule=Cheapest())


def test_another_threshold_than_a_half_is_named_only_if_it_is_clearly_better():
    # Of a network that ranks at random, the best of all thresholds gains by chance alone.
    signals, _ = measured([[0, 1], [1, 0]], (torch.arange(len(X)) * 7919 % 3 == 0).long())
    for seed in range(5):
        of_one = torch.randn(len(signals.perturbed_inputs), generator=torch.Generator().manual_seed(seed)) - 4
        assert signals.measure(torch.stack((-of_one, of_one), dim=1)).values["threshold"] == 0.5
    signals, _ = measured("f1")
    best = signals.probabilities.clamp(min=1e-6).log()
    found = signals.measure(best).values
    assert found["threshold"] == 0.5
    assert found["expected_f1_at_threshold"] == found["expected_f1"]
    shy = signals.measure(best - torch.tensor([0.0, 20.0])).values
    assert 0 < shy["threshold"] < 0.1
    assert shy["expected_f1_at_threshold"] > shy["expected_f1"] + 0.1


@pytest.mark.parametrize(("labels", "is_said"), [(TWO, True), (1 - TWO, False)])
def test_f1_of_the_commoner_class_is_said(labels, is_said, caplog):
    with caplog.at_level("INFO", logger="bu_torch"):
        BoundaryUncertaintyStopper(X, labels, n_neighbors=20, metric="f1").check(linear((0.0,) * 4, (1.0,) * 4))
    assert ("class 1, 67% of the labels" in caplog.text) == is_said
