import pytest
import torch
from oracles import anchors

from bu_torch.functional import label_votes, omission


def problem(seed=0, n=200, j=3, m=9):
    """Samples on a line, labelled and predicted in blocks, so that some clusters are of one prediction."""
    g = torch.Generator().manual_seed(seed)
    start = (torch.arange(n) - m // 2).clamp(0, n - m)
    neighbors = start.unsqueeze(1) + torch.arange(m)
    block = torch.arange(n) // 25
    labels = torch.randint(0, j, (n // 25,), generator=g)[block]
    noisy = torch.rand(n, generator=g) < 0.3
    labels = torch.where(noisy, torch.randint(0, j, (n,), generator=g), labels)
    predictions = torch.cat([torch.randint(0, j + 1, (n // 25,), generator=g)[block] for _ in range(2)])
    return labels, predictions, neighbors


@pytest.mark.parametrize("significance", [0.0, 1.0, 2.0])
@pytest.mark.parametrize("j", [2, 4])
def test_agrees_with_counting_one_sample_at_a_time(significance, j, device):
    labels, predictions, neighbors = problem(j=j)
    expected = anchors.omission(labels.tolist(), predictions.tolist(), neighbors.tolist(), significance)
    shares = label_votes(labels, neighbors, 0.0, n_classes=j)
    value = omission(shares.to(device), predictions.to(device), neighbors.to(device), significance=significance)
    assert value.dtype == torch.float64
    assert value.device.type == device.type
    assert float(value) == pytest.approx(expected, abs=1e-12)
    assert 0.1 < expected < 1


def test_names_of_the_classes_do_not_matter():
    labels, predictions, neighbors = problem()
    predictions = predictions.clamp(max=2)
    names = torch.tensor([2, 0, 1])
    value = omission(label_votes(labels, neighbors, 0.0), predictions, neighbors)
    assert omission(label_votes(names[labels], neighbors, 0.0), names[predictions], neighbors) == value


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"shares": torch.zeros(200)}, ValueError, r"`shares` must be floating point of shape \(N, J\)"),
        ({"predictions": torch.zeros(300, dtype=torch.int64)}, ValueError, "a multiple of the 200 samples, got 300"),
        ({"predictions": torch.zeros(200)}, TypeError, "`predictions` must have an integer dtype"),
        ({"neighbors": torch.zeros(9, 9, dtype=torch.int64)}, ValueError, r"`neighbors` must have shape \(200, M\)"),
        ({"shares": [[0.5, 0.5]]}, TypeError, "`shares` must be a floating-point tensor"),
        ({"predictions": torch.full((200,), -1)}, ValueError, "`predictions` must hold classes 0, 1, ..., got -1"),
        ({"neighbors": torch.full((200, 9), 200)}, ValueError, r"`neighbors` must hold sample indices in \[0, 200\)"),
        ({"significance": "2"}, TypeError, "`significance` must be a number, got '2'"),
        ({"significance": 3.0}, ValueError, r"0 <= z < sqrt\(M\) with M = 9, got 3.0"),
    ],
)
def test_bad_arguments_are_named(change, error, message):
    labels, predictions, neighbors = problem()
    arguments = {"shares": label_votes(labels, neighbors, 0.0), "predictions": predictions, "neighbors": neighbors}
    with pytest.raises(error, match=message):
        omission(**{**arguments, **change})
