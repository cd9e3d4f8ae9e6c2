"""Which epoch is kept, beside fair opponents, on clean labels and under noise as people make it.

A collection is a set of tables, images or texts. For each data set, setting, kind of noise (`noise.py`) and seed, one
network is trained on all labels, one on 75 % and one on 90 % of them. On all labels the shipped engine checks the
average of the weights after each epoch, as the callback does; the two others have a hold-out set. Every rule is
causal, and waits 20 epochs for a better one unless its name or its authors say otherwise. *Averaged* are weights
averaged as the callback averages them (0.7), or with 0.97. Augmented images are checked
as a user's dataset gives them: read again and again, which perturbs them.

*Excess* is the test error of what is kept less that of the best epoch of the weights themselves on all labels, in
hindsight; an average may be better than that. Half of a table trains, at most 2500 samples, and at most 4000 of the
rest test.

    python benchmarks/quality.py --quick             # a minute
    python benchmarks/quality.py --show              # what is saved; `strong --show` and the like: the last four alone

The saved results:

    python benchmarks/quality.py tables --settings adamw rmsprop
    python benchmarks/quality.py others --settings adamw rmsprop
    python benchmarks/quality.py images --noise none uniform-0.2
    python benchmarks/text.py --fetch && python benchmarks/quality.py texts
    python benchmarks/quality.py business --folder FOLDER --settings adamw --noise none uniform-0.2 --seeds 2
    python benchmarks/quality.py people --folder FOLDER && python benchmarks/quality.py distant --folder FOLDER
    python benchmarks/quality.py strong --folder FOLDER --seeds 2  # needs torchvision
    python benchmarks/quality.py images_unseen --emoji EMOJI --noise none uniform-0.2 --seeds 1
    python benchmarks/keel.py SEVEN --listed && python benchmarks/quality.py seven --folder SEVEN --settings adamw
    python benchmarks/keel.py FRESH --fresh
    python benchmarks/quality.py fresh --folder FRESH --settings adamw rmsprop

EMOJI is the file that `images.py` names. Others:

    python benchmarks/keel.py KEEL && python benchmarks/quality.py keel --folder KEEL

Each training is saved as it ends, and is not run again, the quick ones apart. `CHOSEN_ON` names the collections that
set the limits of the word on the choice. The score (equal shares, trust times the skill) was chosen on trainings of all
collections but `fresh`, `strong` and `images_unseen`, with AdamW, half of them with other seeds; these were run after
the last choice.
"""

import argparse
import copy
import dataclasses
import itertools
import json
import logging
import math
import os
import re
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import images
import numpy as np
import pandas as pd
import people
import tables
import text
import torch
import training
from noise import KINDS as NOISES
from noise import corrupt
from tables import FOLDER
from torch import Tensor, nn
from torch.multiprocessing import get_context
from training import AVERAGE, LONG_AVERAGE, PATIENCE, Columns, first_largest

from bu_torch.rule.rules import DEFAULT_RULE, RULE_NAMES, STANDARD_ERROR
from bu_torch.run.history import History, confidence_in, describe_blindness
from bu_torch.run.settings import Settings
from bu_torch.signals.catalogue import SIGNALS
from bu_torch.signals.measuring import Signals

HELD_OUT = {"quarter": 0.25, "tenth": 0.1}
REFIT = {"fifth": 0.2}  # of the collections that a user's folder holds
ADAMW = partial(torch.optim.AdamW, lr=1e-3, weight_decay=1e-2)
Record = dict[str, Any]
Rule = Callable[..., float]  # from the curves of a case, and a column, to the test error or that column of what is kept
SHARES = ("accuracy", "uncertainty", "trust")
ERROR, BALANCED, RAREST = "test_error", "test_balanced_error", "test_rarest_recall"
EPOCHS_RUN = "epochs_run"  # a column of those rules that end a training


def cosine(optimizer: torch.optim.Optimizer, n_steps: int) -> Any:
    return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, n_steps)


def schedule_free(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """Schedule-Free AdamW (Defazio et al. 2024) with its own learning rate."""
    from schedulefree import AdamWScheduleFree

    return AdamWScheduleFree(parameters, weight_decay=1e-2)


SETTINGS: dict[str, tuple[training.Optimizer, Callable[..., Any] | None]] = {
    "rmsprop": (partial(torch.optim.RMSprop, lr=1e-3), None),
    "adamw": (ADAMW, None),
    "sgd": (partial(torch.optim.SGD, lr=0.05, momentum=0.9), None),
    "cosine": (ADAMW, cosine),
    "schedule_free": (schedule_free, None),
}
COLLECTIONS = ("tables", "others", "keel", "seven", "fresh", "images", "images_unseen", "texts", "texts_unseen")
COLLECTIONS += ("business", *people.KINDS)
BUSINESS = ("attrition", "credit_data", "hpc_data", "mlc_churn")
CHOSEN_ON = ("tables", "images", "texts")
QUICK = "quick"  # a collection that is committed to notice what changes, and told of nowhere
APART = (QUICK, "fresh", "seven", "strong", "images_unseen")  # not among those that `--show` puts together
OF_ROWS = ("tables", "others", "keel", "seven", "fresh", "business")
OF_NETWORKS = tuple(noise for noise in NOISES if noise != "pairs-0.4")  # of images and texts


@dataclasses.dataclass(frozen=True)
class Unit:
    """Trainings that are run together: of one data set, setting and seed, with labels of each kind of noise."""

    collection: str
    data: str
    setting: str
    seed: int
    noises: tuple[str, ...]
    epochs: int

    def file(self, folder: Path, noise: str) -> Path:
        """Where the curves of one of them are kept."""
        name = Path(self.data).name.partition(".csv")[0]
        return folder / f"{self.collection}-{name}-{self.setting}-{noise}-{self.seed}-{self.epochs}.json"

    def run(self) -> list[Record]:
        """Curves of each kind of noise."""
        prepare = prepare_table if self.setting in SETTINGS else prepare_images_or_texts
        given = (prepare_people if self.collection in people.KINDS else prepare)(self)
        order = torch.randperm(len(given.labels), generator=torch.Generator().manual_seed(self.seed))
        seeded = [torch.Generator().manual_seed(2000 + self.seed) for _ in self.noises]
        draws = zip(self.noises, seeded, strict=True)
        labels = given.labels.unsqueeze(0)
        if self.collection not in people.KINDS:
            labels = torch.stack([corrupt(given.labels, given.described, given.n_classes, *draw) for draw in draws])
        train = partial(training.run, test=given.test, n_epochs=self.epochs, seed=self.seed, **given.options)
        nets = given.make(len(labels))
        records = [{"all": columns} for columns in train(nets, samples=(given.inputs, labels), watch=given.watch)]
        is_of_folder = self.collection in ("business", *people.KINDS)
        for name, share in (HELD_OUT | (REFIT if is_of_folder else {})).items():
            rest, held = order.tensor_split([len(order) - int(share * len(order))])
            held_out = given.inputs[held], labels[:, held]
            found = train(given.make(len(labels)), samples=(given.inputs[rest], labels[:, rest]), held_out=held_out)
            for record, columns in zip(records, found, strict=True):
                record[name] = columns
        return records


@dataclasses.dataclass(frozen=True)
class Prepared:
    """Data of a unit, and how it is trained."""

    inputs: Tensor
    labels: Tensor
    test: training.Split
    n_classes: int
    described: Tensor  # features by which noise is made
    make: Callable[[int], training.Stack | training.One]
    options: dict[str, Any]
    watch: dict[str, Any]


def prepare_table(unit: Unit) -> Prepared:
    (inputs, labels), test, n_classes = tables.load(unit.data, unit.seed)
    optimizer, schedule = SETTINGS[unit.setting]

    def make(n_members: int) -> training.Stack:
        torch.manual_seed(unit.seed)
        return training.Stack((inputs.shape[1], 128, 64, n_classes), n_members)

    options = {"optimizer": optimizer, "schedule": schedule}
    return Prepared(inputs, labels, (test[0][:4000], test[1][:4000]), n_classes, inputs, make, options, {})


def prepare_images_or_texts(unit: Unit) -> Prepared:
    if unit.collection.startswith("texts"):
        (inputs, labels), test, net = text.prepare(unit.setting, unit.seed)
        counts = nn.functional.one_hot(inputs, int(inputs.max()) + 1)[:, :, text.UNKNOWN + 1 :].sum(dim=1).clamp(max=1)
        described = counts[:, counts.sum(dim=0) >= 5].float()
        options: dict[str, Any] = {"optimizer": partial(torch.optim.AdamW, lr=text.RATE)}
        watch: dict[str, Any] = {"perturbation": "tokens"}
    else:
        emoji = os.environ.get("EMOJI")
        (inputs, labels), test, net = images.prepare(unit.setting, unit.seed, Path(emoji) if emoji else None)
        described, watch = inputs, {}
        options = {"optimizer": partial(torch.optim.AdamW, lr=1e-3)}
        add_augmentation(images.KINDS[unit.setting], options, watch)
    n_classes = int(torch.cat((labels, test[1])).max()) + 1
    watch["module"] = net
    return Prepared(
        inputs, labels, test, n_classes, described, lambda _: training.One(copy.deepcopy(net)), options, watch
    )


def prepare_people(unit: Unit) -> Prepared:
    (noise,) = unit.noises
    (inputs, labels), test, net = people.prepare(
        unit.collection, unit.setting, noise, Path(os.environ["FOLDER"]), unit.seed
    )
    watch: dict[str, Any] = {"module": net} | ({"perturbation": "tokens"} if unit.collection == "distant" else {})
    options: dict[str, Any] = {
        "optimizer": partial(torch.optim.AdamW, lr=text.RATE if unit.collection == "distant" else 1e-3)
    }
    add_augmentation(people.KINDS[unit.collection][unit.setting], options, watch)
    make = lambda _: training.One(copy.deepcopy(net))  # noqa: E731
    return Prepared(inputs, labels, test, int(test[1].max()) + 1, inputs, make, options, watch)


def add_augmentation(kind: Any, options: dict[str, Any], watch: dict[str, Any]) -> None:
    """Train on augmented images, and let the engine read them as a user's dataset gives them."""
    if name := getattr(kind, "augmentation", ""):
        watch["dataset"] = images.AUGMENTATIONS[name]
        options["augment"] = partial(augmented, dataset=images.AUGMENTATIONS[name])


def augmented(batch: Tensor, dataset: type[images.Augmented]) -> Tensor:
    """Images (1, n, ...), each as the dataset augments it."""
    data = dataset(batch[0], torch.zeros(batch.shape[1]))
    return torch.stack([data[row][0] for row in range(len(data))]).unsqueeze(0)


def units(collection: str, options: argparse.Namespace) -> list[Unit]:
    """Trainings of a collection, those of a seed one after another."""
    if collection == QUICK:
        noises = ("none", "uniform-0.2")
        of_tables = [Unit(QUICK, table, "rmsprop", 0, noises, 40) for table in ("banknote", "german", "ionosphere")]
        return [*of_tables, *(Unit(QUICK, "digits", "digits", 0, (noise,), 40) for noise in noises)]
    if collection in people.KINDS:
        kinds, noises = people.KINDS[collection], people.NOISES[collection]
        each = itertools.product(range(options.seeds), noises, kinds)
        return [Unit(collection, kinds[name].data, name, seed, (noise,), 40) for seed, noise, name in each]
    if collection.startswith(("images", "texts")):
        room = images if collection.startswith("images") else text
        kinds = room.UNSEEN if collection.endswith("unseen") else room.TUNING
        names = images.there(list(kinds), options.emoji) if room is images else list(kinds)
        noises = [noise for noise in options.noise if noise in OF_NETWORKS]
        return [
            Unit(collection, kinds[name].data, name, seed, (noise,), 40)
            for seed, noise, name in itertools.product(range(options.seeds), noises, names)
        ]
    of_tables: Iterable[str] = tables.TABLES if collection == "tables" else tables.UNSEEN
    if options.folder is not None:
        of_tables = [str(file) for file in sorted(options.folder.glob("*.csv*"))]
        if collection == "business":
            named = options.tables or BUSINESS
            of_tables = [file for file in of_tables if Path(file).name.partition(".csv")[0] in named]
        for table in of_tables:  # what cannot be trained on is said before any training
            tables.read_table(table)
    elif collection in ("keel", "seven", "fresh", "business"):
        raise SystemExit(f"`{collection}` needs `--folder`; `benchmarks/keel.py` fills one of the first three.")
    return [
        Unit(collection, table, setting, seed, tuple(options.noise), options.epochs)
        for seed, table, setting in itertools.product(range(options.seeds), of_tables, options.settings)
    ]


def recall(unit: Unit, folder: Path) -> list[dict[str, Any]]:
    """Rows of the trainings of a unit, which are run unless `folder` holds their curves."""
    files = {noise: unit.file(folder, noise) for noise in unit.noises}
    missing = tuple(noise for noise, file in files.items() if not file.exists())
    if missing:
        started = time.perf_counter()
        part = dataclasses.replace(unit, noises=missing)
        for noise, record in zip(missing, part.run(), strict=True):
            beside = files[noise].with_suffix(".part")
            beside.write_text(json.dumps(record))
            beside.replace(files[noise])
        print(f"{unit.data} {unit.setting} {unit.seed}: {time.perf_counter() - started:.0f} s", flush=True)
    rows = []
    for noise, file in files.items():
        about = {"collection": unit.collection, "data": Path(unit.data).name.partition(".csv")[0]}
        about |= {"setting": unit.setting, "noise": noise, "seed": unit.seed}
        rows += [about | row for row in judge(json.loads(file.read_text()))]
    return rows


def begin_process() -> None:
    """Make a process of a pool quiet, and of one thread."""
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    logging.getLogger("bu_torch").setLevel(logging.ERROR)


def run_all(todo: list[Unit], folder: Path, n_processes: int) -> Iterable[list[dict[str, Any]]]:
    if n_processes == 1:
        yield from (recall(unit, folder) for unit in todo)
        return
    with get_context("spawn").Pool(n_processes, begin_process) as pool:
        yield from pool.imap(partial(recall, folder=folder), todo)


def checks(columns: Columns, prefix: str) -> list[dict[str, float]]:
    """Checks of weights or averages, as the engine had them."""
    names = (*Signals.NAMES, STANDARD_ERROR)
    rows = zip(*(columns[prefix + name] for name in names), strict=True)
    return [{"epoch": epoch, **dict(zip(names, row, strict=True))} for epoch, row in enumerate(rows)]


def replay(rule: Any, history: list[dict[str, float]]) -> tuple[int, dict[str, Any] | None]:
    """Number of the check at which patience ends training, and the check that a rule keeps until then."""
    past = History(Settings(rule=rule, patience=PATIENCE))
    for check in history:
        if past.add(dict(check)):
            past.kept = past.entries[-1]
        if past.decision.should_stop:
            break
    return len(past.entries) - 1, past.kept


def by(rule: Any, prefix: str = AVERAGE) -> Rule:
    """A rule of bu_torch on the checks of all labels."""

    def test_error(record: Record, column: str = ERROR) -> float:
        stopped, kept = replay(rule, checks(record["all"], prefix))
        if column == EPOCHS_RUN:
            return stopped + 1
        return record["all"][prefix + column][0 if kept is None else kept["epoch"]]

    return test_error


def within(n_errors: float) -> Rule:
    """The latest of the checks within so many standard errors of the highest score.

    The standard error is that of the gain in expected accuracy over its highest before.
    """

    def test_error(record: Record, column: str = ERROR) -> float:
        history = checks(record["all"], AVERAGE)
        highest, stopped = first_largest(check[DEFAULT_RULE] for check in history)
        top = history[highest][DEFAULT_RULE]
        near = (
            check for check in history[: stopped + 1] if check[DEFAULT_RULE] >= top - n_errors * check[STANDARD_ERROR]
        )
        return record["all"][AVERAGE + column][max(check["epoch"] for check in near)]

    return test_error


def mean_of_shares(accuracy: float, uncertainty: float, trust: float, patience: int = PATIENCE) -> Rule:
    """The largest mean of the shares of the score with these weights; that of trust is multiplied by the skill."""

    def test_error(record: Record, column: str = ERROR) -> float:
        columns = record["all"]
        skill, most = min(max(columns["skill"][0], 0.0), 1.0), [columns[f"most_{name}"][0] for name in SHARES]
        scores = [
            accuracy * check["expected_accuracy"] / most[0]
            + uncertainty * check["boundary_uncertainty"] / most[1]
            + trust * skill * math.log(check["trust_score"]) / math.log(most[2])
            for check in checks(columns, AVERAGE)
        ]
        kept, stopped = first_largest(scores, patience)
        return stopped + 1 if column == EPOCHS_RUN else columns[AVERAGE + column][kept]

    return test_error


def held_out(part: str, measure: str, prefix: str = "", *, is_refit: bool = False) -> Rule:
    """A hold-out set decides; `is_refit`: a training on all labels ends in the epoch that it has kept.

    Of equal accuracies the one with the least loss is kept.
    """

    def test_error(record: Record, column: str = ERROR) -> float:
        losses = record[part][prefix + ("val_loss" if measure == "val_accuracy" else measure)]
        scores = record[part][prefix + measure] if measure == "val_accuracy" else [0.0] * len(losses)
        kept, stopped = first_largest([(score, -loss) for score, loss in zip(scores, losses, strict=True)])
        if column == EPOCHS_RUN:
            return stopped + 1
        return record["all" if is_refit else part][prefix + column][kept]

    return test_error


def last(prefix: str) -> Rule:
    return lambda record, column=ERROR: record["all"][prefix + column][-1]


def lowest(prefix: str) -> Rule:
    """The least test error, in hindsight."""

    def test_error(record: Record, column: str = ERROR) -> float:
        errors = record["all"][prefix + ERROR]
        return record["all"][prefix + column][errors.index(min(errors))]

    return test_error


def label_wave(record: Record, column: str = ERROR, patience: int = 1, width: int = 3) -> float:
    """Label Wave (Yuan et al. 2024): the first minimum of the moving average of changed predictions.

    Predictions are those of the training-mode passes of each epoch, as its authors' code has them.
    """
    changed = record["all"]["changed_predictions"][1:]
    means = [-float(np.mean(changed[max(0, epoch - width + 1) : epoch + 1])) for epoch in range(len(changed))]
    return record["all"][column][first_largest(means, patience)[0] + 1]


def gradient_disparity(record: Record, column: str = ERROR, *, in_a_row: bool) -> float:
    """Gradient disparity (Forouzesh and Thiran 2021): the end is the fifth epoch in which it grew, in a row or not."""
    errors, disparities = record["all"][column], record["all"]["disparity"]
    grown = 0
    for epoch in range(1, len(disparities) - 1):  # it was measured before each epoch
        has_grown = disparities[epoch + 1] > disparities[epoch]
        grown = grown + 1 if has_grown else 0 if in_a_row else grown
        if grown == 5:
            return errors[epoch]
    return errors[-1]


OURS, LAST, LONG_LAST = "bu-torch", "last epoch, averaged (0.7)", "last epoch, averaged (0.97)"
QUARTER, TENTH = "hold-out accuracy, 25 %", "hold-out accuracy, 10 %"
MEASURES = {"accuracy": "val_accuracy", "loss": "val_loss", "scaled loss": "val_scaled_loss"}
RULES: dict[str, Rule] = {
    OURS: by(DEFAULT_RULE),
    "accuracy, uncertainty and trust, no average": by(DEFAULT_RULE, ""),
    "accuracy, uncertainty and trust, patience 10": mean_of_shares(1, 1, 1, patience=10),
    "expected accuracy": by("expected_accuracy"),
    "trust score": by("trust_score"),
    "boundary uncertainty": by("boundary_uncertainty"),
    "boundary uncertainty, no average": by("boundary_uncertainty", ""),
    "uncertainty and trust": mean_of_shares(0, 1, 1),
    "accuracy and trust": mean_of_shares(1, 0, 1),
    "accuracy and uncertainty": mean_of_shares(1, 1, 0),
    "a quarter of uncertainty": mean_of_shares(4, 1, 4),
    **{f"latest within {n} standard errors": within(n) for n in (0.5, 1, 2)},
    "last epoch": last(""),
    LAST: last(AVERAGE),
    LONG_LAST: last(LONG_AVERAGE),
    **{
        f"hold-out {measure}, {share:.0%}{of}".replace("%", " %"): held_out(part, column, prefix)
        for part, share in HELD_OUT.items()
        for measure, column in MEASURES.items()
        for of, prefix in {"": "", ", averaged": AVERAGE}.items()
    },
    **{
        f"hold-out accuracy, {share:.0%}, then retrained on all{of}".replace("%", " %"): held_out(
            part, "val_accuracy", prefix, is_refit=True
        )
        for part, share in HELD_OUT.items()
        for of, prefix in {"": "", ", averaged": AVERAGE}.items()
    },
    "Label Wave": label_wave,
    "Label Wave, patience 10": partial(label_wave, patience=10),
    "gradient disparity, five in a row": partial(gradient_disparity, in_a_row=True),
    "gradient disparity, five in all": partial(gradient_disparity, in_a_row=False),
    "best average in hindsight": lowest(AVERAGE),
}
REFITS = {
    f"refit, 20 %{of}": held_out("fifth", "val_accuracy", prefix, is_refit=True)
    for of, prefix in {"": "", ", averaged": AVERAGE}.items()
}
REFERENCES = (LAST, LONG_LAST, QUARTER, TENTH)
DRAWN = (
    *(OURS, LONG_LAST, "last epoch", QUARTER, TENTH, "hold-out loss, 25 %, averaged", "hold-out loss, 10 %, averaged"),
    *("boundary uncertainty", "trust score"),
)
EPOCH_BEST = "best epoch"


def judge(record: Record) -> list[dict[str, Any]]:
    """One row a rule."""
    best = min(record["all"][ERROR])
    rules = RULES | (REFITS if "fifth" in record else {}) | {EPOCH_BEST: lowest("")}
    more = [column for column in (BALANCED, RAREST) if column in record["all"]]
    rows = [
        {"rule": name, ERROR: rule(record), "best": best, **{column: rule(record, column) for column in more}}
        for name, rule in rules.items()
    ]
    for row in rows:
        if row["rule"] in (OURS, QUARTER):
            row[EPOCHS_RUN] = rules[row["rule"]](record, EPOCHS_RUN)
    rows[0]["word"] = word(record)
    return [row | {"correlation": correlation(record, row["rule"])} for row in rows]


def word(record: Record) -> str:
    """The word that the shipped engine says of its choice."""
    columns = record["all"]
    history = checks(columns, AVERAGE)
    stopped, kept = replay(DEFAULT_RULE, history)
    seen = history[: stopped + 1]
    if kept is None:
        return ""
    skill, highest = columns["skill"][0], max(check["expected_accuracy"] for check in seen)
    is_blind = describe_blindness(highest, columns["alone"][0], "", (skill, skill)) != ""
    return confidence_in(kept, seen, skill, columns["n_measured"][0], columns["alone"][0], is_blind=is_blind).word


def correlation(record: Record, rule: str) -> float:
    """Spearman's rank correlation of what a rule looks at with the test accuracy of averages; NaN for most rules."""
    signal = {OURS: DEFAULT_RULE, **{SIGNALS[name].title: name for name in RULE_NAMES if name in Signals.NAMES}}
    if rule not in signal:
        return math.nan
    values, errors = (pd.Series(record["all"][AVERAGE + name]) for name in (signal[rule], ERROR))
    return -values.corr(errors, method="spearman") if values.nunique() > 1 < errors.nunique() else math.nan


def file_of(collection: str, results: Path) -> Path:
    return results / f"quality-{collection}.csv.gz"


def read(*files: Path) -> pd.DataFrame:
    """All rows of these files."""
    rows = pd.concat([pd.read_csv(file) for file in files], ignore_index=True)
    return rows.assign(excess=rows.test_error - rows.best)


def summarise(rows: pd.DataFrame, n_bootstrap: int = 2000) -> pd.DataFrame:
    """Mean error and excess of each rule, and our excess as a share of its, with a 90 % bootstrap interval.

    Means are over data sets, and those are drawn; kinds of training on the same images or texts are one. The share is
    infinite if the other rule has no excess.
    """
    by_set = rows.pivot_table(index=rows.data.map(source_of), columns="rule", values=["test_error", "excess"])
    drawn = np.random.default_rng(0).integers(0, len(by_set), (n_bootstrap, len(by_set)))
    excess = by_set["excess"]
    found = []
    for rule in excess:
        ours, theirs = excess[OURS].to_numpy(), excess[rule].to_numpy()
        low, high = np.quantile(
            shares(ours[drawn].mean(axis=1), theirs[drawn].mean(axis=1)), [0.05, 0.95], method="nearest"
        )
        share = float(shares(ours.mean(), theirs.mean()))
        row = {"rule": rule, "test error": by_set["test_error", rule].mean(), "excess": theirs.mean()}
        found.append(row | {"ours / it": share, "90 %": f"{low:.2f}-{high:.2f}"})
    return pd.DataFrame(found).set_index("rule").sort_values("excess", kind="stable")


def least_favourable(rows: pd.DataFrame) -> pd.DataFrame:
    """Our share of each reference's excess without the data set whose absence raises it most, and which that is."""
    sources = rows.data.map(source_of)
    found = {
        source: summarise(rows[sources != source], n_bootstrap=1).loc[list(REFERENCES), "ours / it"]
        for source in sources.unique()
        if sources.nunique() > 1
    }
    table = pd.DataFrame(found, index=list(REFERENCES))
    return pd.DataFrame({"without": table.T.idxmax(), "ours / it": table.max(axis=1)}) if found else table


def source_of(data: str) -> str:
    """Data that several kinds of training share."""
    return re.sub(r"^emoji\d+$", "emoji", {"first": "descriptions", "second": "descriptions"}.get(data, data))


def shares(ours: Any, theirs: Any) -> np.ndarray:
    return np.where(theirs > 0, ours / np.where(theirs > 0, theirs, 1.0), np.inf)


def with_labels(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows, and whether their labels are clean."""
    return rows.assign(labels=np.where(rows.noise == "none", "clean", "noisy"))


def plot(rows: pd.DataFrame, path: Path) -> None:
    """Draw the mean excess of some rules, one dot a data set; the best on top, ours in its own colour."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    plt.style.use(FOLDER.parent / "docs" / "pictures.mplstyle")
    rows = with_labels(rows)
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained", sharex=True, sharey=True)
    order = rows[rows.rule.isin(DRAWN)].groupby("rule").excess.mean().sort_values(ascending=False).index
    for axis, (labels, title) in zip(axes, {"clean": "clean labels", "noisy": "wrong labels"}.items(), strict=True):
        part = rows[rows.labels == labels]
        by_set = part.pivot_table(index=["collection", "data"], columns="rule", values="excess").reindex(columns=order)
        axis.axvline(0, color="tab:gray", linewidth=0.8)
        for row, rule in enumerate(order):
            axis.scatter(by_set[rule], [row] * len(by_set), s=12, color="tab:gray", alpha=0.5, linewidth=0)
            color = "tab:red" if rule == OURS else "tab:blue"
            axis.scatter(by_set[rule].mean(), row, s=90, color=color, marker="|", linewidth=3)
        axis.set(title=title, yticks=range(len(order)), yticklabels=order)
        axis.set(xlabel="excess test error (dot: a data set, bar: mean)")
    axes[0].get_yticklabels()[list(order).index(OURS)].set(color="tab:red", weight="bold")
    figure.savefig(path, dpi=120)
    plt.close(figure)


def show(rows: pd.DataFrame) -> None:
    """Print all rules, then ratios by labels and collection."""
    pd.set_option("display.width", 200, "display.max_rows", None, "display.max_columns", None)
    rows = with_labels(rows)
    rows["half"] = np.where(rows.collection.isin(CHOSEN_ON), "sets the word's limits", "sets none")
    rows["kind"] = np.where(rows.collection.isin(OF_ROWS), "tables", "images and texts")
    for (kind, labels), part in rows.groupby(["kind", "labels"]):
        print(f"\n{kind}, {labels}, {int((part.rule == OURS).sum())} trainings\n{summarise(part).round(4)}")
        if BALANCED in part and (known := part[part[BALANCED].notna()]).size:
            means = known.groupby("rule")[[ERROR, BALANCED, RAREST, "correlation"]].mean().sort_values(BALANCED)
            print(f"balanced error, recall of the rarest class, correlation with test accuracy\n{means.round(4)}")
        least = least_favourable(part)
        print(f"without the data set that favours us most\n{least.round(2).to_string()}")
    for columns in (["noise"], ["half", "labels"], ["collection", "labels"], ["setting"]):
        table = []
        for key, part in rows.groupby(columns):
            summary = summarise(part)
            cells = {
                f"/ {rule}": "{:.2f} ({})".format(*summary.loc[rule, ["ours / it", "90 %"]]) for rule in REFERENCES
            }
            table.append({columns[0]: ", ".join(key), "trainings": int((part.rule == OURS).sum()), **cells})
        print(f"\n{pd.DataFrame(table).to_string(index=False)}")
    ours = rows[rows.rule == OURS].assign(near=lambda one: one.excess <= 0.01, nearer=lambda one: one.excess <= 0.02)
    of_words = ours.groupby(["half", "word"]).agg(
        trainings=("excess", "size"),
        within_01=("near", "mean"),
        within_02=("nearer", "mean"),
        excess=("excess", "mean"),
    )
    print(f"\nthe word on the choice, and how near the best epoch in hindsight is\n{of_words.round(3).to_string()}")
    wide = rows.pivot_table(index=["collection", "data", "setting", "noise", "seed"], columns="rule", values="excess")
    for reference in (LAST, LONG_LAST):
        worse = (wide[OURS] - wide[reference] > 0.01).groupby(level="noise").mean()
        print(f"\nshare of trainings worse than {reference} by more than 0.01: {worse.round(3).to_dict()}")


def main(arguments: list[str] | None = None) -> pd.DataFrame:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("collection", nargs="?", choices=COLLECTIONS)
    parser.add_argument("--quick", action="store_true", help="three small tables and small images, to notice changes")
    parser.add_argument("--show", action="store_true", help="train nothing, show and draw the saved results")
    parser.add_argument("--folder", type=Path, help="of tables, as `keel.py` fills it")
    parser.add_argument("--tables", nargs="+", help="of `business`: names of files in the folder")
    parser.add_argument("--emoji", type=Path, help="as in `images.py`")
    parser.add_argument("--settings", nargs="+", default=list(SETTINGS), choices=list(SETTINGS), help="of tables")
    parser.add_argument("--noise", nargs="+", default=list(NOISES), choices=list(NOISES))
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=150, help="of tables; images and texts have 40")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--results", type=Path, default=FOLDER / "results")
    parser.add_argument("--curves", type=Path, default=FOLDER / "data" / "curves", help="where trainings are saved")
    options = parser.parse_args(arguments)
    collection = QUICK if options.quick else options.collection
    if options.show and collection is None:
        files = sorted(set(options.results.glob("quality-*.csv.gz")) - {file_of(one, options.results) for one in APART})
    elif options.show:
        files = [file_of(collection, options.results)]
    elif collection is None:
        parser.error("name a collection, --quick or --show")
    else:
        files = [run_collection(collection, options)]
    rows = read(*files)
    show(rows)
    if options.show and collection is None:
        plot(rows, options.results / "quality.png")
    return rows


def run_collection(collection: str, options: argparse.Namespace) -> Path:
    """The file of results of a collection, after all its trainings."""
    if options.emoji is not None:
        os.environ["EMOJI"] = str(options.emoji.resolve())
    if collection in people.KINDS:
        if options.folder is None:
            raise SystemExit(f"`{collection}` needs `--folder`, see `benchmarks/people.py`.")
        os.environ["FOLDER"] = str(options.folder.resolve())
    todo = units(collection, options)
    with tempfile.TemporaryDirectory() as forgotten:
        curves = Path(forgotten) if collection == QUICK else options.curves
        curves.mkdir(parents=True, exist_ok=True)
        found = list(run_all(todo, curves, options.processes))
    rows = pd.DataFrame(itertools.chain.from_iterable(found))
    options.results.mkdir(parents=True, exist_ok=True)
    rows = rows.assign(epochs=todo[0].epochs).round(5)
    file = file_of(collection, options.results)
    rows.to_csv(file, index=False)
    return file


if __name__ == "__main__":
    main()
