"""Trainings of several networks at a time, what is read of them, and how long it takes."""

import math

import lightning.pytorch as pl
import problems
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from bu_torch import BoundaryUncertaintyMonitor, Signals


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
        assert {f"averaged_{signal}" for signal in Signals.NAMES} <= set(one)
    assert plain[0]["val_accuracy"] == [1 - error for error in plain[0]["test_error"]]  # validated on the test samples


def test_augmented_images_are_checked_as_a_dataset_gives_them(training, images):
    (inputs, labels), _, net = images.prepare("digits_augmented", 0)
    watched = training.Watched((inputs, labels), training.One(net), 0, net, images.Augmented)
    check_setup = watched.tracker.check_setup
    assert check_setup.about["data"]["perturbation"] == "reading"
    own = inputs[check_setup.rows]
    reading = watched.perturbed[: len(own)]
    padded = torch.nn.functional.pad(own, (1, 1, 1, 1))
    shifted = torch.stack([padded[:, :, i : i + 8, j : j + 8] for i in range(3) for j in range(3)])
    assert (shifted == reading).flatten(2).all(dim=2).any(dim=0).all()


def test_the_signals_are_those_of_the_monitor(why, tmp_path):
    split, test, n_classes = why.load(why.Case("ionosphere", 0.2, 0, "rmsprop", 3))
    variants = why.Variants(why.Reference(*split), test)
    monitor = BoundaryUncertaintyMonitor(n_draws=4, max_samples=10_000, feature_extractor="inputs")
    trainer = problems.trainer(tmp_path, monitor, variants, enable_checkpointing=False)
    pl.seed_everything(0, verbose=False)
    module = why.classifier(split, n_classes)
    trainer.fit(module, DataLoader(TensorDataset(*split), batch_size=32, shuffle=True))
    names = ("expected_accuracy", "boundary_uncertainty", "trust_score")
    names += ("label_agreement", "vote_agreement")
    for row, entry in zip(variants.rows, monitor.history, strict=True):
        found = {name: row[name.replace("_", " ")] for name in names}
        assert found == pytest.approx({name: entry[name] for name in names}, rel=1e-3)
        assert row["steadiness"] == pytest.approx(-entry["prediction_changes"])
        assert row["U, draws 4"] == row["U, radius 1"]
        assert 0 <= row["Parzen U, M 40"] <= 1


def test_stages_are_all_there(speed):
    check, whole = speed.check_stages(200, 4, 3, 1), speed.whole(200, 4, 3)
    for row in (speed.setup_stages(200, 4, 3), check, whole):
        assert all(math.isfinite(value) and value > 0 for value in row.values())
    assert whole["peak MiB"] >= whole["MiB of imports"]
    assert {"forward", "U", "trust", "votes"} < set(check)
