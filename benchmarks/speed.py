"""What a check costs: set-up and check by stage, beside a training epoch, a validation loop and other ways to the same.

All times are medians of repeats in one process, on random tables of Gaussian classes; ratios mean more than times.

    python benchmarks/speed.py --quick
    python benchmarks/speed.py
    python benchmarks/speed.py --parts large
    python benchmarks/speed.py --device cuda
"""

import argparse
import json
import logging
import tempfile
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import images
import lightning as L
import numpy as np
import pandas as pd
import tables
import torch
from fitting import silent_trainer
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from sklearn.neighbors import KDTree, NearestNeighbors
from torch import Tensor, nn
from torch.multiprocessing import get_context
from torch.utils.data import DataLoader, TensorDataset

from bu_torch import (
    BoundaryUncertaintyStopping,
    LabelRegression,
    LabelVotes,
    NeighborGraph,
    Signals,
    TrustScore,
    functional,
    perturb,
)
from bu_torch.functional.score import (
    boundary_weights,
    half_gap,
    top_two,
    uncertainty_along_boundary,
    uncertainty_between,
)
from bu_torch.internal.replica import copy_of
from bu_torch.run.settings import AVERAGING
from bu_torch.run.weights import WeightAverage

N_NEIGHBORS = 40
# N, d, J: growing samples, features and classes around the shape of the letter data
SIZES = (
    *((n, 16, 26) for n in (1_000, 5_000, 20_000, 100_000)),
    *((5_000, d, 10) for d in (64, 784)),
    *((20_000, 16, j) for j in (2, 100, 1_000)),
)
MANY = (1_000_000, 16, 26)  # for a check alone
WHOLE = ((5_000, 32, 10), (200_000, 32, 10))
OF_IMAGES = ((200, 64), (200, 128), (200, 224), (2000, 224))  # images and pixels a side
LARGE = (1_000_000, 64, 10, 10)
Training = tuple[Callable[[], nn.Module], tuple[Tensor, Tensor], int]  # network, samples, batch size
PARTS = ("setup", "check", "epoch", "whole", "texts", "beside", "process", "average", "others", "images", "large")
MOST_EPOCHS = 150  # what people would train for otherwise


def table(n_samples: int, n_features: int, n_classes: int, n_factors: int | None = None) -> tuple[Tensor, Tensor]:
    """Gaussian classes around random centres, which overlap a little; all features independent, or of a few factors."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(n_samples) % n_classes
    width = n_factors or n_features
    centres = 1.5 * torch.randn(n_classes, width, generator=generator)
    factors = centres[labels] + torch.randn(n_samples, width, generator=generator)
    if n_factors is None:
        return factors, labels
    noise = 0.05 * torch.randn(n_samples, n_features, generator=generator)
    return factors @ torch.randn(n_factors, n_features, generator=generator) + noise, labels


def mlp(n_features: int, n_classes: int) -> nn.Module:
    torch.manual_seed(0)
    return tables.mlp(128, 64)(torch.Size([n_features]), n_classes)


def median_ms(call: Callable[[], object], repeats: int) -> float:
    """Of `repeats` calls, and of as many more as half a second has room for."""
    call()
    times: list[float] = []
    while len(times) < repeats or sum(times) < 0.5:
        started = time.perf_counter()
        call()
        times.append(time.perf_counter() - started)
    return 1e3 * float(np.median(times))


@torch.no_grad()
def whole_check(device: str, n_samples: int, n_classes: int, repeats: int) -> dict[str, float]:
    """Milliseconds of U and trust of one draw on a device, and the rate at which it moves the least it has to move.

    That is, once each: the logits, the label probabilities, and the distance to each class.
    """
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(n_samples, n_classes, generator=generator).to(device)
    distances = torch.rand(n_samples, n_classes, generator=generator).to(device)
    probabilities = torch.rand(n_samples, n_classes, generator=generator).softmax(dim=1).to(device)

    def check() -> None:
        top = top_two(logits)
        local = uncertainty_between(probabilities, top)
        uncertainty_along_boundary(logits, local, boundary_weights(half_gap(logits, top)))
        scores = functional.trust_score(distances, top[:, 0])
        functional.mean_trust_score(scores).item()  # waits for the device

    n_bytes = 4 * n_samples * 3 * n_classes
    milliseconds = median_ms(check, repeats)
    row: dict[str, float] = {"N": n_samples, "J": n_classes, "U and trust, ms": milliseconds}
    return {**row, "least bytes, GB": n_bytes / 1e9, "GB/s": n_bytes / 1e6 / milliseconds}


def once(call: Callable[[], object]) -> tuple[float, object]:
    started = time.perf_counter()
    result = call()
    return time.perf_counter() - started, result


def peak_mib() -> float:
    """Of this process alone: `ru_maxrss` is never below what the process that started it held."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status["VmHWM"].split()[0]) / 1024


def setup_stages(n_samples: int, n_features: int, n_classes: int) -> dict[str, float]:
    """Seconds of each stage before the first epoch, for one draw."""
    features, labels = table(n_samples, n_features, n_classes)
    row: dict[str, float] = {"N": n_samples, "d": n_features, "J": n_classes}
    row["neighbours"], graph = once(lambda: NeighborGraph(N_NEIGHBORS).fit(features))
    row["perturbation"], moved = once(lambda: perturb(features, graph.nearest_distance))
    trust = TrustScore().fit(features, labels)
    row["class distances"], _ = once(lambda: trust.class_distances(moved, torch.arange(n_samples)))
    row["votes"], _ = once(lambda: LabelVotes().fit(labels, graph.neighbors))
    row["regression"], regression = once(lambda: LabelRegression().fit(features, labels))
    row["expected"], _ = once(lambda: regression.predict_proba(moved))
    return row


class SmallConvNet(L.LightningModule):
    """Two layers and a linear one, for images of any size."""

    def __init__(self) -> None:
        super().__init__()
        layers = (nn.Conv2d(3, 8, 3, 2), nn.ReLU(), nn.Conv2d(8, 16, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(4))
        self.layers = nn.Sequential(*layers, nn.Flatten(), nn.Linear(256, 4))

    def forward(self, images: Tensor) -> Tensor:
        return self.layers(images)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        return nn.functional.cross_entropy(self(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), 1e-3)


def of_images(n_images: int, side: int) -> dict[str, float]:
    """Seconds and memory of the default in three epochs of a small conv net, in a process of its own."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(4, (n_images,), generator=generator)
    coarse = 0.7 * torch.randn(n_images, 3, 8, 8, generator=generator)
    coarse += torch.randn(4, 3, 8, 8, generator=generator)[labels]
    data = TensorDataset(nn.functional.interpolate(coarse, size=side, mode="bilinear"), labels)
    row: dict[str, float] = {"images": n_images, "pixels a side": side, "MiB of data": data.tensors[0].nbytes / 2**20}
    stopping = BoundaryUncertaintyStopping()
    for name, callbacks in (("without", []), ("with", [stopping])):
        trainer = silent_trainer(max_epochs=3, callbacks=callbacks)
        before = peak_mib()
        row[f"{name}, s"], _ = once(lambda run=trainer: run.fit(SmallConvNet(), DataLoader(data, 32, shuffle=True)))
        row[f"{name}, MiB more"] = peak_mib() - before
    return row | {"prepared, s": stopping.setup_seconds, "checks, s": stopping.check_seconds}


@torch.no_grad()
def whole(n_samples: int, n_features: int, n_classes: int, n_factors: int | None = None) -> dict[str, float]:
    """Seconds and peak memory of a process that prepares everything for one draw, and measures a check."""
    row: dict[str, float] = {"N": n_samples, "d": n_features, "J": n_classes, "MiB of imports": peak_mib()}
    features, labels = table(n_samples, n_features, n_classes, n_factors)
    row["prepared, s"], signals = once(lambda: Signals(N_NEIGHBORS, n_draws=1).fit(features, labels))
    module = mlp(n_features, n_classes)
    logits = torch.cat([module(batch) for batch in signals.perturbed_inputs.split(8192)])
    row["a check, ms"] = median_ms(lambda: signals.measure(logits), 3)
    row["peak MiB"] = peak_mib()
    return row


@torch.no_grad()
def averaged(n_weights: int, n_layers: int) -> dict[str, float]:
    """Seconds and peak memory of a check's average of so many weights: to update it, and to copy the module with it."""
    size = round((n_weights / n_layers) ** 0.5)
    module = nn.Sequential(*(nn.Linear(size, size) for _ in range(n_layers)))
    average = WeightAverage(AVERAGING)
    weights = sum(parameter.numel() for parameter in module.parameters())
    row: dict[str, float] = {"weights": weights, "layers": n_layers, "MiB of them": 4 * weights / 2**20}
    before = peak_mib()
    row["first update, s"], _ = once(lambda: average.update(module))
    row["update, s"], _ = once(lambda: average.update(module))

    row["copy, s"], _ = once(lambda: copy_of(module, average.values))
    row["MiB more"] = peak_mib() - before
    return row


def in_a_process_of_its_own(call: Callable[..., dict[str, float]], *arguments: int) -> dict[str, float]:
    with get_context("spawn").Pool(1) as pool:
        return pool.apply(call, arguments)


@torch.no_grad()
def check_stages(n_samples: int, n_features: int, n_classes: int, repeats: int) -> dict[str, float]:
    """Milliseconds of each stage of a check of one draw."""
    features, labels = table(n_samples, n_features, n_classes)
    # What a check costs does not depend on who the neighbours are.
    neighbors = torch.randint(n_samples, (n_samples, N_NEIGHBORS), generator=torch.Generator().manual_seed(0))
    neighbors[:, 0] = torch.arange(n_samples)
    module = mlp(n_features, n_classes)
    logits = torch.cat([module(batch) for batch in features.split(8192)])
    distances = torch.rand(n_samples, n_classes)
    predictions, gap = logits.argmax(dim=1), half_gap(logits, top_two(logits))
    votes = functional.label_votes(labels, neighbors, 1.0, n_classes)

    def uncertainty() -> torch.Tensor:
        top = top_two(logits)
        local = uncertainty_between(votes, top)
        return uncertainty_along_boundary(logits, local, boundary_weights(half_gap(logits, top)))

    row: dict[str, float] = {"N": n_samples, "d": n_features, "J": n_classes}
    row["forward"] = median_ms(lambda: [module(batch) for batch in features.split(8192)], repeats)
    row["U"] = median_ms(uncertainty, repeats)
    row["of it: gap"] = median_ms(lambda: half_gap(logits, top_two(logits)), repeats)
    row["of it: ranks"] = median_ms(lambda: boundary_weights(gap), repeats)
    row["trust"] = median_ms(
        lambda: functional.mean_trust_score(functional.trust_score(distances, predictions)),
        repeats,
    )
    row["votes"] = median_ms(lambda: functional.expected_accuracy(votes, predictions), repeats)
    row["(U + trust) / forward"] = (row["U"] + row["trust"]) / row["forward"]
    return row


class Module(L.LightningModule):
    """A classifier in Lightning."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        return nn.functional.cross_entropy(self(batch[0]), batch[1])

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        self.log("val_loss", nn.functional.cross_entropy(self(batch[0]), batch[1]))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.RMSprop(self.parameters(), lr=1e-3)


class Clock(L.Callback):
    """Notes when each epoch begins, and when the last one has ended."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def on_train_epoch_start(self, *_: object) -> None:
        self.times.append(time.perf_counter())

    def on_train_end(self, *_: object) -> None:
        self.times.append(time.perf_counter())


def epoch_seconds(
    build: Callable[[], nn.Module],
    samples: tuple[Tensor, Tensor],
    epochs: int,
    device: str = "cpu",
    *,
    stopping: bool,
    held_out: bool,
) -> tuple[float, float, float]:
    """Median seconds of a Lightning epoch, mean of the checks in it, and seconds of what comes before the first."""
    torch.manual_seed(0)
    callback = BoundaryUncertaintyStopping(patience=10**6)
    n_train = int(0.75 * len(samples[1])) if held_out else len(samples[1])
    loaders = [DataLoader(TensorDataset(*(part[:n_train] for part in samples)), batch_size=128, shuffle=True)]
    if held_out:
        loaders.append(DataLoader(TensorDataset(*(part[n_train:] for part in samples)), batch_size=128))
    clock = Clock()
    trainer = silent_trainer(epochs, [clock, callback] if stopping else [clock], device)
    trainer.fit(Module(build()), *loaders)
    return float(np.median(np.diff(clock.times))), callback.check_seconds / epochs, callback.setup_seconds


def trainings(quick: bool) -> dict[str, tuple[Callable[[], nn.Module], tuple[Tensor, Tensor], int]]:
    n = 2_000 if quick else 20_000
    letter = tables.read_table("letter")
    letter = (letter[0][:n], letter[1][:n])
    slow = tables.mlp(2048, 2048)
    cases = {
        f"MLP 128-64, letter {n}": (lambda: mlp(16, 26), letter, 12),
        f"MLP 2048-2048, letter {n}": (lambda: slow(torch.Size([16]), 26), letter, 2),
    }
    if images.IMAGES.exists():
        count = 2_000 if quick else 60_000
        pixels, classes = images.read("fashion")
        cases[f"conv net, Fashion-MNIST {count}"] = (
            lambda: images.network(images.TUNING["conv"], pixels.shape[1:], 10),
            (pixels[:count], classes[:count]),
            2 if quick else 1,
        )
    return cases


def trainings_on_a_gpu(quick: bool) -> dict[str, tuple[Callable[[], nn.Module], tuple[Tensor, Tensor], int]]:
    """Those of letter, and of random images of 32 and of 224 pixels."""
    from torchvision.models import resnet18

    cases = {name: (build, samples, 6) for name, (build, samples, _) in trainings(quick).items() if "MLP 128" in name}
    for count, side in ((100, 32),) if quick else ((2_000, 32), (500, 224)):
        samples = random_images(count, side)
        cases[f"ResNet-18, {count} images of {side} pixels"] = partial(resnet18, num_classes=10), samples, 4
    return cases


def prepared_images(count: int, side: int, device: str) -> dict[str, float | str]:
    """Seconds of a preparation of images that lie on a device, beside a network there whose features are compared."""
    from torchvision.models import resnet18

    images, labels = random_images(count, side)
    signals = Signals(N_NEIGHBORS, n_draws=1, module=resnet18(num_classes=10).to(device))

    def prepare() -> float:
        return signals.fit(images.to(device), labels.to(device)).skill  # waits for the device

    prepare()
    return {"images": count, "pixels a side": side, "on": device, "prepared, s": once(prepare)[0]}


def random_images(count: int, side: int) -> tuple[Tensor, Tensor]:
    """Noise around a picture of each of ten classes."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(count) % 10
    coarse = torch.randn(10, 3, 8, 8, generator=generator)[labels]
    coarse += torch.randn(coarse.shape, generator=generator)
    return nn.functional.interpolate(coarse, size=side, mode="bilinear"), labels


def compare_trainings(quick: bool, device: str = "cpu") -> pd.DataFrame:
    """A Lightning epoch without the callback, with it, and with a validation loop on a quarter of the data."""
    rows = []
    for name, (build, samples, epochs) in (trainings if device == "cpu" else trainings_on_a_gpu)(quick).items():
        kinds = {"plain": (False, False), "ours": (True, False), "held": (False, True)}
        runs: dict[str, list[tuple[float, float, float]]] = {kind: [] for kind in kinds}
        for _ in range(1 if quick or device != "cpu" else 3):
            for kind, (stopping, held_out) in kinds.items():
                runs[kind].append(epoch_seconds(build, samples, epochs, device, stopping=stopping, held_out=held_out))
        plain, ours, held = (min(of_kind) for of_kind in runs.values())
        rows.append(
            {"training": name, "epoch, s": plain[0], "with the callback": ours[0] / plain[0],
             "checks / epoch": ours[1] / plain[0], "validating a quarter": held[0] / plain[0],
             "set-up, s": ours[2]}
        )  # fmt: skip
    return pd.DataFrame(rows).set_index("training")


def whole_trainings(quick: bool) -> pd.DataFrame:
    """Whole trainings of tables, and of images if they are there."""
    cases: dict[str, Training] = {}
    for name, n_samples, batch_size in (("spambase", 2_300, 128), ("spambase", 2_300, 32), ("letter", 10_000, 128)):
        features, labels = tables.read_table(name)
        rows = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))[: 500 if quick else n_samples]
        features, labels = features[rows], labels[rows]
        build = partial(mlp, features.shape[1], int(labels.max()) + 1)
        cases[f"{name}, {len(labels)} samples, batches of {batch_size}"] = build, (features, labels), batch_size
    if images.IMAGES.exists() and not quick:
        pixels, classes = images.read("fashion")
        build = partial(images.network, images.TUNING["conv"], pixels.shape[1:], 10)
        cases["conv net, 3000 images, batches of 128"] = build, (pixels[:3_000], classes[:3_000]), 128
    return time_whole(cases, quick)


def whole_texts(quick: bool) -> pd.DataFrame:
    """The same of a small transformer on token ids, of which a few are more frequent in each of eight classes."""
    generator = torch.Generator().manual_seed(0)
    n_samples = 100 if quick else 500
    labels = torch.arange(n_samples) % 8
    ids = torch.randint(1, 1_000, (n_samples, 32), generator=generator)
    own = 100 * (1 + labels[:, None]) + torch.randint(20, ids.shape, generator=generator)
    ids = torch.where(torch.rand(ids.shape, generator=generator) < 0.15, own, ids)
    case = Encoder, (ids, labels), 32
    return time_whole({f"transformer, {n_samples} texts, batches of 32": case}, quick, perturbation="tokens")


class Encoder(nn.Module):
    """Two layers of a transformer, 64 wide; the mean of the last is classified."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(1_000, 64, padding_idx=0)
        layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(64, 8)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.layers(self.embedding(ids)).mean(dim=1))


def time_whole(cases: dict[str, Training], quick: bool, **options: Any) -> pd.DataFrame:
    """Preparation and checks of trainings that end by themselves, beside as many and all epochs without the callback.

    All write a log, and checkpoints: with the callback its best, without it Lightning's own of each epoch.
    """
    rows = []
    for name, (build, samples, batch_size) in cases.items():
        seconds: dict[str, list[float]] = {"with": [], "without": [], "all": []}
        costs: list[tuple[float, ...]] = []
        for _ in range(1 if quick else 3):
            callback = BoundaryUncertaintyStopping(**options)
            for kind in seconds:
                torch.manual_seed(0)
                with tempfile.TemporaryDirectory() as folder:
                    trainer = L.Trainer(
                        max_epochs=len(callback.history) if kind == "without" else 10 if quick else MOST_EPOCHS,
                        callbacks=[callback] if kind == "with" else [], accelerator="cpu",
                        logger=CSVLogger(folder), enable_progress_bar=False, enable_model_summary=False,
                    )  # fmt: skip
                    loader = DataLoader(TensorDataset(*samples), batch_size=batch_size, shuffle=True)
                    seconds[kind].append(once(partial(trainer.fit, Module(build()), loader))[0])
            costs.append((callback.setup_seconds, callback.check_seconds, callback.engine.record.saving_seconds))
        training = min(seconds["without"])
        preparation, checks, saving = min(costs, key=sum)
        rows.append(
            {"training": name, "epochs": len(callback.history), "training, s": training,
             "preparation, s": preparation, "checks, s": checks, "saving, s": saving,
             "preparation + checks": (preparation + checks) / training,
             "with / without": min(seconds["with"]) / training,
             f"with / {MOST_EPOCHS} epochs": min(seconds["with"]) / min(seconds["all"])}
        )  # fmt: skip
    return pd.DataFrame(rows)


class Validated(Module):
    """With a validation loop, as a hold-out set needs it."""

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        self.log("val_accuracy", (self(batch[0]).argmax(dim=1) == batch[1]).float().mean())


def beside_hold_out(quick: bool) -> pd.DataFrame:
    """Seconds to the network that is kept, and its test error, beside early stopping by the accuracy on 25 % held out.

    Both save the best epoch and wait for 20 epochs. Half of a table trains, at most 5000 samples.
    """
    rows = []
    for name, batch_size in (("letter", 128), ("spambase", 32), ("spambase", 128), ("landsat", 128)):
        (inputs, labels), test, n_classes = tables.load(name, 0, most_samples=300 if quick else 5_000)
        n_held = len(labels) // 4
        seconds: dict[str, list[float]] = {"ours": [], "hold-out": []}
        errors: dict[str, list[float]] = {"ours": [], "hold-out": []}
        for seed in range(1 if quick else 8):
            for kind in seconds:
                module = Validated(mlp(inputs.shape[1], n_classes))
                torch.manual_seed(seed)
                order = torch.randperm(len(labels)) if kind == "hold-out" else torch.arange(len(labels))
                own, held = (order[n_held:], order[:n_held]) if kind == "hold-out" else (order, order[:0])
                loaders = [DataLoader(TensorDataset(inputs[own], labels[own]), batch_size, shuffle=True)]
                stopping: list[L.Callback] = [BoundaryUncertaintyStopping(seed=seed)]
                if len(held):
                    loaders.append(DataLoader(TensorDataset(inputs[held], labels[held]), 1024))
                    watched = {"monitor": "val_accuracy", "mode": "max"}
                    stopping = [EarlyStopping(patience=20, **watched), ModelCheckpoint(**watched)]
                with tempfile.TemporaryDirectory() as folder:
                    trainer = L.Trainer(
                        max_epochs=5 if quick else MOST_EPOCHS, callbacks=stopping, accelerator="cpu",
                        logger=CSVLogger(folder), enable_progress_bar=False, enable_model_summary=False,
                        num_sanity_val_steps=0,
                    )  # fmt: skip
                    seconds[kind].append(once(partial(trainer.fit, module, *loaders))[0])
                    if kind == "hold-out":  # the other restores the kept weights itself
                        kept = torch.load(stopping[1].best_model_path, weights_only=True)
                        module.load_state_dict(kept["state_dict"])
                with torch.no_grad():
                    errors[kind].append(float((module(test[0]).argmax(dim=1) != test[1]).float().mean()))
        means = {kind: float(np.mean(values)) for kind, values in seconds.items()}
        rows.append(
            {"training": f"{name}, {len(labels)} samples, batches of {batch_size}", "ours, s": means["ours"],
             "hold-out, s": means["hold-out"], "ours / hold-out": means["ours"] / means["hold-out"],
             "error": float(np.mean(errors["ours"])), "hold-out, error": float(np.mean(errors["hold-out"]))}
        )  # fmt: skip
    return pd.DataFrame(rows)


def other_ways(n_samples: int, n_features: int, n_classes: int, repeats: int) -> dict[str, float]:
    """Trust from the cache beside a KD-tree per class asked again, and the neighbour search beside scikit-learn's."""
    features, labels = table(n_samples, n_features, n_classes)
    trust = TrustScore().fit(features, labels)
    distances = trust.class_distances(features)
    predictions = labels.roll(1)
    trees = [KDTree(features[labels == c].numpy()) for c in range(n_classes)]

    def ask_trees() -> Tensor:
        found = np.column_stack([tree.query(features.numpy(), k=1)[0][:, 0] for tree in trees])
        return functional.trust_score(torch.from_numpy(found), predictions)

    cached = median_ms(lambda: functional.trust_score(distances, predictions), repeats)
    row: dict[str, float] = {"N": n_samples, "d": n_features, "J": n_classes, "trust from the cache, ms": cached}
    row["KD-trees / cache"] = 1e3 * once(ask_trees)[0] / cached
    row["FAISS, s"] = once(lambda: NeighborGraph(N_NEIGHBORS).fit(features))[0]
    sklearn = NearestNeighbors(n_neighbors=N_NEIGHBORS, n_jobs=torch.get_num_threads())
    row["scikit-learn / FAISS"] = (
        once(lambda: sklearn.fit(features.numpy()).kneighbors(features.numpy()))[0] / row["FAISS, s"]
    )
    return row


def plot(setup: pd.DataFrame, checks: pd.DataFrame, path: Path) -> None:
    """Cost against N, both axes logarithmic."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    plt.style.use(Path(__file__).parents[1] / "docs" / "pictures.mplstyle")

    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    grown = setup[(setup.d == 16) & (setup.J == 26)].sort_values("N")
    for name in ("neighbours", "perturbation", "class distances", "votes", "regression", "expected"):
        style = "--" if name == "expected" else "-"  # there are six colours
        left.loglog(grown.N, grown[name].clip(lower=1e-4), marker="o", linestyle=style, label=name)
    left.set(xlabel="samples N", ylabel="seconds, once", title="Before the first epoch, d = 16, J = 26")
    grown = checks[(checks.d == 16) & (checks.J == 26)].sort_values("N")
    for name in ("forward", "U", "trust", "votes"):
        right.loglog(grown.N, grown[name], marker="o", label=name)
    right.set(xlabel="samples N", ylabel="ms a check and draw", title="Each check, MLP 128-64")
    for axis in (left, right):
        axis.legend(fontsize="small")
        axis.grid(which="both", linewidth=0.3)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes alone")
    parser.add_argument("--device", help="time a check of 1,000,000 samples and trainings there, and nothing else")
    parser.add_argument(
        "--parts",
        nargs="+",
        choices=PARTS,
        help="these alone, the rest of the results as it was; large, 1,000,000 samples, runs only where it is named",
    )
    parser.add_argument("--results", type=Path, default=tables.FOLDER / "results")
    options = parser.parse_args(arguments)
    warnings.filterwarnings("ignore")
    for name in ("lightning.pytorch", "bu_torch"):
        logging.getLogger(name).setLevel(logging.ERROR)
    sizes = tuple(size for size in SIZES if not options.quick or size[0] * size[1] <= 5_000 * 64)
    repeats = 3 if options.quick else 9
    wholes = WHOLE[:1] if options.quick else WHOLE
    others = [size for size in sizes if size[1] < 784 and size[2] <= 100]
    parts: dict[str, tuple[str, Callable[[], pd.DataFrame]]] = {
        "setup": (
            "Seconds before the first epoch, one draw",
            lambda: pd.DataFrame([setup_stages(*size) for size in sizes]),
        ),
        "check": (
            "Milliseconds a check, one draw",
            lambda: pd.DataFrame(
                [check_stages(*size, repeats) for size in (*sizes, *(() if options.quick else (MANY,)))]
            ),
        ),
        "epoch": ("A Lightning epoch", lambda: compare_trainings(options.quick).reset_index()),
        "whole": ("Whole trainings", lambda: whole_trainings(options.quick)),
        "texts": ("Whole trainings on texts", lambda: whole_texts(options.quick)),
        "beside": ("To the kept network, beside a hold-out set", lambda: beside_hold_out(options.quick)),
        "process": (
            "A process that prepares one draw and measures",
            lambda: pd.DataFrame([in_a_process_of_its_own(whole, *size) for size in wholes]),
        ),
        "average": (
            "The average of weights",
            lambda: pd.DataFrame(
                [in_a_process_of_its_own(averaged, 10**6 if options.quick else 10**8, n) for n in (1, 10)]
            ),
        ),
        "others": ("Other ways", lambda: pd.DataFrame([other_ways(*size, repeats) for size in others])),
        "images": (
            "The default on images, three epochs of a small conv net",
            lambda: pd.DataFrame([in_a_process_of_its_own(of_images, *size) for size in OF_IMAGES]),
        ),
        "large": (
            "The same of a million samples, of ten factors",
            lambda: pd.DataFrame([in_a_process_of_its_own(whole, *(WHOLE[0] if options.quick else LARGE))]),
        ),
    }
    if options.device:
        size = (20_000, 100) if options.quick else (1_000_000, 100)
        parts = {
            f"check on {options.device}": (
                "U and trust on the device",
                lambda: pd.DataFrame([whole_check(options.device, *size, 9)]),
            ),
            f"epoch on {options.device}": (
                "A Lightning epoch on the device",
                lambda: compare_trainings(options.quick, options.device).reset_index(),
            ),
            f"images on {options.device}": (
                "Preparation of images where they lie",
                lambda: pd.DataFrame(
                    [
                        prepared_images(*size, device)
                        for size in (((100, 32),) if options.quick else ((2_000, 32), (5_000, 32), (500, 224)))
                        for device in ("cpu", options.device)
                    ]
                ),
            ),
        }
    options.results.mkdir(parents=True, exist_ok=True)
    file = options.results / ("speed-quick.json" if options.quick else "speed.json")
    content = json.loads(file.read_text()) if file.exists() else {}
    environment = {**tables.environment(), "threads": str(torch.get_num_threads())}
    if torch.cuda.is_available():
        environment["gpu"] = torch.cuda.get_device_name()
    with pd.option_context("display.width", 200, "display.max_columns", None, "display.precision", 3):
        for name in options.parts or [name for name in parts if name != "large"]:
            title, measure = parts[name]
            rows = measure()
            print(title, rows.to_string(index=False, float_format="%.3g"), sep="\n", end="\n\n", flush=True)
            content[name] = {
                "title": title,
                "environment": environment,
                "rows": json.loads(rows.to_json(orient="records")),
            }
            file.write_text(json.dumps(content))
    print(environment)
    if {"setup", "check"} <= set(content):
        plot(*(pd.DataFrame(content[name]["rows"]) for name in ("setup", "check")), file.with_suffix(".png"))


if __name__ == "__main__":
    main()
