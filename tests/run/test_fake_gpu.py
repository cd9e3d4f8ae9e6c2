"""What a check does on a GPU, on any machine.

Torch's fake tensors have a device and no values, so that whatever waits for a value fails, and so does whatever mixes
devices.
"""

import contextlib

import pytest
import torch
from problems import blobs
from torch import Tensor
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from bu_torch import BoundaryUncertainty, Signals


def has_fake_gpu():
    with FakeTensorMode(), contextlib.suppress(RuntimeError, AssertionError):
        return torch.empty(1).to("cuda").is_cuda
    return False


pytestmark = pytest.mark.skipif(not has_fake_gpu(), reason="this torch has no fake GPU without a driver")

FEATURES, LABELS = blobs()
SPARSE = torch.tensor([0, 4, 9])[LABELS]  # classes without samples between them
TWO = LABELS.clamp(max=1)


def faked(estimator, mode):
    """The estimator with fake tensors in place of its own, in it and in what it is made of."""
    waiting, seen = [estimator], set()
    while waiting:
        one = waiting.pop()
        if id(one) in seen or not hasattr(one, "__dict__"):
            continue
        seen.add(id(one))
        for name, value in vars(one).items():
            if isinstance(value, Tensor):
                vars(one)[name] = mode.from_tensor(value)
            elif isinstance(value, tuple):
                vars(one)[name] = tuple(mode.from_tensor(part) if isinstance(part, Tensor) else part for part in value)
            elif type(value).__module__.startswith("bu_torch"):
                waiting.append(value)
    return estimator


@pytest.mark.parametrize(
    ("labels", "shape", "settings"),
    [
        (LABELS, (3,), {}),
        (LABELS, (5,), {"class_weight": "balanced"}),
        (SPARSE, (10,), {}),
        (TWO, (), {}),
        (TWO, (1,), {"class_weight": {0: 1.0, 1: 3.0}}),
    ],
)
def test_a_check_stays_on_the_device_and_waits_for_nothing(labels, shape, settings):
    signals = Signals(n_neighbors=20, n_draws=3, **settings).fit(FEATURES, labels)
    with FakeTensorMode() as mode:
        faked(signals, mode).to("cuda")
        logits = torch.randn(3 * len(labels), *shape, device="cuda")
        first = signals.measure(logits)
        second = signals.measure(logits, first.predictions, first.predictions)
        found = [*second.values.values(), second.standard_error, second.predictions]
        assert {value.device.type for value in found} == {"cuda"}
        with pytest.raises(DataDependentOutputException):  # which waits, as it says
            second.details()


@pytest.mark.parametrize("n_draws", [1, 4])
def test_boundary_uncertainty_of_logits_too(n_draws):
    boundary = BoundaryUncertainty(n_neighbors=20, n_draws=n_draws).fit(FEATURES, LABELS)
    with FakeTensorMode() as mode:
        score = faked(boundary, mode).to("cuda").score_logits(torch.randn(n_draws * len(LABELS), 3, device="cuda"))
        assert score.device.type == "cuda"


def test_samples_left_on_the_cpu_are_noticed():
    signals = Signals(n_neighbors=20, n_draws=2).fit(FEATURES, LABELS)
    with FakeTensorMode() as mode:
        faked(signals, mode)
        with pytest.raises((RuntimeError, ValueError), match=r"device|cuda"):
            signals.measure(torch.randn(2 * len(LABELS), 3, device="cuda"))
