"""Trainings in a plain loop, several networks at a time, and what each opponent needs of them.

All networks of a run have the same samples and a draw of labels each. An MLP is trained as a stack of MLPs, whose
matrices are multiplied together; the optimisers work on single numbers, so that each learns as it would alone.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from tables import Split
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from bu_torch import Rule, Signals
from bu_torch.functional.checks import mean_and_error
from bu_torch.internal.replica import copy_of
from bu_torch.rule.rules import STANDARD_ERROR
from bu_torch.run.engine import Engine
from bu_torch.run.history import accuracy_of_one_class
from bu_torch.run.prepare import TrainingData, plan_check
from bu_torch.run.settings import AVERAGING, Settings
from bu_torch.run.weights import WeightAverage
from bu_torch.samples.reading import READ_BATCH, read_loader
from bu_torch.samples.samples import Keys, choose_among, samples_of
from bu_torch.signals.measuring import contributions_to
from bu_torch.signals.metrics import METRICS

PATIENCE = 20  # epochs that a rule waits for a better one
LONG = 0.97  # weight of the past in the average of a fair last epoch
AVERAGE, LONG_AVERAGE = "averaged_", "long_"  # begin the names of what is read of averages
N_GRADIENTS = 5  # of gradient disparity
Columns = dict[str, list[float]]
Optimizer = Callable[..., torch.optim.Optimizer]


def first_largest(values: Iterable[float], patience: float = PATIENCE) -> tuple[int, int]:
    """The first largest value, waiting so many epochs for a larger one; and the last epoch looked at."""
    kept, epoch, values = 0, 0, list(values)
    for epoch, value in enumerate(values):
        if value > values[kept]:
            kept = epoch
        elif epoch - kept >= patience:
            break
    return kept, epoch


class Stack(nn.Module):
    """B multilayer perceptrons with ReLU, (B, n, d) -> (B, n, J), which begin alike as `nn.Sequential` begins them."""

    def __init__(self, sizes: tuple[int, ...], n_members: int) -> None:
        super().__init__()
        layers = [nn.Linear(*pair) for pair in itertools.pairwise(sizes)]
        self.weights = nn.ParameterList(layer.weight.detach().expand(n_members, -1, -1).clone() for layer in layers)
        self.biases = nn.ParameterList(layer.bias.detach().expand(n_members, -1).clone() for layer in layers)

    def forward(self, x: Tensor) -> Tensor:
        for layer, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            x = torch.baddbmm(bias.unsqueeze(1), x.relu() if layer else x, weight.transpose(1, 2))
        return x

    def member(self, number: int) -> Callable[[Tensor], Tensor]:
        """One of the networks, (n, d) -> (n, J)."""

        def forward(x: Tensor) -> Tensor:
            for layer, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
                x = nn.functional.linear(x.relu() if layer else x, weight[number], bias[number])
            return x

        return forward

    @property
    def n_operations(self) -> int:
        """Operations of a pass of one sample through one network, as a check counts them."""
        return 2 * sum(weight[0].numel() + weight.shape[1] for weight in self.weights)


class One(nn.Module):
    """Any network as a stack of one."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x.squeeze(0)).unsqueeze(0)

    def member(self, number: int) -> Callable[[Tensor], Tensor]:
        return self.net


@torch.no_grad()
def read(member: Callable[[Tensor], Tensor], inputs: Tensor) -> Tensor:
    """Logits of inputs, in batches."""
    n_rows = min(4096, max(1, 2**20 // inputs[0].numel()))
    return torch.cat([member(part) for part in inputs.split(n_rows)])


def error(logits: Tensor, labels: Tensor) -> float:
    return float((logits.argmax(dim=1) != labels).double().mean())


def by_class(logits: Tensor, labels: Tensor) -> dict[str, float]:
    """Error with classes that count alike, and recall of the class with the fewest samples."""
    counts = torch.bincount(labels).double()
    hits = torch.bincount(labels[logits.argmax(dim=1) == labels], minlength=len(counts))
    recalls = (hits / counts)[counts > 0]
    rarest = recalls[counts[counts > 0].argmin()]
    return {"test_balanced_error": 1 - float(recalls.mean()), "test_rarest_recall": float(rarest)}


def scaled_loss(logits: Tensor, labels: Tensor) -> float:
    """Cross-entropy after temperature scaling on the same samples: the least over temperatures of 1/30 to 30."""
    logits = logits.double()

    def losses(exponents: Tensor) -> Tensor:
        scaled = logits.unsqueeze(0) * exponents.exp().view(-1, 1, 1)
        return -scaled.log_softmax(dim=2)[:, torch.arange(len(labels)), labels].mean(dim=1)

    coarse = torch.linspace(-math.log(30), math.log(30), 15, dtype=torch.float64)
    best = coarse[losses(coarse).argmin()]
    fine = best + (coarse[1] - coarse[0]) * torch.linspace(-1, 1, 9, dtype=torch.float64)
    return float(losses(fine).min())


class Everything(Rule):
    """Reads all expected metrics, so that they are measured."""

    name = "everything"
    signals = ("expected_accuracy", *(metric.signal for metric in METRICS.values()))

    def score(self, values: Mapping[str, float]) -> float:
        return values["expected_accuracy"]


class Watched:
    """A training on all labels: what the shipped engine decides on, and the same of the weights themselves."""

    def __init__(
        self,
        samples: Split,
        nets: Stack | One,
        seed: int,
        module: nn.Module | None,
        dataset: Callable[[Tensor, Tensor], Dataset[Any]] | None = None,
        **settings: Any,
    ) -> None:
        inputs, labels = samples
        self.engine = Engine(Settings(averaging=None, seed=seed, **settings))
        whole, reader = samples_of(inputs, labels), self.engine.reader
        n_operations = nets.n_operations if isinstance(nets, Stack) else reader.operations_of(nets.net, whole)
        made = plan_check(self.engine.settings, whole, n_operations)
        if dataset is None:
            chosen = choose_among(inputs, labels, made.n_samples, seed=seed)
        else:
            loader = DataLoader(dataset(inputs, labels), READ_BATCH)
            chosen = read_loader(loader, made.n_samples, keys=Keys(), seed=seed, looks_for_augmentation=True)
        self.engine.prepare(lambda: TrainingData(chosen, made, module), inputs.device)
        self.signals: Signals = self.engine.fitted.signals
        self.perturbed = self.signals.perturbed_inputs
        boundary, most = self.signals.boundary, self.signals.attainable
        self.about = {  # the same at each check
            "skill": self.signals.skill,
            "alone": accuracy_of_one_class(boundary.probabilities_of_present, len(boundary.labels), boundary.weights)[
                1
            ],
            "n_measured": len(boundary.labels),
            **{f"most_{name}": float(value) for name, value in most._asdict().items()},
            **{
                f"alone_{name}": metric.baseline(self.signals.counting_once(2))
                for name, metric in METRICS.items()
                if metric.signal in self.signals.names
            },
        }
        self.before: Tensor | None = None
        self.best: tuple[float, Tensor | None] = (-math.inf, None)
        self.best_by_metric: dict[str, tuple[float, Tensor]] = {}

    def check(self, member: Callable[[Tensor], Tensor], epoch: int) -> dict[str, float]:
        """A check of averaged weights, by the engine."""
        values = self.engine.measure(read(member, self.perturbed))
        self.engine.add(epoch, values)
        return values | self._errors_of_metrics(values)

    def _errors_of_metrics(self, values: dict[str, float]) -> dict[str, float]:
        """Standard error of the gain in each metric that is measured, over its best value before."""
        found, measured = {}, self.engine.measured
        for metric in (one for one in METRICS.values() if one.signal in values and measured is not None):
            each = contributions_to(metric, measured._outputs, measured.values)
            best, before = self.best_by_metric.get(metric.name, (-math.inf, each))
            found[f"{metric.signal}_error"] = float(mean_and_error(each - before, None)[1])
            if (value := metric.sign * values[metric.signal]) > best:
                self.best_by_metric[metric.name] = value, each
        return found

    def look(self, member: Callable[[Tensor], Tensor]) -> dict[str, float]:
        """The same signals of the weights themselves."""
        accuracy, best = self.best
        measured = self.signals.measure(read(member, self.perturbed), self.before, best)
        self.before = measured.predictions
        values = {name: float(value) for name, value in measured.values.items()}
        if values["expected_accuracy"] > accuracy:
            self.best = values["expected_accuracy"], measured.contributions
        return values | {STANDARD_ERROR: float(measured.standard_error)}


def run(
    nets: Stack | One,
    optimizer: Optimizer,
    samples: tuple[Tensor, Tensor],
    test: Split,
    n_epochs: int,
    seed: int,
    *,
    watch: dict[str, Any] | None = None,
    held_out: tuple[Tensor, Tensor] | None = None,
    schedule: Callable[[torch.optim.Optimizer, int], Any] | None = None,
    augment: Callable[[Tensor], Tensor] | None = None,
) -> list[Columns]:
    """Train a network for each row of labels (B, N) on inputs (N, ...), in batches of 32; columns of each, by epoch.

    Args:
        nets: The networks, as they are before training.
        optimizer: Makes one of parameters.
        samples: Inputs and labels.
        test: Test samples.
        n_epochs: Number of epochs.
        seed: Of the order of the samples, and of checks.
        watch: Settings of the engine that checks, and the `dataset` of inputs and labels that it reads, if that is
            augmented; None for no checks.
        held_out: Inputs (n, ...) and labels (B, n) to validate on; None for none.
        schedule: Makes a schedule of learning rates, for an optimiser and a number of steps.
        augment: Changes the inputs of a batch.
    """
    inputs, labels = samples
    watched: list[Watched] = []
    if watch is not None:
        watched = [Watched((inputs, own), nets, seed, **{"module": None} | watch) for own in labels]
    torch.manual_seed(seed)
    steps = optimizer(nets.parameters())
    planned = schedule(steps, n_epochs * math.ceil(labels.shape[1] / 32)) if schedule else None
    averages = {AVERAGE: WeightAverage(AVERAGING), LONG_AVERAGE: WeightAverage(LONG)}
    curves: list[list[dict[str, float]]] = [[] for _ in labels]
    seen = torch.full_like(labels, -1)
    for epoch in range(n_epochs):
        switch("train", nets, steps)
        disparities = disparity(nets, inputs, labels, augment) if watched else []
        predicted = train_epoch(nets, steps, planned, inputs, labels, augment)
        changed, seen = (predicted != seen).double().mean(dim=1).tolist(), predicted
        switch("eval", nets, steps)
        for number, curve in enumerate(curves):
            curve.append(look(nets.member(number), test, held_out, number))
            if watched:
                curve[-1] |= {"changed_predictions": changed[number], "disparity": disparities[number]}
                curve[-1] |= watched[number].about | watched[number].look(nets.member(number))
        for prefix, average in averages.items():
            average.update(nets)
            averaged = copy_of(nets, average.values)
            for number, curve in enumerate(curves):
                row = look(averaged.member(number), test, held_out, number)
                if watched and prefix == AVERAGE:
                    row |= watched[number].check(averaged.member(number), epoch)
                curve[-1] |= {prefix + name: value for name, value in row.items()}
    return [{name: [row[name] for row in curve] for name in curve[-1]} for curve in curves]


def switch(mode: str, *parts: Any) -> None:
    """Call `train` or `eval` of networks, and of optimisers that have it."""
    for part in parts:
        getattr(part, mode, lambda: None)()


def train_epoch(
    nets: Stack | One,
    steps: torch.optim.Optimizer,
    planned: Any,
    inputs: Tensor,
    labels: Tensor,
    augment: Callable[[Tensor], Tensor] | None,
) -> Tensor:
    """Train for an epoch; the predictions (B, N) of each sample when it was trained on."""
    order = torch.stack([torch.randperm(labels.shape[1]) for _ in labels])
    predicted = torch.empty_like(labels)
    for batch in order.split(32, dim=1):
        logits, losses = losses_of(nets, inputs, labels, batch, augment)
        steps.zero_grad()
        losses.mean(dim=1).sum().backward()
        steps.step()
        if planned is not None:
            planned.step()
        predicted.scatter_(1, batch, logits.detach().argmax(dim=2))
    return predicted


def look(
    member: Callable[[Tensor], Tensor], test: Split, held_out: tuple[Tensor, Tensor] | None, number: int
) -> dict[str, float]:
    """Test error of a network, and what a validation loop would log."""
    logits = read(member, test[0])
    row = {"test_error": error(logits, test[1])} | by_class(logits, test[1]) | metrics_of(logits, test[1], "test_")
    if held_out is None:
        return row
    held = read(member, held_out[0])
    return row | validate(held, held_out[1][number]) | metrics_of(held, held_out[1][number], "val_")


def metrics_of(logits: Tensor, labels: Tensor, prefix: str) -> dict[str, float]:
    """All metrics that have a name, of two classes; larger is better, as losses are negated."""
    if logits.shape[1] != 2:
        return {}
    certain = nn.functional.one_hot(labels, 2).double()
    found = {name: float(metric.formula(logits, certain, None)) for name, metric in METRICS.items()}
    return {prefix + name: value if METRICS[name].is_larger_better else -value for name, value in found.items()}


def losses_of(
    nets: nn.Module, inputs: Tensor, labels: Tensor, batch: Tensor, augment: Callable[[Tensor], Tensor] | None
) -> tuple[Tensor, Tensor]:
    """Logits (B, n, J) and losses (B, n) of rows (B, n) of the samples, a batch for each network."""
    given = inputs[batch]
    logits = nets(given if augment is None else augment(given))
    wanted = labels.gather(1, batch)
    return logits, nn.functional.cross_entropy(logits.transpose(1, 2), wanted, reduction="none")


def validate(logits: Tensor, labels: Tensor) -> dict[str, float]:
    return {
        "val_accuracy": 1 - error(logits, labels),
        "val_loss": float(nn.functional.cross_entropy(logits, labels)),
        "val_scaled_loss": scaled_loss(logits, labels),
    }


def disparity(
    nets: Stack | One, inputs: Tensor, labels: Tensor, augment: Callable[[Tensor], Tensor] | None
) -> list[float]:
    """Gradient disparity of each network (Forouzesh and Thiran 2021): mean distance of gradients of five batches.

    The loss of a batch is divided by its standard deviation, of which no gradient is taken. Random numbers and buffers
    stay as they were.
    """
    n_members, n = labels.shape
    buffers = [(buffer, buffer.clone()) for buffer in nets.buffers()]
    gradients = []
    with torch.random.fork_rng(devices=[]):
        for batch in torch.randperm(n)[: 32 * N_GRADIENTS].split(32):
            _, losses = losses_of(nets, inputs, labels, batch.expand(n_members, -1), augment)
            scaled = losses.mean(dim=1) / losses.detach().std(dim=1).clamp(min=1e-12)
            found = torch.autograd.grad(scaled.sum(), [one for one in nets.parameters() if one.requires_grad])
            gradients.append(torch.cat([part.reshape(n_members, -1) for part in found], dim=1))
    for buffer, value in buffers:
        buffer.copy_(value)
    distances = [(first - second).norm(dim=1) for first, second in itertools.combinations(gradients, 2)]
    return torch.stack(distances).mean(dim=0).tolist()
