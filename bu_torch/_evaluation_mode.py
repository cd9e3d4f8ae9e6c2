"""Reading a model without leaving a trace."""

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import nn


@contextmanager
def preserved_random_state() -> Iterator[None]:
    """Put the global random states of torch, NumPy and Python back on leaving, also after an exception."""
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
    python_state, numpy_state = random.getstate(), np.random.get_state()  # noqa: NPY002  (the user's, to put back)
    try:
        with torch.random.fork_rng(devices=devices):
            yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)  # noqa: NPY002


@contextmanager
def evaluation_mode(model: object) -> Iterator[None]:
    """Eval mode, no gradient; on leaving, each submodule's mode and all random states are as they were."""
    modes = {module: module.training for module in model.modules()} if isinstance(model, nn.Module) else {}
    try:
        with preserved_random_state(), torch.no_grad():
            if isinstance(model, nn.Module):
                model.eval()
            yield
    finally:
        for module, mode in modes.items():
            module.training = mode
