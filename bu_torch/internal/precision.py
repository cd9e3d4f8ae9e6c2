"""Full float32 precision, whatever training sets."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

_BACKENDS: Any = torch.backends  # mypy does not know its attributes
_ROUNDING = (
    _BACKENDS.cudnn.conv,  # the default is TF32, with three digits
    _BACKENDS.cuda.matmul,  # `torch.set_float32_matmul_precision` lowers this and the next two
    _BACKENDS.mkldnn.conv,
    _BACKENDS.mkldnn.matmul,
)


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
