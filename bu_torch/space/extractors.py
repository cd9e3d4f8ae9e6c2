"""Features in which distances are measured: of images, of texts, of numbers with categories, of a network's layer."""

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from bu_torch.functional.checks import check_choice
from bu_torch.internal.inputs import (
    as_features,
    as_floats,
    check_fitted,
    check_flag,
    check_integer,
    check_seed,
)
from bu_torch.internal.network import Packing, copy_to
from bu_torch.internal.replica import evaluation_copy
from bu_torch.neighbors.graph import full_precision

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

_LARGE, _POOLED = 64 * 64, 32 * 32  # pixels: images with more than the first number are pooled to about the second
_POOLED_ELEMENTS = 2**20  # pixels that are pooled at once

# Of patches.
_CONTRAST = 0.01  # added to the variance of a patch, relative to the variance of all pixels
_WHITENING = 0.1  # added to the eigenvalues, relative to their mean
_LEAST = 1e-12
_THRESHOLD = 0.25
_SAMPLED = 20_000  # patches from which the whitening is estimated
_BLOCK_ELEMENTS = 2**21  # a block's maps take 8 MB, which fits a cache; 2**24 takes twice as long

# Of indices.
_LEAST_TEXTS = 2  # a token of a single text relates it to no other
_MOST_CATEGORIES = 100  # for each place, the most frequent ones
_MOST_PLACES = 50  # a longer row of indices is a text


def is_pooled(inputs: Tensor) -> bool:
    """Whether these are images (N, C, H, W) that are pooled before distances are measured."""
    return inputs.ndim == 4 and inputs.shape[2] * inputs.shape[3] > _LARGE


def pooled(images: Tensor) -> Tensor:
    """Mean-pool images of more than 64 x 64 pixels to about 32 x 32, keeping their aspect ratio; as floats.

    Distances separate classes as well at this size as at full size.
    """
    if not is_pooled(images):
        return as_floats(images)
    height, width = images.shape[2:]
    factor = (height * width / _POOLED) ** 0.5
    size = max(1, int(height / factor)), max(1, int(width / factor))
    blocks = images.split(max(1, _POOLED_ELEMENTS // images[0].numel()))
    return torch.cat([torch.nn.functional.adaptive_avg_pool2d(as_floats(block), size) for block in blocks])


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
        n_images, _, height, width = images.shape
        size = min(self.size, height, width)
        spread = float(images.double().std())
        self._center, self._scale = float(images.double().mean()), spread if spread > 0 else 1.0
        limits = n_images, height - size + 1, width - size + 1
        draws = [torch.randint(limit, (_SAMPLED,), generator=generator, device="cpu") for limit in limits]
        which, row, column = (draw.to(images.device) for draw in draws)
        windows = self._standardized(images).unfold(2, size, 1).unfold(3, size, 1)  # (N, C, rows, columns, size, size)
        patches = windows[which, :, row, column].flatten(1).double()
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


class TokenFeatures:
    """Latent semantic features of token ids: weighted counts on a few axes (Deerwester et al. 1990).

    A text is a row of its token counts, log(1 + count), each times log(N / texts that hold the token), scaled to length
    1. The axes are the first right singular vectors of the rows of the training texts. The order of tokens does not
    count, and padding is a token like any other. Tokens in all texts, in only one, or not seen in `fit` are left out.

    Args:
        n_components: Number of axes, >= 1; if there are no more tokens than axes, each token has its own axis.
        seed: Seed of the randomised decomposition, 0 <= seed < 2**64.
    """

    _known: Tensor  # ids, ascending, (V,) int64
    _weights: Tensor  # (V,) float64
    _axes: Tensor  # (V, k) float64

    def __init__(self, n_components: int = 100, seed: int = 0) -> None:
        self.n_components = check_integer("n_components", n_components, 1)
        self.seed = check_seed(seed)

    def fit(self, tokens: Any) -> Self:
        """Find weights and axes of tokens (N, L) or (N, ...); raises TypeError unless they are integers."""
        flat = as_tokens(tokens).flatten(1).cpu().long()
        self._known = flat.unique()
        n_texts = torch.from_numpy(self._counts(flat).getnnz(axis=0))
        is_known = (n_texts >= _LEAST_TEXTS) & (n_texts < len(flat))
        self._known = self._known[is_known]
        self._weights = (len(flat) / n_texts[is_known].double()).log()
        n_axes = min(self.n_components, len(flat))
        self._axes = torch.eye(len(self._known), dtype=torch.float64, device="cpu")
        if len(self._known) > n_axes:
            from sklearn.decomposition import TruncatedSVD

            random_state = self.seed % 2**32  # scikit-learn takes 32 bits
            found = TruncatedSVD(n_axes, random_state=random_state).fit(self._weighted(flat))
            self._axes = torch.from_numpy(found.components_.T.copy()).double()
        return self

    def transform(self, tokens: Any) -> Tensor:
        """Features (n, k) of texts (n, ...), float32, on their device; zeros for a text without a known token."""
        check_fitted(self, "_axes")
        tokens = as_tokens(tokens)
        flat = tokens.flatten(1).cpu().long()
        if not len(self._known):
            return torch.zeros(len(flat), 1, device=tokens.device)
        return torch.from_numpy(self._weighted(flat) @ self._axes.numpy()).float().to(tokens.device)

    def _counts(self, flat: Tensor) -> "csr_matrix":
        """Counts of known tokens, (n, V)."""
        from scipy.sparse import csr_matrix

        places = torch.searchsorted(self._known, flat).clamp(max=len(self._known) - 1)
        is_known = self._known[places] == flat
        rows, columns = is_known.nonzero()[:, 0].numpy(), places[is_known].numpy()
        return csr_matrix((np.ones(len(rows)), (rows, columns)), (len(flat), len(self._known)))  # adds up duplicates

    def _weighted(self, flat: Tensor) -> "csr_matrix":
        """Weighted counts of known tokens, rows of length 1, (n, V)."""
        from sklearn.preprocessing import normalize

        return normalize(self._counts(flat).log1p().multiply(self._weights.numpy()).tocsr())


def as_tokens(tokens: Any, name: str = "tokens") -> Tensor:
    """Token ids as a tensor (N, ...); raises TypeError unless they are integers."""
    tokens = as_features(tokens, name, keep_integers=True)
    if tokens.is_floating_point():
        raise TypeError(f"`{name}` must be token ids, integers as `nn.Embedding` takes them, got {tokens.dtype}.")
    return tokens


class MixedFeatures:
    """Features of mixed samples: numbers, pooled images, and an indicator for each category.

    All places count the same, as in Gower (1971): the indicators of a place together have a variance of 1, like a
    number. A long row of indices is a text (`TokenFeatures`), which counts as much as all numbers together.
    """

    def __init__(self, packing: Packing) -> None:
        self.packing = packing

    def __repr__(self) -> str:  # part of fingerprints
        return f"MixedFeatures({self.packing})"

    def fit(self, inputs: Tensor) -> Self:
        rows = self._rows(inputs)
        self._texts = TokenFeatures().fit(rows) if rows.shape[1] > _MOST_PLACES else None
        self._categories: list[Tensor] = []  # the most frequent ones of each place
        for column in rows.T if self._texts is None else ():
            values, counts = column.unique(return_counts=True)
            self._categories.append(values[counts.argsort(descending=True, stable=True)[:_MOST_CATEGORIES]])
        return self

    def transform(self, inputs: Tensor) -> Tensor:
        """Features (n, k) of packed inputs (n, D), of their dtype."""
        return torch.cat(self._parts(inputs), dim=1)

    def common_scale(self, inputs: Tensor, scale: Tensor) -> Tensor:
        """Scale (k,) of each feature, common to a place or a text, from the standard deviations (k,)."""
        numbers, *others = scale.split([part.shape[1] for part in self._parts(inputs[:1])])
        unit = 1.0 if self._texts is None else max(1, len(numbers)) ** 0.5
        return torch.cat((numbers, *(part.norm().expand(len(part)) / unit for part in others)))

    def _parts(self, inputs: Tensor) -> list[Tensor]:
        """Features of all numbers, then of each place or of the text."""
        rows = self._rows(inputs)
        numbers = [pooled(part).reshape(len(part), -1) for part in self.packing.numbers(inputs)]
        of_places = [column.unsqueeze(1) == known for column, known in zip(rows.T, self._categories, strict=False)]
        texts = of_places if self._texts is None else [self._texts.transform(rows)]
        return [torch.cat([inputs[:, :0], *numbers], dim=1), *(part.to(inputs.dtype) for part in texts)]

    def _rows(self, inputs: Tensor) -> Tensor:
        """Indices; if they form several rows, only the first."""
        return self.packing.numbers_and_indices(inputs)[1][:, 0].long()


class LayerFeatures:
    """Features from inside a network: a layer's activations, read by a hook.

    Jiang et al. (2018), section 5.3, take trust scores in three such spaces: the logits, the fully connected layer
    before them, and 20 principal components of it (scikit-learn's `PCA`). A copy of the network runs in eval mode.

    Args:
        model: The network; its `forward` takes a batch of inputs.
        layer: `"logits"`, the output of `model`; `"penultimate"`, the input of the `nn.Linear` that runs last; or the
            name of a submodule (`model.named_modules()`), for the output of its last call. Activations are flattened.
        batch_size: Inputs in a forward pass, >= 1.
        keep_integers: True if the network takes integers (token ids) as they are.
    """

    def __init__(
        self, model: nn.Module, layer: str = "penultimate", batch_size: int = 1024, *, keep_integers: bool = False
    ) -> None:
        if not isinstance(model, nn.Module):
            raise TypeError(f"`model` must be a torch.nn.Module, got {type(model).__name__}.")
        self.layer = check_choice("layer", layer, ("logits", "penultimate", *dict(model.named_modules())))
        self.model, self.batch_size = model, check_integer("batch_size", batch_size, 1)
        self.keep_integers = check_flag("keep_integers", keep_integers)

    def transform(self, inputs: Any) -> Tensor:
        """Features (n, d), of the layer's dtype, of inputs (n, ...), finite, on their device."""
        inputs = as_features(inputs, "inputs", keep_integers=self.keep_integers, keep_bytes=True)
        outputs: list[Any] = []
        is_input = self.layer == "penultimate"

        def remember(_: nn.Module, given: tuple[Any, ...], named: dict[str, Any], output: Any) -> None:
            outputs[:] = [(*given, *named.values())[0] if is_input else output]

        rows = []
        with evaluation_copy(self.model) as network, ExitStack() as hooks:
            hooked = [network.get_submodule("" if self.layer in ("logits", "penultimate") else self.layer)]
            if is_input:
                hooked = [module for module in network.modules() if isinstance(module, nn.Linear)]
            for module in hooked:
                hooks.enter_context(module.register_forward_hook(remember, with_kwargs=True))
            for batch in inputs.split(self.batch_size):
                outputs.clear()
                network(copy_to(network, batch if self.keep_integers else as_floats(batch)))
                rows.append(self._row(outputs, len(batch)).to(inputs.device))
        return torch.cat(rows)

    def _row(self, outputs: list[Any], n_samples: int) -> Tensor:
        if not outputs:
            raise ValueError(f"`layer` must run in the forward pass, but {self.layer!r} did not: name another one.")
        shape = getattr(outputs[0], "shape", type(outputs[0]).__name__)
        if not isinstance(outputs[0], Tensor) or outputs[0].ndim == 0 or outputs[0].shape[0] != n_samples:
            raise ValueError(f"`layer` must give a tensor of {n_samples} rows, but {self.layer!r} gave {shape}.")
        return outputs[0].detach().reshape(n_samples, -1)
