"""What holds of every formula: order, names and copies of samples, units of logits and weights, device and dtype."""

import math
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from oracles import boundary as oracle
from torch.nn.functional import pad

from bu_torch import functional as F
from bu_torch.functional import metrics
from bu_torch.functional import probabilities as P
from bu_torch.functional.score import cost_of_memorising
from bu_torch.signals.metrics import METRICS

M, D = 5, 2
SEEDS = st.integers(0, 2**32)


def problem(seed=0, n=40, j=3, dtype=torch.float64, n_values=None):
    """All that the formulas take; of `n_values` different logits many rows have equal gaps."""
    g = torch.Generator().manual_seed(seed)
    shape = (n, j)
    logits = torch.randn(shape, generator=g, dtype=torch.float64)
    if n_values is not None:
        logits = torch.randint(n_values, shape, generator=g).double()
    likely, second = ((2 * torch.randn(shape, generator=g, dtype=torch.float64)).softmax(dim=1) for _ in range(2))
    return {
        "logits": logits.to(dtype),
        "probabilities": likely.to(dtype),
        "second": second.to(dtype),
        "distances": (torch.rand(shape, generator=g, dtype=torch.float64) + 0.1).to(dtype),
        "labels": torch.randint(0, j, (n,), generator=g),
        "neighbors": torch.rand(n, n, generator=g).fill_diagonal_(-1).argsort(dim=1)[:, :M],
        "pairs": torch.rand(shape, generator=g).argsort(dim=1)[:, :2].sort(dim=1).values,
        "weights": (torch.rand(n, generator=g, dtype=torch.float64) * 4 - 2).exp(),
    }


def trust(p, w):
    return F.mean_trust_score(F.trust_score(p["distances"], p["logits"].argmax(dim=1)), **w)


def score(p, w, skill=0.7):
    logits, likely = p["logits"], p["probabilities"]
    accuracy = F.expected_accuracy(likely, logits.argmax(dim=1), **w)
    most = F.attainable(likely, p["distances"], w.get("weights"))
    measured = accuracy, F.boundary_uncertainty(logits, likely, **w), trust(p, w)
    return F.accuracy_uncertainty_trust(*measured, most, skill)


def votes(p, w):
    found = F.label_votes(p["labels"], p["neighbors"], 1.5, p["logits"].shape[1], **w)
    return found.double().square().sum(dim=1).mean()


def omission(p, w):
    shares = F.label_votes(p["labels"], p["neighbors"], 0.0, p["logits"].shape[1], **w)
    return F.omission(shares, p["logits"].argmax(dim=1), p["neighbors"], significance=1.0, **w)


def of_metric(name):
    return lambda p, w: getattr(metrics, f"expected_{name}")(p["logits"], p["probabilities"], relative(w))


def relative(w):
    return w["weights"] / w["weights"].mean() if w else None


# Formulas of a problem p, with w = {"weights": ...} or {}: one number for all samples.
FORMULAS = {
    "boundary uncertainty": lambda p, w: F.boundary_uncertainty(p["logits"], p["probabilities"], **w),
    "expected accuracy": lambda p, w: F.expected_accuracy(p["probabilities"], p["logits"].argmax(dim=1), **w),
    "trust": trust,
    "score": score,
    "Brier score": lambda p, w: P.brier_score(p["probabilities"], p["labels"], relative(w)),
    "mixing weight": lambda p, w: P.mixing_weight(p["probabilities"], p["second"], p["labels"], relative(w)),
    **{name: of_metric(name) for name in METRICS},
    "Parzen": lambda p, w: F.parzen_uncertainty(p["logits"], p["labels"], p["neighbors"], p["pairs"], **w),
    "omission": omission,
    "votes": votes,
}
UNITLESS = {"boundary uncertainty", "expected accuracy", "score", "balanced_accuracy", "f1", "Parzen", "omission"}
formulas = pytest.mark.parametrize("name", FORMULAS)


def renamed(p, names):
    columns = {key: p[key][:, names.argsort()] for key in ("logits", "probabilities", "second", "distances")}
    return p | columns | {"labels": names[p["labels"]], "pairs": names[p["pairs"]].sort(dim=1).values}


def ordered(p, order):
    place = torch.empty_like(order)
    place[order] = torch.arange(len(order))
    return {name: value[order] for name, value in p.items()} | {"neighbors": place[p["neighbors"][order]]}


@formulas
@given(SEEDS, st.sampled_from([0.0, 7.0]), st.sampled_from([1.0, 1e-3, 1e3]), st.sampled_from([1e-300, 0.1, 3e200]))
def test_order_names_and_units_do_not_matter(name, seed, shift, scale, unit):
    p, g = problem(seed), torch.Generator().manual_seed(seed)
    units = {"logits": (scale if name in UNITLESS else 1.0) * p["logits"], "weights": unit * p["weights"]}
    units["logits"] += shift * torch.randn(40, 1, generator=g, dtype=torch.float64)
    q = ordered(renamed(p | units, torch.randperm(3, generator=g)), torch.randperm(40, generator=g))
    of_p, of_q, equal = ({"weights": one} for one in (p["weights"], q["weights"], torch.full_like(q["weights"], unit)))
    for w, v in (({}, {}), ({}, equal), (of_p, of_q)):
        torch.testing.assert_close(FORMULAS[name](q, v), FORMULAS[name](p, w), rtol=1e-5, atol=1e-9)


@formulas
def test_device_and_dtype_change_no_digit_that_counts(name, device, dtype):
    exact, p = problem(), {key: value.to(device) for key, value in problem(dtype=dtype).items()}
    for w in ({}, {"weights": p["weights"]}):
        found = FORMULAS[name](p, w)
        expected = FORMULAS[name](exact, {key: exact[key] for key in w})
        assert found.device.type == device.type
        torch.testing.assert_close(found.cpu().double(), expected.double(), rtol=2e-3, atol=2e-3)


@given(SEEDS, st.integers(1, 40), st.integers(2, 6), st.sampled_from([None, 1, 2, 6]), st.sampled_from([0.0, 0.3, 1.0]))
def test_the_score_and_its_parts_are_those_of_a_loop(seed, n, j, n_values, skill):
    p = problem(seed, max(n, M), j, n_values=n_values)
    likely, distances, chosen = p["probabilities"].numpy(), p["distances"].numpy(), p["logits"].argmax(dim=1).numpy()
    rows, most, nearest = np.arange(len(chosen)), likely.max(axis=1), np.sort(distances, axis=1)
    others = np.where(np.arange(j) == chosen[:, None], np.inf, distances).min(axis=1)
    for w in ({}, {"weights": p["weights"]}):
        mean = partial(np.average, weights=w.get("weights"))
        logs, reached = mean(np.log(others / distances[rows, chosen])), mean(np.log(nearest[:, 1] / nearest[:, 0]))
        listed = likely.tolist(), w.get("weights", torch.ones(len(chosen))).tolist()
        u = oracle.boundary_uncertainty(p["logits"].tolist(), *listed)
        best = oracle.largest_boundary_uncertainty(*listed)
        found = FORMULAS["boundary uncertainty"](p, w)
        assert (found.dtype, found.shape) == (torch.float64, ())
        assert float(found) == pytest.approx(u, abs=1e-12)
        accuracy, cost = mean(likely[rows, chosen]), mean(most - (likely.sum(axis=1) - most) / (j - 1))
        assert float(FORMULAS["expected accuracy"](p, w)) == pytest.approx(accuracy)
        assert float(cost_of_memorising(p["probabilities"], relative(w))) == pytest.approx(cost)
        assert float(trust(p, w)) == pytest.approx(math.exp(logs))
        expected = (accuracy / mean(most) + u / best + skill * logs / reached) / (2 + skill)
        assert float(score(p, w, skill)) == pytest.approx(expected, rel=1e-6)


# Boundary uncertainty.


@given(SEEDS, st.integers(1, 40))
def test_one_logit_stands_for_two_classes_and_classes_that_are_never_likely_change_nothing(seed, n):
    p = problem(seed, max(n, M), 2)
    logits, likely = p["logits"], p["probabilities"]
    difference = logits[:, 1] - logits[:, 0]
    two = torch.stack((torch.zeros_like(difference), difference), dim=1)
    expected = F.boundary_uncertainty(two, likely)
    for same in (difference, difference.unsqueeze(1), pad(two, (0, 3), value=-99.0)):
        assert F.boundary_uncertainty(same, likely) == expected
    assert F.boundary_uncertainty(pad(two, (0, 1), value=99.0), likely) == 0  # of a class that no label has
    flipped = F.boundary_uncertainty(logits, likely.flip(1))  # Eq. 38 knows the doubt alone
    assert float(flipped) == pytest.approx(float(expected), abs=1e-12)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("j", [2, 4])
def test_logits_that_are_not_finite_give_nan(bad, j):
    p = problem(j=j)
    p["logits"][3, j - 1] = bad
    assert FORMULAS["boundary uncertainty"](p, {}).isnan()


@pytest.mark.parametrize("largest", [torch.finfo(torch.float64).max, 2.0**1000])
def test_the_largest_numbers_are_finite(largest):
    logits = torch.tensor([[largest, -largest], [0.0, 1.0], [largest, largest]], dtype=torch.float64)
    probabilities = torch.tensor([[1.0, 0.0], [0.75, 0.25], [0.5, 0.5]], dtype=torch.float64)
    assert F.boundary_uncertainty(logits, probabilities) == 1
    assert F.boundary_uncertainty(logits[:1], probabilities[:1]) == 0


# Probabilities.


def test_closed_forms_of_probabilities_and_of_the_brier_score():
    assert P.as_probabilities(torch.tensor([[-0.5, 1.5], [0.5, 1.5]])).tolist() == [[0.0, 1.0], [0.25, 0.75]]
    assert float(P.brier_score(torch.full((4, 2), 0.5), torch.tensor([0, 1, 1, 0]))) == 0.5
    assert float(P.brier_score(torch.eye(3), torch.tensor([1, 2, 0]))) == 2.0
    assert float(P.brier_score(torch.eye(3), torch.arange(3))) == 0.0
    assert P.mixing_weight(torch.eye(2), torch.eye(2), torch.arange(2)) == 0  # of equal ones the second have no weight
    likely = torch.tensor([[0.6, 0.4]])
    assert [P.best_sharpness(likely, torch.tensor([label]), None) for label in (0, 1)] == [6, 1]  # all right, all wrong


@given(SEEDS, st.integers(2, 4), st.booleans())
def test_scaled_probabilities_have_the_masses_asked_for_and_all_odds_of_two_classes_move_alike(seed, j, is_weighted):
    p, g = problem(seed, j=j), torch.Generator().manual_seed(seed)
    weights, likely = p["weights"] if is_weighted else None, p["logits"].softmax(dim=1)
    shares = torch.randn(j, generator=g, dtype=torch.float64).softmax(dim=0)
    found = P.scale_to_shares(likely, shares, weights)
    masses = torch.from_numpy(np.average(found, axis=0, weights=weights))
    torch.testing.assert_close(masses, shares, atol=1e-6, rtol=0)
    step = (found / likely).log()
    torch.testing.assert_close(step - step[:, :1], (step[:1] - step[:1, :1]).expand(40, j))
    torch.testing.assert_close(P.scale_to_shares(found, masses, weights), found)
    padded = P.scale_to_shares(pad(likely, (0, 1)), pad(shares, (0, 1)), weights)
    torch.testing.assert_close(padded, pad(found, (0, 1)))  # a class with no probability anywhere stays so


# Limits of the score.


def test_where_nothing_can_be_reached_a_part_adds_nothing():
    p, one = problem(), torch.ones(())
    equal = p | {"distances": torch.ones_like(p["distances"])}
    assert float(score(equal, {}, 1.0)) == pytest.approx(float(score(equal, {}, 0.0)) * 2 / 3, rel=1e-6)
    certain = torch.nn.functional.one_hot(p["labels"], 3).double()
    most = F.attainable(certain, p["distances"])
    assert float(most.uncertainty) == 0
    assert float(F.accuracy_uncertainty_trust(one, torch.zeros(()), one, most, 0.0)) == 1
    assert float(F.accuracy_uncertainty_trust(one, torch.zeros(()), one, most)) == pytest.approx(2 / 3)  # of skill 1


def test_trust_is_the_mean_of_clipped_logarithms():
    scores = torch.tensor([0.0, math.inf, 1.0, 8.0])
    assert float(F.mean_trust_score(scores)) == pytest.approx((1e-3 * 1e3 * 1 * 8) ** 0.25, rel=1e-6)


def test_any_integers_are_taken():
    p = problem()
    predictions = p["logits"].argmax(dim=1)
    expected = F.expected_accuracy(p["probabilities"], predictions)
    for kind in (torch.uint8, torch.int8, torch.int16, torch.int32):
        assert F.expected_accuracy(p["probabilities"], predictions.to(kind)) == expected
