"""Network and samples of a training, as the plain loop's stopper takes them: what the integrations share."""

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from bu_torch.internal.network import logits_of, read_logits
from bu_torch.run import messages
from bu_torch.run.budget import count_operations
from bu_torch.run.groundwork import Groundwork
from bu_torch.run.settings import Settings
from bu_torch.run.stopper import BoundaryUncertaintyStopper
from bu_torch.samples.batches import NO_KEYS, Keys
from bu_torch.samples.reading import read_loader


class OneTensorNetwork(nn.Module):
    """A network that a check calls with one tensor, however its framework calls it.

    Args:
        network: The network in training.
        call: Given the network and inputs (n, ...), its output.
        batch_size: Samples in a call at most.
        output_key: As in `MeasurementSettings`.
    """

    def __init__(
        self,
        network: nn.Module,
        call: Callable[[Any, Tensor], Any],
        batch_size: int,
        output_key: str | int | None = None,
    ) -> None:
        super().__init__()
        self.network = network
        self._call, self._batch_size, self._output_key = call, batch_size, output_key

    def forward(self, inputs: Tensor) -> Tensor:
        parts = inputs.split(self._batch_size)
        return torch.cat([logits_of(self._call(self.network, part), len(part), key=self._output_key) for part in parts])


def are_tokens(inputs: Tensor) -> bool:
    """True for token ids (n, length)."""
    return inputs.ndim == 2 and not inputs.is_floating_point()


def call_by_key(key: str, pad: int | None, network: Any, inputs: Tensor) -> Any:
    """Output of a network that takes its inputs by name, and token ids with a mask that leaves out padding."""
    mask = {} if pad is None or not are_tokens(inputs) else {"attention_mask": (inputs != pad).long()}
    return network(**{key: inputs}, **mask)


def make_stopper(
    network: OneTensorNetwork, loader: DataLoader[Any], options: dict[str, Any], keys: Keys = NO_KEYS
) -> BoundaryUncertaintyStopper:
    """Stopper on the samples that a loader visits; only those that a check looks at are read, and one more.

    Args:
        network: The network, to count its operations.
        loader: Training's own, or one that collates as it does.
        options: Options of the stopper; by default token ids are exchanged.
        keys: Keys or places of inputs and labels in a batch.
    """
    read = partial(read_loader, loader, seed=options["seed"], keys=keys)
    first = read(lambda n: 1)
    if are_tokens(first.inputs) and options["perturbation"] is None:
        options = options | {"perturbation": "tokens"}
    settings = Settings(**{name: value for name, value in options.items() if name != "folder"})
    n_operations = count_operations(network, partial(read_logits, network, first.inputs, check_finite=False))
    n_bytes, n_training = first.inputs.nbytes, first.n_training
    plan = Groundwork(settings).planned(n_training, n_training, n_operations, n_bytes=n_bytes)
    samples = read(lambda n: plan.n_samples)
    if samples.n_ignored:
        warnings.warn(messages.ignored(samples.n_ignored), stacklevel=2)
    planned = {"n_draws": plan.n_draws, "max_samples": None, "budget": None, "output_key": None}
    options = options | planned | {"sample_weight": samples.weights}
    return BoundaryUncertaintyStopper(samples.inputs, samples.labels, **options)


def missing(module: str, packages: str) -> ImportError:
    """Error for a package that is not installed."""
    return ImportError(
        f'`bu_torch.integrations.{module}` needs `pip install {packages}`, or `pip install "bu-torch[integrations]"`.'
    )
