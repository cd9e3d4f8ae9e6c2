"""What a check leaves behind in the process, in the module and in memory: nothing."""

import contextlib
import pickle
import random
from functools import partial

import numpy as np
import pytest
import torch
from problems import Classifier, blobs, same, weights_of
from scenarios import Model, Renormalised, global_state, tokens

from bu_torch.callbacks import BoundaryUncertaintyStopper


def everything(module):
    return {**global_state(), "modes": [part.training for part in module.modules()]}


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


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("setting", SETTINGS)
def test_every_setting_stays(setting, fails):
    with SETTINGS[setting]():
        module = Modes().float()
        module.on_train_epoch_start()
        stopper = BoundaryUncertaintyStopper(*blobs(), n_neighbors=10)
        before, weights = everything(module), weights_of(module)
        module.fails = fails
        with pytest.raises(ValueError, match="a fault") if fails else contextlib.nullcontext():
            stopper.check(module)
        assert len(stopper.history) == (not fails)
        assert everything(module) == before
        assert same(module.state_dict(), weights)


@pytest.mark.parametrize(
    ("make", "samples", "perturbation"),
    [(Classifier, blobs, None), (lambda: Model(Renormalised()), tokens, "tokens")],
    ids=["batch norm", "an embedding that renormalises"],
)
def test_a_check_between_forward_and_backward_changes_no_gradient(make, samples, perturbation):
    given, gradients = samples(), []
    for is_checked in (False, True):
        torch.manual_seed(0)
        module = make()
        stopper = BoundaryUncertaintyStopper(*given, n_neighbors=10, perturbation=perturbation)
        check = stopper.check if is_checked else id
        with torch.autocast("cpu", torch.bfloat16):
            check(module)
            loss = module.training_step(given, 0)
            check(module)
        loss.backward()
        gradients.append({name: weight.grad for name, weight in module.named_parameters()})
    assert same(*gradients)


def test_each_check_of_a_loop_keeps_a_few_numbers(tmp_path):
    module, sizes = Classifier(), []
    stopper = BoundaryUncertaintyStopper(*blobs(), n_neighbors=10, patience=100, folder=tmp_path)
    for _ in range(30):
        with torch.no_grad():
            module.net[0].weight.mul_(-1.001)
        stopper.check(module)
        sizes.append(len(pickle.dumps(stopper)))
    assert 0 < (sizes[29] - sizes[9]) / 20 < 500
