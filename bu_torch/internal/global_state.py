"""Global states of the process that are put back: random numbers, and the precision of float32."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from bu_torch.internal.inputs import scikit_learn_seed

_BACKENDS: Any = torch.backends  # mypy does not know its attributes
_ROUNDING = (
    _BACKENDS.cudnn.conv,  # the default is TF32, with three digits
    _BACKENDS.cuda.matmul,  # `torch.set_float32_matmul_precision` lowers this and the next two
    _BACKENDS.mkldnn.conv,
    _BACKENDS.mkldnn.matmul,
)


@contextmanager
def preserved_random_state() -> Iterator[None]:
    """Put the global random states of torch, NumPy and Python back on leaving, also after an exception."""
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
    python_state, numpy_state = random.getstate(), np.random.get_state()  # noqa: NPY002  (this is the user's)
    try:
        with torch.random.fork_rng(devices=devices):
            yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)  # noqa: NPY002


def start_from(seed: int) -> None:
    """Let global random states start from `seed`."""
    random.seed(seed)
    np.random.seed(scikit_learn_seed(seed))  # noqa: NPY002  (datasets use it)
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():  # otherwise a seed would wait for the first use, and stay
        torch.cuda.manual_seed_all(seed)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Let global random states start from `seed`; put them back on leaving."""
    with preserved_random_state():
        start_from(seed)
        yield


@contextmanager
def full_precision() -> Iterator[None]:
    """Compute products and convolutions in full float32 within, because distances are small differences of them."""
    before = [part.fp32_precision for part in _ROUNDING]
    try:
        for part in _ROUNDING:
            part.fp32_precision = "ieee"
        yield
    finally:
        for part, precision in zip(_ROUNDING, before, strict=True):
            part.fp32_precision = precision
