"""Samples that do not count alike: each formula with weights beside a slow reference and beside itself."""

import pytest
import torch
from oracles import anchors

from bu_torch import functional as F
from bu_torch.functional.boundary import index_pairs, top_pairs
from bu_torch.functional.probabilities import brier_score, mixing_weight
from bu_torch.functional.weights import relative_weights
from bu_torch.papers.parzen import cluster_counts
from bu_torch.papers.parzen import pair_terms as of_pairs

N, J, M, D = 60, 4, 9, 3


def problem(seed=0, dtype=torch.float64, n=N, j=J, m=M):
    """All that the formulas take, of one made-up problem: classes along a ring, a third of the labels at random."""
    g = torch.Generator().manual_seed(seed)
    along = torch.arange(n) * j // n
    labels = torch.where(torch.rand(n, generator=g) < 0.3, torch.randint(0, j, (n,), generator=g), along)
    logits = torch.randn(n, j, generator=g, dtype=torch.float64)
    logits[torch.arange(n), labels] += 1.0
    predictions = torch.randint(0, j + 1, (D, n), generator=g)  # a class more than there are
    predictions[0] = along // 2 * 2  # every second class is left out
    return {
        "logits": logits.to(dtype),
        "labels": labels,
        "neighbors": (torch.arange(n).unsqueeze(1) + torch.arange(m)) % n,
        "pairs": top_pairs(logits + 0.5 * torch.randn(n, j, generator=g)),
        "probabilities": torch.rand(n, j, generator=g, dtype=torch.float64).softmax(dim=1).to(dtype),
        "second": torch.rand(n, j, generator=g, dtype=torch.float64).softmax(dim=1).to(dtype),
        "predictions": predictions.flatten(),
        "scores": torch.rand(n, generator=g, dtype=torch.float64).mul(8).sub(4).exp().to(dtype),
        "weights": (torch.rand(n, generator=g, dtype=torch.float64) * 4 - 2).exp().to(dtype),
    }


def with_mean_1(w):
    weights = w.get("weights")
    return None if weights is None else relative_weights(weights, weights.shape, weights.device)


def pair_terms(p, w):
    terms = of_pairs(p["logits"], p["labels"], p["neighbors"], *index_pairs(p["pairs"]), weights=with_mean_1(w))
    return torch.stack((terms.values, terms.shares))


def shares(p, w):
    return F.label_votes(p["labels"], p["neighbors"], 0.0, J, **w)


# Each formula of a problem `p`, with `w` = {"weights": ...} or {}.
FORMULAS = {
    "boundary_uncertainty": lambda p, w: F.boundary_uncertainty(p["logits"], p["probabilities"], **w),
    "parzen_uncertainty": lambda p, w: F.parzen_uncertainty(p["logits"], p["labels"], p["neighbors"], p["pairs"], **w),
    "local_uncertainty": lambda p, w: torch.stack(
        F.local_uncertainty(p["logits"], p["labels"], p["neighbors"], p["pairs"], **w)
    ),
    "pair_terms": pair_terms,
    "mean_trust_score": lambda p, w: F.mean_trust_score(p["scores"], **w),
    "expected_accuracy": lambda p, w: F.expected_accuracy(
        p["probabilities"], p["predictions"][: len(p["probabilities"])], **w
    ),
    "expected_accuracy of copies": lambda p, w: F.expected_accuracy(p["probabilities"], p["predictions"], **w),
    "label_votes": lambda p, w: F.label_votes(p["labels"], p["neighbors"], 1.5, J, **w),
    "brier_score": lambda p, w: brier_score(p["probabilities"], p["labels"], with_mean_1(w)),
    "mixing_weight": lambda p, w: mixing_weight(p["probabilities"], p["second"], p["labels"], with_mean_1(w)),
    "omission": lambda p, w: F.omission(shares(p, w), p["predictions"], p["neighbors"], significance=1.0, **w),
}
each_formula = pytest.mark.parametrize("formula", list(FORMULAS.values()), ids=list(FORMULAS))


@each_formula
@pytest.mark.parametrize("scale", [1e-300, 0.1, 1.0, 3e200])
def test_equal_weights_change_no_digit(formula, scale):
    p = problem()
    found = formula(p, {"weights": torch.full((N,), scale, dtype=torch.float64)})
    assert torch.equal(found, formula(p, {}))


@each_formula
def test_the_order_of_samples_does_not_matter(formula):
    p = problem()
    order = torch.randperm(N, generator=torch.Generator().manual_seed(1))
    place = torch.empty_like(order)
    place[order] = torch.arange(N)
    q = {name: value[order] for name, value in p.items() if name not in ("neighbors", "predictions")}
    q["neighbors"] = place[p["neighbors"][order]]
    q["predictions"] = p["predictions"].view(D, N)[:, order].flatten()
    found, expected = formula(q, {"weights": q["weights"]}), formula(p, {"weights": p["weights"]})
    if expected.ndim == 2 and expected.shape[1] == N:  # u and k of each sample
        expected = expected[:, order]
    elif expected.ndim == 2 and expected.shape[0] == N:  # votes
        expected = expected[order]
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-9)


@each_formula
def test_device_and_dtype_are_those_without_weights(formula, device, dtype):
    p = {name: value.to(device) for name, value in problem(dtype=dtype).items()}
    found, plain = formula(p, {"weights": p["weights"]}), formula(p, {})
    assert (found.dtype, found.device, found.shape) == (plain.dtype, plain.device, plain.shape)
    exact = problem()
    expected = formula(exact, {"weights": exact["weights"]})
    torch.testing.assert_close(found.cpu().double(), expected.double(), rtol=2e-3, atol=2e-3)
    torch.testing.assert_close(plain.cpu().double(), formula(exact, {}).double(), rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("significance", [0.0, 1.0, 1.5])
def test_omission_agrees_with_a_loop(significance):
    p = problem()
    w = {"weights": p["weights"]}
    found = F.omission(shares(p, w), p["predictions"], p["neighbors"], significance=significance, **w)
    listed = [p[name].tolist() for name in ("labels", "predictions", "neighbors")]
    expected = anchors.omission(*listed, significance, p["weights"].tolist())
    assert expected > 0
    assert float(found) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("name", ["expected_accuracy", "expected_accuracy of copies", "brier_score"])
def test_gradients_pass(name):
    p = problem()
    p["probabilities"].requires_grad_()
    assert torch.autograd.gradcheck(
        lambda q: FORMULAS[name]({**p, "probabilities": q}, {"weights": p["weights"]}), p["probabilities"]
    )


def test_a_cluster_is_worth_at_most_its_members():
    weights = torch.tensor([1.0, 1.0, 1e-200, 1e-200, 3.0], dtype=torch.float64)
    sizes = cluster_counts(torch.ones(4, 1), torch.tensor([[0, 1], [2, 3], [0, 4], [4, 2]]), weights)
    assert sizes.flatten().tolist() == pytest.approx([2.0, 2.0, 1.6, 1.0])
