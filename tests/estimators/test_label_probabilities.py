from functools import partial

import pytest
import torch
from oracles.labels import by_refitting
from problems import blobs, weights_at_random

from bu_torch import LabelProbabilities, LabelRegression, LabelVotes, NeighborGraph, doubtful_labels
from bu_torch.functional import label_votes
from bu_torch.functional.probabilities import brier_score, scale_to_shares

WEIGHTS = weights_at_random(60)
SENTINEL = torch.rand(400, 2, generator=torch.Generator().manual_seed(0))
SENTINEL[:10] = 1e8  # far from all others


@pytest.fixture
def penalties(monkeypatch):
    """A function that sets the penalties to choose from."""
    return partial(monkeypatch.setattr, "bu_torch.estimators.label_probabilities._PENALTIES")


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


class TestRegression:
    @pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["alike", "weighted"])
    def test_left_out_labels_are_predicted_as_by_fits_without_them(self, weights, device, penalties, monkeypatch):
        penalties((10, 0.3, 0.01))
        monkeypatch.setattr("bu_torch.estimators.label_probabilities._BLOCK_ELEMENTS", 700)  # several blocks
        features, labels = blobs(n=60)
        labels = torch.where(torch.rand(60, generator=torch.Generator().manual_seed(0)) < 0.3, 0, labels)
        elsewhere = features + 0.3 * torch.randn(features.shape, generator=torch.Generator().manual_seed(0))
        regression = LabelRegression().fit(features.to(device), labels.to(device), weights)
        mean_1 = torch.ones(60, dtype=torch.float64) if weights is None else weights / weights.mean()
        left_out = {p: by_refitting(features, labels, p, features, weights) for p in (0.01, 0.3, 10)}
        scores = {p: float(brier_score(found, labels, mean_1)) for p, found in left_out.items()}
        penalty = regression.penalty_
        assert scores[penalty] == min(scores.values())
        shares = (mean_1.unsqueeze(1) * torch.nn.functional.one_hot(labels)).mean(dim=0)
        by_chance = float(brier_score(shares.expand(60, -1), labels, mean_1))
        assert regression.skill_ == pytest.approx(1 - scores[penalty] / by_chance, abs=1e-4)
        assert (regression.left_out.dtype, regression.left_out.device.type) == (torch.float32, device.type)
        torch.testing.assert_close(regression.left_out.cpu(), left_out[penalty].float(), atol=2e-4, rtol=0)
        given = (features.to(device), labels.to(device), mean_1.to(device))
        for points in (features, elsewhere):
            expected = by_refitting(features, labels, penalty, points, weights).float()
            found = regression.predict_proba(points.to(device), *given).cpu()
            torch.testing.assert_close(found, expected, atol=2e-4, rtol=0)

    @pytest.mark.parametrize("scale", [1e-100, 1000, 1e100])
    def test_shift_and_scale_do_not_matter(self, scale):
        features, labels = blobs(n=80)
        features, elsewhere = features.double(), features.double() + 1
        expected = LabelRegression().fit(features, labels).predict_proba(elsewhere)
        found = LabelRegression().fit(scale * (features + 5), labels).predict_proba(scale * (elsewhere + 5))
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)

    def test_landmarks_come_near_to_all_samples(self, penalties):
        penalties((0.1,))
        features, labels = blobs(n=400)
        exact = LabelRegression().fit(features, labels)
        nearly = LabelRegression(n_landmarks=399).fit(features, labels)
        at_home = nearly.predict_proba(features, features, labels)
        torch.testing.assert_close(at_home, exact.left_out, atol=0.01, rtol=0)
        few = LabelRegression(n_landmarks=100).fit(features, labels)
        elsewhere = features + 0.5 * torch.randn(features.shape, generator=torch.Generator().manual_seed(0))
        for found, expected in (
            (nearly.left_out, exact.left_out),  # by half of the landmarks
            (few.left_out, exact.left_out),
            (few.predict_proba(elsewhere), exact.predict_proba(elsewhere)),
        ):
            assert (found - expected).abs().mean() < 0.02
        assert LabelRegression(n_landmarks=1).fit(features, labels).skill_ < few.skill_ < exact.skill_ + 0.01

    @pytest.mark.parametrize("n_landmarks", [300, 40])
    def test_copies_do_no_harm(self, n_landmarks, penalties):
        """The same points twice are the same solution with half of the penalty, wherever landmarks fall together."""
        features, labels = blobs(n=150)
        penalties((0.2,))
        exact = LabelRegression().fit(features, labels).predict_proba(features)
        penalties((0.4,))
        twice = LabelRegression(n_landmarks).fit(features.repeat(2, 1), labels.repeat(2))
        atol = 1e-5 if n_landmarks == 300 else 0.1
        torch.testing.assert_close(twice.predict_proba(features), exact, atol=atol, rtol=0)

    def test_of_many_samples_some_of_each_class_are_taken_with_their_weights(self):
        features, labels = blobs(n=300)
        weights = 0.5 + torch.rand(300, generator=torch.Generator().manual_seed(0))
        labels[7] = 5
        part = LabelRegression(max_samples=120, seed=1).fit(features, labels, weights)
        assert part.rows_.tolist() == sorted(set(part.rows_.tolist()))
        assert (len(part.rows_), part.left_out.shape) == (120, (120, 6))
        assert labels[part.rows_].bincount().tolist() == [40, 39, 40, 0, 0, 1]
        alone = LabelRegression(seed=1).fit(features[part.rows_], labels[part.rows_], weights[part.rows_])
        torch.testing.assert_close(part.predict_proba(features), alone.predict_proba(features))
        assert LabelRegression().fit(features, labels).rows_.tolist() == list(range(300))

    @pytest.mark.parametrize("features", [torch.zeros(30, 2), torch.ones(30, 1, 4, 4) * 1e20, torch.eye(30), SENTINEL])
    def test_degenerate_points_give_probabilities(self, features):
        labels = torch.arange(len(features)) % 2
        regression = LabelRegression().fit(features, labels)
        for probabilities in (regression.left_out, regression.predict_proba(features)):
            torch.testing.assert_close(probabilities.sum(dim=1), torch.ones(len(features)))
        one_class = LabelRegression().fit(features, 0 * labels)
        assert one_class.skill_ == 0
        assert bool((one_class.predict_proba(features) == 1).all())


class TestProbabilities:
    @pytest.mark.parametrize("with_weights", [False, True])
    @pytest.mark.parametrize("n_read", [90, 60])
    def test_votes_regression_and_copies_count_as_they_predict_left_out_labels(self, device, with_weights, n_read):
        generator = torch.Generator().manual_seed(0)
        features, labels = blobs(60, 3)
        is_noise = torch.rand(60, generator=generator) < 0.5
        labels = torch.where(is_noise, torch.randint(3, (60,), generator=generator), labels).repeat(2)[:90]
        features = features.repeat(2, 1)[:90]
        features[80:], labels[80:] = features[20:30], labels[20:30]  # ten samples are there three times
        labels[:12] = torch.randint(3, (12,), generator=generator)  # not all copies agree
        weights = 0.5 + torch.rand(90, generator=generator) if with_weights else None
        given = [part.to(device) for part in (features, labels, NeighborGraph(10).fit(features).neighbors)]
        on_device = None if weights is None else weights.to(device)
        regression = LabelRegression(n_landmarks=10, max_samples=n_read)  # it sees no copies
        found = LabelProbabilities(regression=regression).fit(*given, on_device)
        assert found.regression is regression
        counted = torch.ones(90).double() if weights is None else (weights / weights.mean()).double()

        def best_weight(first, second, rows):
            mixed = (torch.lerp(first, second, w / 1000) for w in range(1001))
            losses = [float(brier_score(one, labels[rows], weights=counted[rows])) for one in mixed]
            return losses.index(min(losses)) / 1000

        read, parts = regression.rows_.cpu(), (found.votes.left_out.cpu(), regression.left_out.cpu())
        weight = best_weight(parts[0][read], parts[1], read)
        assert 0.1 < weight < 0.9
        assert found.weight_ == pytest.approx(weight, abs=2e-3)
        same = (features.unsqueeze(1) == features).all(dim=2)
        of_label = counted.unsqueeze(1) * torch.nn.functional.one_hot(labels, 3)
        shares, left_out = same.double() @ of_label, (same & ~torch.eye(90).bool()).double() @ of_label
        copied = same.sum(dim=1) > 1
        mixture, judges = torch.lerp(parts[0][read], parts[1], weight).double()[copied[read]], read[copied[read]]
        others = left_out[judges] / left_out[judges].sum(dim=1, keepdim=True)
        copy_weight = best_weight(mixture, others, judges)
        assert 0.1 < copy_weight < 0.9
        assert found.copy_weight_ == pytest.approx(copy_weight, abs=2e-3)
        assert (len(judges) < int(copied.sum())) == (n_read == 60)

        perturbed = features + 0.1 * torch.randn(90, 3, generator=generator)
        own = {"own": given[0], "labels": given[1], "weights": counted.to(device)}
        for is_left_out, votes, share in ((True, parts[0], left_out), (False, found.votes.votes.cpu(), shares)):
            by_regression = regression.predict_proba(perturbed.to(device), **(own if is_left_out else {})).cpu()
            without = torch.lerp(votes, by_regression, weight).double()
            share = share / share.sum(dim=1, keepdim=True)
            expected = torch.where(copied.unsqueeze(1), torch.lerp(without, share, copy_weight), without)
            expected = scale_to_shares(expected, of_label.mean(dim=0), counted)
            both = found.predict_proba(perturbed.repeat(2, 1).to(device), given[0] if is_left_out else None)
            assert (both.dtype, both.device.type) == (torch.float32, device.type)
            torch.testing.assert_close(both.cpu().double(), expected.repeat(2, 1), atol=3e-3, rtol=0)
            assert (expected - without).abs().max() > 0.05
        predictions = torch.randint(4, (90,), generator=generator)
        chosen = [float(row[p]) if p < 3 else 0.0 for row, p in zip(expected, predictions.tolist(), strict=True)]
        score = found.score(perturbed.to(device), predictions)
        assert float(score) == pytest.approx(float((counted * torch.tensor(chosen)).mean()), abs=3e-3)


# Labels that are unlikely by all other samples.


def flipped():
    labels = torch.arange(150) % 3
    features = torch.randn(150, 3, generator=torch.Generator().manual_seed(0)) + 5 * torch.eye(3)[labels]
    wrong = torch.arange(0, 150, 15)
    labels[wrong] = (labels[wrong] + 1) % 3
    return features, labels, wrong


def test_flipped_labels_come_first_whatever_the_order_and_the_names_of_the_samples():
    features, labels, wrong = flipped()
    found = doubtful_labels(features, labels, n_neighbors=20)
    assert sorted(found.rows[:10].tolist()) == wrong.tolist()
    assert torch.equal(found.likeliest[:10], (labels[found.rows[:10]] - 1) % 3)
    assert torch.equal(found.probability, found.probability.sort().values)
    order = torch.randperm(150, generator=torch.Generator().manual_seed(0))
    other = doubtful_labels(features[order], 5 * labels[order], n_neighbors=20)
    before, after = found.rows.argsort()[order], other.rows.argsort()
    torch.testing.assert_close(other.probability[after], found.probability[before])
    assert torch.equal(other.likeliest[after], 5 * found.likeliest[before])


def test_ones_own_label_does_not_count():
    """Between two classes, the probabilities of both labels, each where the sample has it, are those of one guess."""
    features, labels, _ = flipped()
    features = features + 2 * torch.randn(150, 3, generator=torch.Generator().manual_seed(1))
    features[3] = torch.tensor([2.5, 2.5, 0.0])
    settings = {"n_neighbors": 5, "feature_extractor": "inputs"}
    both = (torch.where(torch.arange(150) == 3, label, labels) for label in (0, 1))
    found = (doubtful_labels(features, one, **settings) for one in both)
    assert sum(float(one.probability[one.rows == 3]) for one in found) < 1.05
