import pytest
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
    @pytest.mark.parametrize("better", ["neither", "first", "second"])
    def test_has_the_least_brier_score(self, device, better):
        generator = torch.Generator().manual_seed(0)
        labels = torch.randint(3, (200,), generator=generator)
        one_hot = torch.nn.functional.one_hot(labels, 3).float()
        guesses = {name: torch.rand(200, 3, generator=generator).softmax(dim=1) for name in ("first", "second")}
        for name in guesses:
            know = {"neither": 0.3, name: 1.0}.get(better, 0.0)
            guesses[name] = (1 - know) * guesses[name] + know * one_hot
        weight = mixing_weight(guesses["first"].to(device), guesses["second"].to(device), labels.to(device)).cpu()
        scores = [
            float(brier_score(torch.lerp(guesses["first"], guesses["second"], step / 1000), labels))
            for step in range(1001)
        ]
        assert abs(float(weight) - scores.index(min(scores)) / 1000) < 2e-3
        assert {"first": weight == 0, "second": weight == 1}.get(better, 0 < weight < 1)

    def test_is_zero_where_there_is_nothing_to_mix(self):
        votes = torch.rand(10, 2).softmax(dim=1)
        assert mixing_weight(votes, votes, torch.zeros(10, dtype=torch.int64)) == 0
