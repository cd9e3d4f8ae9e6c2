"""Stopper for the network and the loader of another framework."""

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

from torch import nn
from torch.utils.data import DataLoader

from bu_torch.internal.logits import logits_at, packed_model
from bu_torch.internal.replica import evaluation_copy
from bu_torch.run.plan import count_operations, plan
from bu_torch.run.settings import Settings
from bu_torch.run.stopper import BoundaryUncertaintyStopper
from bu_torch.samples.batches import NO_KEYS, Keys
from bu_torch.samples.reading import read_loader
from bu_torch.samples.readings import may_be_read_again
from bu_torch.samples.samples import Samples, UnreadableError


def make_stopper(
    network: nn.Module, loader: DataLoader[Any], options: dict[str, Any], keys: Keys = NO_KEYS
) -> BoundaryUncertaintyStopper:
    """Stopper on the samples that a loader visits; only those that a check uses are read, and one more.

    Augmented samples are read again. By default token ids are exchanged.
    """
    if not isinstance(loader, DataLoader):
        raise ValueError(f"Training data: pass a `torch.utils.data.DataLoader`, got {type(loader).__name__}.")
    settings = Settings(**{name: value for name, value in options.items() if name != "folder"})

    def read(how_many: Callable[[int], int]) -> Samples:
        try:
            return read_loader(loader, how_many, seed=settings.seed, keys=keys, looks_for_augmentation=True)
        except UnreadableError as error:
            raise ValueError(f"Training data: {error}") from error

    first = read(lambda n_training: 1)
    with evaluation_copy(network) as copy:
        taker = packed_model(copy, first.packing)
        n_operations = count_operations(copy, partial(logits_at, taker, first.inputs, output_key=settings.output_key))
    n_samples, reads_again = first.n_training, first.is_random and may_be_read_again(settings.perturbation)
    made = plan(settings, n_samples, n_samples, n_operations, first.inputs.nbytes, holds_draws=reads_again)
    samples = read(lambda n_training: made.n_samples)
    are_tokens = samples.packing is None and samples.inputs.ndim == 2 and not samples.inputs.is_floating_point()
    if are_tokens and not samples.is_random and settings.perturbation is None:
        options = options | {"perturbation": "tokens"}
    return BoundaryUncertaintyStopper(samples, samples.labels, **options)


def conclude(stopper: BoundaryUncertaintyStopper, network: nn.Module | None, reason: str = "") -> None:
    """Say what was kept, and load it into `network`, if any and it is of use; a warning says if it does not fit.

    `reason` is why training ended if the stopper did not end it.
    """
    stopper.stopping_reason = stopper.stopping_reason or reason
    stopper.judge()
    is_useless = stopper.engine.processes.broadcast(stopper.engine.is_useless)
    if network is not None and stopper.best_epoch is not None and not is_useless:
        try:
            stopper.restore(network)
        except RuntimeError as error:
            warnings.warn(f"{error} The weights stay as training left them.", stacklevel=3)
    stopper.close()


def missing(module: str, packages: str, error: ImportError) -> ImportError:
    """Error for packages that are not installed, or whose own import fails."""
    if error.name in packages.split():
        how = f'`pip install {packages}`, or `pip install "bu-torch[integrations]"`'
        return ImportError(f"`bu_torch.integrations.{module}` needs {how}.")
    cause = "" if error.__cause__ is None else f" ({error.__cause__})"
    return ImportError(f"`bu_torch.integrations.{module}`: the import of {module} failed: {error}{cause}")
