"""Compare ways to stop a training on tables of your own: test errors, and epochs trained.

    bu-torch compare FOLDER

Each CSV file holds numbers and a column that is called `label`, with classes. Half of its rows (at most 2500) train a
small network, the rest (at most 4000) tests it. Columns are standardised. Wrong labels raise all test errors: compare
their differences.
"""

import argparse
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

from bu_torch.comparison.tables import Comparison, Split, compare, read_table
from bu_torch.internal.inputs import check_integer, check_number
from bu_torch.internal.output import printable, say
from bu_torch.signals.metrics import ACCURACY, METRIC_HELP, as_metric, metric_from

_NOTE = """\
hold-out 25 %: trains on three quarters and keeps the epoch with the best accuracy or metric on the rest, no average.
refit 20 %: a fifth chooses the epoch, then all labels are used to train up to it. averaged: the last epoch, with the
moving average of weights that bu-torch uses. best epoch: chosen in hindsight, without averaging. logistic, boosting:
logistic regression and gradient boosting of scikit-learn, as they are. one class: always predicts the one that is best
on the training half. For costs, balanced accuracy and F1 of two classes each way predicts with a threshold of its own:
the one that bu-torch names; the best on the hold-out set, or for the models by cross-validation; for the last epoch on
the rows that it was trained on.
±: standard deviation over the trainings of a table; in the last lines, standard error."""


def add_options(add: Callable[..., Any]) -> None:
    """Add what the command takes."""
    add("tables", nargs="+", type=Path, metavar="CSV", help="a file, or a folder of them")
    add("--seeds", type=int, default=2, metavar="N", help="trainings of each table, on different halves (%(default)s)")
    add("--epochs", type=int, default=150, metavar="N", help="length of a whole training (%(default)s)")
    decides = f"what decides and is compared: {METRIC_HELP} (accuracy)"
    add("--metric", default="accuracy", metavar="METRIC", help=decides)
    add("--noise", type=float, default=0.0, metavar="P", help="share of training labels redrawn at random (0)")


def run(options: argparse.Namespace) -> None:
    """Print a row of results for each table."""
    n_seeds = check_integer("--seeds", options.seeds, 1)
    n_epochs = check_integer("--epochs", options.epochs, 1)
    noise = check_number("--noise", options.noise, 0, below=1)
    metric = as_metric(metric_from(options.metric))
    tables = _read(_files(options.tables))
    import pandas as pd  # reading the tables has shown that it is installed

    log, n_threads, started = logging.getLogger("bu_torch"), torch.get_num_threads(), time.perf_counter()
    level = log.level
    found: list[Comparison] = []
    try:
        log.setLevel(logging.WARNING)  # hides the messages of each training
        torch.set_num_threads(1)  # enough for a small network
        for path, table in tables.items():
            try:
                runs = [compare(table, seed, n_epochs, noise, metric) for seed in range(n_seeds)]
            except ValueError as error:  # too few samples of a class, for one of the ways
                say(f"Left out: `{path}`: {printable(error)}")
                continue
            if not found:
                say(_row("test error" if metric == ACCURACY else metric.title, runs[0].results))
            name, results = path.name.partition(".csv")[0], pd.DataFrame([run.results for run in runs])
            means, spreads = results.mean(skipna=False), results.std(skipna=False)
            shown = [f"{means[way]:.3f}" + (f"±{spreads[way]:.3f}" if n_seeds > 1 else "") for way in results]
            say(_row(name, shown))
            found += runs
    finally:
        log.setLevel(level)
        torch.set_num_threads(n_threads)
    if not found:
        raise ValueError("No table is left to compare.")
    results = pd.DataFrame([run.results for run in found])
    say(_row("mean", results.mean(skipna=False)))
    if len(found) > 1:
        ours = results.pop("bu-torch")
        differences = results.sub(ours, axis=0)
        means, errors = differences.mean(skipna=False), differences.sem(skipna=False)
        say(_row("minus bu-torch", ["", *(f"{means[way]:+.3f}±{errors[way]:.3f}" for way in differences)]))
    say(_row("epochs trained", map(round, pd.DataFrame([run.epochs for run in found]).mean())))
    say(f"\n{_NOTE}\nTrainings of each: {len(found)}, in {time.perf_counter() - started:.0f} s.")


def _read(files: Sequence[Path]) -> dict[Path, Split]:
    """Read all tables before the first training; print why tables are left out, and raise if none remains."""
    tables, refused = {}, []
    for path in files:
        try:
            tables[path] = read_table(path)
        except (OSError, TypeError, ValueError) as error:
            refused.append(str(error))
    if not tables:
        raise ValueError("\n".join(refused))
    for line in refused:
        say(f"Left out: {line}")
    return tables


def _files(places: Sequence[Path]) -> list[Path]:
    folders = {place: sorted((*place.glob("*.csv"), *place.glob("*.csv.gz"))) for place in places if place.is_dir()}
    files = [file for place in places for file in folders.get(place, [place])]
    if not files:
        raise ValueError(f"There is no file `*.csv` or `*.csv.gz` in {', '.join(map(str, places))}.")
    return files


def _row(title: str, cells: Iterable[str | float]) -> str:
    shown = (f"{cell:.3f}" if isinstance(cell, float) else str(cell) for cell in cells)
    return f"{title[:24]:25}" + "".join(f"{cell:>14}" for cell in shown)
