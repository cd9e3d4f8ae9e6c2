import pytest
import torch
from problems import blobs

from bu_torch import LabelVotes, NeighborGraph
from bu_torch.functional import brier_score, label_votes


def test_the_decay_predicts_left_out_labels_best():
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


def test_noise_asks_more_neighbours_and_fine_shapes_fewer():
    generator = torch.Generator().manual_seed(0)
    features = torch.rand(600, 2, generator=generator)
    stripes = (features[:, 0] * 12).long() % 2
    noisy = torch.where(torch.rand(600, generator=generator) < 0.3, 1 - stripes, stripes)
    halves = (features[:, 0] > 0.5).long()
    noisy_halves = torch.where(torch.rand(600, generator=generator) < 0.3, 1 - halves, halves)
    neighbors = NeighborGraph(40).fit(features).neighbors
    decay = {
        name: LabelVotes().fit(labels, neighbors).decay_
        for name, labels in {"stripes": stripes, "noisy": noisy, "halves": noisy_halves}.items()
    }
    assert decay["halves"] < decay["noisy"] <= decay["stripes"]


def test_skill_is_what_the_votes_of_the_others_gain_on_labels_drawn_at_random():
    labels = torch.tensor([0, 0, 0, 1, 1, 1])
    of_own_class = torch.tensor([[0, 1], [1, 2], [2, 0], [3, 4], [4, 5], [5, 3]])
    assert LabelVotes().fit(labels, of_own_class).skill_ == 1
    of_other_class = torch.tensor([[0, 3], [1, 4], [2, 5], [3, 0], [4, 1], [5, 2]])
    assert LabelVotes().fit(labels, of_other_class).skill_ == pytest.approx(1 - 2 / (0.5 * 2))
    assert LabelVotes().fit(torch.zeros(6, dtype=torch.int64), of_own_class).skill_ == 0

    generator = torch.Generator().manual_seed(0)
    labels = torch.multinomial(torch.tensor([0.7, 0.2, 0.1]), 5000, replacement=True, generator=generator)
    neighbors = torch.cat((torch.arange(5000).unsqueeze(1), torch.randint(5000, (5000, 9), generator=generator)), dim=1)
    assert LabelVotes((0.0,)).fit(labels, neighbors).skill_ == pytest.approx(0, abs=0.02)


def test_score_counts_the_votes_of_the_predicted_classes():
    labels, neighbors = torch.tensor([0, 0, 1, 1]), torch.tensor([[0, 1], [1, 2], [2, 1], [3, 2]])
    votes = LabelVotes().fit(labels, neighbors)
    predictions = torch.tensor([0, 0, 1, 1, 1, 1, 1, 9])
    expected = sum(float(votes.votes[i % 4, p]) for i, p in enumerate(predictions.tolist()) if p < 2) / 8
    assert float(votes.score(predictions)) == pytest.approx(expected)
    assert float(votes.score(predictions.numpy())) == pytest.approx(expected)


def test_bad_arguments_are_named():
    for decays in ((), (1.0, -1.0), (float("nan"),)):
        with pytest.raises(ValueError, match="`decays` must hold at least one number, all >= 0"):
            LabelVotes(decays)
    with pytest.raises(RuntimeError, match="not fitted yet"):
        LabelVotes().score(torch.tensor([0]))
    neighbors = torch.tensor([[0, 1], [1, 0]])
    with pytest.raises(ValueError, match="`labels` must have one entry a sample, 2, got 3"):
        LabelVotes().fit(torch.tensor([0, 1, 1]), neighbors)
    with pytest.raises(ValueError, match="fractional"):
        LabelVotes().fit(torch.tensor([0.5, 1.0]), neighbors)
    votes = LabelVotes().fit(torch.tensor([0, 1]), neighbors)
    with pytest.raises(ValueError, match="`predictions` must hold a multiple of the 2 samples, got 3"):
        votes.score(torch.tensor([0, 1, 1]))
