"""On a GPU the same is measured as on the CPU."""

import pytest
import torch
from problems import blobs

from bu_torch import Signals

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


def vectors():
    return blobs(n=300)


def many():
    """So many that the regression is solved for one penalty after another."""
    return blobs(n=1200)


def images():
    features, labels = blobs(n=300, d=64)
    return features.view(-1, 1, 8, 8), labels


@pytest.mark.parametrize("samples", [vectors, many, images])
@pytest.mark.parametrize("settings", [{}, {"class_weight": "balanced"}, {"perturbation": "neighbors"}])
def test_signals_agree_and_so_does_the_check_that_is_kept(samples, settings):
    inputs, labels = samples()
    generator = torch.Generator().manual_seed(0)
    on_cpu = Signals(n_neighbors=20, n_draws=2, **settings).fit(inputs, labels)
    on_gpu = Signals(n_neighbors=20, n_draws=2, **settings).fit(inputs.cuda(), labels.cuda())
    assert torch.allclose(on_gpu.perturbed_inputs.cpu(), on_cpu.perturbed_inputs, atol=1e-6)
    checks, before = [], (None, None)
    for _ in range(20):
        weights = torch.randn(inputs[0].numel(), 3, generator=generator)
        logits = on_cpu.perturbed_inputs.flatten(1) @ weights
        (one, before_cpu), (other, before_gpu) = (
            signals.measure(given, last)
            for signals, given, last in ((on_cpu, logits, before[0]), (on_gpu, logits.cuda(), before[1]))
        )
        before = (before_cpu, before_gpu)
        for name, value in one.items():
            assert other[name].device.type == "cuda"
            assert float(other[name]) == pytest.approx(float(value), abs=1e-5), name
        checks.append((float(one["expected_accuracy"]), float(other["expected_accuracy"])))
    kept = [max(range(20), key=lambda place: checks[place][device]) for device in (0, 1)]
    assert kept[0] == kept[1]


def test_tokens_agree():
    labels = torch.arange(200) % 2
    tokens = torch.randint(0, 40, (200, 12), generator=torch.Generator().manual_seed(0)) + 20 * labels.unsqueeze(1)
    on_cpu = Signals(n_neighbors=20, n_draws=2, perturbation="tokens").fit(tokens, labels)
    on_gpu = Signals(n_neighbors=20, n_draws=2, perturbation="tokens").fit(tokens.cuda(), labels.cuda())
    assert torch.equal(on_gpu.perturbed_inputs.cpu(), on_cpu.perturbed_inputs)
    logits = torch.randn(400, 2, generator=torch.Generator().manual_seed(0))
    for name, value in on_cpu.measure(logits).values.items():
        assert float(on_gpu.measure(logits.cuda()).values[name]) == pytest.approx(float(value), abs=1e-5), name
