import pytest
import torch
from oracles import anchors

from bu_torch.papers.anchors import anchor_uncertainty, bisect_segments, class_uncertainty


def made_up_counts(seed=0, n=200, j=4, whole=True):
    g = torch.Generator().manual_seed(seed)
    counts = torch.randint(0, 6, (n, j), generator=g) if whole else torch.rand(n, j, generator=g)
    pairs = torch.stack([torch.randperm(j, generator=g)[:2] for _ in range(n)])
    return counts.double(), pairs


class TestClassUncertainty:
    @pytest.mark.parametrize("measure", ["entropy", "triangle"])
    @pytest.mark.parametrize("priors", [None, [0.41, 0.29, 0.19, 0.11]])
    @pytest.mark.parametrize("whole", [True, False])
    def test_agrees_with_the_thesis_one_group_at_a_time(self, measure, priors, whole, dtype, device):
        counts, pairs = made_up_counts(whole=whole)
        rows = zip(counts.tolist(), pairs.tolist(), strict=True)
        expected = [anchors.class_uncertainty(*row, measure, priors) for row in rows]
        weights = None if priors is None else torch.tensor(priors, device=device, dtype=dtype)
        value = class_uncertainty(counts.to(device, dtype), pairs.to(device), priors=weights, measure=measure)
        assert value.dtype == dtype
        assert value.device.type == device.type
        torch.testing.assert_close(value.cpu().double(), torch.tensor(expected).double(), atol=1e-6, rtol=1e-5)
        assert 0 < (value > 0).sum() < len(value)


def linear(weights, bias):
    return lambda x: x @ weights.T + bias


class TestBisectSegments:
    def test_agrees_with_algorithm_4_one_segment_at_a_time(self, dtype):
        g = torch.Generator().manual_seed(0)
        weights, bias = torch.randn(4, 3, generator=g, dtype=dtype), torch.randn(4, generator=g, dtype=dtype)
        logits = linear(weights, bias)
        ends = 3 * torch.randn(2, 80, 3, generator=g, dtype=dtype)
        predicted = [logits(end).argmax(dim=1) for end in ends]
        start, end = (part[predicted[0] != predicted[1]] for part in ends)
        points, pairs = bisect_segments(lambda x: logits(x).argmax(dim=1), start, end)
        w, b = weights.double().numpy(), bias.double().numpy()
        third = 0
        for n in range(len(start)):
            expected, classes = anchors.bisect(lambda x: w @ x + b, start[n].tolist(), end[n].tolist())
            third += classes[1] != int(logits(end[n : n + 1]).argmax())
            assert pairs[n].tolist() == list(classes)
            torch.testing.assert_close(points[n].double(), torch.as_tensor(expected), atol=1e-4, rtol=1e-5)
        assert third > 3  # a class lies between on some

    def test_a_middle_predicted_as_the_start_moves_the_start(self):
        """0 | 1 | 2 with 0 again at the middle: Algorithm 4 as printed would lose the boundary."""

        def classify(x):
            return torch.bucketize(x[:, 0], torch.tensor([6.0, 7.0]))

        points, pairs = bisect_segments(classify, torch.zeros(1, 1), torch.full((1, 1), 10.0))
        assert pairs.tolist() in ([[0, 1]], [[1, 2]])
        assert min(abs(float(points) - cut) for cut in (6.0, 7.0)) < 1e-5


def anchor_problem(seed=0, n=60, j=3, s=12, m=9, dtype=torch.float64):
    g = torch.Generator().manual_seed(seed)
    logits = torch.randn(n, j, generator=g, dtype=torch.float64)
    labels = torch.randint(0, j, (n,), generator=g)
    neighbors = torch.stack([torch.randperm(n, generator=g)[:m] for _ in range(s)])
    return logits.to(dtype), labels, neighbors


class TestAnchorUncertainty:
    @pytest.mark.parametrize(("measure", "gap"), [("entropy", "own"), ("triangle", "own"), ("triangle", "pair")])
    def test_agrees_with_the_thesis_one_anchor_at_a_time(self, measure, gap, dtype, device):
        arguments = anchor_problem(dtype=dtype)
        expected = anchors.anchor_uncertainty(*(a.tolist() for a in arguments), measure, gap)
        value = anchor_uncertainty(*(a.to(device) for a in arguments), measure=measure, gap=gap)
        assert value.dtype == dtype
        torch.testing.assert_close(value.cpu().double(), torch.tensor(expected).double(), atol=1e-4, rtol=1e-4)
        assert len({round(v, 6) for v in expected}) == len(expected)

    def test_neighbors_of_one_class_are_worst_and_nan_logits_are_told(self):
        labels = torch.zeros(9, dtype=torch.int64)
        assert anchor_uncertainty(torch.linspace(-1, 1, 9), labels, torch.arange(9).unsqueeze(0)).tolist() == [0]
        logits = torch.linspace(-1, 1, 20, dtype=torch.float64)
        logits[3] = torch.nan
        labels, neighbors = torch.arange(20) % 2, torch.arange(20).view(2, 10)
        values = anchor_uncertainty(logits, labels, neighbors)
        assert values.isnan().tolist() == [True, False]
