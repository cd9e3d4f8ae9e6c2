"""The tables that are shipped, or the user's: read, cut into training and test samples, and the network for them."""

import itertools
import platform
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import torch
from torch import Tensor, nn

from bu_torch.comparison import tables as comparison

FOLDER = Path(__file__).parent
DATA = {file.name.partition(".csv")[0]: file for file in sorted((FOLDER / "data").rglob("*.csv*"))}
TABLES = tuple(name for name, file in DATA.items() if file.parent.name == "data")
UNSEEN = tuple(name for name, file in DATA.items() if file.parent.name == "unseen")
Split = comparison.Split


def read_table(table: str) -> Split:
    """A table that is shipped, or the user's file of that path."""
    return comparison.read_table(Path(DATA.get(table, table)))


def load(table: str, seed: int, noise: float = 0.0, most_samples: int = 2500) -> tuple[Split, Split, int]:
    """`prepare` of a table by its name or path."""
    return prepare(*read_table(table), seed, noise, most_samples)


def prepare(
    features: Tensor, labels: Tensor, seed: int, noise: float = 0.0, most_samples: int = 2500
) -> tuple[Split, Split, int]:
    """Training samples, of whose labels a share is drawn anew, test samples, and the number of classes.

    Features are standardised on the training samples, half of all and at most `most_samples`.
    """
    n_classes = int(labels.max()) + 1
    generator = torch.Generator().manual_seed(1000 + seed)
    order = torch.randperm(len(labels), generator=generator)
    half = len(labels) // 2
    train, test = order[: min(half, most_samples)], order[half:]
    mean, scale = features[train].mean(dim=0), features[train].std(dim=0)
    features = (features - mean) / torch.where(scale > 0, scale, 1.0)
    noisy = redraw(labels[train], n_classes, noise, generator)
    return (features[train], noisy), (features[test], labels[test]), n_classes


def redraw(labels: Tensor, n_classes: int, share: float, generator: torch.Generator) -> Tensor:
    """A copy of labels, of which about this share is drawn anew among all classes."""
    noisy = labels.clone()
    is_redrawn = torch.rand(len(noisy), generator=generator) < share
    noisy[is_redrawn] = torch.randint(0, n_classes, (int(is_redrawn.sum()),), generator=generator)
    return noisy


def mlp(*widths: int) -> Callable[[torch.Size, int], nn.Module]:
    def build(shape: torch.Size, n_classes: int) -> nn.Module:
        sizes = (shape.numel(), *widths)
        hidden = [layer for pair in itertools.pairwise(sizes) for layer in (nn.Linear(*pair), nn.ReLU())]
        return nn.Sequential(*hidden, nn.Linear(sizes[-1], n_classes))

    return build


def environment() -> dict[str, str]:
    packages = ("bu-torch", "torch", "lightning", "faiss-cpu", "scikit-learn")
    return {
        "machine": platform.machine(),
        "python": platform.python_version(),
        **{package: version(package) for package in packages},
    }
