"""Trainings of several networks at a time, and what is read of them."""

import math

import numpy as np
import problems
import pytest
import torch
from scipy.optimize import minimize_scalar
from torch import nn

from bu_torch.signals.catalogue import SIGNALS


def test_each_network_of_a_stack_learns_as_it_would_alone(training):
    features, labels = problems.blobs(70, d=2)
    draws = torch.stack([labels, labels.flip(0)])
    torch.manual_seed(3)
    stack = training.Stack((2, 8, 3), 2)
    alone = [nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 3)) for _ in draws]
    for net in alone:
        for layer, weight, bias in zip((net[0], net[2]), stack.weights, stack.biases, strict=True):
            layer.weight.data, layer.bias.data = weight[0].detach().clone(), bias[0].detach().clone()
    columns = training.run(stack, torch.optim.Adam, (features, draws), (features, labels), 3, 0)
    torch.manual_seed(0)
    steps = [torch.optim.Adam(net.parameters()) for net in alone]
    for epoch in range(3):
        order = torch.stack([torch.randperm(70) for _ in draws])
        for net, step, own, rows in zip(alone, steps, draws, order, strict=True):
            for batch in rows.split(32):
                step.zero_grad()
                nn.functional.cross_entropy(net(features[batch]), own[batch]).backward()
                step.step()
        for net, column in zip(alone, columns, strict=True):
            assert column["test_error"][epoch] == training.error(net(features), labels)
    for number, net in enumerate(alone):
        torch.testing.assert_close(stack.member(number)(features), net(features), rtol=1e-4, atol=1e-5)


def test_a_schedule_free_optimiser_is_read_in_evaluation_mode(training, quality):
    features, labels = torch.randn(70, 2), torch.arange(70) % 3
    stack, made = training.Stack((2, 8, 3), 1), []

    def optimizer(parameters):
        made.append(quality.schedule_free(parameters))
        return made[0]

    (columns,) = training.run(stack, optimizer, (features, labels.unsqueeze(0)), (features, labels), 3, 0)
    assert not made[0].param_groups[0]["train_mode"]
    assert columns["test_error"][-1] == training.error(stack.member(0)(features), labels)


def test_a_training_is_the_same_whether_it_is_watched_or_not(training):
    features, labels = problems.blobs(80, d=2)
    draws = torch.stack([labels, torch.where(torch.arange(80) < 20, 0, labels)])

    def run(**how):
        torch.manual_seed(0)
        stack = training.Stack((2, 8, 3), 2)
        return training.run(stack, torch.optim.Adam, (features, draws), (features, labels), 2, 0, **how)

    watched, plain = run(watch={}), run(held_out=(features, draws))
    for one, other in zip(watched, plain, strict=True):
        for name in ("test_error", "averaged_test_error", "long_test_error"):
            assert one[name] == other[name]
        assert {f"averaged_{signal}" for signal in SIGNALS} <= set(one)
    assert plain[0]["val_accuracy"] == [1 - error for error in plain[0]["test_error"]]  # validated on the test samples


def test_the_loss_after_scaling_is_the_least_over_temperatures(training, generator):
    logits, labels = 5 * torch.randn(200, 4, generator=generator), torch.randint(4, (200,), generator=generator)
    logits[torch.arange(200), labels] += 4

    def loss(exponent):
        return float(nn.functional.cross_entropy(logits.double() * math.exp(exponent), labels))

    best = minimize_scalar(loss, bounds=(-3, 3), method="bounded").fun
    assert training.scaled_loss(logits, labels) == pytest.approx(best, abs=1e-3)
    assert training.scaled_loss(logits, labels) < loss(0)
    assert training.scaled_loss(3 * logits, labels) == pytest.approx(best, abs=1e-3)


def test_gradient_disparity_is_the_mean_distance_of_scaled_gradients_and_leaves_no_trace(training):
    features, labels = problems.blobs(200, d=2)
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(2, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3))
    state, before = problems.weights_of(net), torch.get_rng_state()
    (found,) = training.disparity(training.One(net), features, labels.unsqueeze(0), None)
    assert torch.equal(before, torch.get_rng_state())
    assert problems.same(net.state_dict(), state)
    gradients = []
    for batch in torch.randperm(200)[:160].split(32):
        losses = nn.functional.cross_entropy(net(features[batch]), labels[batch], reduction="none")
        net.zero_grad()
        (losses.mean() / losses.detach().std()).backward()
        gradients.append(torch.cat([one.grad.flatten() for one in net.parameters()]))
    pairs = [float((gradients[a] - gradients[b]).norm()) for a in range(5) for b in range(a)]
    assert found == pytest.approx(np.mean(pairs), rel=1e-4)


def test_rules_wait_twenty_epochs_for_a_better_one(training):
    values = [1.0, *[0.0] * 20, 2.0]
    assert training.first_largest(values) == (0, 20)
    assert training.first_largest(values[1:]) == (20, 20)
