import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import pad

from bu_torch.functional.probabilities import (
    as_probabilities,
    best_sharpness,
    brier_score,
    mixing_weight,
    scale_to_shares,
)


def test_closed_forms_of_probabilities_and_of_the_brier_score():
    assert as_probabilities(torch.tensor([[-0.5, 1.5], [0.5, 1.5]])).tolist() == [[0.0, 1.0], [0.25, 0.75]]
    assert float(brier_score(torch.full((4, 2), 0.5), torch.tensor([0, 1, 1, 0]))) == 0.5
    assert float(brier_score(torch.eye(3), torch.tensor([1, 2, 0]))) == 2.0
    assert float(brier_score(torch.eye(3), torch.arange(3))) == 0.0
    assert mixing_weight(torch.eye(2), torch.eye(2), torch.arange(2)) == 0  # of equal ones the second have no weight
    likely = torch.tensor([[0.6, 0.4]])
    assert [best_sharpness(likely, torch.tensor([label]), None) for label in (0, 1)] == [6, 1]  # all right, all wrong


@given(st.integers(0, 2**32), st.booleans())
def test_scaled_probabilities_have_the_masses_asked_for_and_two_classes_keep_their_order(seed, is_weighted):
    g = torch.Generator().manual_seed(seed)
    of_one = torch.rand(50, generator=g, dtype=torch.float64) * 0.8 + 0.1
    weights = torch.rand(50, generator=g, dtype=torch.float64) + 0.1 if is_weighted else None
    share = float(torch.rand((), generator=g, dtype=torch.float64) * 0.8 + 0.1)
    given_ = torch.stack((1 - of_one, of_one), dim=1)
    found = scale_to_shares(given_, torch.tensor([1 - share, share], dtype=torch.float64), weights)
    counted = torch.ones(50, dtype=torch.float64) if weights is None else weights
    assert float((counted * found[:, 1]).sum() / counted.sum()) == pytest.approx(share, abs=1e-6)
    shift = found[:, 1].logit() - of_one.logit()  # all log odds move alike
    torch.testing.assert_close(shift, shift[:1].expand(50))
    torch.testing.assert_close(scale_to_shares(found, found.mean(dim=0)), found)
    padded = scale_to_shares(pad(given_, (0, 1)), torch.tensor([1 - share, share, 0.0], dtype=torch.float64), weights)
    torch.testing.assert_close(padded, pad(found, (0, 1)))  # a class with no probability anywhere stays so
