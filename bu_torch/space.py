"""The space in which samples are near or far: standardised inputs."""

import torch
from torch import Tensor

_BLOCK_ELEMENTS = 2**22  # float64 temporaries of 32 MB, whatever N


def standardization(flat: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of each feature, (d,) float64; scale 1 for a constant feature."""
    blocks = flat.split(max(1, _BLOCK_ELEMENTS // flat.shape[1]))
    mean = torch.stack([block.double().sum(dim=0) for block in blocks]).sum(dim=0) / len(flat)
    scale = (
        torch.stack([(block.double() - mean).square().sum(dim=0) for block in blocks]).sum(dim=0) / len(flat)
    ).sqrt()
    is_constant = flat.amax(dim=0) == flat.amin(dim=0)
    return mean, torch.where(is_constant | (scale == 0), torch.ones_like(scale), scale)


def standardize(inputs: Tensor, mean: Tensor, scale: Tensor) -> Tensor:
    """Inputs (n, ...), flattened, minus mean over scale, (n, d); dtype of the inputs."""
    flat = inputs.flatten(1)
    blocks = flat.split(max(1, _BLOCK_ELEMENTS // flat.shape[1]))
    return torch.cat([((block.double() - mean) / scale).to(flat.dtype) for block in blocks])
