"""The estimates of the last layer beside what they estimate, and the rivals' own rules."""

import math

import numpy as np
import pytest
import torch
from torch import nn


def fitted(x, y, n_classes, precision):
    """Logistic regression (J, d + 1) with a normal prior by Newton's method, and the Hessian of its loss."""
    x = np.column_stack((x.double().numpy(), np.ones(len(x))))
    labels = np.eye(n_classes)[y.numpy()]
    weights = np.zeros((n_classes, x.shape[1]))
    for _ in range(15):
        shares = np.exp(x @ weights.T)
        shares /= shares.sum(axis=1, keepdims=True)
        gradient = (shares - labels).T @ x + precision * weights
        hessian = sum(
            np.kron(np.diag(share) - np.outer(share, share), np.outer(row, row))
            for share, row in zip(shares, x, strict=True)
        )
        step = np.linalg.solve(hessian + precision * np.eye(weights.size), gradient.ravel())
        weights = weights - step.reshape(weights.shape)
    assert abs(step).max() < 1e-9
    return torch.from_numpy(weights), torch.from_numpy(hessian)


@pytest.fixture(params=[2, 3])
def regression(request):
    n_classes = request.param
    generator = torch.Generator().manual_seed(n_classes)
    x = torch.randn(40, 2, generator=generator)
    y = (torch.randn(40, 2, generator=generator) + 1.5 * x).sum(dim=1).sign().long().clamp(min=0)
    y = torch.where(torch.rand(40, generator=generator) < 0.3, n_classes - 1, y)
    return x, y, n_classes


def last_layer(rivals, x, y, weights):
    logits = x.double() @ weights[:, :-1].T + weights[:, -1]
    return rivals.LastLayer(x, logits, y)


def test_the_leave_one_out_loss_is_near_that_of_leaving_out(rivals, regression):
    x, y, n_classes = regression
    weights, _ = fitted(x, y, n_classes, 1.0)
    layer = last_layer(rivals, x, y, weights)
    left_out = []
    for row in range(len(x)):
        others = torch.arange(len(x)) != row
        without, _ = fitted(x[others], y[others], n_classes, 1.0)
        left_out.append(x[row].double() @ without[:, :-1].T + without[:, -1])
    true = float(nn.functional.cross_entropy(torch.stack(left_out), y))
    trained = float(nn.functional.cross_entropy(layer.logits, y))
    assert true > trained
    assert layer.loo_loss(1.0) == pytest.approx(true, abs=0.25 * (true - trained))


def test_the_curvature_is_the_hessian_of_the_loss(rivals, regression, monkeypatch):
    x, y, n_classes = regression
    weights, hessian = fitted(x, y, n_classes, 1.0)
    torch.testing.assert_close(last_layer(rivals, x, y, weights).curvature[0], hessian)
    monkeypatch.setattr(rivals, "MOST_WEIGHTS", 1)
    blocks = last_layer(rivals, x, y, weights).curvature
    for own, block in zip(blocks, range(0, hessian.shape[0], 3), strict=True):
        torch.testing.assert_close(own, hessian[block : block + 3, block : block + 3])


def test_classes_apart_shift_the_logits_by_variance_times_residual(rivals, regression, monkeypatch):
    x, y, n_classes = regression
    monkeypatch.setattr(rivals, "MOST_WEIGHTS", 1)
    weights, _ = fitted(x, y, n_classes, 1.0)
    layer = last_layer(rivals, x, y, weights)
    shifted = layer.logits.clone()
    for row in range(len(x)):
        read = torch.cat((x[row], torch.ones(1))).double()
        for place in range(n_classes):
            covariance = torch.linalg.inv(layer.curvature[place] + 2.0 * torch.eye(3))
            residual = layer.logits[row].softmax(0)[place] - float(y[row] == place)
            shifted[row, place] += read @ covariance @ read * residual
    assert layer.loo_loss(2.0) == pytest.approx(float(nn.functional.cross_entropy(shifted, y)))


def test_the_evidence_is_near_the_integral(rivals, monkeypatch):
    """By sums over a grid of the weights: two classes, and a feature of zeros, whose weights change nothing."""
    generator = torch.Generator().manual_seed(0)
    y = (torch.rand(60, generator=generator) < 0.7).long()
    precision = 1.0
    monkeypatch.setattr(rivals, "PRECISIONS", (precision,))
    x = torch.zeros(60, 1)
    weights, _ = fitted(x, y, 2, precision)
    found = last_layer(rivals, x, y, weights).log_evidence(weights)

    step = 0.05
    grid = torch.arange(-6, 6, step, dtype=torch.float64)
    first, second = torch.meshgrid(grid, grid, indexing="ij")
    logits = torch.stack((first.flatten(), second.flatten()), dim=1).log_softmax(dim=1)
    counts = torch.bincount(y).double()
    prior = -precision / 2 * (first.flatten().square() + second.flatten().square()) + math.log(precision / 2 / math.pi)
    integral = float(torch.logsumexp(logits @ counts + prior, dim=0)) + 2 * math.log(step)
    assert found == pytest.approx(integral, abs=0.05)


def test_the_likeliest_precision_is_taken(rivals, regression, monkeypatch):
    x, y, n_classes = regression
    weights, _ = fitted(x, y, n_classes, 1.0)
    layer = last_layer(rivals, x, y, weights)
    each = []
    for precision in rivals.PRECISIONS:
        with monkeypatch.context() as patch:
            patch.setattr(rivals, "PRECISIONS", (precision,))
            each.append(layer.log_evidence(weights))
    assert layer.log_evidence(weights) == max(each)
    assert len(set(each)) == len(each)


def test_what_the_last_layer_reads_and_gives(rivals):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2))
    inputs = torch.randn(4100, 3)  # in three batches
    with torch.no_grad():
        logits, features = rivals.read(module, inputs)
        torch.testing.assert_close(features, module[:2](inputs))
        torch.testing.assert_close(logits, module(inputs))
        labels = torch.arange(4100) % 2
        found = rivals.measure(module, logits, features, labels)
        assert found["loo_loss"] >= float(nn.functional.cross_entropy(logits, labels))
        assert all(math.isnan(value) for value in rivals.measure(module, logits / 0, features, labels).values())


def test_weights_that_stand_still_end_the_growth_of_their_distance(rivals):
    growing = [1.1**epoch for epoch in range(20)]
    assert rivals.still(growing) == (19, 19)
    assert rivals.still([*growing, *[growing[-1] * 1.001] * 15]) == (29, 29)
    jumps = [100 + (10 * (epoch // 5)) for epoch in range(40)]  # no ten epochs in a row without growth
    assert rivals.still(jumps) == (39, 39)
    assert rivals.still(jumps, patience=4) == (4, 4)


def test_label_wave_keeps_the_first_minimum_of_changes(rivals):
    assert rivals.label_wave([1.0, 0.5, 0.3, 0.2, 0.4, 0.6, 0.1]) == (4, 5)
    assert rivals.label_wave([1.0, 0.5, 0.4, 0.3]) == (3, 3)


def test_the_evidence_of_gradients_is_the_criterion_of_its_paper(rivals, quality):
    case = quality.Case("banknote", 0.0, 0, "plain_sgd", 1)
    (x, y), _, n_classes = quality.load(case)
    torch.manual_seed(0)
    module = quality.Net(x.shape[1:], n_classes, "plain_sgd")
    values = []
    for rows in torch.arange(64).split(32):
        gradients = []
        for row in rows:
            module.zero_grad()
            torch.nn.functional.cross_entropy(module(x[row : row + 1]), y[row : row + 1]).backward()
            gradients.append(torch.cat([p.grad.flatten() for p in module.parameters()]).double())
        each = torch.stack(gradients)
        variance = each.var(dim=0)
        alive = variance > 0
        values.append(1 - 32 * float((each.mean(dim=0)[alive].square() / variance[alive]).mean()))
    found = rivals.evidence(module, (x[:64], y[:64]))
    assert found == pytest.approx(sum(values) / 2, rel=1e-3)
    assert rivals.evidence(module, (x, y), n_batches=2) == pytest.approx(found)
