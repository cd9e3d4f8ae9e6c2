"""Activations of a layer of a network, as features for distances."""

from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from bu_torch.functional.checks import check_choice
from bu_torch.internal.inputs import as_features, as_floats, check_flag, check_integer
from bu_torch.internal.logits import as_taken
from bu_torch.internal.replica import evaluation_copy


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
                network(as_taken(network, batch if self.keep_integers else as_floats(batch)))
                rows.append(self._row(outputs, len(batch)).to(inputs.device))
        return torch.cat(rows)

    def _row(self, outputs: list[Any], n_samples: int) -> Tensor:
        if not outputs:
            raise ValueError(f"`layer` must run in the forward pass, but {self.layer!r} did not: name another one.")
        shape = getattr(outputs[0], "shape", type(outputs[0]).__name__)
        if not isinstance(outputs[0], Tensor) or outputs[0].ndim == 0 or outputs[0].shape[0] != n_samples:
            raise ValueError(f"`layer` must give a tensor of {n_samples} rows, but {self.layer!r} gave {shape}.")
        return outputs[0].detach().reshape(n_samples, -1)
