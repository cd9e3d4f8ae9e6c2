"""What a check leaves behind in the process, in the module and in memory: nothing."""

import contextlib
import gc
import os
import random
import tracemalloc
import warnings
from functools import partial

import numpy as np
import pytest
import sklearn  # noqa: F401  (which sets environment variables when it is first imported)
import torch
from lightning.pytorch.callbacks import Callback
from problems import Augmented, Classifier, blobs, same, trainer, weights_of
from scenarios import Model, Renormalised, tokens
from torch.utils.data import DataLoader

from bu_torch.callbacks import BoundaryUncertaintyMonitor, BoundaryUncertaintyStopper


def global_state():
    """All switches of the process that a check could turn, and the random states."""
    return {
        "torch": torch.get_rng_state().tolist(),
        "python": random.getstate(),
        "numpy": str(np.random.get_state()),
        "gradient": torch.is_grad_enabled(),
        "inference": torch.is_inference_mode_enabled(),
        "autocast": torch.is_autocast_enabled("cpu"),
        "autocast dtype": torch.get_autocast_dtype("cpu"),
        "autocast cache": torch.is_autocast_cache_enabled(),
        "default dtype": torch.get_default_dtype(),
        "threads": (torch.get_num_threads(), torch.get_num_interop_threads()),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "deterministic, warns": torch.is_deterministic_algorithms_warn_only_enabled(),
        "cudnn": (torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic),
        "matmul": torch.get_float32_matmul_precision(),
        "anomalies": torch.is_anomaly_enabled(),
        "floating point": np.geterr(),
        "environment": dict(os.environ),
        "warnings": list(warnings.filters),
    }


def everything(module):
    return {**global_state(), "modes": [part.training for part in module.modules()]}


class Look(Callback):
    """Sees everything where a check may be made, or has failed."""

    def __init__(self, seen):
        self.seen = seen

    def on_train_start(self, trainer, module, *_):
        self.seen.append(everything(module))

    on_train_batch_start = on_train_epoch_end = on_exception = on_train_start


class Modes(Classifier):
    """Trains with one submodule in eval mode; fails in a check if told so, after drawing random numbers."""

    def __init__(self, fails=False):
        super().__init__()
        self.fails = fails

    def on_train_epoch_start(self):
        self.net[1].eval()

    def forward(self, x):
        if not self.training:
            assert not torch.is_grad_enabled()
            torch.rand(3), random.random(), np.random.rand()
            if self.fails:
                raise KeyError("a fault of the user's")
        return super().forward(x)


@pytest.mark.parametrize("options", [{}, {"precision": "bf16-mixed"}, {"deterministic": True}], ids=str)
def test_a_trainer_finds_everything_as_it_was(tmp_path, options):
    seen, batches = [], DataLoader(Augmented(), batch_size=30)
    callbacks = (Look(seen), BoundaryUncertaintyMonitor(), Look(seen))
    trainer(tmp_path, *callbacks, max_epochs=2, **options).fit(Modes(), batches)
    torch.use_deterministic_algorithms(False)
    assert len(seen) == 2 * (1 + 2 * len(batches) + 2)
    for before, after in zip(seen[::2], seen[1::2], strict=True):
        assert before == after
    assert not all(seen[-1]["modes"])


@contextlib.contextmanager
def switched(switch, to, back, **kwargs):
    switch(to, **kwargs)
    yield
    switch(back)


SETTINGS = {
    "autocast": partial(torch.autocast, "cpu", torch.bfloat16),
    "no gradient": torch.no_grad,
    "inference": torch.inference_mode,
    "anomalies": partial(torch.autograd.detect_anomaly, check_nan=False),
    "float64": partial(switched, torch.set_default_dtype, torch.float64, torch.float32),
    "threads": lambda: switched(torch.set_num_threads, (n := torch.get_num_threads()) + 1, n),
    "deterministic": partial(switched, torch.use_deterministic_algorithms, True, False, warn_only=True),
}


class TestLoop:
    """A loop of one's own, in whatever state its author has set."""

    @pytest.fixture(params=list(SETTINGS))
    def setting(self, request):
        with SETTINGS[request.param]():
            yield

    @pytest.mark.parametrize("fails", [False, True])
    def test_every_setting_stays(self, setting, fails):
        features, labels = blobs()
        module = Modes().float()
        module.on_train_epoch_start()
        stopper = BoundaryUncertaintyStopper(features, labels, n_neighbors=10)
        before, weights = everything(module), weights_of(module)
        module.fails = fails
        if fails:
            with pytest.raises(KeyError, match="a fault"):
                stopper.check(module)
            assert stopper.history == []
        else:
            stopper.check(module)
            assert np.isfinite(stopper.history[0]["boundary_uncertainty"])
        assert everything(module) == before
        assert same(module.state_dict(), weights)

    @pytest.mark.parametrize(
        ("make", "samples", "perturbation"),
        [(Classifier, blobs, None), (lambda: Model(Renormalised()), tokens, "tokens")],
        ids=["batch norm", "an embedding that renormalises"],
    )
    def test_a_check_between_forward_and_backward_changes_no_gradient(self, make, samples, perturbation):
        features, labels = samples()
        gradients = []
        for is_checked in (False, True):
            torch.manual_seed(0)
            module = make()
            stopper = BoundaryUncertaintyStopper(features, labels, n_neighbors=10, perturbation=perturbation)
            with torch.autocast("cpu", torch.bfloat16):
                if is_checked:
                    stopper.check(module)
                loss = module.training_step((features, labels), 0)
                if is_checked:
                    stopper.check(module)
            loss.backward()
            gradients.append({name: weight.grad for name, weight in module.named_parameters()})
        assert same(*gradients)

    def test_a_check_that_failed_can_be_made_again(self):
        module = Modes(fails=True)
        stopper, other = (BoundaryUncertaintyStopper(*blobs(), n_neighbors=10) for _ in range(2))
        with pytest.raises(KeyError):
            stopper.check(module)
        module.fails = False
        stopper.check(module)
        other.check(module)
        assert stopper.history == other.history


@pytest.mark.slow
def test_a_thousand_checks_of_a_loop_keep_a_few_numbers_each(tmp_path):
    def now():
        gc.collect()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tensors = sum(isinstance(thing, torch.Tensor) for thing in gc.get_objects())
        return np.array([tensors, tracemalloc.get_traced_memory()[0]])

    module, sizes = Classifier(), []
    stopper = BoundaryUncertaintyStopper(*blobs(), n_neighbors=10, patience=10_000, folder=tmp_path)
    tracemalloc.start()
    try:
        for epoch in range(1100):
            with torch.no_grad():
                module.net[0].weight.mul_(-1.001)
            stopper.check(module)
            if epoch in (99, 1099):
                sizes.append(now())
    finally:
        tracemalloc.stop()
    n_tensors, n_bytes = sizes[1] - sizes[0]
    assert n_tensors <= 1  # predictions of the best check may be those of the last, or others
    assert n_bytes / 1000 < 3000
