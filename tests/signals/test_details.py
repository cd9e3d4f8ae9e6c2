"""What a check saw, against counts made one by one; a score that cannot see says so."""

import json
import logging

import numpy as np
import pytest
import torch
from oracles import boundary as oracle
from problems import blobs

from bu_torch import BoundaryUncertaintyStopper, Signals
from bu_torch.run.history import describe_blindness

SAMPLES = blobs(n=300, d=2)


def measured(weights=None):
    signals = Signals(n_neighbors=20, n_draws=2).fit(*SAMPLES, weights)
    logits = torch.randn(600, 3, generator=torch.Generator().manual_seed(1))
    return signals, logits, signals.measure(logits)


@pytest.mark.parametrize("is_weighted", [False, True])
def test_the_crossing_is_the_mean_uncertainty_from_the_boundary_outward(is_weighted):
    weights = torch.rand(300, generator=torch.Generator().manual_seed(2)).double() + 0.5 if is_weighted else None
    signals, logits, measurement = measured(weights)
    details = measurement.details()
    drawn = np.ones(600) if weights is None else weights.repeat(2).numpy()
    rows = signals.probabilities.tolist()
    local, most = (np.array(oracle.local_uncertainty(of, rows)) for of in (logits.tolist(), rows))
    gaps = np.array([oracle.gap(row) for row in logits.tolist()])
    for places, of_each, found in ((gaps, local, details.crossing.network), (-most, most, details.crossing.attainable)):
        order = places.argsort(kind="stable")
        part = (20 * (drawn[order].cumsum() - drawn[order] / 2) / drawn.sum()).astype(int)
        mixed, mass = (np.bincount(part, of[order], 20) for of in (drawn * of_each, drawn))
        assert found == pytest.approx(mixed / mass, abs=1e-6)


def test_doubtful_samples_are_those_whose_label_is_the_least_likely():
    signals, _, measurement = measured()
    details = measurement.details(10)
    labels = signals.boundary.labels.tolist()
    probabilities = signals.probabilities.view(2, len(labels), -1).mean(dim=0)
    of_label = [float(probabilities[row, label]) for row, label in enumerate(labels)]
    assert [one.row for one in details.doubtful] == sorted(range(len(labels)), key=of_label.__getitem__)[:10]
    for row, label, prediction, likeliest, probability in details.doubtful:
        assert (label, prediction) == (labels[row], int(measurement.predictions[row]))
        assert (likeliest, probability) == (int(probabilities[row].argmax()), pytest.approx(of_label[row]))


def test_classes_that_meet_where_others_are_likelier_are_named():
    features, labels = SAMPLES
    signals = Signals(n_neighbors=20, n_draws=1).fit(features, labels)
    likely = signals.probabilities.clamp(min=1e-6).log()
    assert signals.measure(likely).details().meeting == []
    wrong = likely.roll(1, dims=1)
    details = signals.measure(wrong).details()
    assert 0 < sum(one.share for one in details.meeting) <= 1 + 1e-9
    gaps, rows = [oracle.gap(row) for row in wrong.tolist()], signals.probabilities.tolist()
    reachable = oracle.mean_along(gaps, oracle.local_uncertainty(rows, rows), [1.0] * 300)
    lost = reachable - oracle.boundary_uncertainty(wrong.tolist(), rows)
    losses = [one.loss for one in details.meeting]
    assert losses == sorted(losses, reverse=True)
    assert sum(losses) == pytest.approx(lost, abs=0.01)


@pytest.mark.parametrize("is_weighted", [False, True])
def test_recalls_are_those_of_a_slow_reference(is_weighted):
    g, labels = torch.Generator().manual_seed(0), torch.tensor([0, 4, 4, 1, 0, 1] * 20)
    features = torch.randn(120, 2, generator=g) + labels.unsqueeze(1)
    weights = torch.rand(120, generator=g) + 0.5 if is_weighted else None
    signals = Signals(n_neighbors=10, n_draws=2).fit(features, labels, weights)
    logits = torch.randn(240, 6, generator=g)
    found = sorted(signals.measure(logits).details().recalls)
    predictions = logits.argmax(dim=1)
    counted = torch.ones(240) if weights is None else weights.repeat(2)
    of_label, of_likely = (
        counted.unsqueeze(1) * shares[:, [0, 1, 4]]
        for shares in (torch.nn.functional.one_hot(labels.repeat(2)), signals.probabilities)
    )
    is_right = predictions.unsqueeze(1) == torch.tensor([0, 1, 4])
    expected = [of_label.sum(dim=0) / counted.sum()]
    expected += [(own * is_right).sum(dim=0) / own.sum(dim=0) for own in (of_label, of_likely)]
    shares = torch.tensor([recall[1:4] for recall in found])
    torch.testing.assert_close(shares, torch.stack(expected, dim=1).float(), rtol=1e-5, atol=0)


def test_recalls_are_those_of_the_measurement_sorted_and_those_of_many_classes_left_out(monkeypatch):
    signals, logits, measurement = measured()
    before = measurement.details()
    favoured = logits + torch.tensor([2.0, 1.0, 0.0])
    recalls = signals.measure(favoured).details().recalls
    assert [one.label for one in recalls] == [2, 1, 0]
    assert measurement.details() == before  # whatever is measured after it
    monkeypatch.setattr("bu_torch.signals.catalogue.MOST_CLASSES", 2)
    assert signals.measure(favoured).details().recalls == recalls[:2]


def test_a_score_that_cannot_see_is_told_of():
    """Neither if one class alone scores as high, nor if left-out labels cannot be predicted by either estimate."""
    assert not describe_blindness(0.95, 0.86, "'no'", (0.01, 0.3))
    for highest in (0.861, 0.8, float("nan")):
        assert describe_blindness(highest, 0.86, "'no'", (0.4, 0.3))
    assert describe_blindness(0.95, 0.86, "'no'", (0.01, 0.04))


def test_a_plain_loop_and_its_record_tell_of_a_network_that_predicts_one_class_alone(tmp_path, caplog):
    generator = torch.Generator().manual_seed(0)
    features, labels = torch.randn(200, 3, generator=generator), (torch.arange(200) < 20).long()
    features[labels == 1] += 1.5
    caplog.set_level(logging.INFO)
    for weights in (2 * torch.rand(200, generator=generator, dtype=torch.float64) + 0.1, None):
        folder = tmp_path if weights is None else None
        stopper = BoundaryUncertaintyStopper(features, labels, n_neighbors=20, sample_weight=weights, folder=folder)
        stopper.check(lambda inputs: torch.tensor([2.0, 0.0]).expand(len(inputs), 2))
        stopper.close()
        assert stopper.summary["one_class_accuracy"] == pytest.approx(stopper.history[0]["expected_accuracy"])
    blind = caplog.records[-1].message
    assert "better than always predicting class 0: " in blind
    (file,) = tmp_path.rglob("*.jsonl")
    assert json.loads(file.read_text().splitlines()[-1])["remarks"] == [blind]
