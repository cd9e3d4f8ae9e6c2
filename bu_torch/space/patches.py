"""Features of images without any training: their similarity to random patches of the training images."""

from functools import partial
from typing import Self

import torch
from torch import Tensor

from bu_torch.internal.global_state import full_precision
from bu_torch.internal.inputs import check_fitted, check_integer, check_seed

_CONTRAST = 0.01  # added to the variance of a patch, relative to the variance of all pixels
_WHITENING = 0.1  # added to the eigenvalues, relative to their mean
_LEAST = 1e-12
_THRESHOLD = 0.25
_SAMPLED = 20_000  # patches from which the whitening is estimated
_BLOCK_ELEMENTS = 2**21  # a block's maps take 8 MB, which fits a cache; 2**24 takes twice as long


class PatchFeatures:
    """Soft-thresholded responses to random whitened patches, mean-pooled: the random features of Coates and Ng (2011).

    Distances between such features separate classes of images better than distances between pixels. The filters are
    random patches of the training images, normalised in brightness and contrast and whitened. Each filter gives two
    maps, max(0, z - t) and max(0, -z - t); the features are their means over `n_cells` x `n_cells` cells (Coates, Ng
    and Lee 2011 pool sums over four quadrants).

    Args:
        n_patches: Number of filters, >= 1.
        size: Side of a patch in pixels, >= 1; cut to the size of smaller images.
        n_cells: Cells along each side, >= 1.
        seed: Seed of the choice of patches, 0 <= seed < 2**64.
    """

    _filters: Tensor  # (n_patches, C, size, size), whitening included
    _offsets: Tensor  # (n_patches,)
    _center: float  # mean of all pixels
    _scale: float

    def __init__(self, n_patches: int = 100, size: int = 6, n_cells: int = 2, seed: int = 0) -> None:
        self.n_patches = check_integer("n_patches", n_patches, 1)
        self.size = check_integer("size", size, 1)
        self.n_cells = check_integer("n_cells", n_cells, 1)
        self.seed = check_seed(seed)

    def fit(self, images: Tensor) -> Self:
        """Choose patches of images (N, C, H, W), floating point, finite; raises ValueError for another shape."""
        if images.ndim != 4:
            raise ValueError(f"`images` must have shape (N, C, H, W), got {tuple(images.shape)}.")
        generator = torch.Generator().manual_seed(self.seed)
        size = min(self.size, *images.shape[2:])
        spread = float(images.double().std())
        self._center, self._scale = float(images.double().mean()), spread if spread > 0 else 1.0
        patches = self._draw(self._standardized(images), size, generator)
        patches = patches - patches.mean(dim=1, keepdim=True)
        patches = patches / (patches.square().mean(dim=1, keepdim=True) + _CONTRAST).sqrt()
        mean = patches.mean(dim=0)
        covariance = (patches - mean).T @ (patches - mean) / len(patches)
        eigenvalues, axes = torch.linalg.eigh(covariance)
        scale = (eigenvalues.clamp(min=0) + _WHITENING * eigenvalues.mean()).clamp(min=_LEAST).rsqrt()
        whitening = (axes * scale) @ axes.T
        chosen = torch.randperm(len(patches), generator=generator, device="cpu")[: self.n_patches].to(patches.device)
        filters = (patches[chosen] - mean) @ whitening
        filters = filters / filters.norm(dim=1, keepdim=True).clamp(min=_LEAST) @ whitening
        self._offsets = (filters @ mean).float()
        self._filters = filters.reshape(-1, images.shape[1], size, size).float()
        return self

    def transform(self, images: Tensor) -> Tensor:
        """Features (n, 2 * n_patches * n_cells ** 2), float32, of images (n, C, H, W) with the channels of `fit`."""
        check_fitted(self, "_filters")
        per_image = self.n_patches * images.shape[2] * images.shape[3]
        blocks = self._standardized(images).split(max(1, _BLOCK_ELEMENTS // per_image))
        return torch.cat([self._of_block(block) for block in blocks])

    @full_precision()
    def _of_block(self, images: Tensor) -> Tensor:
        n_pixels = self._filters[0].numel()
        box = torch.ones_like(self._filters[:1]) / n_pixels
        mean = torch.nn.functional.conv2d(images, box)
        variance = torch.nn.functional.conv2d(images.square(), box) - mean.square()
        contrast = (variance.clamp(min=0) + _CONTRAST).rsqrt()
        # Centring the filter has the same effect as centring each patch.
        responses = torch.nn.functional.conv2d(images, self._filters - self._filters.mean(dim=(1, 2, 3), keepdim=True))
        responses *= contrast
        responses -= self._offsets.view(1, -1, 1, 1)
        cells = min(self.n_cells, *responses.shape[2:])
        above = torch.nn.functional.adaptive_avg_pool2d((responses - _THRESHOLD).clamp_(min=0), cells)
        below = torch.nn.functional.adaptive_avg_pool2d(responses.add_(_THRESHOLD).clamp_(max=0), cells)
        return torch.cat((above, -below), dim=1).flatten(1)

    def _standardized(self, images: Tensor) -> Tensor:
        return ((images.double() - self._center) / self._scale).float()

    def _draw(self, images: Tensor, size: int, generator: torch.Generator) -> Tensor:
        n_images, _, height, width = images.shape
        draw = partial(torch.randint, size=(_SAMPLED, 1, 1), generator=generator, device=generator.device)
        which, within = draw(n_images), torch.arange(size, device=generator.device)
        rows, columns = draw(height - size + 1) + within.view(-1, 1), draw(width - size + 1) + within
        patches = images[which.to(images.device), :, rows.to(images.device), columns.to(images.device)]
        return patches.movedim(-1, 1).flatten(1).double()
