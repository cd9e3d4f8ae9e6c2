"""Early stopping and the best weights for skorch, without a validation split."""

from dataclasses import fields
from pathlib import Path
from typing import Any, Unpack

import torch
from torch import nn

from bu_torch.integrations.loaders import conclude, make_stopper, missing
from bu_torch.internal.network import entry_of
from bu_torch.run.settings import Settings, SettingsDict

try:
    from skorch import NeuralNetClassifier
    from skorch.callbacks import Callback
except ImportError as error:
    raise missing("skorch", "skorch", error) from error

_OPTIONS = {field.name: field.default for field in fields(Settings) if field.name != "decides"} | {"folder": None}


class BoundaryUncertaintyEarlyStopping(Callback):
    """Stop a net when its decision boundary gets no better, and load the best weights; for `train_split=None`.

    It records the rule's score and `boundary_uncertainty` in the net's history. With `NLLLoss`, the default of
    skorch's `NeuralNetClassifier`, its module gives probabilities, and their logarithm is read.

    Args:
        load_best: Load the weights of the best epoch when training ends.
        **settings: As in `bu_torch.BoundaryUncertaintyStopper`, `folder` among them. All of them are parameters, for
            searches of scikit-learn too: `callbacks__boundary__patience`.

    Attributes:
        stopper_: The `BoundaryUncertaintyStopper` of the training: `history`, `best_epoch`, `stopping_reason`, ...

    Raises:
        ValueError: If an argument is out of range, or samples cannot be read when the first epoch begins.
        TypeError: If an argument is unknown or of the wrong type.
    """

    def __init__(
        self, load_best: bool = True, folder: str | Path | None = None, **settings: Unpack[SettingsDict]
    ) -> None:
        Settings(**settings)  # raises for wrong arguments
        self.__dict__.update(_OPTIONS, load_best=load_best, folder=folder, **settings)

    def on_train_begin(self, net: Any, X: Any = None, y: Any = None, **kwargs: Any) -> None:
        self.stopper_: Any = None
        self.network_: Any = None

    def on_epoch_begin(self, net: Any, dataset_train: Any = None, dataset_valid: Any = None, **kwargs: Any) -> None:
        if self.stopper_ is None:
            options = {name: getattr(self, name) for name in _OPTIONS} | {"output_key": None}
            # Other nets of skorch give such a loss what the module gives: logarithms.
            gives_probabilities = isinstance(net, NeuralNetClassifier) and isinstance(net.criterion_, nn.NLLLoss)
            self.network_ = CalledNetwork(net.module_, gives_probabilities, self.output_key)
            loader = net.get_iterator(dataset_train, training=True)
            self.stopper_ = make_stopper(self.network_, loader, loss=net.criterion_, **options)
            if len(net.history) == 1:  # else the net has learnt labels in an earlier fit; the first check prepares
                self.stopper_.prepare(self.network_)

    def on_epoch_end(self, net: Any, dataset_train: Any = None, dataset_valid: Any = None, **kwargs: Any) -> None:
        should_stop = self.stopper_.check(self.network_)
        for name in ("boundary_uncertainty", self.stopper_.score_name):
            net.history.record(name, self.stopper_.history[-1][name])
        if should_stop:
            raise KeyboardInterrupt  # as skorch's own callbacks do

    def on_train_end(self, net: Any, X: Any = None, y: Any = None, **kwargs: Any) -> None:
        if self.stopper_ is not None:
            conclude(self.stopper_, self.network_ if self.load_best else None)
            self.stopper_.release()  # a pickled net holds no samples


class CalledNetwork(nn.Module):
    """The module of a net, called as skorch calls it; probabilities become their logarithm, as in skorch's loss.

    With several outputs, it returns the one that `output_key` names, or the first, as skorch does.
    """

    def __init__(self, network: nn.Module, gives_probabilities: bool, output_key: str | int | None) -> None:
        super().__init__()
        self.module, self._gives_probabilities, self._output_key = network, gives_probabilities, output_key

    def forward(self, inputs: Any) -> Any:
        output = self.module(**inputs) if isinstance(inputs, dict) else self.module(inputs)
        if self._output_key is not None:
            output = entry_of(output, self._output_key, "the module")
        elif isinstance(output, tuple):
            output = output[0]
        return (output + torch.finfo(output.dtype).eps).log() if self._gives_probabilities else output
