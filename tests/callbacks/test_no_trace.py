"""What a check leaves behind in the process, in the module and in memory: nothing."""

import contextlib
import gc
import os
import random
import tracemalloc
import warnings
from functools import partial

import lightning.pytorch as pl
import numpy as np
import pytest
import sklearn  # noqa: F401  (which sets environment variables when it is first imported)
import torch
from lightning.pytorch.callbacks import LambdaCallback
from problems import Augmented, Classifier, blobs, loader, same, trainer, weights_of
from scenarios import Model, Renormalised, tokens
from torch.utils.data import DataLoader

from bu_torch.callbacks import BoundaryUncertaintyMonitor, BoundaryUncertaintyStopper, BoundaryUncertaintyStopping


def global_state():
    """All switches of the process that a check could turn, and the random states."""
    return {
        "torch": torch.get_rng_state().tolist(),
        "python": random.getstate(),
        "numpy": np.random.get_state()[1].tolist(),
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


def modes(module):
    return [part.training for part in module.modules()]


class Modes(Classifier):
    """Trains with one submodule in eval mode; fails in a check if told so, after drawing random numbers."""

    fails = False

    def on_train_epoch_start(self):
        self.net[1].eval()

    def forward(self, x):
        if not self.training:
            assert not torch.is_grad_enabled()
            torch.rand(3), random.random(), np.random.rand()
            if self.fails:
                raise KeyError("a fault of the user's")
        return super().forward(x)


def test_batches_weights_and_states_are_the_same_to_the_bit(tmp_path):
    """With dropout, batch norm and random augmentation in two workers that stay."""

    def train(*callbacks):
        pl.seed_everything(7, workers=True, verbose=False)
        module = Classifier()
        data = DataLoader(Augmented(), batch_size=30, shuffle=True, num_workers=2, persistent_workers=True)
        trainer(tmp_path, *callbacks).fit(module, data)
        return module.state_dict(), global_state()

    callback = BoundaryUncertaintyStopping(restore_best_weights=False)
    (weights, state), (with_callback, state_with) = train(), train(callback)
    assert len(callback.history) == 3
    assert same(weights, with_callback)
    assert state == state_with


@pytest.mark.parametrize("options", [{}, {"precision": "bf16-mixed"}, {"deterministic": True}], ids=str)
def test_a_trainer_finds_everything_as_it_was(tmp_path, options):
    seen = []

    def look(trainer, module, *of_the_batch):
        seen.append({**global_state(), "modes": modes(module)})

    hooks = {"on_train_start": look, "on_train_batch_start": look, "on_train_epoch_end": look}
    module = Modes()
    callbacks = (LambdaCallback(**hooks), BoundaryUncertaintyMonitor(), LambdaCallback(**hooks))
    batches = DataLoader(Augmented(), batch_size=30)
    trainer(tmp_path, *callbacks, max_epochs=2, **options).fit(module, batches)
    torch.use_deterministic_algorithms(False)
    assert len(seen) == 2 * (1 + 2 * len(batches) + 2)
    for before, after in zip(seen[::2], seen[1::2], strict=True):
        assert before == after
    assert not all(seen[-1]["modes"])


@pytest.mark.parametrize("fault", ["before the first step", "in a check", "while samples are read"])
def test_after_an_exception_too(tmp_path, fault):
    class Broken(Augmented):
        def __getitem__(self, i):
            if torch.utils.data.get_worker_info() is None and reading:
                random.random(), np.random.rand(), torch.rand(1)
                raise KeyError("a fault of the user's")
            return super().__getitem__(i)

    seen, reading = [], []

    def look(trainer, module, *of_the_batch):
        seen.append({**global_state(), "modes": modes(module)})

    def on_train_start(trainer, module):
        look(trainer, module)
        if fault == "while samples are read":
            reading.append(True)

    def on_train_epoch_end(trainer, module):
        look(trainer, module)
        module.fails = fault == "in a check"

    module = Modes()
    module.fails = fault == "before the first step"
    probe = LambdaCallback(
        on_train_start=on_train_start,
        on_train_batch_start=look,
        on_train_epoch_end=on_train_epoch_end,
        on_exception=lambda trainer, module, exception: look(trainer, module),
    )
    with pytest.raises(KeyError, match="a fault of the user's"):
        trainer(tmp_path, probe, BoundaryUncertaintyMonitor(), max_epochs=2).fit(
            module, DataLoader(Broken(), batch_size=30)
        )
    assert len(seen) == {"while samples are read": 2, "before the first step": 3, "in a check": 7}[fault]
    assert seen[-2] == seen[-1]


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
        before, weights = {**global_state(), "modes": modes(module)}, weights_of(module)
        module.fails = fails
        if fails:
            with pytest.raises(KeyError, match="a fault"):
                stopper.check(module)
            assert stopper.history == []
        else:
            stopper.check(module)
            assert np.isfinite(stopper.history[0]["boundary_uncertainty"])
        assert {**global_state(), "modes": modes(module)} == before
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
        features, labels = blobs()
        module = Modes()
        stopper, other = (BoundaryUncertaintyStopper(features, labels, n_neighbors=10) for _ in range(2))
        module.fails = True
        with pytest.raises(KeyError):
            stopper.check(module)
        module.fails = False
        stopper.check(module)
        other.check(module)
        assert stopper.history == other.history


def live_tensors():
    gc.collect()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return sum(isinstance(thing, torch.Tensor) for thing in gc.get_objects())


@pytest.mark.slow
class TestMemory:
    """A thousand checks: what grows is the history, a few numbers a check."""

    BYTES_A_CHECK = 3000

    def grown(self, before, after):
        return (after[0] - before[0], (after[1] - before[1]) / 1000)

    def now(self):
        tensors = live_tensors()
        return tensors, tracemalloc.get_traced_memory()[0]

    @pytest.fixture(autouse=True)
    def traced(self):
        tracemalloc.start()
        yield
        tracemalloc.stop()

    def test_of_a_loop(self, tmp_path):
        module = Classifier()
        stopper = BoundaryUncertaintyStopper(*blobs(), n_neighbors=10, patience=10_000, folder=tmp_path)
        sizes = []
        for epoch in range(1100):
            with torch.no_grad():
                module.net[0].weight.mul_(-1.001)
            stopper.check(module)
            if epoch in (99, 1099):
                sizes.append(self.now())
        tensors, bytes_a_check = self.grown(*sizes)
        assert tensors <= 1  # predictions of the best check may be those of the last, or others
        assert bytes_a_check < self.BYTES_A_CHECK

    def test_of_a_trainer(self, tmp_path):
        sizes = []
        look = LambdaCallback(
            on_train_epoch_start=lambda t, m: sizes.append(self.now()) if t.current_epoch in (100, 1100) else None
        )
        stopping = BoundaryUncertaintyStopping(n_neighbors=10, patience=10_000)
        trainer(tmp_path, stopping, look, max_epochs=1101, enable_checkpointing=False).fit(
            Classifier(), loader(*blobs(), batch_size=120)
        )
        tensors, bytes_a_check = self.grown(*sizes)
        assert tensors <= 1  # predictions of the best check may be those of the last, or others
        assert bytes_a_check < self.BYTES_A_CHECK
