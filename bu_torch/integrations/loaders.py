"""Stopper for the network and the loader of another framework."""

from functools import partial
from typing import Any

from torch import nn
from torch.utils.data import DataLoader

from bu_torch.internal.output import log_line
from bu_torch.run.prepare import class_weights_of, plan_check
from bu_torch.run.reader import NetworkReader
from bu_torch.run.settings import Settings
from bu_torch.run.stopper import BoundaryUncertaintyStopper
from bu_torch.samples.reading import read_few, read_loader
from bu_torch.samples.samples import Keys, UnreadableError


def make_stopper(
    network: nn.Module, loader: DataLoader[Any], keys: Keys | None = None, loss: Any = None, **options: Any
) -> BoundaryUncertaintyStopper:
    """Stopper on the samples that a loader visits; only those that a check uses are read, and one more.

    Augmented samples are read again. By default token ids are exchanged, and classes weigh as in `loss`, if that is a
    module, and in losses within the network.
    """
    if not isinstance(loader, DataLoader):
        raise ValueError(f"Training data: pass a `torch.utils.data.DataLoader`, got {type(loader).__name__}.")
    folder = options.pop("folder", None)
    settings = Settings(**options)
    may_reread = settings.perturbation in (None, "reading")
    read = partial(read_loader, seed=settings.seed, keys=keys or Keys(), looks_for_augmentation=may_reread)
    try:
        first = read_few(read, loader)
        are_tokens = first.packing is None and first.inputs.ndim == 2 and not first.inputs.is_floating_point()
        if are_tokens and first.reread is None and settings.perturbation is None:
            options["perturbation"] = "tokens"
            settings = Settings(**options)
        n_operations = NetworkReader(settings, first.packing).operations_of(network, first)
        samples = read(loader, plan_check(settings, first, n_operations).n_samples)
    except UnreadableError as error:
        raise ValueError(f"Training data: {error}") from error
    parts = nn.ModuleList(part for part in (network, loss) if isinstance(part, nn.Module))
    if (weights := class_weights_of(parts, samples.labels, settings, log_line)) is not None:
        options["class_weight"] = weights
    return BoundaryUncertaintyStopper(samples, samples.labels, folder=folder, **options)


def conclude(stopper: BoundaryUncertaintyStopper, network: nn.Module | None) -> None:
    """Say what was kept, and load it into `network`, if any and it is of use; a warning says if it does not fit."""
    stopper.judge()
    engine, is_restored = stopper.engine, False
    if network is not None and stopper.best_epoch is not None:
        is_of_use = not engine.processes.broadcast(engine.is_below_baseline)  # the first process knows
        is_restored = is_of_use and engine.put_back(network)
    stopper.close(is_restored=is_restored)


def missing(module: str, packages: str, error: ImportError) -> ImportError:
    """Error for packages that are not installed, or whose own import fails."""
    if error.name in packages.split():
        how = f'`pip install {packages}`, or `pip install "bu-torch[integrations]"`'
        return ImportError(f"`bu_torch.integrations.{module}` needs {how}.")
    cause = "" if error.__cause__ is None else f" ({error.__cause__})"
    return ImportError(f"`bu_torch.integrations.{module}`: the import of {module} failed: {error}{cause}")
