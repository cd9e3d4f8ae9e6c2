import torch

from bu_torch.functional.probabilities import as_probabilities, brier_score, mixing_weight


def test_probabilities_are_positive_and_sum_to_one():
    found = as_probabilities(torch.tensor([[0.2, 0.8, 0.0], [-1.0, 1.5, 0.5], [0.4, 0.4, 0.2]]))
    torch.testing.assert_close(found, torch.tensor([[0.2, 0.8, 0.0], [0.0, 0.75, 0.25], [0.4, 0.4, 0.2]]))


def test_closed_forms_of_the_brier_score():
    assert float(brier_score(torch.full((4, 2), 0.5), torch.tensor([0, 1, 1, 0]))) == 0.5
    assert float(brier_score(torch.eye(3), torch.tensor([1, 2, 0]))) == 2.0
    assert float(brier_score(torch.eye(3), torch.arange(3))) == 0.0


class TestMixingWeight:
    def test_is_zero_where_there_is_nothing_to_mix(self):
        votes = torch.rand(10, 2).softmax(dim=1)
        assert mixing_weight(votes, votes, torch.zeros(10, dtype=torch.int64)) == 0
