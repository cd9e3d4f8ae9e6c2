"""Ranking of checkpoints, as a table and as files."""

import csv
import json
import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from bu_torch.internal.inputs import check_integer
from bu_torch.internal.network import read_logits
from bu_torch.internal.output import printable, whole_file
from bu_torch.ranking.checkpoints import SUFFIXES, load_checkpoint, module_with_weights
from bu_torch.rule.rules import DEFAULT_RULE, Rule, RuleName, score_of
from bu_torch.run.settings import Settings
from bu_torch.samples.reading import read_samples
from bu_torch.samples.samples import LEFT_OUT, Samples
from bu_torch.signals.measuring import Signals, fingerprint_of, fit_or_on_cpu
from bu_torch.signals.metrics import as_metric

Paths = str | Path | Iterable[str | Path]
_OF_A_RUN = "prediction_changes"  # compares two checks of a run; a single checkpoint has none


class Candidate(NamedTuple):
    """One checkpoint of a `Ranking`."""

    rank: int  # 1 is the best
    name: str  # its path as given
    score: float  # by the rule, larger is better; NaN if its logits are not finite, which ranks last
    epoch: int | None  # in the file; None if there is none
    step: int | None  # optimiser steps in the file; None if there are none
    signals: dict[str, float]  # all that `Signals` measures of one network, such as `boundary_uncertainty`
    path: Path  # the file

    def as_record(self) -> dict[str, Any]:
        """Rank, epoch, step, score, all signals, and the name, which comes last because it may be long."""
        places = {"rank": self.rank, "epoch": self.epoch, "step": self.step, "score": self.score}
        return {**places, **self.signals, "name": self.name}


@dataclass(frozen=True)
class Ranking(Sequence[Candidate]):
    """Checkpoints in order, the best first; printed, it is a table. `rule` is the name of the one that ranked them."""

    rule: str
    candidates: tuple[Candidate, ...]

    @property
    def best(self) -> Candidate:
        """The first candidate."""
        return self.candidates[0]

    @property
    def paths(self) -> list[Path]:
        """Files in order."""
        return [candidate.path for candidate in self.candidates]

    def __getitem__(self, index: Any) -> Any:
        return self.candidates[index]

    def __len__(self) -> int:
        return len(self.candidates)

    def __str__(self) -> str:
        rows = [list(self.best.as_record()), *([*map(_shown, one.as_record().values())] for one in self.candidates)]
        *widths, _ = (max(map(len, column)) for column in zip(*rows, strict=True))
        lines = ("  ".join(map(str.rjust, row, (*widths, 0))) for row in rows)
        return "\n".join([f"{len(self)} candidates by {self.rule}, best first", *lines])

    def to_json(self, path: str | Path) -> None:
        """Write the rule and a record for each candidate; a number that is not finite is null. Folders are made."""
        records = json.dumps([one.as_record() for one in self.candidates])
        records = json.loads(records, parse_constant=lambda _: None)  # JSON has no NaN
        text = json.dumps({"rule": self.rule, "candidates": records}, indent=2, allow_nan=False)
        with whole_file(Path(path)) as part:
            part.write_text(text + "\n", encoding="utf-8")

    def to_csv(self, path: str | Path) -> None:
        """Write a header and a row for each candidate; folders are made, unprintable characters of names replaced."""
        with whole_file(Path(path)) as part, part.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(self.best.as_record()))
            writer.writeheader()
            writer.writerows(one.as_record() | {"name": printable(one.name)} for one in self.candidates)


def rank_checkpoints(
    paths: Paths,
    module: nn.Module | Callable[..., nn.Module],
    dataset: Any,
    *,
    rule: RuleName | Rule = DEFAULT_RULE,
    metric: Any = "accuracy",
    signals: Signals | None = None,
    weights_only: bool = True,
    batch_size: int = 4096,
    device: torch.device | str | None = None,
) -> Ranking:
    """Rank checkpoints by the measurements of the stopping callback, on the training samples alone.

    Each checkpoint costs one forward pass. Equal scores are ordered by epoch, the earliest first.

    Args:
        paths: Checkpoints as `load_checkpoint` reads them. A folder stands for the checkpoints directly in it
            (`*.ckpt`, `*.pt`, `*.pth`, `*.safetensors`). A file that is named twice counts once.
        module: Takes the weights of each checkpoint: a module, of which copies are made; a class, built from the
            hyperparameters in each checkpoint as by `load_from_checkpoint`; or a callable without arguments that
            returns a module.
        dataset: The training samples: a pair (inputs, labels) of tensors, arrays or pandas frames, a Dataset or
            DataLoader of (input, label), a LightningDataModule, or the result of `bu_torch.read_samples`. They are read
            once, in order, without those that a sampler leaves out. Turn augmentation off. Labels are integers from 0.
        rule: `"accuracy_uncertainty_trust"`, `"expected_accuracy"`, `"boundary_uncertainty"`, `"trust_score"`,
            `"parzen_uncertainty"`, or a `bu_torch.Rule` that does not read `prediction_changes`, which a single
            checkpoint does not have.
        metric: Metric of the score, as in the callback's `metric`.
        signals: Signals with other settings than `Signals()`; fitted here, unless they are already.
        weights_only: As in `load_checkpoint`.
        batch_size: Samples in a forward pass, >= 1.
        device: Device of a module that is built here; a module that is passed stays on its device.

    Returns:
        The ranking of all checkpoints.

    Raises:
        FileNotFoundError: If a file does not exist, or a folder holds no checkpoint.
        ValueError: If a file cannot be read (`load_checkpoint`) or does not fit the module, an argument is out of
            range, or the method cannot use the samples (`BoundaryUncertainty.fit`).
        TypeError: If `module` or `dataset` has another type.
    """
    settings, files = Settings(rule=rule, metric=metric), find_checkpoints(paths)
    decides = settings.deciding_rule
    signals = _checked(Signals(also=settings.also, metric=metric) if signals is None else signals, decides, metric)
    batch_size = check_integer("batch_size", batch_size, 1)
    fit_signals(signals, dataset)
    measured = []
    for file in files:
        checkpoint = load_checkpoint(file, weights_only=weights_only)
        values = _measured(signals, module_with_weights(module, checkpoint, device), str(file), batch_size)
        measured.append(
            Candidate(0, str(file), score_of(decides, values), checkpoint.epoch, checkpoint.step, values, file)
        )
    measured.sort(key=_order)
    if not math.isfinite(measured[0].score):
        warnings.warn("No candidate has a finite score, so their order means nothing.", stacklevel=2)
    return Ranking(decides.name, tuple(one._replace(rank=rank) for rank, one in enumerate(measured, 1)))


def find_checkpoints(paths: Paths) -> list[Path]:
    """Find the files named by `paths`, each once; a folder stands for the checkpoints in it, or its one model."""
    once: dict[Path, Path] = {}
    for path in [Path(paths)] if isinstance(paths, str | Path) else map(Path, paths):
        files = [path]
        if path.is_dir():  # one of Hugging Face's has the states of optimiser, scheduler and random numbers beside
            weights = [path / name for name in ("model.safetensors", "pytorch_model.bin")]
            files = [file for file in weights if file.is_file()][:1]
            files = files or sorted(file for file in path.iterdir() if file.suffix in SUFFIXES and file.is_file())
        if not files:
            raise FileNotFoundError(
                f"There is no checkpoint ({', '.join(SUFFIXES)}) directly in the folder `{path}`. Subfolders are not"
                " searched: name each one."
            )
        for file in files:
            if not file.is_file():
                raise FileNotFoundError(f"There is no checkpoint `{file}`.")
            once.setdefault(file.resolve(), file)
    if not once:
        raise ValueError("`paths` must hold at least one checkpoint, got none.")
    return list(once.values())


def _checked(signals: Signals, rule: Rule, metric: Any) -> Signals:
    """Signals that measure what a rule reads."""
    if _OF_A_RUN in rule.signals:
        raise ValueError(f"`rule` must not read {_OF_A_RUN}, which a checkpoint does not have, got {rule.name!r}.")
    if not isinstance(signals, Signals):
        raise TypeError(f"`signals` must be a bu_torch.Signals or None, got {type(signals).__name__}.")
    own, wanted = signals.metric, as_metric(metric)
    is_other = own.signal == wanted.signal and own != wanted
    if is_other or not set(rule.signals) <= set(signals.names):
        raise ValueError(f"`signals` must measure `metric={wanted}` and {rule.signals}: pass `Signals(also=...)`.")
    return signals


def _measured(signals: Signals, module: nn.Module, name: str, batch_size: int) -> dict[str, float]:
    """All signals of a network; NaN if its logits are not finite."""
    try:
        logits = read_logits(module, signals.boundary.perturbed, batch_size, check_finite=False, name=name)
        values, _ = signals.measure(logits.to(signals.boundary.labels.device))
    except (RuntimeError, ValueError) as error:
        raise ValueError(f"{name}: {error}") from error
    return {name: float(value) for name, value in values.items() if name != _OF_A_RUN}


def _order(one: Candidate) -> tuple[Any, ...]:
    """The largest score first; among equals the earliest, and one whose epoch or step is unknown last."""
    places = (math.inf if n is None else n for n in (one.epoch, one.step))
    return -one.score if math.isfinite(one.score) else math.inf, *places, one.name


def fit_signals(signals: Signals, dataset: Any) -> None:
    """Fit signals to the samples of a dataset; if fitted already, check the samples."""
    samples = dataset if isinstance(dataset, Samples) else read_samples(dataset, seed=signals.boundary.seed)
    if samples.packing is not None:
        raise ValueError(f"`dataset` must have one tensor of inputs a sample, got {samples.packing}.")
    inputs, labels = signals.boundary.as_samples(samples.inputs, samples.labels, "dataset")
    if samples.n_ignored:
        warnings.warn(LEFT_OUT.format(samples.n_ignored), stacklevel=3)
    if not hasattr(signals, "fingerprint"):
        fit_or_on_cpu(signals, inputs, labels, samples.weights)
    elif signals.fingerprint != fingerprint_of(signals.boundary, inputs, labels, samples.weights):
        raise ValueError("`signals` must be fitted on the samples of `dataset`, or not at all, got other samples.")


def _shown(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.4f}" if isinstance(value, float) else printable(value)
