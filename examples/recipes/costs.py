"""Stop by what errors cost: a table of customers, of whom one in seven leaves, and a price for each error.

Run `python examples/recipes/costs.py`.
"""

import tempfile

import lightning as L
import torch
from sklearn.datasets import make_classification
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from bu_torch import BoundaryUncertaintyStopping

# A row for each true class, a column for each prediction: an offer costs 10, and a customer who leaves without one 100.
COSTS = [[0.0, 10.0], [100.0, 10.0]]


class Churn(L.LightningModule):
    """A small network: does a customer leave?"""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.net(inputs)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        return nn.functional.cross_entropy(self(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=0.003)


def customers() -> tuple[Tensor, Tensor]:
    """6000 customers: what is known of each, and whether they left."""
    inputs, labels = make_classification(6000, 12, n_informative=6, weights=[0.86], flip_y=0.05, random_state=0)
    return torch.tensor(inputs, dtype=torch.float32), torch.tensor(labels)


def cost(module: Churn, inputs: Tensor, labels: Tensor, threshold: float) -> float:
    """Mean cost of a customer if all with a probability to leave of `threshold` or more get an offer."""
    with torch.no_grad():
        offers = (module(inputs).softmax(dim=1)[:, 1] >= threshold).long()
    return float(torch.tensor(COSTS)[labels, offers].mean())


def main(epochs: int = 100) -> dict[str, float]:
    inputs, labels = customers()
    training, test = (inputs[:2000], labels[:2000]), (inputs[2000:], labels[2000:])
    found = {}
    for name, settings in (("accuracy", {}), ("costs", {"metric": COSTS})):
        torch.manual_seed(0)
        module, stopping = Churn(), BoundaryUncertaintyStopping(**settings)
        with tempfile.TemporaryDirectory() as folder:
            trainer = L.Trainer(
                max_epochs=epochs,
                accelerator="cpu",
                default_root_dir=folder,
                callbacks=[stopping],
                logger=False,
                enable_progress_bar=False,
                enable_model_summary=False,
            )
            trainer.fit(module, DataLoader(TensorDataset(*training), batch_size=50, shuffle=True))
        threshold = stopping.summary.get("threshold", 0.1)  # above which the prices make an offer worth it
        for place in (0.5, threshold):
            found[name] = cost(module, *test, place)
            print(f"by {name}: epoch {stopping.best_epoch}, threshold {place:.3f}, a customer costs {found[name]:.2f}")
    found["nobody"], found["everybody"] = (cost(module, *test, threshold) for threshold in (1.1, 0.0))
    print(f"offers to nobody: {found['nobody']:.2f}, to everybody: {found['everybody']:.2f}")
    return found


if __name__ == "__main__":
    main()
