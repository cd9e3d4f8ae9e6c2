import faiss
import pytest
import torch
from oracles.label_regression import by_refitting
from problems import blobs

from bu_torch import LabelRegression
from bu_torch.functional.probabilities import brier_score

WEIGHTS = (torch.randn(60, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 0.8).exp()


class TestRegression:
    @pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["alike", "weighted"])
    def test_left_out_probabilities_are_those_of_as_many_fits(self, weights, device):
        features, labels = blobs(n=60)
        regression = LabelRegression().fit(features.to(device), labels.to(device), weights)
        assert (regression.left_out.dtype, regression.left_out.device.type) == (torch.float32, device.type)
        expected = by_refitting(features, labels, regression.penalty_, weights)
        torch.testing.assert_close(regression.left_out.cpu(), expected.float(), atol=2e-4, rtol=0)

    @pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["alike", "weighted"])
    def test_the_penalty_predicts_left_out_labels_best(self, weights):
        features, labels = blobs(n=60)
        labels = torch.where(torch.rand(60, generator=torch.Generator().manual_seed(0)) < 0.3, 0, labels)
        regression = LabelRegression(penalties=(0.01, 0.3, 10)).fit(features, labels, weights)
        given = {} if weights is None else {"weights": weights / weights.mean()}
        left_out = {p: by_refitting(features, labels, p, weights) for p in (0.01, 0.3, 10)}
        scores = {p: float(brier_score(found, labels, **given)) for p, found in left_out.items()}
        assert scores[regression.penalty_] == min(scores.values())
        if weights is None:
            shares = labels.bincount() / len(labels)
            by_chance = float(brier_score(shares.expand(60, -1), labels))
            assert regression.skill_ == pytest.approx(1 - min(scores.values()) / by_chance, abs=1e-4)

    def test_shift_scale_rotation_and_order_do_not_matter(self):
        features, labels = blobs(n=80)
        features = features.double()
        elsewhere = torch.randn(50, features.shape[1], generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        expected = LabelRegression().fit(features, labels).predict_proba(elsewhere)
        generator = torch.Generator().manual_seed(1)
        rotation = torch.linalg.qr(torch.randn(*[features.shape[1]] * 2, generator=generator, dtype=torch.float64)).Q
        order = torch.randperm(80, generator=generator)
        changed = LabelRegression().fit(1000 * features[order] @ rotation + 5, labels[order])
        found = changed.predict_proba(1000 * elsewhere @ rotation + 5)
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)

    @pytest.mark.parametrize("scale", [1e-200, 1e200])
    def test_extreme_scales_do_not_matter(self, scale):
        features, labels = blobs(n=80)
        expected = LabelRegression().fit(features.double(), labels)
        found = LabelRegression().fit(scale * features.double(), labels)
        torch.testing.assert_close(found.left_out, expected.left_out)
        torch.testing.assert_close(
            found.predict_proba(scale * features.double()), expected.predict_proba(features.double())
        )

    def test_landmarks_come_near_to_all_samples(self):
        features, labels = blobs(n=400)
        exact = LabelRegression(penalties=(0.1,)).fit(features, labels)
        nearly = LabelRegression(n_landmarks=399, penalties=(0.1,)).fit(features, labels)
        torch.testing.assert_close(nearly.left_out, exact.left_out, atol=0.01, rtol=0)
        few = LabelRegression(n_landmarks=100, penalties=(0.1,)).fit(features, labels)
        elsewhere = features + 0.5 * torch.randn(features.shape, generator=torch.Generator().manual_seed(0))
        for found, expected in (
            (few.left_out, exact.left_out),
            (few.predict_proba(elsewhere), exact.predict_proba(elsewhere)),
        ):
            assert (found - expected).abs().mean() < 0.02
        one = LabelRegression(n_landmarks=1, penalties=(0.1,)).fit(features, labels)
        assert one.skill_ < few.skill_ < exact.skill_ + 0.01

    def test_landmarks_do_not_depend_on_the_number_of_threads(self):
        features, labels = blobs(n=600)
        found = []
        for n_threads in (1, 2):
            before = torch.get_num_threads(), faiss.omp_get_max_threads()
            torch.set_num_threads(n_threads)
            faiss.omp_set_num_threads(n_threads)
            try:
                found.append(LabelRegression(n_landmarks=50).fit(features, labels).predict_proba(features))
            finally:
                torch.set_num_threads(before[0])
                faiss.omp_set_num_threads(before[1])
        torch.testing.assert_close(*found, atol=1e-6, rtol=0)

    @pytest.mark.parametrize("n_landmarks", [300, 40])
    def test_copies_do_no_harm(self, n_landmarks):
        """The same points twice are the same solution with half of the penalty, wherever landmarks fall together."""
        features, labels = blobs(n=150)
        exact = LabelRegression(penalties=(0.2,)).fit(features, labels).predict_proba(features)
        twice = LabelRegression(n_landmarks, penalties=(0.4,)).fit(features.repeat(2, 1), labels.repeat(2))
        atol = 1e-5 if n_landmarks == 300 else 0.1
        torch.testing.assert_close(twice.predict_proba(features), exact, atol=atol, rtol=0)

    def test_of_many_samples_some_of_each_class_are_taken(self):
        features, labels = blobs(n=300)
        labels[7] = 5
        part = LabelRegression(max_samples=120, seed=1).fit(features, labels)
        assert part.rows_.tolist() == sorted(set(part.rows_.tolist()))
        assert (len(part.rows_), part.left_out.shape) == (120, (120, 6))
        assert labels[part.rows_].bincount().tolist() == [40, 39, 40, 0, 0, 1]
        alone = LabelRegression(seed=1).fit(features[part.rows_], labels[part.rows_])
        torch.testing.assert_close(part.predict_proba(features), alone.predict_proba(features))
        assert LabelRegression().fit(features, labels).rows_.tolist() == list(range(300))

    @pytest.mark.parametrize("features", [torch.zeros(30, 2), torch.ones(30, 1, 4, 4) * 1e20, torch.eye(30)])
    def test_degenerate_points_give_probabilities(self, features):
        labels = torch.arange(30) % 2
        regression = LabelRegression().fit(features, labels)
        for probabilities in (regression.left_out, regression.predict_proba(features)):
            torch.testing.assert_close(probabilities.sum(dim=1), torch.ones(30))
        one_class = LabelRegression().fit(features, torch.zeros(30))
        assert one_class.skill_ == 0
        assert bool((one_class.predict_proba(features) == 1).all())

    def test_no_random_number_of_others_is_used(self):
        features, labels = blobs(n=100)
        state = torch.get_rng_state()
        first = LabelRegression(n_landmarks=20, seed=3).fit(features, labels).left_out
        assert torch.equal(torch.get_rng_state(), state)
        assert torch.equal(LabelRegression(n_landmarks=20, seed=3).fit(features, labels).left_out, first)

    def test_chunks_do_not_matter(self, monkeypatch):
        features, labels = blobs(n=100)
        expected = LabelRegression().fit(features, labels).predict_proba(features)
        monkeypatch.setattr("bu_torch.estimators.label_probabilities._BLOCK_ELEMENTS", 700)
        torch.testing.assert_close(LabelRegression().fit(features, labels).predict_proba(features), expected)
