"""Network and samples of a training, as the plain loop's stopper takes them: what the integrations share."""

import warnings
from functools import partial
from typing import Any

from torch import nn
from torch.utils.data import DataLoader

from bu_torch.internal.network import packed_model, read_logits
from bu_torch.run.budget import count_operations, ignored, plan
from bu_torch.run.settings import Settings
from bu_torch.run.stopper import BoundaryUncertaintyStopper
from bu_torch.samples.batches import NO_KEYS, Keys
from bu_torch.samples.reading import read_loader


def make_stopper(
    network: nn.Module, loader: DataLoader[Any], options: dict[str, Any], keys: Keys = NO_KEYS
) -> BoundaryUncertaintyStopper:
    """Stopper on the samples that a loader visits; only those that a check looks at are read, and one more.

    The loader may be one that collates as training's own. By default token ids are exchanged.
    """
    read = partial(read_loader, loader, seed=options["seed"], keys=keys)
    first = read(lambda n: 1)
    are_tokens = first.packing is None and first.inputs.ndim == 2 and not first.inputs.is_floating_point()
    if are_tokens and options["perturbation"] is None:
        options = options | {"perturbation": "tokens"}
    settings = Settings(**{name: value for name, value in options.items() if name != "folder"})
    model = packed_model(network, first.packing)
    forward = partial(read_logits, model, first.inputs, check_finite=False, output_key=settings.output_key)
    n_bytes, n_training = first.inputs.nbytes, first.n_training
    made = plan(settings, n_training, n_training, count_operations(network, forward), n_bytes)
    samples = read(lambda n: made.n_samples)
    if samples.n_ignored:
        warnings.warn(ignored(samples.n_ignored), stacklevel=2)
    planned = {"n_draws": made.n_draws, "max_samples": None, "budget": None}
    inputs = samples.inputs if samples.packing is None else samples.packing.unpack(samples.inputs)
    options = options | planned | {"sample_weight": samples.weights}
    return BoundaryUncertaintyStopper(inputs, samples.labels, **options)


def missing(module: str, packages: str) -> ImportError:
    """Error for a package that is not installed."""
    return ImportError(
        f'`bu_torch.integrations.{module}` needs `pip install {packages}`, or `pip install "bu-torch[integrations]"`.'
    )
