import pytest
import torch
from problems import blobs

from bu_torch import LabelVotes, NeighborGraph
from bu_torch.functional import label_votes
from bu_torch.functional.probabilities import brier_score
from bu_torch.samples.subset import stratified_rows


class TestVotes:
    def test_the_decay_predicts_left_out_labels_best(self):
        features, labels = blobs()
        labels = torch.where(torch.rand(len(labels), generator=torch.Generator().manual_seed(0)) < 0.3, 0, labels)
        neighbors = NeighborGraph(20).fit(features).neighbors
        votes = LabelVotes().fit(labels, neighbors)
        scores = {
            decay: float(brier_score(label_votes(labels, neighbors, decay, leave_one_out=True), labels))
            for decay in (0.0, 0.5, 1.0, 1.5, 2.0, 3.0)
        }
        assert scores[votes.decay_] == min(scores.values())
        assert torch.equal(votes.votes, label_votes(labels, neighbors, votes.decay_))
        assert torch.equal(votes.left_out, label_votes(labels, neighbors, votes.decay_, leave_one_out=True))

    def test_skill_is_what_the_votes_of_the_others_gain_on_labels_drawn_at_random(self):
        labels = torch.tensor([0, 0, 0, 1, 1, 1])
        of_own_class = torch.tensor([[0, 1], [1, 2], [2, 0], [3, 4], [4, 5], [5, 3]])
        assert LabelVotes().fit(labels, of_own_class).skill_ == 1
        of_other_class = torch.tensor([[0, 3], [1, 4], [2, 5], [3, 0], [4, 1], [5, 2]])
        assert LabelVotes().fit(labels, of_other_class).skill_ == pytest.approx(1 - 2 / (0.5 * 2))
        assert LabelVotes().fit(torch.zeros(6, dtype=torch.int64), of_own_class).skill_ == 0
        labels, others = torch.tensor([0, 0, 0, 1]), torch.tensor([[0, 3], [1, 3], [2, 3], [3, 0]])
        assert LabelVotes().fit(labels, others).skill_ == pytest.approx(1 - 2 / (2 * (1 - 0.75**2 - 0.25**2)))

    def test_score_counts_the_votes_of_the_predicted_classes(self):
        labels, neighbors = torch.tensor([0, 0, 1, 1]), torch.tensor([[0, 1], [1, 2], [2, 1], [3, 2]])
        votes = LabelVotes().fit(labels, neighbors)
        predictions = torch.tensor([0, 0, 1, 1, 1, 1, 1, 9])
        expected = sum(float(votes.votes[i % 4, p]) for i, p in enumerate(predictions.tolist()) if p < 2) / 8
        assert float(votes.score(predictions)) == pytest.approx(expected)
        assert float(votes.score(predictions.numpy())) == pytest.approx(expected)

    def test_of_very_many_a_subset_chooses_the_decay(self, monkeypatch):
        generator = torch.Generator().manual_seed(0)
        labels = torch.randint(0, 3, (600,), generator=generator)
        neighbors = torch.cat(
            (torch.arange(600).unsqueeze(1), torch.randint(0, 600, (600, 9), generator=generator)), dim=1
        )
        weights = 0.5 + torch.rand(600, generator=generator)
        monkeypatch.setattr("bu_torch.estimators.label_probabilities._MOST_VOTES", 90)
        votes = LabelVotes().fit(labels, neighbors, weights)
        rows = stratified_rows(600, 90, 0, labels)
        scores = {}
        for decay in votes.decays:
            left_out = label_votes(labels, neighbors, decay, leave_one_out=True, weights=weights)
            scores[decay] = float(brier_score(left_out[rows], labels[rows], weights=weights[rows]))
        assert scores[votes.decay_] == min(scores.values())
        expected = label_votes(labels, neighbors, votes.decay_, leave_one_out=True, weights=weights)
        torch.testing.assert_close(votes.left_out, expected)
        assert votes.skill_ == pytest.approx(LabelVotes([votes.decay_]).fit(labels, neighbors, weights).skill_)
