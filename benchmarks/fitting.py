"""Trainings through Lightning, as users of the callback have them: what the scripts that need it share."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning as L
import torch
from tables import Split
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset
from training import error

from bu_torch import BoundaryUncertaintyStopping
from bu_torch.internal.replica import copy_of

FORMAT = 3  # of curves that are kept, to be raised when they change
Record = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Case:
    """One training to judge rules on."""

    table: str
    noise: float
    seed: int
    setting: str
    epochs: int


class Classifier(L.LightningModule):
    """A network in training, and what a validation loop logs."""

    def __init__(self, net: nn.Module, optimizer: Callable[..., torch.optim.Optimizer]) -> None:
        super().__init__()
        self.net, self.optimizer = net, optimizer

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)

    def training_step(self, batch: Split, batch_idx: int) -> Tensor:
        loss = nn.functional.cross_entropy(self(batch[0]), batch[1])
        self.log("train_loss", loss, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch: Split, batch_idx: int) -> None:
        logits = self(batch[0])
        self.log("val_loss", nn.functional.cross_entropy(logits, batch[1]))
        self.log("val_accuracy", (logits.argmax(dim=1) == batch[1]).float().mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return self.optimizer(self.parameters())


class Curves(L.Callback):
    """Test error of the weights after each epoch; of their average too, or what is logged of held-out samples."""

    def __init__(self, test: Split, stopping: BoundaryUncertaintyStopping | None = None) -> None:
        self.test, self.stopping = test, stopping
        self.rows: list[dict[str, float]] = []
        self.kept: dict[str, Any] = {}

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        pl_module.eval()
        row = {"test_error": test_error(pl_module, self.test)}
        if self.stopping is None:
            row |= {name: float(trainer.callback_metrics[name]) for name in ("val_accuracy", "val_loss")}
        else:
            averaged = copy_of(pl_module, self.stopping.engine.average.values)
            row["averaged_test_error"] = test_error(averaged, self.test)
            self.kept["space"] = self.stopping.engine.fitted.signals.boundary.space_name_
        pl_module.train()
        self.rows.append(row)

    def columns(self) -> dict[str, list[float]]:
        return {name: [row[name] for row in self.rows] for name in self.rows[-1]}


@torch.no_grad()
def test_error(module: nn.Module, test: Split) -> float:
    device = next(module.parameters()).device
    return error(torch.cat([module(batch.to(device)).cpu() for batch in test[0].split(250)]), test[1])


def silent_trainer(max_epochs: int, callbacks: list[L.Callback], accelerator: str = "cpu") -> L.Trainer:
    """A trainer that leaves no files and prints nothing."""
    return L.Trainer(
        max_epochs=max_epochs,
        callbacks=callbacks,
        accelerator=accelerator,
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    )


def fit(
    module: nn.Module,
    split: Split,
    n_epochs: int,
    callbacks: list[L.Callback],
    held_out: Split | None = None,
    accelerator: str = "cpu",
    dataset: Callable[[Tensor, Tensor], Dataset[Any]] = TensorDataset,
) -> None:
    """Train in batches of 32, read from a `dataset` of the split, and validate on the samples that are held out."""
    loaders = [DataLoader(dataset(*split), batch_size=32, shuffle=True)]
    if held_out is not None:
        loaders.append(DataLoader(TensorDataset(*held_out), batch_size=len(held_out[1])))
    silent_trainer(n_epochs, callbacks, accelerator).fit(module, *loaders)


def train_part(case: Case, split: Split, train: Callable[..., Any]) -> Any:
    """What `train(split, held_out)` gives on 75 % of the labels, with the rest held out."""
    order = torch.randperm(len(split[1]), generator=torch.Generator().manual_seed(case.seed))
    kept, held = order.tensor_split([int(3 * len(order) / 4)])
    return train(split=(split[0][kept], split[1][kept]), held_out=(split[0][held], split[1][held]))


def recall(case: Case, folder: Path | None, run: Callable[[Case], Record], kind: str) -> Record:
    """What `run` gives, or its record where `folder` holds it already."""
    if folder is None:
        return run(case)
    file = folder / ("-".join([kind, f"v{FORMAT}", *(str(value) for value in dataclasses.astuple(case))]) + ".json")
    if file.exists():
        return json.loads(file.read_text())
    record = run(case)
    folder.mkdir(parents=True, exist_ok=True)
    part = file.with_suffix(".part")
    part.write_text(json.dumps(record))
    part.replace(file)
    return record
