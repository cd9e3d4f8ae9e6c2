"""Images and networks of `quality.py`, as users of images have them.

Small conv nets on Fashion-MNIST, with and without BatchNorm and dropout, with and without random crop and flip, a
network pretrained on five classes and fine-tuned on few images of the other five, the digits of scikit-learn, and
pictures in colour of up to 64 pixels.

Choices (how images are perturbed, in which space) were made on the kinds of `TUNING`; those of `UNSEEN` were listed
before any of them was run.

The grey images are the idx files of Fashion-MNIST, as the Debian package dataset-fashion-mnist installs them. Those in
colour are Google's Noto emoji (Apache License 2.0) in the npm package emoji-datasource-google (its data: MIT), which
`npm pack emoji-datasource-google@15.1.2` downloads. The classes are its categories. Left out are components and skin
tones, flags (of one outline), men and women where the same person is there without a sex, and what differs by less
than 0.1 (root mean square of the pixels, in [0, 1]) from an image before it: clocks, squares, moons. Without `--emoji`
the kinds of these images are left out.
"""

import dataclasses
import gzip
import io
import itertools
import json
import tarfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from sklearn.datasets import load_digits
from tables import Split
from torch import Tensor, nn
from torch.utils.data import Dataset

IMAGES = Path("/usr/share/datasets/fashion-mnist")
EMOJI = "emoji"  # the data of the kinds that need `--emoji`; behind it the side in pixels
LEAST_DISTANCE = 0.1  # between two emoji
N_TEST = 2000
SHIFT = 3  # pixels of the random crop
CROP = (0.08, 1.0)  # share of the image in a strong crop, as torchvision's and timm's references have it


@dataclasses.dataclass(frozen=True)
class Kind:
    """A training as users of images have it."""

    data: str
    n_images: int
    has_batch_norm: bool = False
    augmentation: str = ""  # a key of `AUGMENTATIONS`
    is_tuned: bool = False
    n_epochs_before: int = 4  # of the training before, where it is tuned


TUNING = {
    "conv": Kind("fashion", 1500),
    "augmented": Kind("fashion", 1500, augmentation="shift"),
    "tuned": Kind("fashion", 400, has_batch_norm=True, is_tuned=True),
    "emoji_64": Kind("emoji64", 800),
}
UNSEEN = {
    "batch_norm": Kind("fashion", 1500, has_batch_norm=True),
    "batch_norm_augmented": Kind("fashion", 1500, has_batch_norm=True, augmentation="shift"),
    "small": Kind("fashion", 500, has_batch_norm=True),
    "digits": Kind("digits", 800),
    "digits_augmented": Kind("digits", 800, has_batch_norm=True, augmentation="shift"),
    "emoji_32_augmented": Kind("emoji32", 800, has_batch_norm=True, augmentation="shift"),
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


class Strong(Augmented):
    """Each image cropped to between 8 % and all of it, flipped, and changed by RandAugment, anew each time."""

    def __init__(self, images: Tensor, labels: Tensor) -> None:
        from torchvision.transforms import v2

        super().__init__(images, labels)
        crop = v2.RandomResizedCrop(tuple(images.shape[2:]), CROP, antialias=True)
        self.change = v2.Compose([crop, v2.RandomHorizontalFlip(), self.recolour()])

    def recolour(self) -> nn.Module:
        from torchvision.transforms import v2

        return v2.RandAugment()

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        image = (255 * self.images[index]).round().to(torch.uint8)
        return self.change(image).float() / 255, self.labels[index]


class Jittered(Strong):
    """Each image cropped as strongly, flipped, and of other colours."""

    def recolour(self) -> nn.Module:
        from torchvision.transforms import v2

        return v2.ColorJitter(0.4, 0.4, 0.4, 0.1)


AUGMENTATIONS = {"shift": Augmented, "strong": Strong, "jitter": Jittered}


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


def prepare(name: str, seed: int, emoji: Path | None = None) -> tuple[Split, Split, nn.Module]:
    """Training and test samples of a kind, and the network as it is before training."""
    kind = KINDS[name]
    generator = torch.Generator().manual_seed(1000 + seed)
    images, labels = read(kind.data, emoji)
    torch.manual_seed(seed)
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
    return (images[train], labels[train]), (images[test], labels[test]), net


def pretrain(net: nn.Module, images: Tensor, labels: Tensor, n_epochs: int, generator: torch.Generator) -> None:
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    net.train()
    for _ in range(n_epochs):
        for rows in torch.randperm(len(labels), generator=generator).split(64):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(images[rows]), labels[rows]).backward()
            optimizer.step()


def there(kinds: list[str], emoji: Path | None) -> list[str]:
    """The kinds that have their images; says which have not."""
    absent = [kind for kind in kinds if KINDS[kind].data.startswith(EMOJI) and emoji is None]
    if absent:
        print(f"Left out for want of `--emoji`: {', '.join(absent)}.")
    return [kind for kind in kinds if kind not in absent]
