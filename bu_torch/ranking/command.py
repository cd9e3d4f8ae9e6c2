"""Rank checkpoints by the measurements of the stopping callback, on training samples alone, without validation data.

    bu-torch rank --module my_project.model:Net --data my_project.data:training checkpoints/

The best comes first.
"""

import argparse
import inspect
import sys
from collections.abc import Callable
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import Any

from torch import nn

from bu_torch.internal.output import say
from bu_torch.ranking.rank import find_checkpoints, rank_checkpoints
from bu_torch.rule.rules import DEFAULT_RULE, RULE_NAMES
from bu_torch.run.settings import Settings
from bu_torch.samples.reading import read_samples
from bu_torch.signals.measuring import Signals
from bu_torch.signals.metrics import METRIC_HELP, metric_from

_PLACE = "PKG.MOD:NAME"


def add_options(add: Callable[..., Any]) -> None:
    """Add what the command takes."""
    add("checkpoints", nargs="+", type=Path, metavar="CKPT", help="a file, or a folder of them")
    a_module = "a module, a class of them, or a function that returns one"
    add("--module", required=True, metavar=_PLACE, help=a_module)
    samples = "a Dataset, DataLoader, LightningDataModule or pair (inputs, labels), or what returns one if it is called"
    add("--data", required=True, metavar=_PLACE, help=f"the training samples: {samples}")
    add("--rule", choices=RULE_NAMES, default=DEFAULT_RULE, help="default: %(default)s")
    add("--metric", default="accuracy", metavar="METRIC", help=f"{METRIC_HELP} (%(default)s)")
    add("--json", type=Path, metavar="FILE", help="write the ranking to this file")
    add("--max-samples", type=int, metavar="N", help="measure at a random subset of N samples")
    add("--seed", type=int, default=0, help="seed of all random choices (%(default)s)")
    add("--device", help="device to run the module on, such as cuda (its own)")
    unpickle = "unpickle everything in the checkpoints, which can run any code: only for files you trust"
    add("--no-weights-only", action="store_true", help=unpickle)


def run(options: argparse.Namespace) -> None:
    """Print the ranking, and write it if asked to."""
    files = find_checkpoints(options.checkpoints)
    module, data = _find("--module", options.module), _find("--data", options.data)
    if inspect.isclass(data) or inspect.isroutine(data):
        data = data()
    if options.device is not None and isinstance(module, nn.Module):
        module.to(options.device)
    metric, max_samples = metric_from(options.metric), options.max_samples
    settings = {"rule": options.rule, "metric": metric}
    signals = Signals(seed=options.seed, also=Settings(**settings, max_samples=max_samples).also, metric=metric)
    settings |= {"signals": signals, "device": options.device, "weights_only": not options.no_weights_only}
    ranking = rank_checkpoints(files, module, read_samples(data, max_samples, options.seed), **settings)
    say(str(ranking))  # first: a file may fail
    if options.json is not None:
        ranking.to_json(options.json)


def _find(option: str, place: str) -> Any:
    """The user's object, from an installed module, or else one in the current folder."""
    name, _, path = place.partition(":")
    if not path or not all(part.isidentifier() for part in name.split(".")):
        raise ValueError(f"`{option}` must be of the form package.module:name, got {place!r}.")
    folder = str(Path.cwd())
    sys.path.append(folder)  # last, and only for this import: it may hold downloaded files
    try:
        module = import_module(name)
    finally:
        sys.path.remove(folder)
    try:
        return attrgetter(path)(module)
    except AttributeError as error:
        where = getattr(module, "__file__", name)
        raise ValueError(f"`{option} {place}`: there is no {path!r} in {where}.") from error
