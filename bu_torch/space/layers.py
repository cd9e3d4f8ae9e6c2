"""Activations of a layer of a network, as features for distances."""

from contextlib import ExitStack
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from bu_torch.functional.checks import check_choice
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
        n_components: Principal components to keep, >= 1, found by `fit`; None for the activations themselves.
        batch_size: Inputs in a forward pass, >= 1.
        keep_integers: True if the network takes integers (token ids) as they are.

    Example:
        >>> model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2))
        >>> LayerFeatures(model).transform(torch.zeros(5, 2)).shape
        torch.Size([5, 3])
    """

    _components: Any  # scikit-learn's `PCA`

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
        check_choice("layer", layer, ("logits", "penultimate", *dict(model.named_modules())))
        self.model, self.layer = model, layer
        self.n_components = None if n_components is None else check_integer("n_components", n_components, 1)
        self.batch_size = check_integer("batch_size", batch_size, 1)
        self.keep_integers = check_flag("keep_integers", keep_integers)

    def fit(self, inputs: Any) -> Self:
        """Find the principal components of training inputs (N, ...); does nothing without `n_components`."""
        if self.n_components is None:
            return self
        from sklearn.decomposition import PCA

        activations = self._activations(inputs)
        if self.n_components > min(activations.shape):
            raise ValueError(f"`n_components` must be at most {min(activations.shape)}, got {self.n_components}.")
        with np.errstate(invalid="ignore"):  # scikit-learn divides by a variance of 0 if all points are equal
            self._components = PCA(self.n_components, random_state=0).fit(activations.double().cpu().numpy())
        return self

    def transform(self, inputs: Any) -> Tensor:
        """Features (n, d) or (n, n_components), of the layer's dtype, of inputs (n, ...), finite, on their device."""
        if self.n_components is not None:
            check_fitted(self, "_components")
        activations = self._activations(inputs)
        if self.n_components is None:
            return activations
        return torch.from_numpy(self._components.transform(activations.double().cpu().numpy())).to(activations)

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
