import itertools

import numpy as np
import pytest
import torch
from oracles import anchors as oracle

from bu_torch import BisectionAnchorUncertainty, GradientAnchorUncertainty
from bu_torch.functional import cvml_bandwidth, silverman_bandwidth
from bu_torch.papers import bandwidth as module
from bu_torch.papers.bisection import divisive_clusters

BOTH = [BisectionAnchorUncertainty, GradientAnchorUncertainty]


def gaussians(n=400, d=2, n_classes=2, seed=0, dtype=torch.float32):
    """Classes of equal shares around 0, (2, 0, ...), (0, 2, 0, ...), ..."""
    g, labels = torch.Generator().manual_seed(seed), torch.arange(n) % n_classes
    centres = torch.nn.functional.pad(2 * torch.eye(max(d, n_classes), dtype=torch.float64), (0, 0, 1, 0))
    return (centres[labels, :d] + torch.randn(n, d, generator=g, dtype=torch.float64)).to(dtype), labels


def bayes(x):
    """Logits of the optimal classifier of `gaussians(n_classes=3)`."""
    return torch.nn.functional.pad(2 * x - 2, (1, 0))


def cut(x):
    """Half-way between the first two classes."""
    return x[:, 0] - 1


@pytest.mark.parametrize("estimator", BOTH)
def test_units_of_features_and_logits_do_not_matter(estimator):
    features, labels = gaussians(n_classes=3, dtype=torch.float64)
    fitted, factor = estimator().fit(features, labels), torch.tensor([1e-3, 1e4]).double()
    other, value = estimator().fit(features * factor - 1e5, labels), float(fitted.score(bayes))
    assert float(other.score(lambda x: bayes((x + 1e5) / factor))) == pytest.approx(value, abs=1e-3)
    assert float(fitted.score(lambda x: 1e6 * bayes(x))) == pytest.approx(value, abs=1e-9)


@pytest.mark.parametrize("estimator", BOTH)
def test_one_predicted_class_is_worst(estimator):
    fitted = estimator().fit(*gaussians())
    assert fitted.score(lambda x: x[:, 0] * 0 + 1) == fitted.score(lambda x: x[:, 0] + 1e3) == 0
    assert len(fitted.anchors(lambda x: x[:, 0] + 1e3).points) == 0


class TestBisection:
    def test_an_anchor_lies_between_its_classes_where_a_segment_crosses_a_third(self):
        features = torch.linspace(0, 2.99, 90).unsqueeze(1)
        logits = torch.tensor([[2.0, 0.0, 1.0], [0.0, 2.0, 1.0], [1.0, 0.0, 2.0]])  # 0 and 2 think of each other
        fitted = BisectionAnchorUncertainty().fit(features, features.squeeze(1).long())
        found = fitted.anchors(lambda x: logits[x.squeeze(1).long()])
        expected = torch.where(found.points < 1.5, torch.tensor([[0, 1]]), torch.tensor([[1, 2]]))
        assert torch.equal(found.pairs.sort(dim=1).values, expected)
        assert torch.equal(found.samples, torch.cdist(found.points, features).argmin(dim=1))

    @pytest.mark.parametrize("n", [500, 60])
    def test_agrees_with_the_thesis_over_the_same_clusters(self, n):
        features, labels = gaussians(n, n_classes=3, dtype=torch.float64)
        first, second = bayes(features).topk(2, dim=1).indices.T.tolist()
        samples = BisectionAnchorUncertainty().fit(features, labels).anchors(bayes).samples.unique()
        fitted = BisectionAnchorUncertainty(seed=0).fit(features, labels)
        standardized = (features[samples] - fitted.mean_) / fitted.scale_
        rows = divisive_clusters(standardized, 12, 10, seed=0)
        repeats = [[samples[row == c].tolist() for c in row.unique()] for row in rows]
        assert (min(max(len(c) for c in repeat) for repeat in repeats) < 8) == (n == 60)  # one without a large cluster
        priors = (torch.bincount(labels) / n).tolist()
        for measure, given in itertools.product(("entropy", "triangle"), (None, priors)):
            fitted = BisectionAnchorUncertainty(measure, given is not None).fit(features, labels)
            expected = oracle.cluster_mean(repeats, labels.tolist(), first, second, 3, measure, priors=given)
            assert float(fitted.score(bayes)) == pytest.approx(expected, abs=1e-9)


class TestGradient:
    def test_anchors_of_a_linear_model_are_projections(self, dtype):
        """Closed form: in standardised units the anchor of x is its foot on the hyperplane."""
        features, labels = gaussians(400, d=3, dtype=dtype)
        weights = torch.tensor([1.0, 0.5, -0.2], dtype=dtype)
        fitted = GradientAnchorUncertainty().fit(features, labels)
        found = fitted.anchors(lambda x: x @ weights - 1)
        z = (features.double() - fitted.mean_) / fitted.scale_
        w = weights.double() * fitted.scale_
        gap = features.double() @ weights.double() - 1
        feet = (z - gap.unsqueeze(1) * w / w.square().sum()) * fitted.scale_ + fitted.mean_
        torch.testing.assert_close(found.points.double(), feet[found.samples], atol=1e-4, rtol=1e-4)
        assert torch.equal(found.pairs, torch.stack((gap > 0, gap <= 0), dim=1).long()[found.samples])

    def test_each_class_gets_its_number_from_the_samples_nearest_to_the_boundary(self):
        features, labels = gaussians(1000, d=2, dtype=torch.float64)
        features[:, 1] = 0.0
        found = GradientAnchorUncertainty().fit(features, labels).anchors(cut)
        logits = torch.stack((torch.zeros(1000), cut(features)), dim=1)
        numbers, distance = oracle.wanted(logits.tolist(), labels.tolist(), 2), cut(features).abs()
        for c, number in enumerate(numbers):
            chosen = found.samples[labels[found.samples] == c]
            assert abs(len(chosen) - number) <= min(10, number / 10)
            nearest = distance[labels == c].sort().values[: len(chosen)]
            torch.testing.assert_close(distance[chosen].sort().values, nearest)

    def test_score_is_the_mean_over_the_anchors(self):
        features, labels = gaussians(100, n_classes=3, dtype=torch.float64)
        for measure in ("triangle", "entropy"):
            fitted = GradientAnchorUncertainty(8, measure=measure).fit(features, labels)
            found = fitted.anchors(bayes)
            given = bayes(features).tolist(), labels.tolist(), fitted.neighbors[found.samples].tolist()
            values = oracle.anchor_uncertainty(*given, measure)
            assert len(values) > 5
            assert float(fitted.score(bayes)) == pytest.approx(np.mean(values), abs=1e-4)


@pytest.mark.parametrize("bandwidth", ["silverman", "cvml"])
def test_kernel_is_exact_until_the_dtype_ends(bandwidth, dtype, device):
    """Most of a row lies near 0 and sets the width, the others ever farther away."""
    near = torch.linspace(-1, 1, 225, dtype=torch.float64)
    far = torch.linspace(1, 20, 63, dtype=torch.float64)
    gap = torch.cat((near, far)).expand(1, 288).contiguous().to(dtype)
    widths = silverman_bandwidth(gap).unsqueeze(1) if bandwidth == "silverman" else cvml_bandwidth(gap)
    exact = (-0.5 * (gap.double() / widths.double()).square()).exp()
    kernel = module.boundary_kernel(gap.to(device), bandwidth).cpu()
    tiny = torch.finfo(dtype).tiny
    is_large = exact > 10 * tiny
    torch.testing.assert_close(kernel[is_large].double(), exact[is_large], atol=0, rtol=1e-4)
    if bandwidth == "silverman":
        assert 0 < int((kernel == 0).sum()) < 63


class TestCvml:
    @pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
    @pytest.mark.parametrize("members", [2, 3, 10])
    def test_agrees_with_the_thesis_one_value_at_a_time(self, scale, members, dtype, device, monkeypatch):
        monkeypatch.setitem(module._BLOCK_ELEMENTS, "cpu", 2 * members**2)  # several blocks
        values = torch.randn(5, members, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).to(dtype)
        expected = torch.from_numpy(np.array([oracle.cvml_widths(row) for row in values]))
        widths = cvml_bandwidth((values * scale).to(device))
        assert widths.shape == (5, members)
        assert widths.dtype == dtype
        assert widths.device.type == device.type
        torch.testing.assert_close(widths.cpu().double() / scale, expected, atol=1e-5, rtol=1e-4)

    def test_a_row_is_nan_if_any_of_its_values_is(self):
        values = torch.randn(20, 9, dtype=torch.float64)
        values[0, 1] = torch.nan
        assert torch.equal(cvml_bandwidth(values).isnan(), values.isnan().any(dim=1, keepdim=True).expand(20, 9))
