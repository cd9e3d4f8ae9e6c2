import pytest
import torch
from problems import blobs

from bu_torch import LabelRegression, LabelVotes, NeighborGraph
from bu_torch.functional import as_probabilities, brier_score, tangent_kernel


def by_refitting(features, labels, penalty):
    """Kernel ridge regression solved anew without each sample, the centre, scale and shares being those of all."""
    points = (features - features.mean(dim=0)).double()
    points = points / points.square().mean().sqrt()
    kernel = tangent_kernel(points, points)
    kernel = kernel / kernel.diagonal().mean()
    one_hot = torch.nn.functional.one_hot(labels).double()
    shares = one_hot.mean(dim=0)
    rows = []
    for row in range(len(labels)):
        others = torch.arange(len(labels)) != row
        ridge = kernel[others][:, others] + penalty * torch.eye(len(labels) - 1, dtype=torch.float64)
        rows.append(kernel[row, others] @ torch.linalg.solve(ridge, one_hot[others] - shares) + shares)
    return as_probabilities(torch.stack(rows))


def parity(n_samples, seed=0):
    """Four indicators, and a label that no single one tells: an odd number of the first three."""
    bits = torch.randint(2, (n_samples, 4), generator=torch.Generator().manual_seed(seed))
    return bits.float(), bits[:, :3].sum(dim=1) % 2


def test_left_out_probabilities_are_those_of_as_many_fits(device):
    features, labels = blobs(n=60)
    regression = LabelRegression().fit(features.to(device), labels.to(device))
    assert (regression.left_out.dtype, regression.left_out.device.type) == (torch.float32, device.type)
    expected = by_refitting(features, labels, regression.penalty_)
    torch.testing.assert_close(regression.left_out.cpu(), expected.float(), atol=1e-4, rtol=0)


def test_the_penalty_predicts_left_out_labels_best():
    features, labels = blobs(n=60)
    labels = torch.where(torch.rand(60, generator=torch.Generator().manual_seed(0)) < 0.3, 0, labels)
    regression = LabelRegression(penalties=(0.01, 0.3, 10)).fit(features, labels)
    scores = {p: float(brier_score(by_refitting(features, labels, p), labels)) for p in (0.01, 0.3, 10)}
    assert scores[regression.penalty_] == min(scores.values())
    shares = labels.bincount() / len(labels)
    by_chance = float(brier_score(shares.expand(60, -1), labels))
    assert regression.skill_ == pytest.approx(1 - min(scores.values()) / by_chance, abs=1e-4)


def test_noise_asks_for_a_larger_penalty():
    features, labels = blobs(n=300)
    noisy = torch.where(torch.rand(300, generator=torch.Generator().manual_seed(0)) < 0.4, 0, labels)
    assert LabelRegression().fit(features, noisy).penalty_ > LabelRegression().fit(features, labels).penalty_


def test_it_sees_what_the_nearest_neighbours_do_not():
    features = torch.randn(200, 30, generator=torch.Generator().manual_seed(0))
    plane = (features.sum(dim=1) > 0).long()
    neighbors = NeighborGraph(40).fit(features).neighbors
    assert LabelRegression().fit(features, plane).skill_ > LabelVotes().fit(plane, neighbors).skill_ + 0.1
    assert LabelRegression().fit(*parity(120)).skill_ > 0.9


def test_random_labels_have_no_skill():
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(2, (500,), generator=generator)
    assert -0.1 < LabelRegression().fit(torch.randn(500, 10, generator=generator), labels).skill_ < 0.01


def test_shift_scale_rotation_and_order_do_not_matter():
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
def test_extreme_scales_do_not_matter(scale):
    features, labels = blobs(n=80)
    expected = LabelRegression().fit(features.double(), labels)
    found = LabelRegression().fit(scale * features.double(), labels)
    torch.testing.assert_close(found.left_out, expected.left_out)
    torch.testing.assert_close(
        found.predict_proba(scale * features.double()), expected.predict_proba(features.double())
    )


def test_renaming_the_classes_renames_the_columns():
    features, labels = blobs(n=80)
    names = torch.tensor([2, 0, 1])
    renamed = LabelRegression().fit(features, names[labels]).predict_proba(features)
    torch.testing.assert_close(renamed[:, names], LabelRegression().fit(features, labels).predict_proba(features))


def test_probabilities_follow_the_classes_and_sum_to_one():
    features, labels = blobs(n=200)
    probabilities = LabelRegression().fit(features, labels).predict_proba(features.numpy())
    assert probabilities.shape == (200, 3)
    assert probabilities.min() >= 0
    torch.testing.assert_close(probabilities.sum(dim=1), torch.ones(200))
    assert (probabilities.argmax(dim=1) == labels).float().mean() > 0.9


def test_landmarks_come_near_to_all_samples():
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


def test_of_many_samples_some_of_each_class_are_taken():
    features, labels = blobs(n=300)
    labels[7] = 5
    part = LabelRegression(max_samples=120, seed=1).fit(features, labels)
    assert part.rows_.tolist() == sorted(set(part.rows_.tolist()))
    assert (len(part.rows_), part.left_out.shape) == (120, (120, 6))
    assert labels[part.rows_].bincount().tolist() == [40, 39, 40, 0, 0, 1]
    alone = LabelRegression(seed=1).fit(features[part.rows_], labels[part.rows_])
    torch.testing.assert_close(part.predict_proba(features), alone.predict_proba(features))
    assert LabelRegression().fit(features, labels).rows_.tolist() == list(range(300))


def test_chunks_do_not_matter(monkeypatch):
    features, labels = blobs(n=100)
    expected = LabelRegression().fit(features, labels).predict_proba(features)
    monkeypatch.setattr("bu_torch.regression._BLOCK_ELEMENTS", 700)
    torch.testing.assert_close(LabelRegression().fit(features, labels).predict_proba(features), expected)


@pytest.mark.parametrize("features", [torch.zeros(30, 2), torch.ones(30, 1, 4, 4) * 1e20, torch.eye(30)])
def test_degenerate_points_give_probabilities(features):
    labels = torch.arange(30) % 2
    regression = LabelRegression().fit(features, labels)
    for probabilities in (regression.left_out, regression.predict_proba(features)):
        torch.testing.assert_close(probabilities.sum(dim=1), torch.ones(30))
    one_class = LabelRegression().fit(features, torch.zeros(30))
    assert one_class.skill_ == 0
    assert bool((one_class.predict_proba(features) == 1).all())


def test_no_random_number_of_others_is_used():
    features, labels = blobs(n=100)
    state = torch.get_rng_state()
    first = LabelRegression(n_landmarks=20, seed=3).fit(features, labels).left_out
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(LabelRegression(n_landmarks=20, seed=3).fit(features, labels).left_out, first)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: LabelRegression(0), ValueError, "`n_landmarks` must be an integer >= 1, got 0"),
        (lambda: LabelRegression(penalties=()), ValueError, "`penalties` must hold at least one number, all finite"),
        (lambda: LabelRegression(penalties=(1, 1e-9)), ValueError, r"finite and >= 1e-08, got \(1, 1e-09\)"),
        (lambda: LabelRegression(max_samples=0), ValueError, "`max_samples` must be an integer >= 1, got 0"),
        (lambda: LabelRegression(seed=-1), ValueError, "`seed` must be an integer >= 0, got -1"),
        (lambda: LabelRegression().fit(torch.ones(3), [0, 1, 0]), ValueError, "`features` must have shape"),
        (lambda: LabelRegression().fit(torch.ones(3, 1), [0, 1]), ValueError, "`labels` must have one entry a sample"),
        (lambda: LabelRegression().fit([[float("nan")]], [0]), ValueError, "`features` must be finite"),
        (lambda: LabelRegression().predict_proba([[1.0]]), RuntimeError, "not fitted yet: call `fit` first"),
        (
            lambda: LabelRegression().fit([[1.0], [2.0]], [0, 1]).predict_proba([[1.0, 2.0]]),
            ValueError,
            "`features` must have 1 features a sample, as in `fit`, got 2",
        ),
    ],
)
def test_bad_input_is_named(call, error, message):
    with pytest.raises(error, match=message):
        call()
