"""Ray Tune without validation data: each trial reports its checks, and Tune decides by them.

`expected_accuracy` is comparable between trials: each reads its network at the same moved samples.

    pip install "ray[tune]"
    python examples/recipes/ray_tune.py
"""

import tempfile
from typing import Any

import ray
import torch
from ray import tune
from sklearn.datasets import make_moons
from torch import nn

from bu_torch.integrations.ray import BoundaryUncertaintyTrialStopper


def train(config: dict[str, Any]) -> None:
    """A plain loop on 400 samples of two moons, a tenth of their labels flipped; Tune ends it."""
    from bu_torch import BoundaryUncertaintyStopper

    points, classes = make_moons(400, noise=0.25, random_state=0)
    inputs, labels = torch.tensor(points, dtype=torch.float32), torch.tensor(classes)
    labels[torch.rand(400, generator=torch.Generator().manual_seed(0)) < 0.1] ^= 1
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=config["lr"])
    stopper = BoundaryUncertaintyStopper(inputs, labels)
    for _ in range(config["epochs"]):
        for rows in torch.randperm(len(inputs)).split(50):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs[rows]), labels[rows]).backward()
            optimizer.step()
        stopper.check(model)
        tune.report(stopper.history[-1])


def main(epochs: int = 100, patience: int = 20) -> dict[str, Any]:
    stopper = BoundaryUncertaintyTrialStopper(patience=patience)
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
    with tempfile.TemporaryDirectory() as folder:
        results = tune.Tuner(
            train,
            param_space={"lr": tune.grid_search([1e-4, 1e-2]), "epochs": epochs},
            tune_config=tune.TuneConfig(metric="expected_accuracy", mode="max", reuse_actors=True),
            run_config=tune.RunConfig(stop=stopper, storage_path=folder, verbose=0),
        ).fit()
    ray.shutdown()
    kept = [(stopper.best_result(result.metrics["trial_id"]), result) for result in results]
    chosen = max(kept, key=lambda pair: pair[0]["expected_accuracy"])
    for check, result in kept:
        print(
            f"lr {result.config['lr']:.4f}: stopped in epoch {result.metrics['epoch']}, epoch {check['epoch']} is the"
            f" best, expected accuracy {check['expected_accuracy']:.3f}{' <- chosen' if check is chosen[0] else ''}"
        )
    return chosen[1].config


if __name__ == "__main__":
    main()
