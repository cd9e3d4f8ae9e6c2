"""Features are exact to float32, however training rounds its own products."""

import pytest
import torch
from torch.overrides import TorchFunctionMode

from bu_torch.neighbors.graph import _ROUNDING, full_precision
from bu_torch.space.extractors import PatchFeatures

IMAGES = torch.rand(60, 1, 8, 8, generator=torch.Generator().manual_seed(0))
PRODUCTS = {torch.nn.functional.conv2d, torch.Tensor.matmul, torch.Tensor.__matmul__}


def settings():
    return [part.fp32_precision for part in _ROUNDING]


class Products(TorchFunctionMode):
    """Notes how each product of float32 rounds."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function in PRODUCTS and args[0].dtype == torch.float32:
            self.seen.append(settings())
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("precision", ["highest", "medium"])
def test_no_factor_is_rounded_and_what_training_asked_for_is_put_back(precision):
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    asked = settings()
    transform = PatchFeatures(n_patches=10).fit(IMAGES).transform
    with Products() as products:
        transform(IMAGES)
    assert products.seen
    assert all(seen == ["ieee"] * 4 for seen in products.seen)
    with pytest.raises(KeyError), full_precision():
        raise KeyError
    assert settings() == asked
    torch.set_float32_matmul_precision(before)
