"""Stopping quality on images: which epoch does the default keep, beside a hold-out set and the last epoch?

As `quality.py`, by its rules, with networks and data as users of images have them: small conv nets on Fashion-MNIST,
with and without BatchNorm and dropout, with and without random crop and flip, a network pretrained on five classes and
fine-tuned on few images of the other five, the digits of scikit-learn, and pictures in colour of up to 64 pixels. Each
kind is trained with no and with 20 % label noise.

Choices (how images are perturbed, in which space) were made on the kinds of `TUNING`; those of `UNSEEN` were listed
before any of them was run.

    python benchmarks/images.py --quick
    python benchmarks/images.py
    python benchmarks/images.py --emoji emoji-datasource-google-15.1.2.tgz

The grey images are the idx files of Fashion-MNIST, as the Debian package dataset-fashion-mnist installs them. Those in
colour are Google's Noto emoji (Apache License 2.0) in the npm package emoji-datasource-google (its data: MIT), which
`npm pack emoji-datasource-google@15.1.2` downloads. The classes are its categories. Left out are components and skin
tones, flags (of one outline), men and women where the same person is there without a sex, and what differs by less
than 0.1 (root mean square of the pixels, in [0, 1]) from an image before it: clocks, squares, moons. Without `--emoji`
the kinds of these images are left out.
"""

import argparse
import copy
import dataclasses
import gzip
import io
import itertools
import json
import logging
import tarfile
import warnings
from collections.abc import Callable, Iterable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pandas as pd
import torch
from judging import Record, breakdown, judge, show, summarise
from PIL import Image
from quality import FOLDER, Case, Classifier, Curves, Split, environment, recall, silent_trainer, train_all
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.multiprocessing import get_context
from torch.utils.data import DataLoader, Dataset, TensorDataset

from bu_torch import BoundaryUncertaintyMonitor
from bu_torch.run.settings import AVERAGING

IMAGES = Path("/usr/share/datasets/fashion-mnist")
EMOJI = "emoji"  # the data of the kinds that need `--emoji`; behind it the side in pixels
LEAST_DISTANCE = 0.1  # between two emoji
N_TEST = 2000
SHIFT = 3  # pixels of the random crop
Prepare = Callable[[Case], tuple[Split, Split, nn.Module]]


@dataclasses.dataclass(frozen=True)
class Kind:
    """A training as users of images have it."""

    data: str
    n_images: int
    has_batch_norm: bool = False
    is_augmented: bool = False
    is_tuned: bool = False
    n_epochs_before: int = 4  # of the training before, where it is tuned


TUNING = {
    "conv": Kind("fashion", 1500),
    "augmented": Kind("fashion", 1500, is_augmented=True),
    "tuned": Kind("fashion", 400, has_batch_norm=True, is_tuned=True),
    "emoji_64": Kind("emoji64", 800),
}
UNSEEN = {
    "batch_norm": Kind("fashion", 1500, has_batch_norm=True),
    "batch_norm_augmented": Kind("fashion", 1500, has_batch_norm=True, is_augmented=True),
    "small": Kind("fashion", 500, has_batch_norm=True),
    "digits": Kind("digits", 800),
    "digits_augmented": Kind("digits", 800, has_batch_norm=True, is_augmented=True),
    "emoji_32_augmented": Kind("emoji32", 800, has_batch_norm=True, is_augmented=True),
    "emoji_tuned": Kind("emoji64", 300, has_batch_norm=True, is_tuned=True, n_epochs_before=15),
}
KINDS = TUNING | UNSEEN


@cache
def read(name: str, emoji: Path | None = None) -> Split:
    """All images in [0, 1], and their labels."""
    if name.startswith(EMOJI):
        if emoji is None:
            raise ValueError(f"`{name}` needs `--emoji`, the package emoji-datasource-google.")
        images, labels = read_emoji(emoji)
        return nn.functional.adaptive_avg_pool2d(images, int(name.removeprefix(EMOJI))), labels
    if name == "digits":
        digits = load_digits()
        return torch.tensor(digits.images[:, None] / 16, dtype=torch.float32), torch.tensor(digits.target)
    with (
        gzip.open(IMAGES / "train-images-idx3-ubyte.gz") as images,
        gzip.open(IMAGES / "train-labels-idx1-ubyte.gz") as labels,
    ):
        pixels = np.frombuffer(images.read(), np.uint8, offset=16).reshape(-1, 1, 28, 28)
        classes = np.frombuffer(labels.read(), np.uint8, offset=8)
    return torch.tensor(pixels / np.float32(255)), torch.tensor(classes.astype(np.int64))


@cache
def read_emoji(package: Path) -> Split:
    """Emoji of 64 pixels on white, no two nearly alike, and their categories: of the npm package, packed or not."""
    if package.is_dir():
        files = {str(file.relative_to(package)): file.read_bytes() for file in package.glob("img/google/64/*.png")}
        files["emoji.json"] = (package / "emoji.json").read_bytes()
    else:
        with tarfile.open(package) as packed:
            members = ((member.name.removeprefix("package/"), member) for member in packed if member.isfile())
            wanted = {name: member for name, member in members if name == "emoji.json" or "/google/64/" in name}
            files = {name: packed.extractfile(member).read() for name, member in wanted.items()}
    rows = sorted(json.loads(files["emoji.json"]), key=lambda row: row["sort_order"])
    known = {row["unified"] for row in rows}
    rows = [row for row in rows if is_taken(row, known)]
    images = torch.stack([on_white(files[f"img/google/64/{row['image']}"]) for row in rows])
    distances = torch.cdist(images.flatten(1), images.flatten(1)) / images[0].numel() ** 0.5
    kept: list[int] = []
    for place, to_others in enumerate(distances):
        if bool((to_others[kept] >= LEAST_DISTANCE).all()):
            kept.append(place)
    _, labels = np.unique([rows[place]["category"] for place in kept], return_inverse=True)
    return images[kept], torch.tensor(labels)


def is_taken(row: dict[str, Any], known: set[str]) -> bool:
    """Whether an emoji is an image of its own: no part of others, no flag, nobody's man or woman."""
    person, *rest = row["unified"].split("-")
    is_of_another = person in ("1F468", "1F469") and "-".join(["1F9D1", *rest]) in known
    is_sexed = "200D" in rest and rest[rest.index("200D") + 1] in ("2640", "2642")
    is_apart = row["category"] not in ("Component", "Flags")
    return row["has_img_google"] and is_apart and not (is_of_another or is_sexed)


def on_white(png: bytes) -> Tensor:
    pixels = torch.tensor(np.array(Image.open(io.BytesIO(png)).convert("RGBA")) / np.float32(255)).movedim(2, 0)
    return torch.lerp(torch.ones(()), pixels[:3], pixels[3:])


class Augmented(Dataset[tuple[Tensor, Tensor]]):
    """Each image shifted by up to three pixels (one of eight) and flipped, anew each time it is read."""

    def __init__(self, images: Tensor, labels: Tensor) -> None:
        self.images, self.labels = images, labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        image = self.images[index]
        size = image.shape[-1]
        reach = SHIFT if size > 8 else 1
        padded = nn.functional.pad(image, (reach,) * 4)
        row, column = torch.randint(2 * reach + 1, (2,)).tolist()
        image = padded[:, row : row + size, column : column + size]
        is_flipped = size > 8 and bool(torch.rand(()) < 0.5)
        return image.flip(2) if is_flipped else image, self.labels[index]


def network(kind: Kind, shape: torch.Size, n_classes: int) -> nn.Sequential:
    """Blocks that halve the sides, four at 64 pixels, three at 32 and two below, and two linear layers."""
    n_channels, size, _ = shape
    n_blocks = max(2, size.bit_length() - 3)
    widths = (8, 16, 32, 64) if n_blocks > 3 else (16, 32, 64)[:n_blocks]

    def block(n_in: int, n_out: int) -> list[nn.Module]:
        norm = [nn.BatchNorm2d(n_out)] if kind.has_batch_norm else []
        return [nn.Conv2d(n_in, n_out, 3, padding=1), *norm, nn.ReLU(), nn.MaxPool2d(2)]

    dropout = [nn.Dropout(0.3)] if kind.has_batch_norm else []
    n_features = widths[-1] * (size // 2**n_blocks) ** 2
    head = [nn.Flatten(), nn.Linear(n_features, 64), nn.ReLU(), *dropout, nn.Linear(64, n_classes)]
    blocks = [layer for pair in itertools.pairwise((n_channels, *widths)) for layer in block(*pair)]
    return nn.Sequential(*blocks, *head)


def prepare(case: Case, emoji: Path | None = None) -> tuple[Split, Split, nn.Module]:
    """Training samples with label noise, clean test samples, and the network as it is before training."""
    kind = KINDS[case.setting]
    generator = torch.Generator().manual_seed(1000 + case.seed)
    images, labels = read(kind.data, emoji)
    L.seed_everything(case.seed, verbose=False)
    n_classes = int(labels.max()) + 1
    if kind.is_tuned:
        first, second = torch.randperm(n_classes, generator=generator).chunk(2)
        old = torch.isin(labels, first).nonzero().squeeze(1)
        old = old[torch.randperm(len(old), generator=generator)[:6000]]
        net = network(kind, images.shape[1:], n_classes // 2)
        before = torch.searchsorted(first.sort().values, labels[old])
        pretrain(net, images[old], before, kind.n_epochs_before, generator)
        net[-1] = nn.Linear(64, n_classes // 2)
        new = torch.isin(labels, second)
        images, labels = images[new], torch.searchsorted(second.sort().values, labels[new])
        n_classes //= 2
    else:
        net = network(kind, images.shape[1:], n_classes)
    order = torch.randperm(len(labels), generator=generator)
    train, test = order[: kind.n_images], order[kind.n_images :][:N_TEST]
    noisy = labels[train].clone()
    is_redrawn = torch.rand(len(noisy), generator=generator) < case.noise
    noisy[is_redrawn] = torch.randint(0, n_classes, (int(is_redrawn.sum()),), generator=generator)
    return (images[train], noisy), (images[test], labels[test]), net


def pretrain(net: nn.Module, images: Tensor, labels: Tensor, n_epochs: int, generator: torch.Generator) -> None:
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    net.train()
    for _ in range(n_epochs):
        for rows in torch.randperm(len(labels), generator=generator).split(64):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(images[rows]), labels[rows]).backward()
            optimizer.step()


def train(
    case: Case,
    split: Split,
    test: Split,
    net: nn.Module,
    held_out: Split | None,
    watching: L.Callback | None = None,
    *,
    is_member: bool = False,
) -> Curves:
    """The curves of one Lightning training, watched by the shipped monitor where nothing else is given to judge by."""
    dataset = Augmented(*split) if KINDS[case.setting].is_augmented else TensorDataset(*split)
    return fit(case, dataset, split, test, net, held_out, watching, is_member=is_member)


def fit(
    case: Case,
    dataset: Dataset[tuple[Tensor, ...]],
    split: Split,
    test: Split,
    net: nn.Module,
    held_out: Split | None,
    watching: L.Callback | None = None,
    rate: float = 1e-3,
    *,
    is_member: bool = False,
    **settings: Any,
) -> Curves:
    """`train` on the samples that `dataset` gives, with this learning rate and these settings of the monitor."""
    L.seed_everything(case.seed, verbose=False)
    is_watched = held_out is None and watching is None
    monitor = None
    if is_watched:
        monitor = BoundaryUncertaintyMonitor(seed=case.seed, cache=None, averaging=AVERAGING, **settings)
    curves = Curves(test, split, monitor, case.setting, held_out, is_member=is_member)
    callbacks = [callback for callback in (monitor, watching, curves) if callback is not None]
    trainer = silent_trainer(case.epochs, callbacks)
    loaders = [DataLoader(dataset, batch_size=32, shuffle=True)]
    if held_out is not None:
        loaders.append(DataLoader(TensorDataset(*held_out), batch_size=len(held_out[1])))
    trainer.fit(Classifier(copy.deepcopy(net), partial(torch.optim.AdamW, lr=rate)), *loaders)
    return curves


def run(
    case: Case, prepare: Prepare = prepare, train: Callable[..., Curves] = train, *, has_bagging: bool = False
) -> Record:
    """Curves of all trainings of a case."""
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    split, test, net = prepare(case)
    return train_all(case, split, partial(train, case, test=test, net=net), has_bagging)


def there(kinds: list[str], emoji: Path | None) -> list[str]:
    """The kinds that have their images; says which have not."""
    absent = [kind for kind in kinds if KINDS[kind].data.startswith(EMOJI) and emoji is None]
    if absent:
        print(f"Left out for want of `--emoji`: {', '.join(absent)}.")
    return [kind for kind in kinds if kind not in absent]


def arguments_of(documentation: str | None, kinds: Iterable[str], name: str, quick: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=documentation, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help=quick)
    parser.add_argument("--kinds", nargs="+", default=list(kinds), choices=list(kinds))
    parser.add_argument("--noise", nargs="+", type=float, default=[0.0, 0.2])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--bagging", action="store_true", help="train three more networks a case, and average four")
    parser.add_argument("--name", default=name)
    parser.add_argument("--results", type=Path, default=FOLDER / "results")
    parser.add_argument("--curves", type=Path, help="keep all curves in this folder, and use again those it holds")
    return parser


def compare(
    options: argparse.Namespace,
    tables: Mapping[str, str],
    halves: Mapping[str, Iterable[str]],
    run: Callable[..., Record],
    kind: str,
) -> pd.DataFrame:
    """Run all cases of `options`, print how good each rule is, and write it to a file; the summary of all.

    Args:
        options: As `arguments_of` reads them.
        tables: The data of each kind.
        halves: Kinds by how they were chosen.
        run: Trains one case.
        kind: Begins the names of files of curves.
    """
    cases = [
        Case(tables[setting], noise, seed, setting, options.epochs)
        for seed, noise, setting in itertools.product(range(options.seeds), options.noise, options.kinds)
    ]
    kind = f"{kind}-bagging" if options.bagging else kind
    train_case = partial(run, has_bagging=options.bagging)
    with get_context("spawn").Pool(options.processes) as pool:
        records = list(pool.imap(partial(recall, folder=options.curves, run=train_case, kind=kind), cases))
    judged = judge(records)
    judged["table"] = judged["setting"]  # what is drawn anew for the intervals
    present = {name: judged[judged.setting.isin(list(kinds))] for name, kinds in halves.items()}
    summaries = {name: summarise(part) for name, part in (present | {"all": judged}).items() if len(part)}
    options.results.mkdir(parents=True, exist_ok=True)
    unsaid = ("results", "curves", "emoji")
    content = {
        "environment": environment(),
        "options": {key: str(value) for key, value in vars(options).items() if key not in unsaid},
        "summary": {name: json.loads(summary.to_json(orient="index")) for name, summary in summaries.items()},
        "breakdown": json.loads(breakdown(judged).to_json(orient="split")),
        "cases": json.loads(judged.to_json(orient="records")),
    }
    (options.results / f"{options.name}.json").write_text(json.dumps(content))
    for name, summary in summaries.items():
        print(f"{name}:")
        show(summary)
    show(summaries["all"], breakdown(judged))
    return summaries["all"]


def main(arguments: list[str] | None = None) -> pd.DataFrame:
    parser = arguments_of(__doc__, KINDS, "images", "digits alone, one seed, 15 epochs")
    parser.add_argument("--emoji", type=Path, help="the npm package emoji-datasource-google, packed or unpacked")
    options = parser.parse_args(arguments)
    if options.quick:
        options.name, options.kinds, options.seeds, options.epochs = "images-quick", ["digits"], 1, 15
    options.kinds = there(options.kinds, options.emoji)
    if not options.kinds:
        parser.error("no kind of `--kinds` has its images")
    tables = {name: kind.data for name, kind in KINDS.items()}
    given = partial(run, prepare=partial(prepare, emoji=options.emoji))
    return compare(options, tables, {"tuning": TUNING, "unseen": UNSEEN}, given, "images")


if __name__ == "__main__":
    main()
