"""`bu-torch rank`: checkpoints from the best to the worst."""

import argparse
import inspect
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from torch import nn

from bu_torch.internal.printing import say
from bu_torch.ranking.rank import Ranking, find_checkpoints, fit_signals, rank_checkpoints
from bu_torch.rule.rules import DEFAULT_RULE, RULE_NAMES
from bu_torch.run.settings import Settings
from bu_torch.samples.reading import read_samples
from bu_torch.signals.measuring import Signals
from bu_torch.signals.metrics import METRIC_HELP, metric_from

_PLACE = "PKG.MOD:NAME"
_DESCRIPTION = """\
Rank checkpoints by the measurements of the stopping callback, on training samples alone, without validation data.

    bu-torch rank --module my_project.model:Net --data my_project.data:training checkpoints/
"""


def add_rank(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.description = _DESCRIPTION
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    add("checkpoints", nargs="+", type=Path, metavar="CKPT", help="a file, or a folder of them")
    a_module = "a module, a class of them, or a function that returns one"
    add("--module", required=True, metavar=_PLACE, help=a_module)
    samples = (
        "a Dataset, DataLoader, LightningDataModule or pair (inputs, labels), or a class or function that returns one"
    )
    add("--data", required=True, metavar=_PLACE, help=f"the training samples: {samples}")
    add("--rule", choices=RULE_NAMES, default=DEFAULT_RULE, help="default: %(default)s")
    add("--metric", type=metric_from, default="accuracy", metavar="METRIC", help=f"{METRIC_HELP} (%(default)s)")
    add("--json", type=Path, metavar="FILE", help="write the ranking to this file")
    add("--csv", type=Path, metavar="FILE", help="write the ranking to this file")
    add("--input-key", type=_key, metavar="KEY", help="key or place of the input in dict or tuple samples")
    add("--label-key", type=_key, metavar="KEY", help="key or place of the label")
    add("--max-samples", type=int, metavar="N", help="measure at a random subset of N samples")
    add("--n-neighbors", type=int, default=40, metavar="M", help="samples in a cluster (%(default)s)")
    add("--n-draws", type=int, default=4, metavar="N", help="perturbed copies of each sample (%(default)s)")
    add("--seed", type=int, default=0, help="seed of all random choices (%(default)s)")
    add("--batch-size", type=int, default=4096, metavar="N", help="samples in a forward pass (%(default)s)")
    add("--device", help="device to run the module on, such as cuda (its own)")
    unpickle = "unpickle everything in the checkpoints, which can run any code: only for files you trust"
    add("--no-weights-only", action="store_true", help=unpickle)
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> None:
    ranking = _rank(find_checkpoints(options.checkpoints), options)
    say(str(ranking))  # first: a file may fail
    if options.json is not None:
        ranking.to_json(options.json)
    if options.csv is not None:
        ranking.to_csv(options.csv)


def _rank(files: list[Path], options: argparse.Namespace) -> Ranking:
    module, data = _find("--module", options.module), _find("--data", options.data)
    if inspect.isclass(data) or inspect.isroutine(data):
        data = data()
    if options.device is not None and isinstance(module, nn.Module):
        module.to(options.device)
    also = Settings(rule=options.rule, metric=options.metric).also
    signals = Signals(options.n_neighbors, options.n_draws, options.seed, also=also, metric=options.metric)
    samples = read_samples(
        data, options.max_samples, options.seed, input_key=options.input_key, label_key=options.label_key
    )
    fit_signals(signals, samples)
    settings: dict[str, Any] = {name: getattr(options, name) for name in ("rule", "metric", "batch_size", "device")}
    settings |= {"signals": signals, "weights_only": not options.no_weights_only}
    return rank_checkpoints(files, module, samples, **settings)


def _key(text: str) -> str | int:
    """A place in a tuple if the text is a number, else a key of a dict."""
    try:
        return int(text)
    except ValueError:
        return text


def _find(option: str, place: str) -> Any:
    module, _, path = place.partition(":")
    if not module or not path:
        raise ValueError(f"`{option}` must be of the form package.module:name, got {place!r}.")
    value = _import(module)
    for name in path.split("."):
        if not hasattr(value, name):
            where = getattr(value, "__file__", None) or getattr(value, "__name__", module)
            raise ValueError(f"`{option} {place}`: there is no {name!r} in {where}.")
        value = getattr(value, name)
    return value


def _import(name: str) -> Any:
    """Import the user's module: an installed one, or else one in the current folder.

    The folder may hold downloaded files, so it comes last on the path, and only for this import.
    """
    if not all(part.isidentifier() for part in name.split(".")):
        raise ValueError(f"`{name}` is not the name of a module.")
    package = name.partition(".")[0]
    if package in sys.modules or find_spec(package) is not None:
        return import_module(name)
    folder = str(Path.cwd())
    sys.path.append(folder)
    try:
        return import_module(name)
    finally:
        if folder in sys.path:
            del sys.path[len(sys.path) - 1 - sys.path[::-1].index(folder)]  # the user may have it twice
