"""`LightningCLI`: the callback from a YAML file, by its `class_path`.

Run `python examples/recipes/lightning_cli.py fit --config examples/recipes/lightning_cli.yaml`.
"""

import lightning as L
import torch
from lightning.pytorch.cli import LightningCLI
from sklearn.datasets import make_moons
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset


class Classifier(L.LightningModule):
    """A small network; nothing in it knows of bu-torch."""

    def __init__(self, lr: float = 0.01) -> None:
        super().__init__()
        self.lr = lr
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.net(inputs)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        return nn.functional.cross_entropy(self(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=self.lr)


class Moons(L.LightningDataModule):
    """Two moons, a tenth of the labels flipped; `train_dataloader` alone, since nothing is held out."""

    def train_dataloader(self) -> DataLoader:
        inputs, labels = make_moons(400, noise=0.25, random_state=0)
        labels[torch.rand(400, generator=torch.Generator().manual_seed(0)).numpy() < 0.1] ^= 1
        samples = TensorDataset(torch.tensor(inputs, dtype=torch.float32), torch.tensor(labels))
        return DataLoader(samples, batch_size=50, shuffle=True)


def main(arguments: list[str] | None = None) -> LightningCLI:
    cli = LightningCLI(Classifier, Moons, args=arguments)
    stopping = cli.trainer.callbacks[0]
    print(f"{type(stopping).__name__}, patience {stopping.patience}: {stopping.stopping_reason}")
    return cli


if __name__ == "__main__":
    main()
