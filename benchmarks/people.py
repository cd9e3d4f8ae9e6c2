"""Labels that people or word lists gave, of `quality.py`: read from a folder of the user's, and not shipped.

- `people`: CIFAR-10N (Wei et al. 2022, arXiv 2110.12088), in `cifar10n.npz`: images `train` (n, 32, 32, 3) and `test`
  in bytes, `test_labels`, and of the training images the labels `clean`, `aggregate`, `random1` and `worst`.
- `distant`: news titles (Hedderich et al. 2020, arXiv 2010.03179) in the files `train.tsv`, `train_distant_labels.tsv`
  and `test.tsv` of a folder below, with the columns `news_title` and `label`; word lists gave the distant labels.
"""

import re
from collections.abc import Iterable
from pathlib import Path

import images
import numpy as np
import pandas as pd
import text
import torch
from tables import Split
from torch import Tensor, nn

KINDS = {
    "people": {
        "people": images.Kind("cifar10n", 1500),
        "people_augmented": images.Kind("cifar10n", 1500, augmentation="shift"),
    },
    "strong": {"strong": images.Kind("cifar10n", 1500, augmentation="strong")},
    "distant": {"distant": text.Kind("titles", 1500), "distant_conv": text.Kind("titles", 1500, "conv")},
}
NOISES = {
    "people": ("none", "aggregate", "random1", "worst"),
    "strong": ("none", "random1", "worst"),
    "distant": ("none", "distant"),
}


def prepare(collection: str, kind: str, noise: str, folder: Path, seed: int) -> tuple[Split, Split, nn.Module]:
    """Training samples with these labels, test samples with clean ones, and the network as it is before training."""
    generator = torch.Generator().manual_seed(1000 + seed)
    described = KINDS[collection][kind]
    if isinstance(described, images.Kind):
        (inputs, labels), test = read_images(folder / "cifar10n.npz", noise)
        rows = torch.randperm(len(labels), generator=generator)[: described.n_images]
        torch.manual_seed(seed)
        net: nn.Module = images.network(described, inputs.shape[1:], int(test[1].max()) + 1)
        return (inputs[rows], labels[rows]), test, net
    (titles, labels), (new, of_new) = read_titles(folder, noise)
    rows = torch.randperm(len(labels), generator=generator)[: described.n_texts]
    chosen = [titles[row] for row in rows.tolist()]
    ids = text.vocabulary(chosen)
    torch.manual_seed(seed)
    net = text.network(described, ids, int(of_new.max()) + 1)
    return (text.encode(chosen, ids), labels[rows]), (text.encode(new, ids), of_new), net


def read_images(file: Path, noise: str) -> tuple[Split, Split]:
    with np.load(file) as content:
        train, test = (torch.from_numpy(content[name]).movedim(3, 1) / 255 for name in ("train", "test"))
        labels, of_test = content["clean" if noise == "none" else noise], content["test_labels"]
    return (train, torch.from_numpy(labels).long()), (test, torch.from_numpy(of_test).long())


def read_titles(
    folder: Path, noise: str
) -> tuple[tuple[list[tuple[str, ...]], Tensor], tuple[list[tuple[str, ...]], Tensor]]:
    (file,) = folder.rglob("train_distant_labels.tsv")
    names = ("train.tsv" if noise == "none" else file.name, "test.tsv")
    train, test = (pd.read_csv(file.parent / name, sep="\t").dropna() for name in names)
    classes = sorted(test.label.unique())
    train = train[train.label.isin(classes)]
    found = [
        (words(rows.news_title), torch.tensor([classes.index(one) for one in rows.label])) for rows in (train, test)
    ]
    return found[0], found[1]


def words(titles: Iterable[str]) -> list[tuple[str, ...]]:
    return [tuple(re.findall(r"\w+(?:['’]\w+)?", title.lower())[: text.LENGTH]) for title in titles]  # noqa: RUF001
