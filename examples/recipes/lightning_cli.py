"""`LightningCLI`: the callback from a YAML file, by its `class_path`.

Run `python examples/recipes/lightning_cli.py fit --config examples/recipes/lightning_cli.yaml`.
"""

import lightning as L
from lightning.pytorch.cli import LightningCLI
from shared_lightning import Classifier, loader
from torch.utils.data import DataLoader


class Moons(L.LightningDataModule):
    """The two moons; `train_dataloader` alone, for nothing is held out."""

    def train_dataloader(self) -> DataLoader:
        return loader()


def main(arguments: list[str] | None = None) -> LightningCLI:
    cli = LightningCLI(Classifier, Moons, args=arguments)
    stopping = cli.trainer.callbacks[0]
    print(f"{type(stopping).__name__}, patience {stopping.patience}: {stopping.stopping_reason}")
    return cli


if __name__ == "__main__":
    main()
