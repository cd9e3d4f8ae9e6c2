"""A benchmark with a standard test set and no validation split: what each habit keeps, and what it reports.

Landsat Satellite has 4435 training and 2000 test samples, fixed by its donors; none are set aside for validation. An
MLP of 128 and 64 units trains for 100 epochs. Each row of the table chooses an epoch in another way:

- the callback's rule, on all training samples;
- the least training loss, on all training samples, which is what a copied row as validation set comes to;
- the least loss on a hold-out set of a fifth of the training samples;
- the last epoch;
- the least *test* error: a figure that no new sample will repeat, since it is the least of a hundred.

    python examples/standard_split.py
    python examples/standard_split.py --noise 0.2   # a fifth of the training labels drawn anew
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import torch
from torch import Tensor, nn

from bu_torch import BoundaryUncertaintyStopper

LANDSAT = Path(__file__).parents[1] / "benchmarks" / "data" / "landsat.csv.gz"  # in the donors' order
N_TRAINING = 4435
PATIENCE = 20
ROWS = ("the callback's rule", "least training loss", "hold-out loss", "last epoch", "chosen on the test set")


def landsat() -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Training and test samples as the donors split them, standardised by the training samples."""
    table = pd.read_csv(LANDSAT)
    inputs = torch.tensor(table.drop(columns="label").to_numpy(), dtype=torch.float32)
    inputs = (inputs - inputs[:N_TRAINING].mean(dim=0)) / inputs[:N_TRAINING].std(dim=0)
    labels = torch.tensor(table["label"].to_numpy())
    return (inputs[:N_TRAINING], labels[:N_TRAINING]), (inputs[N_TRAINING:], labels[N_TRAINING:])


def with_noise(labels: Tensor, share: float, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    is_redrawn = torch.rand(len(labels), generator=generator) < share
    return torch.where(is_redrawn, torch.randint(int(labels.max()) + 1, labels.shape, generator=generator), labels)


def error(model: nn.Module, samples: tuple[Tensor, Tensor]) -> float:
    with torch.no_grad():
        return (model(samples[0]).argmax(dim=1) != samples[1]).float().mean().item()


def loss(model: nn.Module, samples: tuple[Tensor, Tensor]) -> float:
    with torch.no_grad():
        return nn.functional.cross_entropy(model(samples[0]), samples[1]).item()


def train(model: nn.Module, inputs: Tensor, labels: Tensor, epochs: int) -> Iterator[int]:
    """Train, and pause after each epoch."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(epochs):
        for rows in torch.randperm(len(inputs)).split(64):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs[rows]), labels[rows]).backward()
            optimizer.step()
        yield epoch


def new_model(seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(36, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 6))


def run(seed: int, noise: float, epochs: int, n_samples: int = N_TRAINING) -> dict[str, float]:
    """Test errors of what each habit keeps."""
    (inputs, labels), test = landsat()
    rows = torch.linspace(0, N_TRAINING - 1, n_samples).long()
    inputs, labels = inputs[rows], labels[rows]
    labels = with_noise(labels, noise, seed)

    model, losses, errors, is_over = new_model(seed), [], [], False
    stopper = BoundaryUncertaintyStopper(inputs, labels, patience=PATIENCE, seed=seed)
    for _ in train(model, inputs, labels, epochs):
        losses.append(loss(model, (inputs, labels)))
        errors.append(error(model, test))
        is_over = is_over or stopper.check(model)
    stopper.restore(model)

    # The last fifth is another part of the picture, so it is drawn at random.
    order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(seed))
    held_out, rest = order[: len(order) // 5], order[len(order) // 5 :]
    other, best, held_out_error, waited = new_model(seed), float("inf"), 1.0, 0
    for _ in train(other, inputs[rest], labels[rest], epochs):
        value = loss(other, (inputs[held_out], labels[held_out]))
        waited = 0 if value < best else waited + 1
        if value < best:
            best, held_out_error = value, error(other, test)
        if waited == PATIENCE:
            break
    values = (error(model, test), errors[losses.index(min(losses))], held_out_error, errors[-1], min(errors))
    return dict(zip(ROWS, values, strict=True))


def main(arguments: list[str] | None = None) -> pd.DataFrame:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--noise", type=float, default=0.0, help="share of the training labels that are drawn anew")
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--smoke", action="store_true", help="one seed, two epochs, 300 samples: does it run?")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)  # enough for a small network
    if options.smoke:
        runs = pd.DataFrame([run(0, options.noise, epochs=2, n_samples=300)])
    else:
        runs = pd.DataFrame([run(seed, options.noise, options.epochs) for seed in range(options.seeds)])
    table = pd.DataFrame({"test error": runs.mean(), "least": runs.min(), "largest": runs.max()})
    print(table.round(4).to_string())
    return table


if __name__ == "__main__":
    main()
