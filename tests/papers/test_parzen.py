import pytest
import torch
from oracles import proposal2

from bu_torch.functional import local_uncertainty, parzen_uncertainty
from bu_torch.functional.boundary import top_pairs

TOLERANCE = {torch.float32: 2e-4, torch.float64: 1e-6}


def problem(seed=0, n=120, j=4, m=12, scale=1.0, dtype=torch.float64, duplicates=False, absent=False):
    """Logits, labels, clusters and pairs of a made-up problem that has all the awkward cases asked for."""
    g = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, j, (n,), generator=g)
    if absent:
        labels[labels == j - 1] = 0
    logits = torch.randn(n, j, generator=g, dtype=torch.float64)
    logits[torch.arange(n), labels] += 1.0
    if duplicates:
        logits[n // 2 :] = logits[: n - n // 2].clone()
    neighbors = torch.randint(0, n, (n, m), generator=g)
    neighbors[:, 0] = torch.arange(n)
    pairs = top_pairs(logits + 0.5 * torch.randn(n, j, generator=g))
    return (logits * scale).to(dtype), labels, neighbors, pairs


@pytest.mark.parametrize("case", [{"scale": 1e4}, {"duplicates": True}, {"absent": True}, {"j": 2}, {"m": 40}])
def test_with_pairs_read_at_the_samples_it_agrees_with_the_paper_one_at_a_time(case, dtype, device):
    """With those of the perturbed samples it does in `functional/test_extremes.py`."""
    arguments = problem(dtype=dtype, **case)
    logits, scale = arguments[0], case.get("scale", 1.0)
    own = logits + 0.8 * scale * torch.randn(logits.shape, generator=torch.Generator().manual_seed(5)).to(dtype)
    plain, given = {"at_samples": own.tolist()}, {"predicted_pairs": top_pairs(own).to(device).int()}
    *lists, pairs = (a.tolist() for a in arguments)
    expected = proposal2.parzen_uncertainty(*lists, pairs, **plain)
    u_expected, k_expected = proposal2.local_uncertainty(*lists, list(map(tuple, pairs)), **plain)
    arguments = [a.to(device) for a in arguments]

    value = parzen_uncertainty(*arguments, **given)
    local, counts = local_uncertainty(*arguments, **given)

    assert (value.shape, value.dtype, value.device.type) == ((), dtype, device.type)
    assert float(value) == pytest.approx(expected, abs=TOLERANCE[dtype])
    tolerance = {"atol": TOLERANCE[dtype], "rtol": TOLERANCE[dtype]}
    torch.testing.assert_close(counts.cpu().double(), torch.tensor(k_expected, dtype=torch.float64), **tolerance)
    counted = torch.tensor(k_expected) > 1e-30  # below, float32 counts nothing
    u_expected = torch.tensor(u_expected, dtype=torch.float64)
    torch.testing.assert_close(local.cpu().double()[counted], u_expected[counted], **tolerance)


def test_classes_without_a_sample_near_their_boundary_are_separable():
    """Eq. 39. Identical values have no width and count nothing."""
    neighbors, same = torch.tensor([[0, 1], [1, 0], [2, 3], [3, 2]]), torch.tensor([[1.0, 0.0]] * 4)
    given = torch.zeros(4).long(), neighbors, torch.tensor([[0, 1]] * 4)
    assert local_uncertainty(same, *given)[1].tolist() == [0.0] * 4
    assert parzen_uncertainty(same, *given) == 1
    assert parzen_uncertainty(*problem(j=2), min_weight=1e9) == 0


def test_top_pairs_agree_with_sorting_on_ties_and_infinities():
    scores = torch.randint(0, 3, (500, 5), generator=torch.Generator().manual_seed(0))
    expected = [list(proposal2.two_largest(row)) for row in scores.tolist()]
    assert top_pairs(scores).tolist() == top_pairs(scores.double()).tolist() == expected
    low = -float("inf")
    assert top_pairs(torch.tensor([[low, 1.0, low], [1.0, low, low], [low, low, low]])).tolist() == [[0, 1]] * 3
