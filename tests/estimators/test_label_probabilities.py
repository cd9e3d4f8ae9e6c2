import pytest
import torch
from oracles.label_regression import by_refitting, by_solving
from problems import blobs

from bu_torch import LabelProbabilities, LabelRegression, LabelVotes, NeighborGraph
from bu_torch.functional.probabilities import brier_score, mixing_weight


def noisy_blobs(n=60, n_draws=2, **kwargs):
    """Samples with a fifth of wrong labels, their clusters, and draws of perturbed copies."""
    generator = torch.Generator().manual_seed(5)
    features, labels = blobs(n=n, **kwargs)
    labels = torch.where(torch.rand(n, generator=generator) < 0.2, 0, labels)
    perturbed = features.repeat(n_draws, 1) + 0.5 * torch.randn(n_draws * n, features.shape[1], generator=generator)
    return features, labels, NeighborGraph(10).fit(features).neighbors, perturbed


def votes_one_by_one(labels, neighbors, decay, first):
    """Shares of the votes of each cluster from its member number `first` on."""
    votes = torch.zeros(len(labels), int(labels.max()) + 1, dtype=torch.float64)
    for row, members in enumerate(neighbors.tolist()):
        for rank, member in enumerate(members[first:], start=1):
            votes[row, labels[member]] += rank**-decay
    return votes / votes.sum(dim=1, keepdim=True)


class TestProbabilities:
    def test_agree_with_a_slow_reference(self, device):
        features, labels, neighbors, perturbed = noisy_blobs()
        on_device = (part.to(device) for part in (features, labels, neighbors))
        probabilities = LabelProbabilities().fit(*on_device)
        penalty, decay = probabilities.regression.penalty_, probabilities.votes.decay_
        by_votes = votes_one_by_one(labels, neighbors, decay, first=1)
        by_regression = by_refitting(features, labels, penalty)
        scores = [float(brier_score(torch.lerp(by_votes, by_regression, w / 1000), labels)) for w in range(1001)]
        weight = scores.index(min(scores)) / 1000
        assert 0 < weight < 1
        assert probabilities.weight_ == pytest.approx(weight, abs=2e-3)
        votes = votes_one_by_one(labels, neighbors, decay, first=0).repeat(2, 1)
        expected = (1 - weight) * votes + weight * by_solving(features, labels, penalty, perturbed)
        found = probabilities.predict_proba(perturbed.to(device))
        assert (found.dtype, found.device.type) == (torch.float32, device.type)
        torch.testing.assert_close(found.cpu().double(), expected, atol=3e-3, rtol=0)
        predictions = torch.randint(4, (120,), generator=torch.Generator().manual_seed(0))
        chosen = [float(row[p]) if p < 3 else 0.0 for row, p in zip(expected, predictions.tolist(), strict=True)]
        score = probabilities.score(perturbed.to(device), predictions)
        assert score.dtype == torch.float64
        assert float(score) == pytest.approx(sum(chosen) / 120, abs=3e-3)

    def test_votes_that_are_always_right_have_all_the_weight(self):
        features, labels = blobs(n=30)
        own_class = torch.stack([(torch.arange(30) + 3 * step) % 30 for step in range(4)], dim=1)
        probabilities = LabelProbabilities().fit(features, labels, own_class)
        assert probabilities.weight_ == 0
        assert torch.equal(probabilities.predict_proba(features.repeat(3, 1)), torch.eye(3)[labels].repeat(3, 1))
        assert probabilities.score(features, labels) == 1
        assert probabilities.score(features, (labels + 1) % 3) == 0

    @pytest.mark.parametrize("with_weights", [False, True])
    @pytest.mark.parametrize("n_read", [90, 60])
    def test_labels_of_exact_copies_count_as_they_predict_labels_that_are_left_out(self, device, with_weights, n_read):
        generator = torch.Generator().manual_seed(0)
        features = torch.randn(60, 3, generator=generator).repeat(2, 1)[:90]
        features[80:] = features[20:30]  # of ten samples there are three
        labels = torch.randint(3, (60,), generator=generator).repeat(2)[:90]
        labels[80:] = labels[20:30]
        labels[:12] = torch.randint(3, (12,), generator=generator)  # not all copies agree
        weights = 0.5 + torch.rand(90, generator=generator) if with_weights else None
        graph = NeighborGraph(10).fit(features)
        given = [part.to(device) for part in (features, labels, graph.neighbors)]
        on_device = None if weights is None else weights.to(device)
        regression = LabelRegression(n_landmarks=10, max_samples=n_read)  # which sees no copies
        found = LabelProbabilities(regression=regression).fit(*given, on_device)

        counted = torch.ones(90) if weights is None else weights / weights.mean()
        same = (features.unsqueeze(1) == features).all(dim=2)
        left_out, shares = torch.zeros(90, 3, dtype=torch.float64), torch.zeros(90, 3, dtype=torch.float64)
        for row in range(90):
            for other in same[row].nonzero().flatten().tolist():
                shares[row, labels[other]] += counted[other]
                left_out[row, labels[other]] += counted[other] if other != row else 0.0
        copied = same.sum(dim=1) > 1
        mixture = torch.lerp(
            found.votes.left_out[found.regression.rows_].cpu(), found.regression.left_out.cpu(), found.weight_
        ).double()
        read = found.regression.rows_.cpu()
        read, mixture = read[copied[read]], mixture[copied[read]]
        others = left_out[read] / left_out[read].sum(dim=1, keepdim=True)
        losses = [
            float(brier_score(torch.lerp(mixture, others, w / 1000), labels[read], weights=counted[read].double()))
            for w in range(1001)
        ]
        weight = losses.index(min(losses)) / 1000
        assert 0.1 < weight < 1
        assert found.copy_weight_ == pytest.approx(weight, abs=2e-3)
        assert (len(read) < int(copied.sum())) == (n_read == 60)

        perturbed = features + 0.1 * torch.randn(90, 3, generator=generator)
        without = torch.lerp(found.votes.votes, found.regression.predict_proba(perturbed), found.weight_).cpu().double()
        share = shares / shares.sum(dim=1, keepdim=True)
        expected = torch.where(copied.unsqueeze(1), torch.lerp(without, share, weight), without)
        both = found.predict_proba(perturbed.repeat(2, 1).to(device)).cpu().double()
        torch.testing.assert_close(both, expected.repeat(2, 1), atol=2e-3, rtol=0)
        assert (expected - without).abs().max() > 0.05

    def test_without_copies_nothing_changes(self):
        features, labels, neighbors, _ = noisy_blobs()
        assert LabelProbabilities().fit(features, labels, neighbors).copy_weight_ == 0

    def test_the_parts_are_those_given(self):
        features, labels, neighbors, _ = noisy_blobs()
        votes, regression = LabelVotes(decays=(1.0,)), LabelRegression(max_samples=30, seed=1)
        probabilities = LabelProbabilities(votes, regression).fit(features, labels, neighbors)
        assert (probabilities.votes, probabilities.regression) == (votes, regression)
        rows = regression.rows_
        assert (votes.decay_, len(rows)) == (1.0, 30)
        weight = mixing_weight(votes.left_out[rows], regression.left_out, labels[rows])
        assert probabilities.weight_ == float(weight)
