"""Trainings that differ in data, module, settings and what stands beside: what holds of one must hold of all."""

import copy
import os
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import lightning.pytorch as pl
import loralib
import numpy as np
import pytest
import schedulefree
import sklearn  # noqa: F401  (which sets environment variables when it is first imported)
import torch
from lightning.pytorch.callbacks import (
    Callback,
    EarlyStopping,
    EMAWeightAveraging,
    LambdaCallback,
    ModelCheckpoint,
    ModelPruning,
    StochasticWeightAveraging,
)
from lightning.pytorch.loggers.logger import DummyLogger
from lightning.pytorch.utilities.compile import from_compiled
from problems import Classifier, Given, blobs, trainer, weights_of
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

from bu_torch import BoundaryUncertaintyStopper, BoundaryUncertaintyStopping

N_EPOCHS = 5
# The second check is the best, and the fourth ends the training, if settings do not say otherwise.
FEW = {"n_neighbors": 20, "n_draws": 2, "patience": 2, "rule": Given((0.5, 0.9, 0.8, 0.7))}


# Data.


def imbalanced():
    """One sample in ten is of the second class."""
    labels = (torch.arange(120) % 10 == 0).long()
    return blobs()[0] + 2 * labels.unsqueeze(1), labels


def images(n=120):
    """Bright on the left or on the right, in noise."""
    labels = torch.arange(n) % 2
    sides = (labels.view(n, 1, 1, 1) == (torch.arange(6) >= 3)).float().expand(n, 1, 6, 6)
    return sides + torch.randn(n, 1, 6, 6, generator=torch.Generator().manual_seed(0)), labels


def tokens(n=120):
    """Two subjects: tokens of the first half of the vocabulary mostly, or of the second."""
    g, labels = torch.Generator().manual_seed(0), torch.arange(n) % 2
    is_of_second = torch.rand(n, 12, generator=g) < 0.25 + 0.5 * labels.unsqueeze(1)
    return torch.randint(0, 30, (n, 12), generator=g) + 30 * is_of_second, labels


def halves():
    """Two tensors a sample."""
    features, labels = blobs()
    return features[:, :2], features[:, 2:], labels


class Resumable:
    """A loader of four batches that goes on in the middle of an epoch."""

    def __init__(self):
        self.samples, self.place = blobs(), 0

    def __len__(self):
        return 4

    def __iter__(self):
        while True:
            rows = range(self.place % 4, 120, 4)
            self.place += 1
            yield [part[rows] for part in self.samples]

    def state_dict(self):
        return {"place": self.place}

    def load_state_dict(self, state_dict):
        self.place = state_dict["place"]


# Modules.


class Model(pl.LightningModule):
    """A network, its loss and its optimiser."""

    def __init__(self, net, loss=None):
        super().__init__()
        self.net, self.loss = net, loss or nn.CrossEntropyLoss()

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        return self.loss(self(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.AdamW([one for one in self.parameters() if one.requires_grad], lr=0.05)


def perceptron(layer=nn.Linear, n_outputs=3, **options):
    return nn.Sequential(layer(4, 16, **options), nn.ReLU(), layer(16, n_outputs, **options))


def normed(n_outputs=3):
    return nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, n_outputs))


def conv():
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 2))


class Halves(Model):
    """Takes two tensors."""

    def forward(self, first, second):
        return self.net(torch.cat((first, second), dim=1))

    def training_step(self, batch, batch_idx):
        return self.loss(self(*batch[:2]), batch[2])


class OneLogit(Model):
    """Trains by its weights alone: neither it nor a part of it gets a batch."""

    def training_step(self, batch, batch_idx):
        hidden = nn.functional.linear(batch[0], self.net[0].weight, self.net[0].bias)
        return nn.functional.binary_cross_entropy_with_logits(self.net[1:](hidden).squeeze(1), batch[1].float())


class TwoOptimizers(Model):
    automatic_optimization = False

    def configure_optimizers(self):
        return [torch.optim.SGD(part.parameters(), lr=0.1) for part in (self.net[:2], self.net[2:])]

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        for one in self.optimizers():
            one.zero_grad()
        self.manual_backward(loss)
        for one in self.optimizers():
            one.step()


class ScheduleFree(Model):
    """Has an optimiser with modes."""

    def configure_optimizers(self):
        return schedulefree.AdamWScheduleFree(self.parameters(), lr=0.05)

    def on_train_epoch_start(self):
        self.optimizers().optimizer.train()


class Renormalised(nn.Module):
    """An embedding whose rows `forward` shortens; at first none is too long."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(60, 8, max_norm=1.0)
        nn.init.normal_(self.embedding.weight, std=0.1)
        self.last = nn.Linear(8, 2)

    def forward(self, x):
        return self.last(self.embedding(x).mean(dim=1))


class Noisy(Model):
    """Draws random numbers and changes buffers in the hook of a batch, and draws more in the step."""

    def __init__(self, net):
        super().__init__(net)
        self.register_buffer("mean", torch.zeros(4))

    def on_after_batch_transfer(self, batch, dataloader_idx):
        self.mean = 0.9 * self.mean + 0.1 * batch[0].mean(dim=0)
        return batch[0] + 0.1 * torch.randn_like(batch[0]) - self.mean, batch[1]

    def training_step(self, batch, batch_idx):
        return super().training_step((batch[0] + 0.1 * torch.randn_like(batch[0]), batch[1]), batch_idx)


class Jittered(TensorDataset):
    """Adds less than a half to each number, anew each time."""

    def __getitem__(self, i):
        features, label = super().__getitem__(i)
        return features + 0.8 * torch.rand(4) - 0.4, label


class Rounding(Model):
    """Trains on whole numbers, whatever noise is on them: a run that resumes is the run in one piece."""

    def training_step(self, batch, batch_idx):
        return super().training_step((batch[0].round(), batch[1]), batch_idx)


def whole_blobs():
    features, labels = blobs()
    return features.round(), labels


class Gate(Model):
    """Logs in `forward`, also past Lightning."""

    def forward(self, x):
        logits = self.net(x)
        self.log("spread", logits.std(), on_step=True, on_epoch=True)
        self.log_dict({"size": logits.abs().mean()}, on_step=False, on_epoch=True)
        self.logger.log_metrics({"direct": 1.0}, 0)
        return logits


class Validated(Model):
    """Has a validation loop, after which Lightning sets `training` and tells no module of it."""

    def val_dataloader(self):
        return DataLoader(TensorDataset(*blobs(seed=1)), 30)

    def validation_step(self, batch, batch_idx):
        self(batch[0])


class Swapped(nn.Module):
    """Evaluates with an average of its own, which `train` and `eval` exchange by place in memory."""

    def __init__(self):
        super().__init__()
        self.net = perceptron()
        self.average = [one.detach().clone() + 0.1 for one in self.net.parameters()]
        self.is_swapped = False

    def train(self, mode=True):
        super().train(mode)
        if mode == self.is_swapped:
            for one, other in zip(self.net.parameters(), self.average, strict=True):
                one.data, other.data = other.data, one.data
            self.is_swapped = not mode
        return self

    def forward(self, x):
        return self.net(x)


class Teacher(Model):
    """Follows its own weights in frozen ones, unseen by torch's version counter, and gives what both say."""

    def __init__(self, net):
        super().__init__(net)
        self.teacher = copy.deepcopy(net).requires_grad_(False)

    def forward(self, x):
        return self.net(x) + self.teacher(x)

    def on_train_epoch_end(self):
        for one, other in zip(self.teacher.parameters(), self.net.parameters(), strict=True):
            one.data.lerp_(other.data, 0.5)


class Spoiling(Model):
    """Freezes a layer after an epoch, changes it when all callbacks have had an epoch, and saves what it finds."""

    def on_train_epoch_start(self):
        self.net[0].requires_grad_(self.current_epoch < 1)

    def on_save_checkpoint(self, checkpoint):
        checkpoint["state_dict"] = weights_of(self)

    def on_train_epoch_end(self):
        self.net[0].bias.data += 1


def compiled():
    torch._dynamo.reset()
    model = Model(normed())
    model.net.compile(backend="eager")
    return model


def lazy():
    return Model(nn.Sequential(nn.LazyLinear(16), nn.LazyBatchNorm1d(), nn.ReLU(), nn.Dropout(0.3), nn.LazyLinear(3)))


class Counting(DummyLogger):
    """Counts what a module logs past Lightning."""

    n_direct = 0

    def log_metrics(self, metrics, *args, **kwargs):
        self.n_direct += "direct" in metrics


# Trainings.


@dataclass(frozen=True)
class Scenario:
    """One kind of training: its samples, its module, and options of the callback and of the trainer."""

    samples: Callable[[], tuple] = blobs
    module: Callable[[], pl.LightningModule] = lambda: Model(normed())
    settings: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    others: Callable[[], list[Callback]] = list
    dataset: Callable[..., Any] = TensorDataset
    loader: Callable[[], Any] | None = None  # in place of a loader of that dataset
    weights: Any = None  # by which a sampler draws
    resumes: bool = True  # to the bit; random numbers of a module are in no checkpoint
    loops: bool = True  # is the same training in a loop of one's own
    of_loss: dict[str, Any] = field(default_factory=dict)  # settings that its weights stand for
    is_measured_alone: bool = True  # by the samples and the settings, without what the module says of them

    def all_settings(self, **others):
        return copy.deepcopy({**FEW, **self.settings, **others})

    def stopping(self):
        return BoundaryUncertaintyStopping(**self.all_settings())

    def batches(self):
        if self.loader is not None:
            return self.loader()
        sampler = None
        if self.weights is not None:
            sampler = WeightedRandomSampler(self.weights, 120, generator=torch.Generator().manual_seed(0))
        return DataLoader(self.dataset(*self.samples()), batch_size=30, sampler=sampler)

    def stopper(self, **others):
        settings = {k: v for k, v in self.all_settings(**others).items() if not k.startswith("every_n_")}
        return BoundaryUncertaintyStopper(*self.samples(), sample_weight=self.weights, **settings, **self.of_loss)

    def train(self, folder, *callbacks, others_first=False, ckpt_path=None, **options):
        """Train from the same weights in the same order each time; what was seen, the module and the trainer.

        A run that goes on begins with another random state.
        """
        pl.seed_everything(3 if ckpt_path is None else 4, verbose=False)
        look, module = Look(), self.module()
        order = [*self.others(), *callbacks] if others_first else [*callbacks, *self.others()]
        made = trainer(folder, *order, look, **{"max_epochs": N_EPOCHS, **copy.deepcopy(self.options), **options})
        made.fit(module, self.batches(), ckpt_path=ckpt_path)
        return look.seen, module, made

    def loop(self):
        """Train as `train` does, without a trainer; the stopper and the module."""
        pl.seed_everything(3, verbose=False)
        module = self.module()
        optimizer = module.configure_optimizers()
        stopper, batches = self.stopper(), self.batches()
        for _ in range(N_EPOCHS):
            for batch in batches:
                optimizer.zero_grad()
                module.training_step(batch, 0).backward()
                optimizer.step()
            if stopper.check(module):
                break
        stopper.restore(module)
        return stopper, module


def global_state():
    """All switches of the process that a check could turn, and the random states."""
    return {
        "torch": torch.get_rng_state().tolist(),
        "python": random.getstate(),
        "numpy": [np.asarray(part).tolist() for part in np.random.get_state()],
        "gradient": torch.is_grad_enabled(),
        "inference": torch.is_inference_mode_enabled(),
        "autocast": torch.is_autocast_enabled("cpu"),
        "autocast dtype": torch.get_autocast_dtype("cpu"),
        "autocast cache": torch.is_autocast_cache_enabled(),
        "default dtype": torch.get_default_dtype(),
        "threads": (torch.get_num_threads(), torch.get_num_interop_threads()),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "deterministic, warns": torch.is_deterministic_algorithms_warn_only_enabled(),
        "cudnn": (torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic),
        "matmul": torch.get_float32_matmul_precision(),
        "anomalies": torch.is_anomaly_enabled(),
        "floating point": np.geterr(),
        "environment": {name: os.environ[name] for name in os.environ if name != "PYTEST_CURRENT_TEST"},
    }


class Look(Callback):
    """Remembers what training has at the end of each epoch: weights, modes, random states, hooks and what is logged."""

    def __init__(self):
        self.seen = []

    def on_train_epoch_end(self, trainer, pl_module):
        self.seen.append(
            {
                "weights": weights_of(pl_module),
                "modes": [part.training for part in pl_module.modules()],
                "optimisers": [one.param_groups[0].get("train_mode") for one in trainer.optimizers],
                "process": global_state(),
                "hooks": sum(len(part._forward_pre_hooks) for part in pl_module.modules()),
                "logged": {name: float(value) for name, value in trainer.callback_metrics.items()},
                "direct": [getattr(one, "n_direct", None) for one in trainer.loggers],
                "own": ["log" in vars(pl_module), *(type(one) for one in trainer.loggers)],
            }
        )


@dataclass
class Case:
    """The trainings of a scenario, each made when it is first asked for."""

    scenario: Scenario
    folder: Any

    @cached_property
    def plain(self):
        return self.scenario.train(self.folder / "plain", **NO_FILES)

    @cached_property
    def whole(self):
        stopping = self.scenario.stopping()
        return stopping, *self.scenario.train(self.folder / "whole", stopping)

    @cached_property
    def killed(self):
        return self.killed_in(3)

    def killed_in(self, epoch):
        """End a training within an epoch; its callback, and the user's last checkpoint."""

        def kill(trainer, pl_module, batch, batch_idx):
            if (trainer.current_epoch, batch_idx) == (epoch, 1):
                raise RuntimeError("killed")

        folder, stopping = self.folder / f"killed in {epoch}", self.scenario.stopping()
        last = ModelCheckpoint(folder / "user")
        with pytest.raises(RuntimeError, match="killed"):
            self.scenario.train(folder, LambdaCallback(on_train_batch_start=kill), stopping, last)
        return stopping, last.best_model_path

    def resumed(self, path):
        stopping = self.scenario.stopping()
        return stopping, *self.scenario.train(self.folder / "resumed", stopping, ckpt_path=path)


TRACELESS = {"resumes": False, "loops": False}
NO_LOOP, OF_MODULE = {"loops": False}, {"loops": False, "is_measured_alone": False}
NO_FILES, TOKENS = {"enable_checkpointing": False}, {"perturbation": "tokens"}
# The best check is amid the second epoch.
WITHIN = {"every_n_train_steps": 2, "patience": 20, "reference": blobs(), "rule": Given((0.1, 0.3, 0.9, 0.2))}
SCENARIOS = {
    "a table": Scenario(settings={"patience": 50, "rule": "accuracy_uncertainty_trust"}),
    "imbalanced": Scenario(imbalanced, lambda: Model(normed(2)), {"class_weight": "balanced"}),
    "a weighted sampler": Scenario(weights=1.0 + torch.arange(120.0), resumes=False),
    "images": Scenario(images, lambda: Model(conv()), **OF_MODULE),
    "images, as the network sees them": Scenario(
        images, lambda: Model(conv()), {"feature_extractor": "module"}, **OF_MODULE
    ),
    "images among patches": Scenario(images, lambda: Model(conv()), {"feature_extractor": "patches"}),
    "tokens": Scenario(tokens, lambda: Model(Renormalised()), TOKENS, **OF_MODULE),
    "tokens by their counts": Scenario(tokens, lambda: Model(Renormalised()), TOKENS | {"feature_extractor": "tokens"}),
    "one logit": Scenario(imbalanced, lambda: OneLogit(normed(1)), {"averaging": None}),
    "a rule that remembers": Scenario(settings={"rule": Given((0.1, 0.3, 0.2, 0.5, 0.4)), "averaging": None}),
    "a late start": Scenario(settings={"start_from_epoch": 1, "rule": "trust_score"}),
    "improvements of some size": Scenario(
        settings={"min_delta": 0.05, "averaging": 0.3, "rule": Given((0.5, 0.9, 0.93, 0.8))}
    ),
    "checks within epochs": Scenario(settings={"every_n_train_steps": 2, "patience": 20}, **TRACELESS),
    **{
        f"going on within an epoch, {kind.__name__}, averaging={averaging}": Scenario(
            module=lambda kind=kind: kind(perceptron()),
            settings=WITHIN | {"averaging": averaging},
            loader=Resumable,
            **OF_MODULE,
        )
        for kind in (Model, ScheduleFree)
        for averaging in (0.7, None)
    },
    "several tensors": Scenario(halves, lambda: Halves(normed()), **OF_MODULE),
    "another metric": Scenario(settings={"metric": "auroc", "patience": 50}),
    "costs": Scenario(settings={"metric": [[0, 1, 2], [1, 0, 5], [1, 1, 0]]}),
    "a space that labels teach": Scenario(settings={"feature_extractor": "metric"}),
    "as published": Scenario(settings={"rule": "parzen_uncertainty", "averaging": None, "max_samples": 10**9}),
    "two optimisers": Scenario(module=lambda: TwoOptimizers(normed()), **NO_LOOP),
    "gradients of two batches": Scenario(options={"accumulate_grad_batches": 2}, **NO_LOOP),
    "a weighted loss": Scenario(
        module=lambda: Model(normed(), nn.CrossEntropyLoss(torch.tensor([1.0, 4.0, 2.0]))),
        of_loss={"class_weight": [1.0, 4.0, 2.0]},
    ),
    "autocast": Scenario(options={"precision": "bf16-mixed"}, **OF_MODULE),
    "bfloat16": Scenario(options={"precision": "bf16-true"}, **OF_MODULE),
    "float64": Scenario(options={"precision": "64-true"}, **OF_MODULE),
    **{
        f"beside an average of Lightning's, {when}": Scenario(
            others=lambda how=how: [EMAWeightAveraging(decay=0.5, **how)],
            options={"enable_checkpointing": files},
            resumes=files,
            **NO_LOOP,
        )
        for when, files, how in (
            ("by steps", False, {}),
            ("by steps, late", True, {"update_starting_at_step": 6}),
            ("by epochs", False, {"update_every_n_steps": 0, "update_starting_at_epoch": 0}),
            ("by epochs, late", True, {"update_every_n_steps": 0, "update_starting_at_epoch": 1}),
        )
    },
    "beside an average of Lightning's, bfloat16": Scenario(
        others=lambda: [EMAWeightAveraging()], options=NO_FILES | {"precision": "bf16-true"}, resumes=False, **OF_MODULE
    ),
    "beside one that is put in at the end": Scenario(
        others=lambda: [StochasticWeightAveraging(swa_lrs=0.1, swa_epoch_start=2)], **TRACELESS
    ),
    "beside an early stopping": Scenario(
        others=lambda: [EarlyStopping("trust_score", mode="max", patience=9, strict=False)], **NO_LOOP
    ),
    "beside one that prunes, and makes that permanent at the end": Scenario(
        module=lambda: Validated(normed()),
        others=lambda: [ModelPruning("l1_unstructured", amount=0.2, prune_on_train_epoch_end=False)],
        **TRACELESS,
    ),
    "no files": Scenario(options=NO_FILES, resumes=False),
    "barebones": Scenario(options={"barebones": True}, resumes=False),
    "a schedule-free optimiser": Scenario(module=lambda: ScheduleFree(perceptron()), **NO_LOOP),
    "LoRA": Scenario(module=lambda: Model(perceptron(loralib.Linear, r=2))),
    "dropout": Scenario(module=Classifier, **TRACELESS),
    "noise in hook and step": Scenario(module=lambda: Noisy(normed()), resumes=False, **OF_MODULE),
    "augmented": Scenario(whole_blobs, lambda: Rounding(normed()), dataset=Jittered, **OF_MODULE),
    "compiled": Scenario(module=compiled, resumes=False, **OF_MODULE),
    "compiled as a whole": Scenario(
        module=lambda: from_compiled(torch.compile(Model(normed()), backend="eager")), **TRACELESS
    ),
    "weights that change after a check": Scenario(module=lambda: Spoiling(normed()), **NO_LOOP),
    "raw weights that change after a check": Scenario(
        module=lambda: Spoiling(normed()), settings={"averaging": None}, options=NO_FILES, **TRACELESS
    ),
}
# Modules that a look would change.
CHANGING = {
    "LoRA that stays merged after validation": lambda: Validated(perceptron(loralib.Linear, r=2)),
    "what it logs": lambda: Gate(perceptron()),
    "an average that is swapped in": lambda: Model(Swapped()),
    "an average that is swapped in, validated": lambda: Validated(Swapped()),
    "a teacher that follows": lambda: Teacher(perceptron()),
    "lazy layers": lazy,
}
SCENARIOS |= {
    name: Scenario(module=module, options={"logger": Counting()}, resumes=False, **OF_MODULE)
    for name, module in CHANGING.items()
}  # fmt: skip
