"""Trainings of several networks at a time, what is read of them, and how long it takes."""

import math

import problems
import torch
from torch import nn


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


def test_stages_are_all_there(speed):
    check, whole = speed.check_stages(200, 4, 3, 1), speed.whole(200, 4, 3)
    for row in (speed.setup_stages(200, 4, 3), check, whole):
        assert all(math.isfinite(value) and value > 0 for value in row.values())
    assert whole["peak MiB"] >= whole["MiB of imports"]
    assert {"forward", "U", "trust", "votes"} < set(check)
