"""Space in which distances are measured: standardised inputs, or features of them."""

from collections.abc import Callable
from contextlib import nullcontext
from inspect import ismethod
from typing import Any, Literal, Self, get_args

import torch
from torch import Tensor, nn

from bu_torch.functional.checks import check_choice
from bu_torch.internal.inputs import as_flat_features, as_tensor, check_seed
from bu_torch.internal.network import copy_to
from bu_torch.internal.replica import evaluated_in_place, evaluation_copy
from bu_torch.space.extractors import MixedFeatures, PatchFeatures, TokenFeatures, pooled

BaseSpace = Literal["inputs", "patches", "tokens"]  # needs no network and no labels

_BATCH, _LEAST_BATCH, _BATCH_ELEMENTS = 1024, 64, 2**22  # samples that an extractor copies and takes at once
_BLOCK_ELEMENTS = 2**20  # float64 temporaries of 8 MB, which a cache holds, for any N


class FeatureSpace:
    """Space in which distances are measured: features of the inputs, standardised.

    Ha et al. (2021), section 4.2.2, leave the space open (for speech they take features, not waveforms). Distances
    between raw inputs of thousands of values say little and take long to search.

    Args:
        feature_extractor: Callable from inputs (n, ...) to features (n, k) or (n, ...): a function, or a frozen module,
            which runs in eval mode, on its own device and in its own precision, without gradient. `"patches"` takes
            `PatchFeatures` of images (n, C, H, W); `"tokens"` takes `TokenFeatures` of token ids (n, L), with one scale
            for all axes; `"inputs"` and None take the inputs; `MixedFeatures` are for numbers and categories.
        seed: Seed of `PatchFeatures` and `TokenFeatures`, 0 <= seed < 2**64.
        module: A module that the extractor function calls: it runs in eval mode, and its modes and buffers are restored
            afterwards. If the extractor is a module or a method of one, a copy runs.

    Attributes:
        name: `"inputs"`, `"patches"`, `"tokens"`, `"mixed"` or `"custom"`.
    """

    mean_: Tensor
    scale_: Tensor
    _features: MixedFeatures | PatchFeatures | TokenFeatures | None = None

    def __init__(
        self,
        feature_extractor: Callable[[Tensor], Any] | BaseSpace | MixedFeatures | None = None,
        seed: int = 0,
        module: nn.Module | None = None,
    ) -> None:
        self.seed, self.module = check_seed(seed), module
        self.name, self.feature_extractor = "inputs", None
        if isinstance(feature_extractor, str):
            self.name = check_choice("feature_extractor", feature_extractor, get_args(BaseSpace))
            if self.name != "inputs":
                self._features = (PatchFeatures if self.name == "patches" else TokenFeatures)(seed=self.seed)
        elif isinstance(feature_extractor, MixedFeatures):
            self.name, self._features = "mixed", feature_extractor
        elif callable(feature_extractor):
            self.name, self.feature_extractor = "custom", feature_extractor
        elif feature_extractor is not None:
            raise TypeError(
                "`feature_extractor` must be callable, (n, ...) -> (n, k), the name of a space, or None,"
                f" got {type(feature_extractor).__name__}."
            )

    def fit(self, inputs: Tensor) -> Self:
        """Find mean and scale of the features of `inputs` (N, ...), a row of real, finite ones for each sample."""
        self.fit_transform(inputs)
        return self

    def fit_transform(self, inputs: Tensor) -> Tensor:
        """Fit to inputs (N, ...), and give them as points (N, k)."""
        if self.name == "patches":
            inputs = pooled(inputs)  # once, for `fit` and for `extract`
        if self._features is not None:
            self._features.fit(inputs)
        flat = self.extract(inputs)
        # The first axes of texts hold most of the information, the last ones mostly noise.
        self.mean_, self.scale_ = common_standardization(flat) if self.name == "tokens" else standardization(flat)
        if isinstance(self._features, MixedFeatures):
            self.scale_ = self._features.common_scale(inputs, self.scale_)
        return standardize(flat, self.mean_, self.scale_)

    def transform(self, inputs: Tensor) -> Tensor:
        """Inputs (n, ...) as points (n, k) of the space; float64 for float64 features and float32 for all others."""
        return standardize(self.extract(inputs), self.mean_, self.scale_)

    def extract(self, inputs: Tensor) -> Tensor:
        """Features (n, d) of inputs (n, ...), not standardised."""
        if self._features is not None:
            return self._features.transform(pooled(inputs) if self.name == "patches" else inputs)
        if self.feature_extractor is None:
            return pooled(inputs).flatten(1)
        name = "feature_extractor(inputs)"  # in errors
        # A function holds its own reference to the module, so a copy cannot replace it.
        evaluated = nullcontext() if self.module is None else evaluated_in_place(self.module)
        with evaluation_copy(self.feature_extractor) as extractor, evaluated:
            taker = extractor.__self__ if ismethod(extractor) else extractor
            n_rows = min(_BATCH, max(_LEAST_BATCH, _BATCH_ELEMENTS // inputs[0].numel()))
            parts = [as_tensor(extractor(copy_to(taker, part)), name) for part in inputs.split(n_rows)]
        features = as_flat_features(torch.cat(parts).to(inputs.device), name)
        if len(features) != len(inputs):
            raise ValueError(f"`feature_extractor` must give {len(inputs)} rows, one a sample, got {len(features)}.")
        return features


def standardization(flat: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of each feature, (d,) float64; scale 1 for a constant feature."""
    blocks = flat.split(max(1, _BLOCK_ELEMENTS // flat.shape[1]))
    mean = torch.stack([block.double().sum(dim=0) for block in blocks]).sum(dim=0) / len(flat)
    squares = [(block.double() - mean).square().sum(dim=0) for block in blocks]
    scale = (torch.stack(squares).sum(dim=0) / len(flat)).sqrt()
    return mean, torch.where((flat.amax(dim=0) == flat.amin(dim=0)) | (scale == 0), 1.0, scale)


def common_standardization(flat: Tensor) -> tuple[Tensor, Tensor]:
    """Mean of each feature, (d,) float64, and a common scale, the root mean square deviation; 1 if that is 0."""
    mean, deviations = standardization(flat)
    varies = flat.amax(dim=0) > flat.amin(dim=0)
    scale = (deviations * varies).square().mean().sqrt()
    return mean, torch.where(scale > 0, scale, 1.0)


def standardize(inputs: Tensor, mean: Tensor, scale: Tensor) -> Tensor:
    """Flatten inputs (n, ...), subtract the mean and divide by the scale: (n, d), dtype of the inputs."""
    flat = inputs.flatten(1)
    blocks = flat.split(max(1, _BLOCK_ELEMENTS // flat.shape[1]))
    return torch.cat([((block.double() - mean) / scale).to(flat.dtype) for block in blocks])
