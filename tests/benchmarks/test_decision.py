"""Noise, trainings of several networks at a time, and the rules that are compared."""

import json
import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from torch import nn

from bu_torch.rule.rules import STANDARD_ERROR
from bu_torch.signals.catalogue import SIGNALS


def samples(n=2000, n_classes=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(n_classes, (n,), generator=generator)
    centres = torch.tensor([[0.0, 0.0], [2.0, 0.0], [9.0, 0.0], [9.0, 1.0]])
    return centres[labels] + torch.randn(n, 2, generator=generator), labels


def corrupted(noise, kind, n_classes=3, seed=0):
    features, labels = samples(n_classes=n_classes)
    return features, labels, noise.corrupt(labels, features, n_classes, kind, torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    ("kind", "share"), [("none", 0), ("uniform-0.2", 2 / 15), ("pairs-0.4", 0.4), ("hard-0.2", 0.2)]
)
def test_so_many_labels_change(noise, kind, share):
    _, before, after = corrupted(noise, kind)
    assert float((before != after).double().mean()) == pytest.approx(share, abs=0.03)
    assert torch.equal(after, corrupted(noise, kind)[2])
    assert torch.equal(before, samples()[1])


def test_pairs_are_classes_with_near_means(noise):
    _, before, after = corrupted(noise, "pairs-0.2", n_classes=4)
    for own, other in ((0, 1), (1, 0), (2, 3), (3, 2)):
        assert set(after[before == own].tolist()) == {own, other}


def test_hard_samples_change_more_often_and_to_the_class_next_to_them(noise):
    features, before, after = corrupted(noise, "hard-0.2")
    is_hard = (features[:, 0] > 0) & (features[:, 0] < 2)
    changed = before != after
    assert changed[is_hard].double().mean() > 3 * changed[features[:, 0] > 7].double().mean()
    assert set(after[changed & is_hard].tolist()) == {0, 1}


def test_another_kind_of_noise_is_refused(noise):
    with pytest.raises(
        ValueError, match=r"`noise` must be `none` or begin with uniform-, pairs- or hard-, got 'some-0.2'"
    ):
        corrupted(noise, "some-0.2")


def test_each_network_of_a_stack_learns_as_it_would_alone(training):
    features, labels = samples(n=70)
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
    features, labels = samples(n=80)
    draws = torch.stack([labels, torch.where(torch.arange(80) < 20, 0, labels)])

    def run(**how):
        torch.manual_seed(0)
        return training.run(
            training.Stack((2, 8, 3), 2), torch.optim.Adam, (features, draws), (features, labels), 2, 0, **how
        )

    watched, plain = run(watch={}), run(held_out=(features, draws))
    for one, other in zip(watched, plain, strict=True):
        for name in ("test_error", "averaged_test_error", "long_test_error"):
            assert one[name] == other[name]
        assert {f"averaged_{signal}" for signal in SIGNALS} <= set(one)
    assert plain[0]["val_accuracy"] == [1 - error for error in plain[0]["test_error"]]  # validated on the test samples


def test_the_loss_after_scaling_is_the_least_over_temperatures(training):
    generator = torch.Generator().manual_seed(0)
    logits, labels = 5 * torch.randn(200, 4, generator=generator), torch.randint(4, (200,), generator=generator)
    logits[torch.arange(200), labels] += 4

    def loss(exponent):
        return float(nn.functional.cross_entropy(logits.double() * math.exp(exponent), labels))

    best = minimize_scalar(loss, bounds=(-3, 3), method="bounded").fun
    assert training.scaled_loss(logits, labels) == pytest.approx(best, abs=1e-3)
    assert training.scaled_loss(logits, labels) < loss(0)
    assert training.scaled_loss(3 * logits, labels) == pytest.approx(best, abs=1e-3)


def test_gradient_disparity_is_the_mean_distance_of_scaled_gradients_and_leaves_no_trace(training):
    features, labels = samples(n=200)
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(2, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3))
    state = {name: value.clone() for name, value in net.state_dict().items()}
    before = torch.get_rng_state()
    (found,) = training.disparity(training.One(net), features, labels.unsqueeze(0), None)
    assert torch.equal(before, torch.get_rng_state())
    assert all(torch.equal(value, state[name]) for name, value in net.state_dict().items())
    gradients = []
    for batch in torch.randperm(200)[:160].split(32):
        losses = nn.functional.cross_entropy(net(features[batch]), labels[batch], reduction="none")
        net.zero_grad()
        (losses.mean() / losses.detach().std()).backward()
        gradients.append(torch.cat([one.grad.flatten() for one in net.parameters()]))
    pairs = [float((gradients[a] - gradients[b]).norm()) for a in range(5) for b in range(a)]
    assert found == pytest.approx(np.mean(pairs), rel=1e-4)


def record(**columns):
    """Curves of five epochs."""
    signals = {prefix + name: [0.5] * 5 for prefix in ("", "averaged_") for name in (*SIGNALS, STANDARD_ERROR)}
    errors = {"test_error": [0.5, 0.4, 0.3, 0.2, 0.1], "averaged_test_error": [0.55, 0.45, 0.35, 0.25, 0.15]}
    part = {"test_error": [0.6, 0.61, 0.62, 0.63, 0.64], "averaged_test_error": [0.7, 0.71, 0.72, 0.73, 0.74]}
    measured = {name: [0.0, 0.0, 1.0, 0.0, 0.0] for name in ("val_accuracy", "val_loss", "val_scaled_loss")}
    part |= {prefix + name: values for name, values in measured.items() for prefix in ("", "averaged_")}
    whole = (
        signals | errors | {"long_test_error": [0.9] * 5, "changed_predictions": [1, 4, 3, 5, 6], "disparity": [0] * 5}
    )
    return {"all": whole | columns, "quarter": part, "tenth": part}


@pytest.mark.parametrize(
    ("rule", "columns", "expected"),
    [
        ("last epoch", {}, 0.1),
        ("last epoch, averaged (0.97)", {}, 0.9),
        (
            "bu-torch",
            {"averaged_expected_accuracy": [0.1, 0.2, 0.9, 0.3, 0.3], "averaged_standard_error": [0] * 5},
            0.35,
        ),
        (
            "bu-torch",
            {"averaged_expected_accuracy": [0.1, 0.2, 0.9, 0.8, 0.3], "averaged_trust_score": [1, 1, 1, 2, 9]},
            0.25,
        ),
        ("latest within 1 standard errors", {"averaged_expected_accuracy": [0.1, 0.2, 0.9, 0.8, 0.5]}, 0.15),
        ("largest U within 0.5 standard errors", {"averaged_boundary_uncertainty": [0.1, 0.3, 0.2, 0.1, 0.1]}, 0.45),
        ("boundary uncertainty, no average", {"boundary_uncertainty": [0.1, 0.2, 0.1, 0.1, 0.3]}, 0.1),
        ("hold-out accuracy, 25 %", {}, 0.62),
        ("hold-out loss, 25 %, averaged", {}, 0.7),
        ("hold-out accuracy, 10 %, then retrained on all", {}, 0.3),
        ("Label Wave", {}, 0.3),
        ("gradient disparity", {"disparity": [0, 1, 2, 3, 4]}, 0.1),
        ("best average in hindsight", {}, 0.15),
        ("best epoch", {}, 0.1),
    ],
)
def test_what_each_rule_keeps(decision, rule, columns, expected):
    rows = {row["rule"]: row["test_error"] for row in decision.judge(record(**columns))}
    assert rows[rule] == expected


def test_rules_wait_twenty_epochs_for_a_better_one(decision):
    values = [1.0, *[0.0] * 20, 2.0]
    assert decision.first_largest(values) == (0, 20)
    assert decision.first_largest(values[1:]) == (20, 20)


def test_trainings_are_saved_as_they_end_and_not_run_again(decision, tmp_path, capsys):
    given = ["tables", "--settings", "adamw", "--epochs", "2", "--noise", "none", "--processes", "1"]
    where = ["--results", str(tmp_path), "--curves", str(tmp_path / "curves")]
    table = tmp_path / "tables" / "few.csv"
    table.parent.mkdir()
    features, labels = samples(n=200)
    rows = "\n".join(f"{a},{b},{label}" for (a, b), label in zip(features.tolist(), labels.tolist(), strict=True))
    table.write_text(f"x0,x1,label\n{rows}\n")
    first = decision.main([*given, *where, "--folder", str(table.parent)])
    (file,) = (tmp_path / "curves").iterdir()
    assert file.name == "tables-few-adamw-none-0-2.json"
    saved = json.loads(file.read_text())
    saved["all"]["test_error"] = [0.0, 0.0]
    file.write_text(json.dumps(saved))
    second = decision.main([*given, *where, "--folder", str(table.parent)])
    assert (second[second.rule == "last epoch"].test_error == 0).all()
    assert not (first[first.rule == "last epoch"].test_error == 0).all()
    assert "clean, 1 trainings" in capsys.readouterr().out
    assert set(first.rule) == {*decision.RULES, decision.EPOCH_BEST}
