"""A greedy soup: the best checkpoints are averaged as long as the score of the average does not fall.

Run `python examples/recipes/model_soup.py`.
"""

import tempfile
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from bu_torch import Signals, load_checkpoint, rank_checkpoints

DEFAULT = "accuracy_uncertainty_trust"


def greedy_soup(folder: Path, module: nn.Module, inputs: Tensor, labels: Tensor, rule: str = DEFAULT) -> int:
    """Load the average of checkpoints of one run into `module`, and return how many are in it."""
    signals = Signals().fit(inputs, labels)
    ranking = rank_checkpoints(folder, module, (inputs, labels), signals=signals, rule=rule)
    soup, score, n_members = load_checkpoint(ranking.best.path).state_dict, ranking.best.score, 1
    for candidate in ranking[1:]:
        state, share = load_checkpoint(candidate.path).state_dict, 1 / (n_members + 1)
        mean = {name: one.lerp(state[name], share) for name, one in soup.items() if one.is_floating_point()}
        module.load_state_dict(soup | mean)  # integers, such as counts of batches, stay those of the best
        with torch.no_grad():
            trial = float(signals.measure(module(signals.perturbed_inputs)).values[rule])
        if trial >= score:
            soup, score, n_members = soup | mean, trial, n_members + 1
    module.load_state_dict(soup)
    return n_members


def error(model: nn.Module, inputs: Tensor, labels: Tensor) -> float:
    with torch.no_grad():
        return (model(inputs).argmax(dim=1) != labels).float().mean().item()


def main(epochs: int = 15) -> tuple[int, float, float]:
    inputs, labels = (torch.tensor(array) for array in load_digits(return_X_y=True))
    inputs, generator = inputs.float() / 16, torch.Generator().manual_seed(0)
    # A fifth of the 600 training labels are random.
    is_random = torch.rand(600, generator=generator) < 0.2
    training = inputs[:600], torch.where(is_random, torch.randint(10, (600,), generator=generator), labels[:600])
    test = inputs[600:], labels[600:]
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    with tempfile.TemporaryDirectory() as folder:
        for epoch in range(epochs):
            for rows in torch.randperm(600).split(50):
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(training[0][rows]), training[1][rows]).backward()
                optimizer.step()
            torch.save(model.state_dict(), f"{folder}/{epoch}.pt")
        last = error(model, *test)
        best = rank_checkpoints(folder, model, training).best
        model.load_state_dict(load_checkpoint(best.path).state_dict)
        alone, n_members = error(model, *test), greedy_soup(Path(folder), model, *training)
    averaged = error(model, *test)
    print(f"test error of the last epoch: {last:.3f}")
    print(f"test error of the best by its score: {alone:.3f} ({best.path.name})")
    print(f"test error of the average of {n_members}: {averaged:.3f}")
    return n_members, alone, averaged


if __name__ == "__main__":
    main()
