import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from oracles import proposal2

from bu_torch.functional import boundary as implementation
from bu_torch.functional import boundary_uncertainty, index_pairs, local_uncertainty, pair_uncertainty, top_pairs

TOLERANCE = {torch.float32: 2e-4, torch.float64: 1e-6}


def problem(seed=0, n=120, j=4, m=12, scale=1.0, dtype=torch.float64, duplicates=False, ties=False, absent=False):
    """Logits, labels, clusters and pairs of a made-up problem that has all the awkward cases asked for."""
    g = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, j, (n,), generator=g)
    if absent:
        labels[labels == j - 1] = 0
    logits = torch.randn(n, j, generator=g, dtype=torch.float64)
    logits[torch.arange(n), labels] += 1.0
    if ties:
        logits = logits.round()
    if duplicates:
        logits[n // 2 :] = logits[: n - n // 2].clone()
    neighbors = torch.randint(0, n, (n, m), generator=g)
    neighbors[:, 0] = torch.arange(n)
    pairs = top_pairs(logits + 0.5 * torch.randn(n, j, generator=g))
    return (logits * scale).to(dtype), labels, neighbors, pairs


@pytest.mark.parametrize("scale", [0.05, 1.0, 1e4])
@pytest.mark.parametrize("case", [{}, {"duplicates": True}, {"ties": True}, {"absent": True}, {"j": 2}, {"m": 40}])
def test_agrees_with_the_paper_one_sample_at_a_time(scale, case, dtype, device):
    arguments = problem(scale=scale, dtype=dtype, **case)
    expected = proposal2.boundary_uncertainty(*(a.tolist() for a in arguments))
    u_expected, k_expected = proposal2.local_uncertainty(
        *(a.tolist() for a in arguments[:3]), list(map(tuple, arguments[3].tolist()))
    )
    arguments = [a.to(device) for a in arguments]

    value = boundary_uncertainty(*arguments)
    local, counts = local_uncertainty(*arguments)

    assert value.shape == ()
    assert value.dtype == dtype
    assert value.device.type == device.type
    assert float(value) == pytest.approx(expected, abs=TOLERANCE[dtype])
    tolerance = {"atol": TOLERANCE[dtype], "rtol": TOLERANCE[dtype]}
    torch.testing.assert_close(counts.cpu().double(), torch.tensor(k_expected, dtype=torch.float64), **tolerance)
    counted = torch.tensor(k_expected) > 1e-30  # below, float32 counts nothing
    torch.testing.assert_close(
        local.cpu().double()[counted], torch.tensor(u_expected, dtype=torch.float64)[counted], **tolerance
    )


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    n=st.integers(1, 30),
    j=st.integers(2, 6),
    m=st.integers(2, 9),
    scale=st.sampled_from([1e-30, 0.05, 1.0, 1e4, 1e30]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    duplicates=st.booleans(),
    ties=st.booleans(),
)
def test_agrees_with_the_paper_on_any_shape(seed, n, j, m, scale, dtype, duplicates, ties):
    arguments = problem(seed, n, j, m, scale, dtype, duplicates, ties)
    counts = proposal2.local_uncertainty(*(a.tolist() for a in arguments[:3]), list(map(tuple, arguments[3].tolist())))[
        1
    ]
    assume(not any(1e-9 < k < 1e-4 for k in counts))  # a pair so near `min_weight` may fall on either side of it
    expected = proposal2.boundary_uncertainty(*(a.tolist() for a in arguments))
    assert float(boundary_uncertainty(*arguments)) == pytest.approx(expected, abs=TOLERANCE[dtype])


def test_value_does_not_depend_on_the_order_of_samples_to_the_bit(dtype):
    logits, labels, neighbors, pairs = problem(n=500, dtype=dtype)
    order = torch.randperm(500, generator=torch.Generator().manual_seed(1))
    position = torch.empty_like(order)
    position[order] = torch.arange(500)
    shuffled = boundary_uncertainty(logits[order], labels[order], position[neighbors[order]], pairs[order])
    assert shuffled == boundary_uncertainty(logits, labels, neighbors, pairs)


def test_value_does_not_depend_on_the_names_of_the_classes():
    logits, labels, neighbors, pairs = problem(j=4)
    names = torch.tensor([2, 0, 3, 1])
    renamed = torch.empty_like(logits)
    renamed[:, names] = logits
    other = boundary_uncertainty(renamed, names[labels], neighbors, names[pairs].sort(dim=1).values)
    torch.testing.assert_close(other, boundary_uncertainty(logits, labels, neighbors, pairs), atol=1e-12, rtol=0)


@pytest.mark.parametrize("factor", [1e-30, 0.5, 3.0, 1e30])
def test_value_does_not_depend_on_the_scale_of_the_logits(factor, dtype):
    logits, labels, neighbors, pairs = problem(dtype=dtype)
    scaled = boundary_uncertainty(logits * factor, labels, neighbors, pairs)
    torch.testing.assert_close(scaled, boundary_uncertainty(logits, labels, neighbors, pairs), atol=1e-5, rtol=0)


def test_value_does_not_depend_on_a_constant_added_to_each_row():
    logits, labels, neighbors, pairs = problem()
    shift = torch.randn(len(logits), 1, generator=torch.Generator().manual_seed(3), dtype=logits.dtype)
    shifted = boundary_uncertainty(logits + shift, labels, neighbors, pairs)
    torch.testing.assert_close(shifted, boundary_uncertainty(logits, labels, neighbors, pairs), atol=1e-9, rtol=0)


def test_value_does_not_depend_on_the_block_size(monkeypatch):
    arguments = problem(n=300)
    whole = boundary_uncertainty(*arguments)
    monkeypatch.setitem(implementation._BLOCK_ELEMENTS, "cpu", 50)
    assert boundary_uncertainty(*arguments) == whole


def test_int32_indices_and_half_logits_are_taken():
    logits, labels, neighbors, pairs = problem()
    whole = boundary_uncertainty(logits.half(), labels, neighbors, pairs)
    small = boundary_uncertainty(logits.half(), labels.int(), neighbors.int(), pairs.int())
    assert whole == small
    assert whole.dtype == torch.float32


def test_extra_classes_of_a_wider_model_change_nothing():
    logits, labels, neighbors, pairs = problem()
    wide = torch.nn.functional.pad(logits, (0, 3), value=-100.0)
    assert boundary_uncertainty(wide, labels, neighbors, pairs) == boundary_uncertainty(
        logits, labels, neighbors, pairs
    )


@pytest.mark.parametrize("shape", [(-1,), (-1, 1)])
def test_one_logit_counts_as_two_classes(shape):
    logits, labels, neighbors, pairs = problem(j=2)
    z = logits[:, 1] - logits[:, 0]
    two = torch.stack((torch.zeros_like(z), z), dim=1)
    one = boundary_uncertainty(z.reshape(shape), labels, neighbors, pairs)
    assert one == boundary_uncertainty(two, labels, neighbors, pairs)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_non_finite_logits_give_nan(bad):
    logits, labels, neighbors, pairs = problem()
    logits[7, 2] = bad
    assert boundary_uncertainty(logits, labels, neighbors, pairs).isnan()
    counts = local_uncertainty(logits, labels, neighbors, pairs)[1]
    assert torch.equal(counts.isnan(), (neighbors == 7).any(dim=1))


class TestSeparableClasses:
    """Eq. 39: no sample near the boundary of the pair."""

    neighbors = torch.tensor([[0, 1], [1, 0], [2, 3], [3, 2]])
    pairs = torch.tensor([[0, 1]] * 4)
    far = torch.tensor([[1000.0, 0.0], [1001.0, 0.0], [0.0, 1000.0], [0.0, 1001.0]])

    def test_all_classified_as_labelled_is_best(self):
        assert boundary_uncertainty(self.far, torch.tensor([0, 0, 1, 1]), self.neighbors, self.pairs) == 1

    def test_one_error_is_worst(self):
        assert boundary_uncertainty(self.far, torch.tensor([0, 0, 1, 0]), self.neighbors, self.pairs) == 0

    def test_identical_values_have_no_width_and_count_nothing(self):
        same = torch.tensor([[1.0, 0.0]] * 4)
        assert local_uncertainty(same, torch.tensor([0, 0, 0, 0]), self.neighbors, self.pairs)[1].tolist() == [0.0] * 4
        assert boundary_uncertainty(same, torch.tensor([0, 0, 0, 0]), self.neighbors, self.pairs) == 1

    def test_min_weight_moves_the_line(self):
        logits, labels, neighbors, pairs = problem(j=2)
        assert boundary_uncertainty(logits, labels, neighbors, pairs, min_weight=1e9) == 0


def test_wrong_pair_counts_but_is_worth_nothing():
    logits, labels, neighbors, _ = problem(j=3)
    top = top_pairs(logits)
    other = torch.tensor([[0, 1]]).expand_as(top)
    local, counts = local_uncertainty(logits, labels, neighbors, other)
    is_other = (top == other).all(dim=1)
    assert is_other.any()
    assert not is_other.all()
    assert (local[~is_other] == 0).all()
    assert (local[is_other] > 0).any()
    assert torch.equal(counts, local_uncertainty(logits, labels, neighbors, top)[1])


def test_pairs_add_up_to_the_whole():
    logits, labels, neighbors, pairs = problem()
    distinct, index = index_pairs(pairs)
    assert torch.equal(distinct[index], pairs)
    values, shares = pair_uncertainty(logits, labels, neighbors, distinct, index)
    assert float(shares.sum()) == pytest.approx(1, abs=1e-12)
    assert float((values * shares).sum()) == float(boundary_uncertainty(logits, labels, neighbors, pairs))


def test_two_gaussians_are_best_cut_where_they_meet():
    """Closed form: N(0, 1) against N(2, 1) meet at 1; every shifted threshold must score lower."""
    g = torch.Generator().manual_seed(0)
    labels = torch.arange(3000) % 2
    x = torch.randn(3000, generator=g) + 2 * labels
    order = x.argsort()
    x, labels = x[order], labels[order]
    start = (torch.arange(3000) - 20).clamp(0, 3000 - 40)
    neighbors = start.unsqueeze(1) + torch.arange(40)
    pairs = torch.tensor([[0, 1]]).expand(3000, 2)
    at = {cut: float(boundary_uncertainty(x - cut, labels, neighbors, pairs)) for cut in (0.0, 0.5, 1.0, 1.5, 2.0)}
    assert max(at, key=at.get) == 1.0
    assert 0.7 < at[1.0] < 0.95


class TestTopPairs:
    def test_agrees_with_sorting_on_ties(self):
        scores = torch.randint(0, 3, (500, 5), generator=torch.Generator().manual_seed(0))
        expected = [list(proposal2.two_largest(row)) for row in scores.tolist()]
        assert top_pairs(scores).tolist() == expected
        assert top_pairs(scores.double()).tolist() == expected

    def test_minus_infinity_is_ranked_too(self):
        low = -float("inf")
        assert top_pairs(torch.tensor([[low, 1.0, low], [1.0, low, low], [low, low, low]])).tolist() == [[0, 1]] * 3

    def test_one_column_is_refused(self):
        with pytest.raises(ValueError, match=r"`scores` must have shape \(N, J\) with J >= 2, got \(3, 1\)"):
            top_pairs(torch.zeros(3, 1))


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"logits": torch.zeros(120, 4, dtype=torch.int64)}, TypeError, "`logits` must have a floating-point dtype"),
        ({"logits": [[0.0]]}, TypeError, "`logits` must be a tensor"),
        ({"logits": torch.zeros(0, 4)}, ValueError, r"`logits` must have shape \(N, J\)"),
        ({"logits": torch.zeros(2, 3, 4)}, ValueError, r"`logits` must have shape \(N, J\)"),
        (
            {"labels": torch.zeros(119, dtype=torch.int64)},
            ValueError,
            r"`labels` must have shape \(120,\), got \(119,\)",
        ),
        ({"labels": torch.zeros(120)}, TypeError, "`labels` must have an integer dtype, got torch.float32"),
        ({"labels": torch.full((120,), 4)}, ValueError, r"`labels` must hold classes .* \[0, 4\), got values from 4"),
        ({"labels": torch.full((120,), -1)}, ValueError, "got values from -1"),
        ({"neighbors": torch.zeros(120, 1, dtype=torch.int64)}, ValueError, "`neighbors` must have shape .* M >= 2"),
        ({"neighbors": torch.full((120, 5), 120)}, ValueError, "`neighbors` must hold sample indices"),
        ({"bayes_pairs": torch.zeros(120, 2, dtype=torch.int64)}, ValueError, "`bayes_pairs` must have ascending rows"),
        ({"bayes_pairs": torch.tensor([[0, 4]] * 120)}, ValueError, "`bayes_pairs` must hold classes"),
        ({"min_weight": -1.0}, ValueError, "`min_weight` must be >= 0, got -1.0"),
    ],
)
def test_bad_arguments_are_named(change, error, message):
    arguments = dict(zip(("logits", "labels", "neighbors", "bayes_pairs"), problem(), strict=True))
    with pytest.raises(error, match=message):
        boundary_uncertainty(**{**arguments, **change})


def test_nothing_depends_on_deterministic_mode():
    arguments = problem()
    value = boundary_uncertainty(*arguments)
    torch.use_deterministic_algorithms(True)
    try:
        assert boundary_uncertainty(*arguments) == value
    finally:
        torch.use_deterministic_algorithms(False)


def test_arguments_are_left_as_they_were():
    arguments = problem()
    copies = [a.clone() for a in arguments]
    boundary_uncertainty(*arguments)
    assert all(torch.equal(a, b) for a, b in zip(arguments, copies, strict=True))
