"""Products of float32 as exact as float32 is, whatever training asks for."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

_BACKENDS: Any = torch.backends  # of which mypy sees no more than the files
_ROUNDING = (
    _BACKENDS.cudnn.conv,  # TF32 unless told otherwise, which keeps three digits
    _BACKENDS.cuda.matmul,  # TF32 and bfloat16 after `torch.set_float32_matmul_precision`, as are the next two
    _BACKENDS.mkldnn.conv,
    _BACKENDS.mkldnn.matmul,
)


@contextmanager
def full_precision() -> Iterator[None]:
    """Round no factor of a product or a convolution within: neighbours are found by differences of what they give."""
    before = [part.fp32_precision for part in _ROUNDING]
    try:
        for part in _ROUNDING:
            part.fp32_precision = "ieee"
        yield
    finally:
        for part, precision in zip(_ROUNDING, before, strict=True):
            part.fp32_precision = precision
