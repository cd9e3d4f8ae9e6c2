"""Activations of a layer of a network, as features for distances."""

from contextlib import ExitStack
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from bu_torch.internal.global_state import full_precision
from bu_torch.internal.inputs import as_features, as_floats, check_fitted, check_flag, check_integer
from bu_torch.internal.logits import as_taken
from bu_torch.internal.printing import advance
from bu_torch.internal.replica import evaluation_copy


class LayerFeatures:
    """Features from inside a network: a layer's activations, read by a hook, or principal components of them.

    Jiang et al. (2018), section 5.3, take trust scores in three such spaces: the logits, the fully connected layer
    before them, and 20 principal components of that layer. A copy of the network runs in eval mode.

    Args:
        model: The network; its `forward` takes a batch of inputs.
        layer: `"logits"`, the output of `model`; `"penultimate"`, the input of the `nn.Linear` that runs last; or the
            name of a submodule (`model.named_modules()`), for the output of its last call. Activations are flattened.
        n_components: Principal components to keep, >= 1; None for the activations themselves.
        batch_size: Inputs in a forward pass, >= 1.
        keep_integers: True if the network takes integers (token ids) as they are.

    Attributes:
        mean_: Mean of the activations in `fit`, (d,), of their dtype; only with `n_components`.
        components_: Principal axes, (n_components, d), of the same dtype; only with `n_components`.

    Example:
        >>> model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2))
        >>> LayerFeatures(model).transform(torch.zeros(5, 2)).shape
        torch.Size([5, 3])
    """

    mean_: Tensor
    components_: Tensor

    def __init__(
        self,
        model: nn.Module,
        layer: str = "penultimate",
        n_components: int | None = None,
        batch_size: int = 1024,
        *,
        keep_integers: bool = False,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise TypeError(f"`model` must be a torch.nn.Module, got {type(model).__name__}.")
        submodules = dict(model.named_modules())
        if layer not in ("logits", "penultimate") and layer not in submodules:
            raise ValueError(
                f"`layer` must be 'logits', 'penultimate' or one of {sorted(filter(None, submodules))}, got {layer!r}."
            )
        self.model = model
        self.layer = layer
        self.n_components = None if n_components is None else check_integer("n_components", n_components, 1)
        self.batch_size = check_integer("batch_size", batch_size, 1)
        self.keep_integers = check_flag("keep_integers", keep_integers)

    def fit(self, inputs: Any) -> Self:
        """Find the principal components of training inputs (N, ...); does nothing without `n_components`."""
        if self.n_components is None:
            return self
        activations = self._activations(inputs)
        if self.n_components > min(activations.shape):
            given = tuple(activations.shape)
            raise ValueError(f"`n_components` must be at most {min(given)} for {given}, got {self.n_components}.")
        mean, components = principal_components(activations.double(), self.n_components)
        self.mean_, self.components_ = mean.to(activations), components.to(activations)
        return self

    def transform(self, inputs: Any) -> Tensor:
        """Features (n, d) or (n, n_components), of the layer's dtype, of inputs (n, ...), finite, on their device."""
        if self.n_components is not None:
            check_fitted(self, "components_")
        activations = self._activations(inputs)
        if self.n_components is None:
            return activations
        with full_precision():
            return (activations - self.mean_.to(activations)) @ self.components_.to(activations).T

    def _activations(self, inputs: Any) -> Tensor:
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
                network(as_taken(network, batch if self.keep_integers else as_floats(batch)))
                rows.append(self._row(outputs, len(batch)).to(inputs.device))
                advance()
        return torch.cat(rows)

    def _row(self, outputs: list[Any], n_samples: int) -> Tensor:
        if not outputs:
            raise ValueError(f"`layer` must run in the forward pass, but {self.layer!r} did not: name another one.")
        shape = getattr(outputs[0], "shape", type(outputs[0]).__name__)
        if not isinstance(outputs[0], Tensor) or outputs[0].ndim == 0 or outputs[0].shape[0] != n_samples:
            raise ValueError(f"`layer` must give a tensor of {n_samples} rows, but {self.layer!r} gave {shape}.")
        return outputs[0].detach().reshape(n_samples, -1)


def principal_components(points: Tensor, n_components: int) -> tuple[Tensor, Tensor]:
    """Mean (d,) and leading principal axes (n_components, d) of points (n, d); randomised if large."""
    from sklearn.decomposition import PCA

    pca = PCA(n_components, random_state=0)
    with np.errstate(invalid="ignore"):  # scikit-learn divides by a variance of 0 if all points are equal
        pca.fit(points.cpu().numpy())
    return torch.as_tensor(pca.mean_).to(points), torch.as_tensor(pca.components_).to(points)
